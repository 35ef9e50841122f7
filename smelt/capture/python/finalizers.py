"""Tracks objects that run code of the program when they die: objects with a `__del__`, generators in a `try`.

Python runs that code as soon as the last reference is gone, which the program can observe. Therefore an instruction of
the captured frame that drops the last reference to such an object runs in plain Python, between two graphs. Objects
that the capture itself would make and drop are handled earlier (`Interpreter.close_generators`, `objects.construct`),
so only objects that existed before the frame are tracked here.
"""

from __future__ import annotations

import gc
import itertools
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from smelt.base.class_tables import classes, isinstance
from smelt.capture import _native as native
from smelt.capture.core.breaks import Break
from smelt.capture.core.frames import Frame, Unread
from smelt.capture.core.generators import TracedGenerator
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.values import LEAVES
from smelt.graph.trace.trace import TraceTensor

_OPAQUE = (type, types.ModuleType, types.CodeType, TraceTensor)
_QUIET = classes(*LEAVES, TraceTensor)


class Finalizers:
    """The external objects with finalizers of one capture, and the values that refer to them.

    Args:
        vm: the capture.

    Attributes:
        owned: each such object, with the value of the variable or stack element from which it was found.
        allowed: whether an instruction of the captured frame may run in plain Python.
    """

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.owned: list[tuple[Any, Any]] = []
        self.allowed = True
        self._given: list[Unread] = []
        self._through: dict[int, list[object] | None] = {}

    def release(self) -> None:
        """Drop the references to the program's objects."""
        self.owned.clear()
        self._given.clear()
        self._through.clear()

    def begin(self, values: Iterable[object]) -> None:
        """Record the variables, stack elements and handled exceptions that exist when the frame starts."""
        for each in values:
            if type(each) is Unread:
                self._given.append(each)
                each = each.value
            self.add(each)

    def add(self, value: object) -> None:
        """Record an external object that the frame refers to, or may change."""
        if self.allowed and type(value) not in _QUIET:
            self.owned += [(found, value) for found in native.finalizers(value)]

    def exceptions(self) -> list[int]:
        """The slots and stack elements that were exceptions when the frame started."""
        given = (each for each in self._given if issubclass(type(each.value), BaseException))
        return [each.source.key for each in given if each.source.kind == native.LOCAL]

    def check(self) -> None:
        """Check, after an instruction, that no object with a finalizer became unreachable.

        Raises:
            Break: such an object became unreachable.
        """
        for value, by in self.owned:
            holder_suffices = value is by or not self.vm.effects.stores
            if holder_suffices and self._is_direct(by) or self._is_reachable(value):
                continue
            self.vm.work += 1
            raise Break(f"a {type(value).__name__} is dropped", "it does something then", silent=True)

    def refuse_loss(self, value: object) -> None:
        """Check a value that the frame is about to remove from an external object.

        Raises:
            Break: the value, or an object that it refers to, has a finalizer.
        """
        if self.allowed and type(value) not in _QUIET and native.finalizers(value):
            raise Break(f"a {type(value).__name__} is replaced", "it does something when it is dropped", silent=True)

    def guard(self, frame: Frame) -> None:
        """Guard that the objects which the frame dropped have no finalizer in later calls either."""
        kept = {id(each) for each in (*frame.locals, *frame.stack, *frame.handled)}
        for variable in self._given:
            if id(variable) not in kept and self._may_have(variable, kept):
                self.vm.guards.check(variable.source, native.NO_FINALIZER, None)
        for mirror in {id(each): each for each in self.vm.effects.mirrors.values()}.values():
            source = self.vm.sources.get(id(mirror.original))
            if source is not None and mirror.changed and any(map(_is_watchable, mirror.lost())):
                if not native.finalizers(mirror.original):
                    self.vm.guards.check(source, native.NO_FINALIZER, None)

    def _may_have(self, variable: Unread, kept: set[int]) -> bool:
        """Whether a later call may have an object with a finalizer in this variable, which has none at this call."""
        value = variable.value
        if value is native.NULL or type(value) in LEAVES or issubclass(type(value), torch.Tensor):
            return not self.vm.guards.has(variable.source)  # a value that was read is guarded
        return id(value) not in kept and not native.finalizers(value)

    def refers_to_finalizer(self, value: object) -> bool:
        """Whether a value is, or refers to, an object with a finalizer or an unexhausted generator."""
        with_finalizers = set(map(id, self.with_finalizers()))
        if not with_finalizers or type(value) in _QUIET:
            return False
        return any(id(each) in with_finalizers for each in self._reach([value]))

    def with_finalizers(self) -> list[object]:
        """The external objects with finalizers, and the generators that the program made and did not exhaust."""
        return [value for value, _ in self.owned] + [each for each in self.vm.python.generators if not each.done]

    def _is_direct(self, value: object) -> bool:
        """Whether a variable, stack element or handled exception still is the value, and the value has no mirror."""
        if id(value) in self.vm.effects.mirrors:
            return False
        for frame in self.vm.frames:
            for each in (*frame.locals, *frame.stack, *frame.handled):
                if each is value or type(each) is Unread and each.value is value:
                    return True
        return False

    def _is_reachable(self, value: object) -> bool:
        """Whether the value is reachable from a root. This runs after each instruction, and many objects may be
        reachable, so the path that was found last time is checked first."""
        roots = list(map(_read, self._roots()))
        path = self._through.get(id(value))
        if path is None or not self._is_path(path, roots):
            self._through[id(value)] = path = self._path(roots, value)
        return path is not None

    def _is_path(self, path: Sequence[object], roots: Sequence[object]) -> bool:
        """Whether a root is the first of these objects, and each refers to the next one."""
        if not any(path[0] is root for root in roots):
            return False
        return all(any(after is each for each in self._referents(before)) for before, after in itertools.pairwise(path))

    def _path(self, roots: Sequence[object], value: object) -> list[object] | None:
        """A shortest path from a root to the value, as the list of objects each of which refers to the next; None if
        there is no path, or if the search visits more than `_MAX_VISITED` objects for each root."""
        searched: dict[int, tuple[object, object]] = {}  # id -> (object, an object that refers to it)
        waiting: deque[tuple[object, object]] = deque((root, None) for root in roots)
        while waiting:
            each, before = waiting.popleft()
            if each is value:
                return _traced(each, before, searched)
            if id(each) in searched or self._ends(each):
                continue
            searched[id(each)] = each, before
            if len(searched) < _MAX_VISITED * len(roots):
                waiting += [(after, each) for after in self._referents(each)]
        return None

    def is_reached(self, value: object) -> bool:
        """Whether the value is reachable from the frame, or from values that the frame has stored."""
        return any(value is each for each in self._reach(self._roots(), value))

    def _roots(self) -> list[object]:
        effects = self.vm.effects
        out = [store.value for store in effects.stores.values()]
        out += [m.copy for m in effects.mirrors.values() if not self.vm.sources[id(m.original)].local]
        out += [item for _, items in effects.appended.values() for item in items]
        for frame in self.vm.frames:
            out += [*frame.locals, *frame.stack, *frame.handled]
        return out

    def _reach(self, roots: list[Any], wanted: object = None) -> Iterator[object]:
        """All objects that are reachable from the roots, including deferred writes; among leaves and opaque objects
        only `wanted`."""
        seen: set[int] = set()
        waiting = list(roots)
        while waiting:
            value = _read(waiting.pop())
            if value is wanted and wanted is not None:
                yield value
            if id(value) in seen or self._ends(value):
                continue
            seen.add(id(value))
            yield value
            if len(seen) < _MAX_VISITED:
                waiting.extend(self._referents(value))

    def _ends(self, value: object) -> bool:
        """Whether the search does not continue with the referents of the value."""
        return type(value) in LEAVES or isinstance(value, _OPAQUE) or value is self.vm

    def _referents(self, value: object) -> Sequence[object]:
        """The objects to which a value refers, including deferred writes."""
        if isinstance(value, types.FunctionType):
            return [*(value.__closure__ or ()), value.__defaults__, value.__kwdefaults__, value.__dict__]
        if isinstance(value, TracedGenerator):
            return [_read(each) for each in (*value.frame.locals, *value.frame.stack)]
        mirror = self.vm.effects.mirrors.get(id(value))
        if mirror is not None and value is not mirror.copy:
            return [mirror.copy]
        return gc.get_referents(value)


def _read(value: object) -> object:
    """The value of a variable or stack element, even if the program has not read it yet."""
    return value.value if type(value) is Unread else value


def _traced(value: object, before: object, searched: Mapping[int, tuple[object, object]]) -> list[object]:
    """The path from a root to the value, which `before` refers to; `searched` has the predecessor of each object."""
    path = [value]
    while before is not None:
        path.append(before)
        before = searched[id(before)][1]
    return path[::-1]


def _is_watchable(value: object) -> bool:
    """Whether code may run when the object dies, such as the callback of a weak reference, although its class has no
    `__del__`."""
    return type(value) not in LEAVES and not isinstance(value, (torch.Tensor, *_OPAQUE))


_MAX_VISITED = 5000
"""Maximum number of objects that a search visits for each root."""
