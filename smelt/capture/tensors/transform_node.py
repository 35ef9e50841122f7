"""Calls of `torch.func` transforms as graph nodes, which run PyTorch's transform on captured functions.

The interpreter has captured each function on tensors as the function sees them. The surrounding graph gets one node,
which passes the functions' graphs to PyTorch's own transform. The transform acts on operators, so stages that trace the
node see the batched or differentiated operators. Transforms nest: the graph of a function may contain such nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

Transform = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Type of functions that make a transformed function from a function."""


class Blank:
    """Placeholder for a value that is known only when the graph runs."""


BLANK = Blank()


def fill(leaves: Sequence[object], values: Sequence[object]) -> list[object]:
    """The leaves, with the values in place of the blanks."""
    operands = iter(values)
    return [next(operands) if leaf is BLANK else leaf for leaf in leaves]


class Body:
    """The graph of a function, callable with the function's arguments.

    Args:
        graph: the captured graph. Its inputs are the arguments that the transform makes, then the values from outside
            that the graph uses.
        new: positions of the arguments that the transform makes, among the flat arguments.
        outside: slice that selects, from the values from outside of the whole call, those that this graph uses.
        leaves: the flat result, with blanks for the graph's outputs.
        spec: the nesting of the result.
    """

    def __init__(
        self, graph: fx.GraphModule, new: Sequence[int], outside: slice, leaves: Sequence[object], spec: TreeSpec
    ) -> None:
        self.graph, self.new, self.outside, self.leaves, self.spec = graph, new, outside, leaves, spec

    def __call__(self, args: object, kwargs: object, outside: Sequence[object]) -> Any:
        operands = tree_flatten((args, kwargs))[0]
        results = self.graph(*(operands[i] for i in self.new), *outside[self.outside])
        return tree_unflatten(fill(self.leaves, results), self.spec)


class TransformCall:
    """The target of a graph node for a transformed call: (tensors among the arguments, values from outside) -> flat
    results.

    Args:
        name: name of the node in printed graphs.
        transform: makes the transformed function.
        leaves: the flat arguments, with blanks for the tensors.
        spec: the nesting of the arguments.

    Attributes:
        bodies: one captured function for each time that the transform calls it.
        result: the nesting of the node's result.
    """

    def __init__(self, name: str, transform: Transform, leaves: Sequence[object], spec: TreeSpec) -> None:
        self.transform, self.leaves, self.spec = transform, leaves, spec
        self.__name__ = self.__qualname__ = name
        self.__module__ = __name__
        self.bodies: list[Body] = []
        self.result: TreeSpec | None = None

    def __call__(self, operands: Sequence[object], outside: Sequence[object]) -> list[Any]:
        bodies = itertools.cycle(self.bodies)

        def function(*args: object, **kwargs: object) -> Any:
            return next(bodies)(args, kwargs, outside)

        return self.run(function, operands)

    def run(self, function: Callable[..., object], operands: Sequence[object]) -> list[Any]:
        """The flat results of the transformed `function`."""
        args, kwargs = tree_unflatten(fill(self.leaves, operands), self.spec)
        leaves, self.result = tree_flatten(self.transform(function)(*args, **kwargs))
        return leaves


class Pullback:
    """The pullback that `torch.func.vjp` returns; only the graph that made it can call it.

    Attributes:
        born: step of the capture that made the pullback.
    """

    def __init__(self, run: Callable[..., object]) -> None:
        self.run = run
        self.born = 0


class PullbackCall:
    """The target of a graph node for a call of a pullback: (pullback, tensors among the arguments) -> flat results.

    Attributes:
        born: step of the capture that made the pullback.
    """

    def __init__(self, leaves: Sequence[object], spec: TreeSpec, born: int) -> None:
        self.leaves, self.spec, self.born = leaves, spec, born
        self.__name__ = self.__qualname__ = "pullback"
        self.__module__ = __name__
        self.result: TreeSpec | None = None

    def __call__(self, pullback: Pullback, operands: Sequence[object]) -> list[Any]:
        args, kwargs = tree_unflatten(fill(self.leaves, operands), self.spec)
        leaves, self.result = tree_flatten(pullback.run(*args, **kwargs))
        return leaves


def vjp(function: Callable[..., Any]) -> Callable[..., object]:
    """`torch.func.vjp` as a transform: (result, pullback, ...) with the pullback as a value that graphs can pass on."""

    def run(*primals: Any, **options: Any) -> Any:
        out, pullback, *aux = torch.func.vjp(function, *primals, **options)
        return (out, Pullback(pullback), *aux)

    return run
