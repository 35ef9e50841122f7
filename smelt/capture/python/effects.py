"""Effects: writes to external objects, which capture defers, later reads return, and residual code carries out.

A write to an attribute or global is recorded as a `Store`. A builtin container that is written, or that C code reads,
gets a mirror: a copy with guarded items that replaces it for the rest of the capture; residual code writes the changes
back.
"""

from __future__ import annotations

import _warnings
import array
import collections
import operator
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from smelt.base.class_tables import ClassTable, by_class, classes, isinstance
from smelt.capture import _native as native
from smelt.capture.core import interface, policy, sources
from smelt.capture.core.breaks import At, Break, user
from smelt.capture.core.foreign_memory import refuse_windows
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.sources import Source
from smelt.capture.core.unbacked_text import refuse_unknown
from smelt.capture.core.values import LEAVES, is_foreign, is_shown, own_dict
from smelt.capture.python.container_copies import Copies
from smelt.capture.python.readers import deque_items, maximal_length, set_items
from smelt.capture.python.set_order import in_order
from smelt.capture.python.warning_locations import WarningLocation
from smelt.graph.ir.symint import has_symint, pinned
from smelt.graph.trace.trace import TraceTensor

CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
UNGUARDED: tuple[type, ...] = (
    *(bytearray, memoryview, array.array, types.SimpleNamespace, types.MappingProxyType),
    *(type(view(kind())) for kind in (dict, collections.OrderedDict) for view in (kind.keys, kind.values, kind.items)),
)
"""Types of containers that C code may read and change, and that get no mirrors."""
DELETED = native.NULL

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
_SEEN = classes(*LEAVES, TraceTensor)
_KNOWN_OBJECTS = (types.FunctionType, types.MethodType, type, types.CellType, types.BuiltinFunctionType)


@dataclass(slots=True)
class Store:
    """`target.name = value`, `del target.name`, `target[name] = value` or `target.cell_contents = value`.

    Attributes:
        maybe: whether the deleted attribute, variable or item may be absent from the external object.
        anew: whether it was deleted before it was set.
        born: number of the captured frame's instruction that makes the write, counted from the frame's start.
        version: for a write to `.data`, the tensor's version counter at the first assignment.
        behind: number of calls that had been deferred when the target was first written; the old value is released
            after them.
    """

    kind: str
    target: object
    name: str
    value: Any
    maybe: bool = False
    anew: bool = False
    born: int = 0
    version: int = 0
    num_calls_before: int = 0


@dataclass(slots=True)
class Deferred:
    """A deferred call whose result is not used (logging, warnings, print).

    Attributes:
        handled: the exception that the program is handling, which becomes the context of exceptions of the call.
        at: the location in the user's code, for a function that inspects its caller.
    """

    fn: Callable[..., object]
    args: Args
    kwargs: Kwargs
    handled: object = None
    at: At | None = None


@dataclass(slots=True)
class DeferredWarning(Deferred):
    """A deferred warning. `location` is its reported location; a number n is that of the n-th frame above the captured
    one."""

    location: WarningLocation | int = 0


@dataclass(slots=True)
class Made:
    """An object that residual code has to make even if nothing refers to it, because its construction has effects."""

    value: Any


@dataclass(slots=True)
class Mirror:
    """The stand-in of an external container; `before` is the content at the time when the mirror was made."""

    original: object
    copy: Any
    before: Any

    @property
    def changed(self) -> bool:
        """Whether the program wrote to the container."""
        if isinstance(self.copy, (list, collections.deque)):
            now, before = own_items(self.copy), self.before
            return len(now) != len(before) or not all(map(operator.is_, now, before))
        if isinstance(self.copy, dict):
            return own_items(self.copy) != list(self.before) or any(
                dict.__getitem__(self.copy, k) is not v for k, v in self.before.items()
            )
        return isinstance(self.copy, set) and set.__ne__(self.copy, self.before)

    def lost(self) -> list[object]:
        """The values that the program removed from the container."""
        kept = {*map(id, values_of(self.copy))}
        return [value for value in values_of(self.before) if id(value) not in kept]


def values_of(container: Iterable[object]) -> list[object]:
    """The items of a builtin container, for a dict also its keys, ignoring overrides of a subclass."""
    return [*dict.values(container), *dict.keys(container)] if isinstance(container, dict) else own_items(container)


_OBSERVED = (print, _warnings.warn_explicit)


@dataclass
class Written:
    """The value of a module's variable, in the mirror of the module's globals."""

    value: object


class ClassDict:
    """The present content of a class, including the program's writes; `views` are the views that reads of its
    `__dict__` returned."""

    def __init__(self, cls: type, items: dict[str, object]) -> None:
        self.cls, self.items = cls, items
        self.views: list[types.MappingProxyType[str, object]] = []

    def view(self) -> types.MappingProxyType[str, object]:
        """Make a view of the content and add it to `views`."""
        self.views.append(types.MappingProxyType(self.items))
        return self.views[-1]

    def write(self, name: str, value: object, anew: bool) -> None:
        """Record that the program set or removed an attribute of the class; `anew`: it removed the attribute before it
        set it."""
        if value is DELETED or anew:
            self.items.pop(name, None)
        if value is not DELETED:
            self.items[name] = value


_VIEWS: ClassTable[Callable[..., object]] = by_class({type({}.values()): dict.values, type({}.items()): dict.items})
_LOOKED_INTO = (*CONTAINERS, *_VIEWS)
_ANEW: ClassTable[Callable[..., object]] = by_class(
    {
        list: lambda _, items: items,
        dict: lambda _, pairs: pairs,
        collections.deque: lambda old, items: collections.deque(items, old.maxlen),
        collections.OrderedDict: lambda _, pairs: collections.OrderedDict(pairs),
        collections.defaultdict: lambda old, pairs: collections.defaultdict(old.default_factory, pairs),
    }
)
"""Class of a container -> the function (old container, items) that makes a container of this class."""
_OPEN = object()


def holds_itself() -> Break:
    """The break where a container contains itself, directly or through its items."""
    return Break("a container that holds itself", "its items would be followed for ever")


class Opened:
    """Context manager around the traversal of a container.

    Raises:
        Break: the container is being traversed already, because it contains itself.
    """

    __slots__ = ("containers", "key")

    def __init__(self, containers: set[int], key: int) -> None:
        self.containers, self.key = containers, key

    def __enter__(self) -> None:
        if self.key in self.containers:
            raise holds_itself()
        self.containers.add(self.key)

    def __exit__(self, *_: object) -> None:
        self.containers.remove(self.key)


class Effects:
    """The effects of the frame on external objects so far.

    Attributes:
        graph_warns: whether the graph's backend calls torch functions unchanged, so that these give their own warnings.
        graph_repeats_writes: whether the backend recomputes checkpointed regions in the backward, including their
            writes.
    """

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.graph_warns = self.graph_repeats_writes = False
        self.stores: dict[tuple[str, int, str], interface.Store] = {}
        self.deferred: list[Deferred | Made] = []
        self.mirrors: dict[int, Mirror] = {}
        self.appended: dict[int, tuple[list[object], list[object]]] = {}
        self.cleared: list[TraceTensor] = []
        self.class_writes: set[str] = set()  # attribute names that were written on any class
        self.class_dicts: dict[int, interface.ClassDict] = {}  # if `__dict__` was read
        self.tables: set[int] = set()  # ids of `_buffers` of modules, in which the program has set a buffer
        # id of a mirror's view -> the external view that it replaces, and its source
        self.views: dict[int, tuple[object, Source]] = {}
        self.shown: set[int] = set()  # identities of the dictionaries that these views show
        self._keys: dict[tuple[int, object], object] = {}
        self.copies = Copies()
        self._open: set[int] = set()

    def release(self) -> None:
        """Drop the references to the program's objects."""
        for table in (self.stores, self.deferred, self.mirrors, self.appended, self.cleared, self._keys):
            table.clear()
        self.class_dicts.clear()
        self.copies.clear()

    # -- single locations -------------------------------------------------------------------------------------------

    def store(self, kind: str, target: object, name: str, value: object) -> None:
        """Record a write to an external object; the value DELETED records a removal."""
        self.vm.work += 1
        store_key = (kind, id(target), name)
        before = self.stores.get(store_key)
        if before is None:
            self.vm.finalizers.refuse_loss(_replaced_value(kind, target, name))
        anew = before is not None and (before.value is DELETED or before.anew)
        if anew and before is not None and before.value is DELETED:
            del self.stores[store_key]  # a key deleted and set again moves to the end of its dictionary
        num_calls_before = (
            len(self.deferred) if store_key not in self.stores else self.stores[store_key].num_calls_before
        )
        self.stores[store_key] = Store(
            kind, target, name, value, anew=anew, born=self.vm.step, num_calls_before=num_calls_before
        )
        if isinstance(target, type):
            self.class_writes.add(name)
            if id(target) in self.class_dicts:
                self.class_dicts[id(target)].write(name, value, anew)
        key = "cell_contents" if kind == "cell" else name
        self.vm.reads[id(target), key] = value
        mirror = self.mirrors.get(id(target))
        if mirror is not None:  # C code reads the mirror
            object.__setattr__(mirror.copy, name, None if value is DELETED else value)

    def store_variable(self, variables: dict[str, object], name: str, value: object) -> None:
        """Record a write to a module's variable, by its name or through the module; DELETED records a removal."""
        self.vm.globals_source(variables)
        mirror = self.mirrors.get(id(variables))
        if mirror is None and value is DELETED:
            self.delete("global", variables, name)
        elif mirror is None:
            self.store("global", variables, name, value)
        else:  # the program has read the dictionary
            self.vm.work += 1
            mirror.copy.pop(name, None)
            if value is not DELETED:
                mirror.copy[name] = value
            self.vm.reads[id(variables), name] = value

    def variable(self, module: types.ModuleType, name: str) -> object:
        """The program's write to a module's variable, as an object with a `value`; None if it has written none."""
        variables = vars(module)
        mirror = self.mirrors.get(id(variables))
        if mirror is not None:
            return Written(mirror.copy.get(name, DELETED))
        store = self.stores.get(("global", id(variables), name))
        return store if store is not None else self.stores.get(("attr", id(module), name))

    def delete(self, kind: str, target: object, name: str) -> None:
        """Record a removal; an attribute that the program itself has set may be absent from the external object."""
        before = self.stores.get((kind, id(target), name))
        self.store(kind, target, name, DELETED)
        self.stores[kind, id(target), name].maybe = before is not None and (before.maybe or before.value is not DELETED)

    def defer(self, fn: Callable[..., object], args: Args, kwargs: Kwargs, at: At | None = None) -> None:
        """Defer a call until the graph has run; `at`: the location that a function which inspects its caller must
        see."""
        refuse_unknown((*args, *kwargs.values()))
        self.vm.work += 1
        if not isinstance(fn, types.BuiltinFunctionType) or fn in _OBSERVED:
            self.vm.observed.add(self.vm, fn, args, kwargs)
        self.deferred.append(Deferred(fn, args, kwargs, self.vm.context(), at))

    def warn(self, location: WarningLocation | int, message: object, category: object, source: object) -> None:
        """Defer a warning until the graph has run."""
        args = message, category, source
        refuse_unknown(args)
        self.vm.work += 1
        self.vm.observed.add(self.vm, _warnings.warn, args, {})
        self.deferred.append(DeferredWarning(_warnings.warn_explicit, args, {}, self.vm.context(), location=location))

    def make(self, handle: object) -> None:
        """Let residual code make an object that the captured frame made, unless the program has removed it."""
        self.deferred.append(Made(handle))

    # -- containers ---------------------------------------------------------------------------------------------------

    def mirror(self, value: object) -> Any:
        """The mirror of an external container, with all items read and guarded; any other value unchanged."""
        value = self.copies.own(value)
        known = self.mirrors.get(id(value))
        if known is not None:
            return known.copy
        source = self.vm.source_of(value)
        if source is None or not isinstance(value, CONTAINERS):
            return value
        copy = self._copy(value, source)
        before = tuple(own_items(copy)) if isinstance(copy, (tuple, frozenset)) else _shallow(copy)
        if isinstance(value, dict) and (source.kind == native.INSTANCE_DICT or id(value) in self.shown):
            self._take_over_attributes(value, copy)
        elif isinstance(value, dict) and isinstance(source.key, str) and source.key in sources.MEMBERS:
            self._take_over_members(value, copy)
        mirror = Mirror(value, copy, before)
        if id(value) in self.appended:
            list.extend(copy, self.appended.pop(id(value))[1])
        self.mirrors[id(value)] = self.mirrors[id(copy)] = mirror
        if not source.local:
            self.vm.finalizers.add(value)
        self.vm.register(copy, source)
        return copy

    def _take_over_attributes(self, attributes: dict[str, object], copy: dict[str, object]) -> None:
        """Move writes to an object's attributes into the mirror of its `__dict__`, which the program is about to
        read."""
        for store_key, store in list(self.stores.items()):
            target = store.target
            if store.kind == "attr" and not isinstance(target, type) and self._has_dict(target, attributes):
                if hasattr(getattr(type(target), store.name, None), "__set__"):
                    continue  # a slot or a descriptor
                if isinstance(target, torch.nn.Module) and _is_member(attributes, store.name):
                    continue
                del self.stores[store_key]
                if store.value is DELETED or store.anew:
                    copy.pop(store.name, None)
                if store.value is not DELETED:
                    copy[store.name] = store.value
        self._forget_reads(attributes)

    def _forget_reads(self, attributes: dict[str, object]) -> None:
        """Forget the reads of an object's attributes: the program may write to them through its `__dict__`,
        `attributes`."""
        owners = {id(value) for value in self.vm.externals() if self._has_dict(value, attributes)}
        owners.update(key for key, real in self.vm.tensors.real.items() if own_dict(real) is attributes)
        for key in [key for key in self.vm.reads if key[0] in owners]:
            del self.vm.reads[key]

    def _take_over_members(self, attributes: dict[str, object], copy: dict[str, object]) -> None:
        """Move writes to a module's buffers into the mirror of their table, which the program is about to read."""
        for store_key, store in list(self.stores.items()):
            target = store.target
            if store.kind == "attr" and isinstance(target, torch.nn.Module) and _has_table(target, attributes):
                if store.name in attributes and store.value is DELETED:
                    copy.pop(store.name, None)
                elif store.name in attributes:
                    copy[store.name] = store.value
                else:
                    continue
                del self.stores[store_key]
        owners = {id(v) for v in self.vm.externals() if isinstance(v, torch.nn.Module) and _has_table(v, attributes)}
        for key in [key for key in self.vm.reads if key[0] in owners and key[1] in attributes]:
            del self.vm.reads[key]

    def append(self, container: list[object], value: object) -> None:
        """`container.append(value)`; an external list without other uses stays unread, and appends are recorded
        apart."""
        self.vm.work += 1
        if id(container) in self.mirrors or id(container) not in self.vm.sources:
            list.append(self.mirror(container), value)
        else:
            self.appended.setdefault(id(container), (container, []))[1].append(value)

    def untouched(self, container: object) -> bool:
        """Whether single items of the container can be read: it is unchanged and has no mirror."""
        if id(container) in self.mirrors or id(container) in self.appended or id(container) in self.tables:
            return False
        source = self.vm.sources.get(id(container))
        return source is None or source.kind != native.INSTANCE_DICT or not self._assigned(container)

    def _assigned(self, container: object) -> bool:
        """Whether the container is the `__dict__` of an object with written attributes, other than a class or an
        `nn.Module`."""
        targets = [store.target for store in self.stores.values() if store.kind == "attr"]
        plain = [target for target in targets if not isinstance(target, (type, torch.nn.Module))]
        return any(self._has_dict(target, container) for target in plain)

    def _has_dict(self, target: object, container: object) -> bool:
        return own_dict(self.vm.tensors.real.get(id(target), target)) is container

    def pending(self) -> bool:
        """Whether effects are pending: some external object does not yet have the state that the program gave it."""
        return bool(self.stores) or self.containers_changed()

    def containers_changed(self) -> bool:
        """Whether the program wrote to an external container."""
        return bool(self.appended) or any(mirror.changed for mirror in self.mirrors.values())

    def original_source(self, value: object) -> Source | None:
        """The source of an external object, or of the external view that this view replaces."""
        source = self.vm.sources.get(id(value))
        shown = self.views.get(id(value)) if source is None else None
        return source if shown is None else shown[1]

    def original(self, value: object) -> object:
        """The container that a mirror or a copy replaces; any other value unchanged."""
        value = self.copies.own(value)
        known = self.mirrors.get(id(value))
        return value if known is None else known.original

    def _copy(self, value: object, source: Source) -> Any:
        kind = type(value)
        if isinstance(value, dict):
            factory = (
                self.vm.load_attr(value, "default_factory") if isinstance(value, collections.defaultdict) else None
            )
            return _fill_dict(value, self.read_dict(value, source), factory)
        if isinstance(value, (list, tuple)):
            items = self.read_items(value, source)
            return items if kind is list else tuple(items) if kind is tuple else _fill_sequence(value, items)
        if isinstance(value, collections.deque):
            queued, most = deque_items(value), maximal_length(value)
            inner = sources.called(source, deque_items, "list")
            self.vm.guards.check(inner, native.LEN, len(queued))
            self.vm.guards.check(sources.called(source, maximal_length, "deque.maxlen"), native.EQ, most)
            read = [self.vm.external(v, sources.sequence_item(inner, i, list)) for i, v in enumerate(queued)]
            out = collections.deque.__new__(type(value))
            collections.deque.__init__(out, read, most)
            return out
        assert isinstance(value, (set, frozenset))
        members = set_items(value)
        if any(type(item) not in LEAVES and not isinstance(item, type) for item in members):
            raise Break(
                f"a {kind.__name__} of objects made outside of the function", "its items have no source to guard"
            )
        self.vm.guards.check(sources.called(source, set_items, "tuple"), native.EQ, members)
        made = in_order(kind if kind in (set, frozenset) else partial(_fill_set, kind), members, value)
        if made is None:
            raise Break(f"a {kind.__name__} of {len(members)} items", "a copy would iterate in another order")
        return made

    def read_items(self, value: list[object] | tuple[object, ...], source: Source) -> list[object]:
        """All items of an external list or tuple."""
        kind = type(value)
        read = self.vm.external
        if isinstance(value, list):
            count, items = list.__len__(value), list.__iter__(value)
        else:
            count, items = tuple.__len__(value), tuple.__iter__(value)
        self.vm.guards.check(source, native.LEN, count)
        return [read(v, sources.sequence_item(source, i, kind)) for i, v in enumerate(items)]

    def read_dict(self, value: dict[object, object], source: Source) -> dict[object, object]:
        """All items of an external dict."""
        if any(kind == "global" and target == id(value) for kind, target, _ in self.stores):
            raise Break("globals() as a whole, after a global variable was written")
        keys = [key for key, _ in items_of(value)]
        self.vm.guards.check(source, native.DICT_KEYS, tuple(keys))
        self.vm.compared.foreign(keys)
        return {self._key(k): self.read_key(value, source, self._key(k)) for k in keys}

    def _key(self, key: object) -> object:
        """The program's key for a key of an external dict: the trace tensor of a tensor, any other key unchanged."""
        if not isinstance(key, torch.Tensor):
            return key
        return self.vm.external(key, sources.const(key, "a tensor that is a key"))

    def outside(self, key: object) -> object:
        """The key of an external dict for a key of the program: the real tensor, or the present value of a symbolic
        number."""
        if type(key) is TraceTensor:
            return self.vm.tensors.real.get(id(key), key)
        return pinned(key) if has_symint(key) else key

    def read_key(self, value: dict[object, object], source: Source, key: object) -> object:
        """One item of an external dict that has the key."""
        shown = self.vm.sources[id(key)].text if type(key) is TraceTensor else None
        key = self.outside(key)
        written = self._written_global(value, key)
        if written is not None:
            return written.value
        if (id(value), key) not in self._keys:
            item = self.vm.external(dict.__getitem__(value, key), sources.dict_item(source, key, shown))
            self._keys[id(value), key] = item
        return self._keys[id(value), key]

    def _written_global(self, value: dict[object, object], key: object) -> interface.Store | None:
        """The program's write to a variable, if `value` is a dictionary of globals."""
        return self.stores.get(("global", id(value), key)) if type(key) is str else None

    def has_key(self, value: dict[object, object], source: Source, key: object) -> bool:
        """Whether an external dict has the key, with a guard on the answer."""
        if type(key) not in _SEEN:
            user(hash, key)
        written = self._written_global(value, key)
        if written is not None:
            return written.value is not DELETED
        self.vm.compared.ask_nan(key)
        known = self.vm.sources.get(id(key))
        key = self.outside(key)
        present = dict.__contains__(value, key)
        if known is not None:
            self.vm.guards.check(known, native.IS, key)
        self.vm.guards.check(source, native.HAS_KEY if present else native.NOT_KEY, key)
        return present

    def refuse_opaque(self, fn: object, values: Iterable[object]) -> None:
        """Check that C code reads no external object whose content has no guards.

        Raises:
            Break: one of the values is such an object.
        """
        refuse_unknown(values)
        for value in values:
            if id(value) in self.vm.sources and type(value) not in _SEEN:
                if not isinstance(value, (*CONTAINERS, *_KNOWN_OBJECTS)) and not is_shown(value):
                    name = getattr(fn, "__name__", repr(fn))
                    raise Break(
                        f"{name}() of a {type(value).__name__}",
                        "C code looks into an object made outside of the function",
                    )

    def refuse_unguarded(self, value: object) -> None:
        """Check that C code does not read an external object whose content no guard can read.

        Raises:
            Break: the value is external, and of a type in `UNGUARDED`.
        """
        if isinstance(value, UNGUARDED) and id(value) in self.vm.sources:
            raise Break(
                f"C code reads a {type(value).__name__}",
                "it was made outside of the function, and what it holds has no guards",
            )

    def refuse_foreign(self, *values: object) -> None:
        """Check the operands of an operator that is implemented in C code outside of Python, PyTorch and NumPy.

        Raises:
            Break: one of them is external, and the state that this code stores in it has no guards.
        """
        for value in values:
            refuse_windows((value,))
            if id(value) in self.vm.sources and is_foreign(type(value)) and not is_shown(value):
                raise Break(
                    f"C code reads a {type(value).__name__}",
                    "it was made outside of the function, and its state has no guards",
                )

    def refuse_iterators(self, values: Iterable[object]) -> None:
        """Check that C code consumes no external iterator, which may happen only once, when the program runs.

        Raises:
            Break: one of the values is such an iterator.
        """
        for value in values:
            if id(value) in self.vm.sources and hasattr(type(value), "__next__"):
                raise Break("an iterator made outside of the function", "its position cannot be guarded", silent=True)

    def plain(self, value: object) -> Any:
        """The value with mirrors in place of external containers, at every depth of builtin containers.

        If a container needs changed items, a new one replaces it. The new container is registered as a stand-in of an
        external container, or as a copy of a container of the program, because C code may return or store it.

        Raises:
            Break: a container contains itself.
        """
        return self._plain(value, {})

    def plain_all(self, values: Iterable[object]) -> tuple[object, ...]:
        """The result of `plain` for each value; an object that occurs in several values is replaced by one object."""
        done: dict[int, object] = {}
        return tuple([self._plain(value, done) for value in values])

    def _plain(self, value: object, done: dict[int, object]) -> object:
        if type(value) in _SEEN:
            return value
        value = self.copies.own(value)
        if not isinstance(value, _LOOKED_INTO):
            if done and isinstance(value, UNGUARDED):
                self.refuse_unguarded(value)
            return value
        if id(value) in self.vm.sources:
            value = self.mirror(value)
        known = done.get(id(value), DELETED)
        if known is _OPEN:
            raise holds_itself()
        if known is DELETED:
            done[id(value)] = _OPEN
            known = done[id(value)] = self._plain_items(value, done)
        return known

    def _plain_items(self, value: Any, done: dict[int, object]) -> object:
        kind = type(value)
        if kind in _VIEWS:
            mapping = dict(value.mapping)
            deeper = self._plain_items(mapping, done)
            return value if deeper is mapping else _VIEWS[kind](deeper)
        if issubclass(kind, tuple):
            items = [self._plain(item, done) for item in tuple.__iter__(value)]
            same = all(map(operator.is_, items, tuple.__iter__(value)))
            return value if same else self._also(value, tuple.__new__(kind, items))
        make = _ANEW.get(kind)
        if make is None:
            return value
        if issubclass(kind, dict):
            pairs = [(key, item, self._plain(item, done)) for key, item in items_of(value)]
            if all(new is item for _, item, new in pairs):
                return value  # making a dict would hash and compare keys
            return self._also(value, make(value, {key: new for key, _, new in pairs}))
        old = own_items(value)
        items = [self._plain(item, done) for item in old]
        same = all(map(operator.is_, items, old))
        return value if same else self._also(value, make(value, items))

    def opened(self, container: object) -> Opened:
        """Context for a traversal of a container's items; a nested traversal of the same container ends the graph."""
        return Opened(self._open, id(container))

    def _also(self, copy: object, deeper: object) -> object:
        """Register `deeper` as a stand-in of the external container that `copy` mirrors, else as a copy of `copy`."""
        mirror = self.mirrors.get(id(copy))
        if mirror is None:
            self.copies.note(deeper, copy)
        else:
            self.mirrors[id(deeper)] = mirror
            self.vm.register(deeper, self.vm.sources[id(copy)])
        return deeper


def hashes(key: object) -> bool:
    """Whether the program's own code hashes this key."""
    found = type(key).__hash__ if type(key) not in _SEEN else None
    return isinstance(found, types.FunctionType) and not policy.is_frozen(found.__module__)


def _replaced_value(kind: str, target: object, name: str) -> object:
    """The value that a write is about to replace; None if there is none, or if only a descriptor could return it."""
    if kind == "cell":
        assert isinstance(target, types.CellType)
        try:
            return target.cell_contents
        except ValueError:
            return None
    if kind == "global":
        assert isinstance(target, dict)
        return target.get(name)
    attributes = own_dict(target)
    variables: Mapping[str, object] = vars(target) if isinstance(target, type) else attributes or {}
    return variables.get(name)


def _is_member(attributes: dict[str, Any], name: str) -> bool:
    """Whether a name is the name of a parameter, buffer or submodule of a module with these attributes."""
    return name not in attributes and any(name in (attributes.get(table) or ()) for table in sources.MEMBERS)


def _has_table(module: torch.nn.Module, attributes: dict[str, object]) -> bool:
    return any(vars(module).get(table) is attributes for table in sources.MEMBERS)


def items_of(value: dict[K, V]) -> list[tuple[K, V]]:
    """The (key, value) pairs of a dict in their order (that of the OrderedDict if it is one), ignoring overrides of a
    subclass.

    Raises:
        Break: dict's own methods have changed an OrderedDict, whose order no longer matches its content.
    """
    if not isinstance(value, collections.OrderedDict):
        return list(dict.items(value))
    try:
        pairs = list(collections.OrderedDict.items(value))
    except KeyError:
        raise _past_order() from None
    if len(pairs) != dict.__len__(value):
        raise _past_order()
    return pairs


def refuse_past_order(fn: object, args: Sequence[object]) -> None:
    """End the graph before methods of dict change an OrderedDict, whose order would no longer match its content."""
    if (
        args
        and getattr(fn, "__objclass__", None) is dict
        and getattr(fn, "__name__", None) in _CHANGING
        and isinstance(args[0], collections.OrderedDict)
    ):
        raise _past_order()


def _past_order() -> Break:
    return Break("an OrderedDict that a method of dict's own changes", "what it holds and its order differ then")


_CHANGING = frozenset(
    {"__setitem__", "__delitem__", "__init__", "__ior__", "setdefault", "pop", "popitem", "update", "clear"}
)


def own_items(value: Iterable[T]) -> list[T]:
    """The items (for a dict, the keys) of a builtin container, ignoring overrides of a subclass."""
    if isinstance(value, dict):
        return [key for key, _ in items_of(value)]
    kind = next((each for each in _BUILT_IN if isinstance(value, each)), None)
    return list(value if kind is None else vars(kind)["__iter__"](value))


_BUILT_IN = (list, tuple, set, frozenset, collections.deque)


def _fill_set(kind: Any, items: Iterable[object]) -> set[object] | frozenset[object]:
    """An instance of a set class with these items; methods of a subclass are not called."""
    if issubclass(kind, frozenset):
        return frozenset.__new__(kind, items)
    out = set.__new__(kind)
    set.update(out, items)
    return out


def has_written(vm: Interpreter, keys: Collection[tuple[int, str]]) -> bool:
    """Whether the captured function has written to one of these (id of a target, name), or to any item if the target is
    a container."""
    changed = {id(mirror.original) for mirror in vm.effects.mirrors.values() if mirror.changed}
    written = {(id(store.target), store.name) for store in vm.effects.stores.values()}
    return any(key in written or key[0] in changed for key in keys)


def _shallow(copy: Iterable[object]) -> Collection[object]:
    if isinstance(copy, dict):
        return dict(items_of(copy))
    return set(own_items(copy)) if isinstance(copy, set) else own_items(copy)


def _fill_dict(value: dict[object, object], items: dict[object, object], factory: Any) -> object:
    kind = type(value)
    if kind is dict:
        return items
    base = collections.OrderedDict if isinstance(value, collections.OrderedDict) else dict
    made: Any = collections.defaultdict if isinstance(value, collections.defaultdict) else base
    out: Any = made.__new__(kind)  # the program's own `__new__` is not called a second time
    if made is collections.defaultdict:
        made.__init__(out, factory)
    new_attributes, attributes = own_dict(out), own_dict(value)
    if new_attributes is not None and attributes is not None:
        new_attributes.update(attributes)
    for key, item in items.items():
        base.__setitem__(out, key, item)
    return out


def _fill_sequence(value: list[object] | tuple[object, ...], items: list[object]) -> object:
    kind: Any = type(value)
    if hasattr(kind, "n_sequence_fields"):  # struct sequences: torch.return_types, and sys.version_info has no other
        return value if all(a is b for a, b in zip(value, items, strict=True)) else kind(items)
    if isinstance(value, tuple):
        return tuple.__new__(kind, items)
    out = list.__new__(kind)  # the program's own `__new__` is not called a second time
    list.extend(out, items)
    return out
