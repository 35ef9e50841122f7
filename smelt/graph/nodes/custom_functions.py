"""Checks on objects that the backward of a user's `torch.autograd.Function` reads, and on the tensors that it writes.

A call of such a function is one node; its backward runs when the graph is differentiated, at compile time. Eager runs
it when gradients are computed, and it then reads the present value of a global variable, a closure or an attribute. So
a compiled backward checks these values before it runs. If one has changed, the backward is traced anew, once; after
that, calls of the class are no longer nodes, and its backward runs in eager. The same applies to a class whose backward
writes to a tensor outside of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import fx

from smelt.base.class_tables import ByIdentity
from smelt.base.errors import Unsupported
from smelt.graph.nodes.engine_nodes import history
from smelt.graph.nodes.gradients import DERIVATIVES

_changing: ByIdentity[type, bool] = ByIdentity()
"""Classes whose backward has read a value that had changed since the forward."""


def is_steady(cls: type) -> bool:
    """Whether the values that the backward of a class reads have never changed between a forward and its backward."""
    return cls not in _changing


_writing_outside: ByIdentity[type, bool] = ByIdentity()
"""Classes whose backward has written to a tensor that the caller of the graph keeps."""


class WritingBackward(Unsupported):
    """Raised for a backward that writes to an input or a result of the forward graph: in the backward graph the written
    tensor is not a value of the forward graph any more.

    Attributes:
        classes: the functions that do so; empty if they are not known.
    """

    def __init__(self, classes: tuple[type, ...]) -> None:
        super().__init__("a backward that writes to an input or a result of the graph")
        self.classes = classes


class Writers:
    """Finds the custom functions of a traced program whose backward writes, while the engine runs.

    Args:
        heads: the tensors whose histories are run.
        versions: function that returns the version counters of all tensors that the caller keeps.
    """

    def __init__(self, heads: Iterable[torch.Tensor], versions: Callable[[], list[int]]) -> None:
        self.found: dict[int, type] = {}
        self._versions, self._before = versions, versions()
        self._hooks: list[Any] = []
        for node in history(heads):
            cls = getattr(type(node), "_forward_cls", None)
            if cls is not None:
                self._hooks += node.register_prehook(self._begin), node.register_hook(partial(self._end, cls))

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the hooks: nodes of the engine refer to them, and the garbage collector cannot follow nodes."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @property
    def classes(self) -> tuple[type, ...]:
        """Returns the functions that were found."""
        return tuple(self.found.values())

    def _begin(self, grads: object) -> None:
        self._before = self._versions()

    def _end(self, cls: type, made: object, given: object) -> None:
        if self._versions() != self._before:
            self.found[id(cls)] = cls


def writes_outside(cls: type) -> bool:
    """Whether the backward of a class has written to tensors outside of the graph. Such a backward runs in eager."""
    return cls in _writing_outside


def has_functions(graph: fx.Graph) -> bool:
    """Whether a node is a call of a custom function."""
    return bool(_functions_of(graph))


def _functions_of(graph: fx.Graph) -> list[type]:
    classes = [getattr(node.target, "cls", None) for node in graph.nodes]
    return [c for c in classes if isinstance(c, type) and issubclass(c, torch.autograd.Function)]


def exclude_writing(graph: fx.Graph, writing: tuple[type, ...]) -> frozenset[int]:
    """Stop capturing calls of these functions as nodes, since their backward writes outside of the graph. If `writing`
    is empty (they are not known), this applies to all custom functions of the graph.

    Returns the identities of their classes.
    """
    classes = _functions_of(graph)
    known = [cls for cls in classes if any(cls is each for each in writing)]
    found = [cls for cls in known or classes if cls not in _writing_outside]
    for cls in found:
        _writing_outside.put(cls, True)
    return frozenset(map(id, found))


class BackwardState:
    """The values that a captured backward has read.

    Args:
        cls: the class of the function.
        same: function that returns whether the program's objects still have the values that the backward read.
        same_before: function that returns this for the values that the forward read.
    """

    def __init__(self, cls: type, same: Callable[[], bool], same_before: Callable[[], bool]) -> None:
        self.cls, self.same, self.same_before = cls, same, same_before

    def note_change(self) -> None:
        """Record that a value has changed; the class is no longer captured as one node with this state."""
        _changing.put(self.cls, True)


def states_of(graph: fx.Graph) -> tuple[BackwardState, ...]:
    """Returns the states of a torch-level graph's custom functions whose backward reads objects of the program."""
    found = [state for state in map(_state_of, graph.nodes) if state is not None]
    # the graph itself has run backwards, which have read the values
    if any(node.target in DERIVATIVES for node in graph.nodes):
        found = [BackwardState(state.cls, state.same, lambda: False) for state in found]
    return tuple(found)


def forget_state(node: fx.Node) -> None:
    """Drop the state of a node in a graph that runs the backward itself, which reads the present values."""
    if _state_of(node) is not None:
        target: Any = node.target
        node.target = target.without_state()


def _state_of(node: fx.Node) -> BackwardState | None:
    state: Any = getattr(node.target, "state", None)
    return state if isinstance(state, BackwardState) else None
