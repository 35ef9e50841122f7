"""The tensors of a capture whose class is a subclass, and the calls that their `__torch_function__` gets."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.overrides
from torch.utils._pytree import PyTree

from smelt.base import torch_c
from smelt.base.class_tables import classes, isinstance
from smelt.base.torch_private import OpOverload, OpOverloadPacket
from smelt.capture.core.breaks import Break, user_raise
from smelt.capture.core.interface import NO_OVERRIDE, Args, Interpreter, Kwargs
from smelt.capture.core.sources import Source
from smelt.capture.python.attribute_reads import find_in_class
from smelt.capture.subclasses.attributes import TensorSuper, read_attr, write_attr
from smelt.capture.subclasses.probes import Dispatch, dispatch_of, refusal
from smelt.capture.subclasses.wrappers import desugar
from smelt.capture.tensors.tensors import unreadable
from smelt.capture.tensors.torch_calls import is_torch_builtin, load_own_attr
from smelt.graph.trace.trace import TraceTensor

PLAIN_CLASSES = classes(torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
"""Classes of tensors that are torch's own."""

_WITHOUT = torch_c.disabled_torch_function


@dataclass
class Made:
    """What the frame has made of a tensor: its class, and the attributes that the program has set."""

    cls: type
    tensor: TraceTensor
    attributes: Kwargs = field(default_factory=dict)
    is_wrapper: bool = False
    example: torch.Tensor | None = None


class Subclasses:
    """The classes and attributes of the tensors of a capture whose class is a subclass.

    A trace tensor stands for an instance. Whether torch functions call `__torch_function__` of its class depends on
    the modes that the program has entered (`Ambient.torch_functions`).

    Attributes:
        present: whether the capture has met an instance.
    """

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self.present = False
        self._inputs: dict[int, type] = {}
        self._made: dict[int, Made] = {}
        self._wrappers: set[int] = set()

    def release(self) -> None:
        """Drop the references to the program's objects."""
        self._inputs.clear()
        self._wrappers.clear()
        self._made.clear()

    def class_of(self, tensor: TraceTensor) -> type | None:
        """The subclass of a tensor; None for a tensor of one of torch's own classes."""
        made = self._made.get(id(tensor))
        return self._inputs.get(id(tensor)) if made is None else made.cls

    def holds_instance(self, value: object) -> bool:
        """Whether the value, or a value in its tuples, lists and dictionaries, is a tensor of a subclass."""
        if isinstance(value, (tuple, list)):
            return any(map(self.holds_instance, value))
        if isinstance(value, dict):
            return any(map(self.holds_instance, value.values()))
        return type(value) is TraceTensor and self.class_of(value) is not None

    def note_input(self, tensor: TraceTensor, cls: type) -> None:
        """Note the class of an input."""
        if cls not in PLAIN_CLASSES:
            self._inputs[id(tensor)] = cls
            self.present = self.vm.guards.instances = True

    def is_instance(self, source: Source) -> bool:
        """Whether an input at this source is of a subclass."""
        return any(self.vm.sources.get(identity) is source for identity in self._inputs)

    def adopt(self, tensor: TraceTensor, cls: type) -> TraceTensor:
        """Give a tensor that the graph makes the class; returns the tensor.

        Raises:
            Break: the class cannot be given to a tensor that exists.
        """
        if cls is torch.Tensor:
            return tensor
        reason = refused_class(cls)
        if reason:
            raise Break(f"a {cls.__name__} is made", reason, "make it outside of the function")
        self._made[id(tensor)] = Made(cls, tensor)
        self.present = True
        return tensor

    def is_wrapper(self, value: object) -> bool:
        """Whether the value is a tensor of a wrapper subclass, which no graph holds."""
        return id(value) in self._wrappers

    def adopt_wrapper(self, tensor: TraceTensor, cls: type) -> TraceTensor:
        """Note a wrapper that the frame makes; returns the tensor, which stands for it."""
        self.vm.work += 1
        self._made[id(tensor)] = Made(cls, tensor, is_wrapper=True)
        self._wrappers.add(id(tensor))
        self.present = True
        return tensor

    def note_wrapper(self, tensor: TraceTensor, cls: type) -> None:
        """Note a wrapper from outside."""
        self._wrappers.add(id(tensor))
        self.note_input(tensor, cls)

    def desugar(self, target: PyTree, args: Args, kwargs: Mapping[str, object]) -> PyTree:
        """The result of an operation by the `__torch_dispatch__` of its wrappers; `NO_OVERRIDE` without any."""
        if not self._wrappers or not self._holds_wrapper((*args, *kwargs.values())):
            return NO_OVERRIDE
        return desugar(self.vm, target, args, kwargs)

    def _holds_wrapper(self, values: Iterable[object]) -> bool:
        return any(
            id(value) in self._wrappers or isinstance(value, (list, tuple)) and self._holds_wrapper(value)
            for value in values
        )

    def attributes(self, tensor: TraceTensor) -> Kwargs | None:
        """The attributes that the program has set on an instance that the frame made; None for other tensors."""
        made = self._made.get(id(tensor))
        return None if made is None else made.attributes

    def read_attr(self, tensor: TraceTensor, cls: type, name: str) -> PyTree:
        """An attribute that the subclass or the program gives; `NO_OVERRIDE` for one of torch's."""
        return read_attr(self.vm, tensor, cls, name)

    def write_attr(self, tensor: TraceTensor, cls: type, name: str, value: object) -> bool:
        """`tensor.name = value`; False where torch's own rules hold."""
        return write_attr(self.vm, tensor, cls, name, value)

    def stand_in(self, tensor: TraceTensor) -> torch.Tensor | None:
        """A real instance of the class of a tensor that the frame gave a subclass; None for other tensors."""
        made = self._made.get(id(tensor))
        if made is None:
            return None
        if made.example is None and made.is_wrapper:
            made.example = torch.Tensor._make_wrapper_subclass(made.cls, (0,), dtype=tensor.dtype)
        elif made.example is None:
            made.example = torch.empty(0, dtype=tensor.dtype)
            made.example.__class__ = made.cls
        return made.example

    def proxy(self, start: type, tensor: TraceTensor) -> TensorSuper:
        """`super(start, tensor)`"""
        return TensorSuper(start, tensor)

    # -- calls of `__torch_function__` -----------------------------------------------------------------------------

    def overrides(self, tensor: TraceTensor) -> bool:
        """Whether torch functions of the program now call a `__torch_function__` for this tensor."""
        if not self.vm.ambient.torch_functions[0]:
            return False
        cls = self.class_of(tensor)
        return cls is not None and getattr(cls, "__torch_function__", _WITHOUT) is not _WITHOUT

    def overridden(self, values: Iterable[object]) -> list[TraceTensor]:
        """The tensors among the values, also in lists and tuples, that `overrides` is true for."""
        out: list[TraceTensor] = []
        for value in values:
            if type(value) is TraceTensor:
                if self.overrides(value):
                    out.append(value)
            elif type(value) is list or type(value) is tuple:
                out += self.overridden(value)
        return out

    def _overriding_class(self, tensor: TraceTensor) -> type | None:
        return self.class_of(tensor) if self.overrides(tensor) else None

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Context in which the program's torch functions call no `__torch_function__` of subclasses."""
        before = self.vm.ambient.torch_functions
        self.vm.ambient.torch_functions = False, before[1]
        try:
            yield
        finally:
            self.vm.ambient.torch_functions = before

    def intercept(self, fn: PyTree, args: Args, kwargs: Kwargs) -> PyTree:
        """The result of the call by `__torch_function__`; `NO_OVERRIDE` if torch calls none.

        Raises:
            UserError: the error of the program's function, or torch's if every class returns NotImplemented.
        """
        accessed = _accessed_attribute(fn, args)
        if accessed is not None and not self.overridden(args):
            return self._access(fn.__name__, accessed, args)
        given = (*args, *kwargs.values())
        owner = fn.__self__ if type(fn) in _BOUND else None
        if type(owner) is TraceTensor:
            if not self.overridden((owner, *given)):
                return NO_OVERRIDE
            fn, args = getattr(torch.Tensor, fn.__name__), (owner, *args)
        elif not self.overridden(given) or not _may_dispatch(fn):
            return NO_OVERRIDE
        plain = self.vm.effects.plain
        args, kwargs = tuple(map(plain, args)), {name: plain(value) for name, value in kwargs.items()}
        found = dispatch_of(self._overriding_class, fn, args, kwargs)
        python = isinstance(fn, types.FunctionType)  # its own calls of torch may dispatch, where it does not
        if found is not None and not (python and found.func is not fn):
            return self.dispatch(found, args, kwargs, lambda: refusal(self._overriding_class, fn, args, kwargs))
        if python:
            return NO_OVERRIDE
        with self.disabled():  # torch has no override of this function, or refuses the arguments
            return self.vm.call(fn, args, kwargs)

    def _access(self, how: str, name: str, args: Args) -> object:
        """The result of `torch.Tensor.name.__get__(tensor)`, or of `__set__`."""
        if how == "__get__":
            return load_own_attr(self.vm, args[0], name)
        return self.vm.call(setattr, (args[0], name, args[1]), {})

    def dispatch(self, found: Dispatch, args: Args, kwargs: Kwargs, error: Callable[[], Exception]) -> PyTree:
        """Ask the classes in order for the result of a call."""
        self.vm.work += 1
        tensors = self.overridden((*args, *kwargs.values()))
        for cls in found.classes:
            tensor = next(each for each in tensors if self.class_of(each) is cls)
            out = self.ask(cls, tensor, found.given)
            if out is not NotImplemented:
                return out
        return user_raise(error())

    def ask(self, cls: type, tensor: object, given: Args) -> PyTree:
        """The result of the `__torch_function__` of one class."""
        raw = find_in_class(self.vm, cls, "__torch_function__")
        match raw:
            case classmethod():
                return self.vm.call(raw.__func__, (cls, *given), {})
            case staticmethod():
                return self.vm.call(raw.__func__, given, {})
            case types.FunctionType():
                return self.vm.call(raw, (tensor, *given), {})
        raise Break(f"{cls.__name__}.__torch_function__ is a {type(raw).__name__}", "capture knows none of this kind")


def refused_class(cls: type) -> str:
    """The reason why a capture has no instances of the class; empty if it may have some."""
    reason = unreadable(cls)
    if reason:
        return reason
    try:
        torch.empty(0).__class__ = cls
    except TypeError as error:
        return str(error)
    return ""


_C_FUNCTIONS = classes(
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType
)
_BOUND = classes(types.BuiltinFunctionType, types.MethodWrapperType)
_ACCESSORS = classes(types.GetSetDescriptorType, property)
_OPERATORS = frozenset({"_operator"})
_READERS = (getattr, setattr)
_overridable: set[int] = set()


def _accessed_attribute(fn: PyTree, args: Args) -> str | None:
    """The name of the attribute that `torch.Tensor.name.__get__` or `__set__` accesses; None for other functions."""
    if type(fn) is not types.MethodWrapperType or fn.__name__ not in ("__get__", "__set__"):
        return None
    owner: PyTree = fn.__self__
    if type(owner) not in _ACCESSORS or not args or type(args[0]) is not TraceTensor:
        return None
    getter: PyTree = getattr(owner, "fget", owner)
    name: str = getter.__name__
    return name if getattr(torch.Tensor, name, None) is owner else None


def _may_dispatch(fn: PyTree) -> bool:
    """Whether the function may be one of torch's, which look for `__torch_function__`."""
    kind = type(fn)
    if kind in _C_FUNCTIONS:
        if getattr(fn, "__objclass__", None) is torch_c.TENSOR_BASE or _accessor(fn):
            return True
        return fn in _READERS or getattr(fn, "__module__", None) in _OPERATORS or is_torch_builtin(fn)
    if kind is types.FunctionType:
        if not _overridable:
            functions = torch.overrides.get_overridable_functions().values()
            _overridable.update(id(each) for group in functions for each in group)
            _overridable.update(map(id, vars(torch.Tensor).values()))
        return id(fn) in _overridable
    return isinstance(fn, (OpOverload, OpOverloadPacket))


def _accessor(fn: PyTree) -> bool:
    return type(fn) is types.MethodWrapperType and type(fn.__self__) in _ACCESSORS


@functools.cache
def plain_reader(name: str) -> Callable[[torch.Tensor], object]:
    """The function that reads an attribute of an instance without its `__torch_function__`, for guards."""

    def read(tensor: torch.Tensor) -> object:
        with torch_c.without_torch_function():
            return getattr(tensor, name)

    return read
