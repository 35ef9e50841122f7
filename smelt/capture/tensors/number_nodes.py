"""Symbolic numbers as arguments of graph nodes: maps each number to a node that computes it from the graph's inputs."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from smelt.base.class_tables import isinstance
from smelt.capture.core.interface import Args
from smelt.shapes.real import Real
from smelt.shapes.size import Division, Factor, Modulo, Size, as_symbol, key, of_factor

Append = Callable[[str, Any, tuple[Any, ...]], fx.Node]


class NumberNodes:
    """Maps each symbolic number to its node.

    Args:
        append: creates a node at the end of the graph.
        shown: returns the tensor method that gives the value of a symbol, with the method's arguments: a node, and for
            a size its dimension.
    """

    def __init__(self, append: Append, shown: Callable[[Any], tuple[str, tuple[object, ...]]]) -> None:
        self._append, self._shown = append, shown
        self._nodes: dict[str, fx.Node] = {}

    def add_input(self, number: Size | Real, node: fx.Node) -> None:
        """Note that the input `node` gives this number."""
        self._nodes[_key(number)] = node

    def known(self) -> dict[str, fx.Node]:
        """The present nodes, by the keys of their numbers."""
        return dict(self._nodes)

    def restore(self, known: dict[str, fx.Node]) -> None:
        """Forget the nodes that were added since `known`, which leave the graph. Inputs stay."""
        inputs = {key: node for key, node in self._nodes.items() if node.op == "placeholder"}
        self._nodes = inputs | known

    def __call__(self, number: object) -> object:
        """The node that computes a symbolic number; any other value unchanged."""
        if not isinstance(number, (Size, Real)):
            return number
        known = self._nodes.get(_key(number))
        if known is None:
            known = self._nodes[_key(number)] = self._size(number) if isinstance(number, Size) else self._real(number)
        return known

    def _size(self, size: Size) -> Any:
        symbol = as_symbol(size)
        if symbol is not None:
            return self._node("call_method", *self._shown(symbol), size)
        total: object = None
        for monomial, c in size.terms:
            product: object = None
            for factor in monomial:
                operand = self._factor(factor)
                product = operand if product is None else self._compute(operator.mul, product, operand)
            if product is None:
                product = c
            elif c != 1:
                product = self._compute(operator.mul, product, c)
            total = product if total is None else self._compute(operator.add, total, product)
        return total

    def _factor(self, factor: Factor) -> object:
        if not isinstance(factor, Division):
            return self(of_factor(factor))
        return self._compute(operator.mod if isinstance(factor, Modulo) else operator.floordiv, factor.of, factor.by)

    def _real(self, real: Real) -> fx.Node:
        if real.compute is None:
            return self._node("call_method", *self._shown(real), real)
        compute = _ON_SYMBOLS.get(real.compute, real.compute)
        return self._node("call_function", compute, tuple(map(self, real.args)), real)

    def _compute(self, compute: Callable[..., object], *operands: object) -> fx.Node:
        operands = tuple(map(self, operands))
        value = compute(*(o.meta["val"] if isinstance(o, fx.Node) else o for o in operands))
        return self._node("call_function", compute, operands, value)

    def _node(self, kind: str, target: object, args: Args, value: object) -> fx.Node:
        node = self._append(kind, target, args)
        node.meta["val"] = value
        return node


_ON_SYMBOLS: dict[object, Callable[..., object]] = {
    float: torch.sym_float,
    math.sqrt: torch.sym_sqrt,
    operator.pow: pow,
}
"""Functions that replace others as node targets. `pow` is replaced because fx prints the operator without parentheses:
`-2 ** n` means -(2 ** n).
"""


def _key(number: Size | Real) -> str:
    return key(number) if isinstance(number, Size) else number.key
