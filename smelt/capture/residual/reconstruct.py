"""Expressions that reconstruct captured values in residual code: constants, inputs, graph outputs, new objects."""

from __future__ import annotations

import collections
import functools
import gc
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy
import torch

from smelt.base.class_tables import isinstance
from smelt.base.python_text import LITERALS, arguments, is_plain_name, module_name, new_name, quoted
from smelt.base.torch_private import forbidden
from smelt.base.warned import heard
from smelt.capture._native import NULL, generator_at, iterator_position, set_iterator_position
from smelt.capture.arrays.array import ArrayMethod, TensorArray
from smelt.capture.calls.calls import Trampoline
from smelt.capture.core.breaks import Break, CannotRebuild, Restart, is_deep
from smelt.capture.core.conditional_value import PhiValue, is_plain
from smelt.capture.core.frames import OUTER, Unread
from smelt.capture.core.generators import GENERATOR_METHODS, TracedGenerator
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.prologue_value import PrologueMethod, PrologueValue
from smelt.capture.core.registry import REBUILD
from smelt.capture.core.sources import Source
from smelt.capture.core.unbacked_text import UnknownText
from smelt.capture.core.values import (
    C_METHODS,
    CONSTANT_TYPES,
    HEAP,
    LEAVES,
    PLAIN_SHOWN,
    SIZED_ITERATORS,
    BoundMethodOfC,
    is_nan,
    is_written,
    own_dict,
)
from smelt.capture.python.backward import (
    base_with_freed_history,
    has_freed_history,
    leaves_below,
    spent,
    view_without_history,
)
from smelt.capture.python.effects import hashes, items_of
from smelt.capture.python.readers import set_items
from smelt.capture.residual.remade import (
    as_instance,
    as_plain,
    exhausted,
    make_wrapper,
    ordered_fill,
    remake_match,
    set_state,
    used_up,
)
from smelt.capture.tensors.reads import break_for
from smelt.capture.torch.modules import ModuleSlice
from smelt.graph.ir.sym_bool import SymbolicPredicate
from smelt.graph.ir.symint import SYMBOLIC_CLASSES, as_real, from_torch, has_symint, symbolic_value
from smelt.graph.trace.trace import TraceTensor
from smelt.shapes.unbacked import DataDependent

BOUND_C_CLASSES = (types.BuiltinFunctionType, types.MethodWrapperType)
"""Types of C callables that may be bound to an object of the frame."""

NAMESPACE_NAMES = frozenset({"graph", "profiler", "shown", "Error", "explain_error", "expect_failure", "expect_lost"})
"""Names in the namespace `_c` that `Residual.namespace` adds to the constants."""


class Rebuild:
    """Writes the lines that make values; each object is made once, so shared references stay shared.

    Args:
        vm: the finished capture.
        lines: the list to which the statements are appended.
        constants: the names and values of the constants in `_c`.
        fetched: requests a source from the guards; returns the expression of its value.

    Attributes:
        late: statements that run after the side effects. For example, the position of an iterator may lie beyond the
            end that its list has before them.
        numbers: variables for numbers that are read from results, by expression. They are read directly after the
            graph, where errors of its kernels surface, before all side effects.
        uses_helpers: whether Python functions of smelt make some of the values.
        acts: whether making the values has side effects.
    """

    uses_helpers = acts = False

    def __init__(
        self, vm: Interpreter, lines: list[str], constants: dict[str, object], fetched: Callable[[Source], str]
    ) -> None:
        self.vm, self.lines, self.constants, self.fetched = vm, lines, constants, fetched
        self.outputs: list[TraceTensor] = []
        self.late: list[str] = []
        self.numbers: dict[str, str] = {}
        self._made: dict[int, str] = {}
        self._outputs: dict[int, str] = {}  # results of the graph before they get the class of a subclass
        self._running: set[int] = set()
        self._alive: list[object] = []
        self._names: dict[int, str] = {}
        self._count = 0

    def release(self) -> None:
        """Drop references to the program's objects, after the whole residual is written."""
        self._alive.clear()
        self.outputs.clear()

    def constant(self, value: object, hint: str = "") -> str:
        """The expression for a value that is the same at each call: `_c.name` for a constant that the residual keeps
        alive.
        """
        known = self._names.get(id(value)) or self._made.get(id(value))
        if known is not None:
            return known
        if id(value) in self.vm.python.made_classes:
            return self.fetched(self.vm.sources[id(value)])
        if id(value) in self.vm.python.remade:
            fn, args, kwargs = self.vm.python.remade[id(value)]
            return self.assign(value, f"{self.constant(fn, fn.__name__)}({self.arguments(args, kwargs)})")
        module = value.__module__ if isinstance(value, types.FunctionType) else None
        self.uses_helpers = self.uses_helpers or module_name(module).startswith("smelt.")
        name = new_name(hint, self.constants, NAMESPACE_NAMES)
        self.constants[name] = value
        self._names[id(value)] = f"_c.{name}"
        return self._names[id(value)]

    def attribute(self, owner: str, name: str) -> str:
        """The expression that reads an attribute."""
        if is_plain_name(name):
            return f"{owner}.{name}"
        return f"{self.constant(getattr, 'getattr')}({owner}, {quoted(name)})"

    def arguments(self, args: Iterable[object], kwargs: Mapping[str, object]) -> str:
        """The text of a call's arguments, without parentheses."""
        return arguments(map(self, args), [(name, self(value)) for name, value in kwargs.items()])

    def assign(self, value: object, expression: str) -> str:
        """Assign an expression to a new variable, whose name is then the expression for `value`; returns the name."""
        name = self._made[id(value)] = f"_t{self._count}"
        self._alive.append(value)  # its id, a key of `_made`, must stay unique
        self._count += 1
        self.lines.append(f"{name} = {expression}")
        return name

    def variables(self) -> list[str]:
        """The names of all variables to which `assign` has assigned values."""
        return [f"_t{number}" for number in range(self._count)]

    def makes(self, value: object) -> bool:
        """Whether the residual already has an expression that makes this object."""
        return id(value) in self._made

    def makes_objects(self) -> bool:
        """Whether residual code makes objects of the program's classes, whose destruction may be observable."""
        return any(type(value).__flags__ & HEAP for value in self._alive)

    def __call__(self, value: object) -> str:
        """The expression for a value.

        Raises:
            CannotRebuild: the value has no expression.
        """
        kind = type(value)
        if kind in LITERALS:
            return self._plain(value, kind)
        value = self.vm.effects.copies.own(value)
        made = self._made.get(id(value))
        if made is not None:
            return made
        if value is NULL:
            return self.constant(NULL, "NULL")
        if value is OUTER:
            return f"{self.constant(sys.exception, 'exception')}()"
        if type(value) is TraceTensor:
            return self._tensor(value)
        if type(value) is Unread:
            return self.fetched(value.source)
        if type(value) is PrologueValue:
            return self.fetched(value.source) if value.source is not None else self.vm.prologue.use(value)
        source = self.vm.effects.original_source(value)
        if source is not None:
            return self.fetched(source)
        if kind in SYMBOLIC_CLASSES:  # read at once: a later statement may reshape the tensor from which it is read
            return self.assign(value, self._symbolic(value, kind))
        if type(value) is torch.Size and has_symint(tuple(value)):
            return self.assign(value, f"{self.constant(torch.Size, 'Size')}([{', '.join(map(self, value))}])")
        if kind in LEAVES:
            return self._plain(value, kind)
        return self._object(value, kind)

    def _plain(self, value: object, kind: type) -> str:
        """The expression for a constant; a NaN with a source is read from there, since its identity matters."""
        source = self.vm.compared.nan_source(value) if is_nan(value) else None
        if source is not None:
            return self.fetched(source)
        return LITERALS[kind](value) if kind in LITERALS else self.constant(value, kind.__name__)

    def _symbolic(self, value: object, kind: type) -> str:
        if kind is torch.SymInt:
            return self.vm.sizes.expression(from_torch(value), self._sized, self._number)
        if kind is torch.SymFloat:
            return self.vm.sizes.real_expression(as_real(from_torch(value)), self._sized, self._number)
        return self._answer(symbolic_value(value))

    def _sized(self, source: Source) -> str:
        """The expression for a tensor whose size is read, or for a number."""
        if not self.vm.subclasses.is_instance(source):
            return self.fetched(source)
        return f"{self.constant(as_plain, 'as_plain')}({self.fetched(source)})"

    def _tensor(self, tensor: TraceTensor) -> str:
        source = self.vm.sources.get(id(tensor))
        if source is not None:
            return self.fetched(source)
        if self.vm.subclasses.is_wrapper(tensor):
            return self._made.get(id(tensor)) or self._wrapper(tensor)
        if id(tensor) not in self.vm.tensors.nodes:
            self.vm.tensors.refuse_inner(tensor)
            raise CannotRebuild("a tensor of unknown origin")
        made = self._made.get(id(tensor))
        if made is not None:
            return made
        prologue_value = self.vm.prologue.inputs.made(tensor)
        if prologue_value is not None and not tensor.requires_grad:
            return self.vm.prologue.use(prologue_value)
        if has_freed_history(self.vm, tensor):
            with self.vm.subclasses.disabled():
                self.outputs.append(self.vm.tensors.run(torch.Tensor.detach, (tensor,), {}, method="detach"))
            given = [f"_out[{len(self.outputs) - 1}]"]
            given += [self(leaf) for leaf in leaves_below([tensor]) if id(leaf) in self.vm.sources]
            return self._with_class(tensor, f"{self.constant(spent, 'spent')}({', '.join(given)})")
        base = base_with_freed_history(self.vm, tensor)
        if base is not None:
            distance = tensor.storage_view.layout.offset - base.storage_view.layout.offset
            layout = f"{self._tensor(base)}, {tuple(tensor.shape)}, {tensor.stride()}, {distance}"
            written = forbidden(tensor) is not None
            return self._with_class(tensor, f"{self.constant(view_without_history, 'view')}({layout}, {written})")
        self.outputs.append(tensor)
        name = f"_out[{len(self.outputs) - 1}]"
        if self.vm.subclasses.class_of(tensor) is not None:
            self._outputs[id(tensor)] = name
            return self._with_class(tensor, name)
        self._made[id(tensor)] = name
        return name

    def _wrapper(self, tensor: TraceTensor) -> str:
        """A new wrapper with the attributes that the program has set."""
        cls = self.vm.type_of(tensor)
        sizes = f"{self(tuple(tensor.shape))}, {self(tensor.stride())}"
        kind = f"{self(tensor.dtype)}, {self(tensor.device)}, {tensor.requires_grad}"
        make = self.constant(make_wrapper, "make_wrapper")
        return self._set_attributes(tensor, self.assign(tensor, f"{make}({self.constant(cls)}, {sizes}, {kind})"))

    def _with_class(self, tensor: TraceTensor, output: str) -> str:
        """A new variable for a tensor, as an instance of its subclass with the attributes that the program has set."""
        cls = self.vm.subclasses.class_of(tensor)
        if cls is None:
            return self.assign(tensor, output)
        name = self.assign(tensor, f"{self.constant(as_instance, 'as_instance')}({output}, {self.constant(cls)})")
        return self._set_attributes(tensor, name)

    def _set_attributes(self, tensor: TraceTensor, name: str) -> str:
        for key, value in (self.vm.subclasses.attributes(tensor) or {}).items():
            self.lines.append(f"{name}.__dict__[{quoted(key)}] = {self(value)}")
        return name

    def _answer(self, predicate: object) -> str:
        """The expression for the result of a comparison of numbers; some are read from tensors of the graph."""
        if not isinstance(predicate, SymbolicPredicate):
            return repr(predicate)
        if predicate.fact is None:  # several comparisons combined
            try:
                return repr(predicate.ask())
            except DataDependent as error:
                raise Restart(error.step, break_for(error)) from None
        left, right = (self.vm.sizes.expression(side, self._sized, self._number) for side in predicate.fact[1:3])
        return f"({left} {predicate.fact.sign} {right})"

    def _number(self, number: object) -> str:
        """The expression for a number that is read from a tensor of the graph, or that the prologue computes."""
        prologue_value = self.vm.prologue.inputs.named(number)
        if prologue_value is not None:
            return self(prologue_value)
        tensor, dim = self.vm.tensors.reads.exposed(number)
        shown = self._tensor(tensor)
        if self.vm.subclasses.class_of(tensor) is not None:
            shown = self._outputs.get(id(tensor)) or f"{self.constant(as_plain, 'as_plain')}({shown})"
        if dim is not None:
            return f"{shown}.shape[{dim}]"
        known = shown.startswith("_out[")
        return self.numbers.setdefault(f"{shown}.item()", f"_n{len(self.numbers)}") if known else f"{shown}.item()"

    def _object(self, value: object, kind: type) -> str:
        if isinstance(value, types.FunctionType) and value in GENERATOR_METHODS:
            return self.constant(GENERATOR_METHODS[value], value.__name__)
        if id(value) not in self.vm.python.created:
            if isinstance(value, (*CONSTANT_TYPES, types.FunctionType)) and not isinstance(value, BOUND_C_CLASSES):
                return self.constant(value, getattr(value, "__name__", kind.__name__))
        if id(value) in self._running:
            raise CannotRebuild(f"a {kind.__name__} that contains itself")
        outermost = not self._running
        self._running.add(id(value))
        try:
            how = REBUILD.find(kind)
            if how is None:
                raise CannotRebuild(f"a {kind.__module__}.{kind.__qualname__}")
            expression = how(self, value)
            return self._made.get(id(value)) or self.assign(value, expression)
        except RecursionError:
            if not outermost or is_deep():  # the program's own frames fill the stack
                raise
            raise CannotRebuild(
                f"a {kind.__name__} of objects within objects, more than the stack has room for,"
            ) from None
        finally:
            self._running.discard(id(value))


@REBUILD(types.MappingProxyType)
def rebuild_class_dict(r: Rebuild, view: types.MappingProxyType[str, object]) -> str:
    """The expression for the `__dict__` of a class, read from the class."""
    for known in r.vm.effects.class_dicts.values():
        if any(each is view for each in known.views):
            return f"{r.constant(known.cls, known.cls.__name__)}.__dict__"
    raise CannotRebuild("a read-only view of a dictionary")


@REBUILD(UnknownText)
def rebuild_unknown_text(r: Rebuild, value: UnknownText) -> str:
    """Refuse unknown text as a value: capture restarts, and ends the graph before the instruction that makes the text.

    Raises:
        Restart: always.
    """
    value.read()
    raise AssertionError


@REBUILD(PhiValue)
def rebuild_phi_value(r: Rebuild, value: PhiValue) -> str:
    """The expression for a phi value: a conditional expression on the condition, which the graph computes."""
    true, false = ((value.tensor_output if type(arm) is TraceTensor else arm) for arm in (value.true, value.false))
    if not all(map(_can_be_phi, (true, false))):
        value.read()
    if true is NULL or false is NULL:  # an absent item: code written for the container deletes it
        return r(true if false is NULL else false)
    return f"({r(true)} if {r(value.condition)} else {r(false)})"


def _can_be_phi(arm: object) -> bool:
    return arm is NULL or is_plain(arm) or type(arm) is TraceTensor or type(arm) is PhiValue and not arm.optional


def _delete_item(r: Rebuild, holder: str, key: str, value: object) -> None:
    """Write code that deletes an item after the arm of a branch in which the item does not exist."""
    if type(value) is PhiValue and value.optional:
        test = f"not {r(value.condition)}" if value.false is NULL else r(value.condition)
        r.lines += [f"if {test}:", f"    del {holder}[{key}]"]


@REBUILD(tuple)
def rebuild_tuple(r: Rebuild, value: tuple[object, ...]) -> str:
    """The expression for a tuple, a named tuple or a structured result of torch."""
    items = ", ".join(map(r, tuple.__iter__(value))) + ("," if tuple.__len__(value) == 1 else "")
    kind = type(value)
    if kind is tuple:
        return f"({items})"
    cls = r.constant(kind, kind.__name__)
    if _structseq(kind):
        return f"{cls}(({items}))"
    return _with_attributes(r, value, f"{r.constant(tuple.__new__, 'tuple_new')}({cls}, ({items}))")


def _structseq(kind: type) -> bool:
    return hasattr(kind, "n_sequence_fields")


@REBUILD(list)
def rebuild_list(r: Rebuild, value: list[object]) -> str:
    """The expression for a list, or for an instance of a subclass with its attributes."""
    items = f"[{', '.join(map(r, list.__iter__(value)))}]"
    kind = type(value)
    if kind is list or kind is ModuleSlice:
        return items
    return _subclass(r, value, kind, list.__new__, list.extend, items)


@REBUILD(set, frozenset)
def rebuild_set(r: Rebuild, value: set[object] | frozenset[object]) -> str:
    """The expression for a set or frozenset."""
    kind, members = type(value), set_items(value)
    _refuse_hashed(r, members)
    items = f"[{', '.join(map(r, members))}]"
    cls = r.constant(kind, kind.__name__)
    if kind is set or kind is frozenset:
        return f"{cls}({items})"
    if issubclass(kind, frozenset):
        return _with_attributes(r, value, f"{r.constant(frozenset.__new__, 'frozenset_new')}({cls}, {items})")
    return _subclass(r, value, kind, set.__new__, set.update, items)


@REBUILD(collections.deque)
def rebuild_deque(r: Rebuild, value: collections.deque[object]) -> str:
    """The expression for a `collections.deque`, or for an instance of a subclass with its attributes."""
    kind, base = type(value), collections.deque
    items = f"[{', '.join(map(r, base.__iter__(value)))}], {base.maxlen.__get__(value)!r}"
    if kind is base:
        return f"{r.constant(kind, 'deque')}({items})"
    return _subclass(r, value, kind, base.__new__, base.__init__, items)


@REBUILD(int, float, complex, str, bytes)
def rebuild_plain(r: Rebuild, value: int | float | complex | str | bytes) -> str:
    """The expression for an instance of a subclass of a number type, str or bytes."""
    kind = type(value)
    base = next(each for each in kind.__mro__ if each in PLAIN_SHOWN)
    new, plain = r.constant(base.__new__, f"{base.__name__}_new"), r(PLAIN_SHOWN[base](value))
    return _with_attributes(r, value, f"{new}({r.constant(kind, kind.__name__)}, {plain})")


@REBUILD(dict)
def rebuild_dict(r: Rebuild, value: dict[object, object]) -> str:
    """The expression for a dict, an OrderedDict, a defaultdict, or an instance of a subclass such as outputs of
    transformers.
    """
    kind = type(value)
    _refuse_hashed(r, dict.keys(value))
    pairs = "{" + ", ".join(f"{r(k)}: {r(v)}" for k, v in items_of(value)) + "}"
    if any(type(item) is PhiValue and item.optional for item in dict.values(value)):
        raise CannotRebuild("a dictionary with an item that is there after one way of a branch only")
    if kind is dict:
        return pairs
    if kind is collections.OrderedDict:
        return f"{r.constant(kind, 'OrderedDict')}({pairs})"
    if type(value) is collections.defaultdict:
        return f"{r.constant(kind, 'defaultdict')}({r(value.default_factory)}, {pairs})"
    if isinstance(value, collections.OrderedDict):
        return _subclass(r, value, kind, collections.OrderedDict.__new__, ordered_fill, pairs)
    if isinstance(value, collections.defaultdict):
        made = collections.defaultdict
        return _subclass(r, value, kind, made.__new__, made.__init__, f"{r(value.default_factory)}, {pairs}")
    return _subclass(r, value, kind, dict.__new__, dict.update, pairs)


def _refuse_hashed(r: Rebuild, keys: Iterable[object]) -> None:
    """If writes are pending, refuse keys whose `__hash__` is the program's code: it would run before the writes."""
    if any(map(hashes, keys)) and r.vm.effects.pending():
        raise CannotRebuild("a container of objects that the program hashes, beside writes,")


def _subclass(
    r: Rebuild, value: object, kind: type, new: Callable[..., object], fill: Callable[..., object], items: str
) -> str:
    cls = r.constant(kind, kind.__name__)
    name = r.assign(value, f"{r.constant(new, new.__qualname__)}({cls})")
    r.lines.append(f"{r.constant(fill, fill.__qualname__)}({name}, {items})")
    _attributes(r, value, name)
    return name


def _with_attributes(r: Rebuild, value: object, made: str) -> str:
    """Assign the expression `made` for an object to a variable, and write statements that set its attributes."""
    name = r.assign(value, made)
    _attributes(r, value, name)
    return name


def _attributes(r: Rebuild, value: object, name: str) -> None:
    """Write statements that set the contents of an instance's dictionary and slots."""
    attributes = own_dict(value)
    if attributes:
        pairs = ", ".join(f"{r(key)}: {r(item)}" for key, item in attributes.items())
        table = f"{name}.__dict__"
        if type(value).__getattribute__ is not object.__getattribute__:  # the program's own method must not be called
            table = f"{r.constant(object.__getattribute__, 'get')}({name}, '__dict__')"
        r.lines.append(f"{table}.update({{{pairs}}})")
        for key, item in attributes.items():
            _delete_item(r, table, r(key), item)
    for base in type(value).__mro__:
        for slot, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType) and module_name(base.__module__) != "builtins":
                try:
                    item = member.__get__(value)
                except AttributeError:
                    continue
                r.lines.append(f"{r.constant(object.__setattr__, 'set')}({name}, {quoted(slot)}, {r(item)})")


@REBUILD(slice)
def rebuild_slice(r: Rebuild, value: slice) -> str:
    """The expression for a slice object."""
    return f"{r.constant(slice, 'slice')}({r(value.start)}, {r(value.stop)}, {r(value.step)})"


@REBUILD(types.MethodType)
def rebuild_method(r: Rebuild, value: types.MethodType) -> str:
    """The expression for a bound method, including one that represents a bound C method with an unknown descriptor."""
    if type(value.__func__) in C_METHODS:
        return f"{r(value.__func__)}.__get__({r(value.__self__)})"
    return f"{r.constant(types.MethodType, 'MethodType')}({r(value.__func__)}, {r(value.__self__)})"


@REBUILD(PrologueMethod)
def rebuild_prologue_method(r: Rebuild, value: PrologueMethod) -> str:
    """The expression for a bound method of a prologue value, such as an array."""
    return r.attribute(r(value.owner), value.name)


@REBUILD(numpy.dtype)
def rebuild_dtype(r: Rebuild, value: object) -> str:
    """The expression for a dtype of NumPy, which is immutable."""
    return r.constant(value, "dtype")


@REBUILD(TensorArray)
def rebuild_array(r: Rebuild, value: TensorArray) -> str:
    """The expression for an array that shares a tensor's memory, or for a NumPy number."""
    return f"{r(value.tensor)}.numpy(){'[()]' if value.scalar else ''}"


@REBUILD(ArrayMethod)
def rebuild_array_method(r: Rebuild, value: ArrayMethod) -> str:
    """The expression for a bound method of such an array."""
    return f"{r(value.owner)}.{value.name}"


@REBUILD(*BOUND_C_CLASSES)
def rebuild_builtin(r: Rebuild, value: BoundMethodOfC) -> str:
    """The expression for a bound method written in C."""
    owner = value.__self__
    if isinstance(owner, type) and id(owner) in r.vm.python.made_classes:
        for base in owner.__mro__:
            raw = vars(base).get(value.__name__)
            if type(raw) is types.ClassMethodDescriptorType and raw.__get__(None, owner) == value:
                return f"{r(raw)}.__get__(None, {r(owner)})"
    if owner is None or isinstance(owner, (types.ModuleType, type)):
        return r.constant(value, value.__name__)
    text = r(owner)
    return r.attribute(text if text.startswith("_") else f"({text})", value.__name__)


@REBUILD(types.CellType)
def rebuild_cell(r: Rebuild, value: types.CellType) -> str:
    """The expression for a closure cell of the frame. The cell is made before its contents, which may refer to it."""
    name = r.assign(value, f"{r.constant(types.CellType, 'Cell')}()")
    try:
        value_in_cell = value.cell_contents
    except ValueError:
        return name
    r.lines.append(f"{name}.cell_contents = {r(value_in_cell)}")
    return name


@REBUILD(types.FunctionType)
def rebuild_function(r: Rebuild, value: types.FunctionType) -> str:
    """The expression for a function that the frame has defined."""
    closure = "None"
    if value.__closure__:
        closure = "(" + ", ".join(map(r, value.__closure__)) + ",)"
        if id(value) in r._made:
            return r._made[id(value)]
    source = r.vm.globals_source(value.__globals__)
    name = r.assign(
        value,
        f"{r.constant(types.FunctionType, 'Function')}({r.constant(value.__code__, value.__name__ + '_code')}, "
        f"{r.fetched(source)}, {quoted(value.__name__)}, {r(value.__defaults__)}, {closure})",
    )
    for key in ("__kwdefaults__", "__qualname__", "__module__", "__doc__"):
        r.lines.append(f"{name}.{key} = {r(getattr(value, key))}")
    if value.__annotations__:
        r.lines.append(f"{name}.__annotations__ = {r(value.__annotations__)}")
    if value.__dict__:
        r.lines.append(f"{name}.__dict__.update({r(value.__dict__)})")
    return name


@REBUILD(property, staticmethod, classmethod, functools._lru_cache_wrapper)
def rebuild_wrapper(r: Rebuild, value: object) -> str:
    """The expression for a property or wrapper object: a constant, or made by the same call if the frame made it."""
    if id(value) not in r.vm.python.remade:
        return r.constant(value, type(value).__name__)
    name = r.constant(value)
    _attributes(r, value, name)
    return name


@REBUILD(TracedGenerator)
def rebuild_generator(r: Rebuild, value: TracedGenerator) -> str:
    """The expression for a generator that is exhausted, suspended in its body, or not started."""
    frame = value.frame
    if value.done:
        return f"{r.constant(exhausted, 'exhausted')}()"
    if frame.handled:
        raise Restart(value.born, Break("a generator that handles an exception is left unfinished"))
    decoded = frame.decoded
    slots, stack = (f"[{', '.join(map(r, items))}]" for items in (frame.locals, frame.stack if value.started else []))
    offset = decoded.offsets[frame.pc] if value.started else -1
    delegating = value.started and frame.pc > 1 and decoded.names[frame.pc - 2] == "SEND"
    scope = r.fetched(r.vm.globals_source(frame.globals))
    code = r.constant(frame.code, frame.code.co_name)
    return f"{r.constant(generator_at, 'generator_at')}({code}, {scope}, {slots}, {stack}, {offset}, {delegating})"


@REBUILD(Trampoline)
def rebuild_trampoline(r: Rebuild, value: Trampoline) -> str:
    """The expression for the function of a `map` or `filter` object that is not exhausted."""
    return r(value.fn)


def _reducible(*types_: type) -> None:
    for kind in types_:
        REBUILD(kind)(rebuild_reduced)


def rebuild_reduced(r: Rebuild, value: object) -> str:
    """The expression for an iterator or another C object, by its own `__reduce__`."""
    with heard(None):  # since Python 3.12, `__reduce__` of itertools warns that Python 3.14 removes it
        reduced = value.__reduce__()
    if isinstance(reduced, str):  # the name of a global, so the object is not new
        raise CannotRebuild(f"a {type(value).__name__}")
    made = f"{r(reduced[0])}({', '.join(map(r, reduced[1]))})"
    name = r.assign(value, made)
    if len(reduced) > 2 and reduced[2] is not None:
        if hasattr(value, "__setstate__"):
            if isinstance(value, _ON_LISTS):  # set after everything that may fail, by C code that cannot fail
                r.late.append(f"{name}.__setstate__({r(reduced[2])})")
            else:
                r.lines.append(f"{r.constant(set_state, 'set_state')}({name}, {r(reduced[2])})")
        else:
            r.lines.append(f"{name}.__dict__.update({r(reduced[2])})")
    return name


_LIST: list[int] = []
_ON_LISTS = (type(iter(_LIST)), type(reversed(_LIST)))


_reducible(
    type(iter([])), type(iter(())), type(iter(range(1))), type(iter("")),
    enumerate, zip, map, filter, reversed, type(reversed([])), type(reversed({})), type(iter(b"")),
)  # fmt: skip


@REBUILD(*SIZED_ITERATORS)
def rebuild_sized_iterator(r: Rebuild, value: Iterator[object]) -> str:
    """The expression for an iterator over a dict or set. Its position is set after the writes to the dict or set, since
    the iterator raises an error if their size changes.
    """
    view, position = SIZED_ITERATORS[type(value)], iterator_position(value)
    if position is None:
        return f"{r.constant(used_up, 'used_up')}({r.constant(view, 'view')})"
    iterated = r(position[0]) if view is None else f"{r.constant(view, 'view')}({r(position[0])})"
    name = r.assign(value, f"{r.constant(iter, 'iter')}({iterated})")
    r.late.append(
        f"{r.constant(set_iterator_position, 'put_iterator')}({name}, {position[1]}, {position[2]}, {position[3]})"
    )
    return name


_AN_ORDERED_DICT: dict[object, object] = collections.OrderedDict()


@REBUILD(*(type(view) for each in ({}, _AN_ORDERED_DICT) for view in (each.keys(), each.values(), each.items())))
def rebuild_view(r: Rebuild, value: object) -> str:
    """The expression for a view of a dict, made from the dict, whose later changes the view shows."""
    name = type(value).__name__.rpartition("_")[2]  # dict_keys, odict_values, ...
    return f"{r(gc.get_referents(value)[0])}.{name}()"  # the view's `mapping` is only a proxy


@REBUILD(BaseException)
def rebuild_exception(r: Rebuild, value: BaseException) -> str:
    """The expression for an exception, made from its class, arguments and attributes.

    Raises:
        Restart: the exception was raised in capture; the frame itself has to run to make its traceback.
    """
    raised = r.vm.python.errors.get(id(value))
    if raised is not None and r.vm.finalizers.allowed:
        raise Restart(raised[1], Break("an exception that was raised leaves the frame", "it has a traceback"))
    kind = type(value)
    cls = r.constant(kind, kind.__name__)
    name = r.assign(value, f"{cls}.__new__({cls}, {', '.join(map(r, value.args))})")
    for base in kind.__mro__:
        if base is BaseExceptionGroup:  # its C attributes follow from its arguments
            continue
        # attributes in C fields: `value` of StopIteration, `errno` of OSError
        for key, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType) and module_name(base.__module__) == "builtins":
                state = getattr(value, key, None)
                if state is not None and key != "__suppress_context__":
                    r.lines.append(f"{r.constant(setattr, 'setattr')}({name}, {quoted(key)}, {r(state)})")
    if value.__cause__ is not None:
        r.lines.append(f"{name}.__cause__ = {r(value.__cause__)}")
    r.lines.append(f"{name}.__suppress_context__ = {value.__suppress_context__}")
    _attributes(r, value, name)
    return name


@REBUILD(re.Match)
def rebuild_match(r: Rebuild, value: re.Match[Any]) -> str:
    """The expression for a match of a regular expression, which is found by matching a second time."""
    if remake_match(value.re, value.string, value.pos, value.endpos, value.regs) is None:
        raise CannotRebuild("a match of a regular expression")
    given = ", ".join(map(r, (value.re, value.string, value.pos, value.endpos, value.regs)))
    return f"{r.constant(remake_match, 'remake_match')}({given})"


@REBUILD(object)
def rebuild_object(r: Rebuild, value: object) -> str:
    """The expression for an instance of a Python class: made without `__init__`, then its attributes are set."""
    kind = type(value)
    if not is_written(kind) or kind.__new__ is not object.__new__ and not _plain_new(kind):
        if isinstance(value, torch.Generator) or not _copyable(value):
            raise CannotRebuild(f"a {kind.__module__}.{kind.__qualname__}")
        return rebuild_reduced(r, value)
    cls = r.constant(kind, kind.__name__)
    name = r.assign(value, f"{r.constant(object.__new__, 'new')}({cls})")
    _attributes(r, value, name)
    return name


def _plain_new(kind: type) -> bool:
    """Whether the class overrides object's `__new__` in Python."""
    return isinstance(kind.__new__, types.FunctionType) and is_written(kind)


_COPYABLE = {"datetime", "decimal", "fractions", "functools", "itertools", "operator", "collections", "types"}


def _copyable(value: object) -> bool:
    kind = type(value)
    says_how = kind.__reduce__ is not object.__reduce__ or kind.__reduce_ex__ is not object.__reduce_ex__
    module = module_name(kind.__module__)
    known = getattr(sys.modules.get(module), kind.__name__, None) is kind
    return says_how and known and module.split(".")[0] in _COPYABLE
