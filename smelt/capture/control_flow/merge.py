"""Merges the state after both arms of a branch: each variable or item gets one value that represents both arms'
values.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from smelt.base.class_tables import isinstance
from smelt.capture._native import NULL
from smelt.capture.core.conditional_value import PhiValue, is_plain
from smelt.capture.core.frames import Frame
from smelt.capture.core.interface import Interpreter
from smelt.capture.python.snapshot import Content, Snapshot
from smelt.graph.ir.meta import meta_of
from smelt.graph.trace.trace import TraceTensor


class CannotMerge(Exception):
    """Raised if the two arms of a branch cannot become one node."""


class Arm:
    """One arm of a branch: the nodes that it added, and the variables, stack and returned value at its end.

    Attributes:
        changes: final contents of the objects that the arm changed, by object identity.
    """

    def __init__(self, nodes: list[fx.Node], f: Frame, changes: dict[int, Content]) -> None:
        self.nodes, self.changes = nodes, changes
        self.locals, self.stack, self.value = f.locals[:], f.stack[:], f.value


class Merge:
    """Merges the values after both arms. The first value of each pair is from the arm in which `condition` is true.

    Attributes:
        outputs: triples (tensor of the true arm or None, tensor of the false arm or None, merged tensor).
    """

    def __init__(self, vm: Interpreter, condition: TraceTensor, before: Snapshot) -> None:
        self.vm, self.condition, self.before = vm, condition, before
        self.outputs: list[tuple[TraceTensor | None, TraceTensor | None, TraceTensor]] = []
        self._known: dict[tuple[int, int], TraceTensor] = {}

    def __call__(self, a: Any, b: Any) -> Any:
        if a is b:
            return a
        kind = type(a)
        if kind is PhiValue or type(b) is PhiValue:
            return self._phi(a, b)
        if kind is TraceTensor and type(b) is TraceTensor:
            return self._tensor(a, b)
        return self._of_one_type(kind, a, b) if kind is type(b) else self._phi(a, b)

    def _of_one_type(self, kind: type, a: Any, b: Any) -> object:
        """The merged value of two values of the same type that are no tensors."""
        if is_plain(a) and a == b and repr(a) == repr(b):
            return a
        made = not self.before.existed(a) and not self.before.existed(b)
        if (kind is tuple or kind is list and made) and len(a) == len(b):
            return self._sequence(a, b)
        if kind is dict and made and list(a) == list(b):
            return self._dict(a, b)
        return self._phi(a, b)

    def _sequence(self, a: list[object] | tuple[object, ...], b: list[object] | tuple[object, ...]) -> object:
        """A tuple or list of the merged items; a phi value if an item becomes one."""
        items = [self(*pair) for pair in zip(a, b, strict=True)]
        if any(type(item) is PhiValue for item in items):
            return self._phi(a, b)
        return type(a)(items)

    def _dict(self, a: dict[object, object], b: dict[object, object]) -> object:
        """A dict of the merged values under keys in equal order; a phi value if a value becomes one."""
        values = [self(value, b[key]) for key, value in a.items()]
        if any(type(value) is PhiValue for value in values):
            return self._phi(a, b)
        return dict(zip(a, values, strict=True))

    def expression(self, a: object, b: object) -> object:
        """The merged value of two stack elements or returned values, which cannot be a phi value.

        Raises:
            CannotMerge: the merged value would be a phi value.
        """
        out = self(a, b)
        if type(out) is PhiValue:
            raise CannotMerge("an expression differs after them, and is not a tensor")
        return out

    def contents(self, key: int, true: Arm, false: Arm) -> Content:
        """The merged contents of an object that an arm changed."""
        value, before = self.before.contents[key]
        a, b = true.changes.get(key, before), false.changes.get(key, before)
        if [slot for slot in a if slot in b] != [slot for slot in b if slot in a]:
            raise CannotMerge(f"what a {type(value).__name__} holds is in another order after them")
        merged = {slot: self(a.get(slot, NULL), b.get(slot, NULL)) for slot in a | b}
        for (position, _), item in merged.items():
            if type(item) is PhiValue and position and not isinstance(value, dict):
                raise CannotMerge(f"what a {type(value).__name__} holds differs after them")
        return merged

    def _phi(self, a: object, b: object) -> PhiValue:
        self.vm.control.undecided = True
        tensors = [value for value in (a, b) if type(value) is TraceTensor]
        output = None
        if len(tensors) == 1:
            output = self._output(*(value if type(value) is TraceTensor else None for value in (a, b)))
        return PhiValue(self.condition, a, b, output, self.vm.step)

    def _tensor(self, a: TraceTensor, b: TraceTensor) -> TraceTensor:
        if meta_of(a) != meta_of(b):
            raise CannotMerge("a tensor has another shape, stride or dtype after them, or other gradients")
        return self._output(a, b)

    def _output(self, a: TraceTensor | None, b: TraceTensor | None) -> TraceTensor:
        """The merged tensor of two arms' tensors. Writes to it are refused: they would have to write to both."""
        key = (id(a), id(b))
        if key not in self._known:
            out = self._known[key] = self.vm.tensors.phi_tensor(self.condition, a, b)
            if meta_of(out) != meta_of(next(t for t in (a, b) if t is not None)):
                raise CannotMerge("a tensor with gaps or overlaps differs after them")
            self.outputs.append((a, b, out))
        return self._known[key]
