"""What the backward of a user's `torch.autograd.Function` reads of the program's objects, and whether it is as it was.

A call of such a function is one node; its backward runs when the graph is differentiated, at compile time. Eager runs
it while gradients are computed, and it reads what a global variable, a closure or an attribute holds by then. So a
compiled backward asks first. Where something was changed, the backward is traced again, once; from then on calls of the
class are no nodes: its backward runs by itself, as in eager. So it does where it writes to a tensor that others hold.
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

_unsteady: ByIdentity[type, bool] = ByIdentity()
"""Classes whose backward was seen to find something else than the graph was made for."""


def is_steady(cls: type) -> bool:
    """Nothing that the backward of a class reads was ever seen to change between forward and backward."""
    return cls not in _unsteady


_writing: ByIdentity[type, bool] = ByIdentity()
"""Classes whose backward was seen to write to a tensor that the caller of the graph holds."""


class WritingBackward(Unsupported):
    """A backward that writes to an input or a result of the graph, when it runs: no value of the graph's forward.

    Attributes:
        classes: the functions that do; empty where it is not known.
    """

    def __init__(self, classes: tuple[type, ...]) -> None:
        super().__init__("a backward that writes to an input or a result of the graph")
        self.classes = classes


class Writers:
    """The custom functions of a traced program whose backward writes, found while the engine runs.

    Args:
        heads: whose histories are run.
        versions: how often everything that the caller holds was written.
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
        """Take the hooks off: nodes of the engine hold them, and the collector does not see through nodes."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    @property
    def classes(self) -> tuple[type, ...]:
        """The functions that were found."""
        return tuple(self.found.values())

    def _begin(self, grads: object) -> None:
        self._before = self._versions()

    def _end(self, cls: type, made: object, given: object) -> None:
        if self._versions() != self._before:
            self.found[id(cls)] = cls


def writes_outside(cls: type) -> bool:
    """The backward of a class was seen to write to what others hold. It runs by itself, as in eager."""
    return cls in _writing


def has_functions(graph: fx.Graph) -> bool:
    """Some node is a call of a custom function."""
    return bool(_functions_of(graph))


def _functions_of(graph: fx.Graph) -> list[type]:
    classes = [getattr(node.target, "cls", None) for node in graph.nodes]
    return [c for c in classes if isinstance(c, type) and issubclass(c, torch.autograd.Function)]


def leave_out_writing(graph: fx.Graph, writing: tuple[type, ...]) -> frozenset[int]:
    """The graph's backward writes to what others hold: the functions that do (all where none is known to) are no nodes
    any more. Identities of those."""
    classes = _functions_of(graph)
    known = [cls for cls in classes if any(cls is each for each in writing)]
    found = [cls for cls in known or classes if cls not in _writing]
    for cls in found:
        _writing.put(cls, True)
    return frozenset(map(id, found))


class BackwardState:
    """What a captured backward has read.

    Args:
        cls: the class of the function.
        same: says whether the program's objects still hold what the backward read.
        same_before: the same of what the forward read.
    """

    def __init__(self, cls: type, same: Callable[[], bool], same_before: Callable[[], bool]) -> None:
        self.cls, self.same, self.same_before = cls, same, same_before

    def note_change(self) -> None:
        """From now on the class is captured otherwise."""
        _unsteady.put(self.cls, True)


def states_of(graph: fx.Graph) -> tuple[BackwardState, ...]:
    """Of each custom function that is a node of a torch-level graph and whose backward reads such things."""
    found = [state for state in map(_state_of, graph.nodes) if state is not None]
    if any(node.target in DERIVATIVES for node in graph.nodes):  # it has run some backward as well, which has read them
        found = [BackwardState(state.cls, state.same, lambda: False) for state in found]
    return tuple(found)


def forget_state(node: fx.Node) -> None:
    """The node is of a graph that runs the backward itself, and what it reads is what is there by then."""
    if _state_of(node) is not None:
        target: Any = node.target
        node.target = target.without_state()


def _state_of(node: fx.Node) -> BackwardState | None:
    state: Any = getattr(node.target, "state", None)
    return state if isinstance(state, BackwardState) else None
