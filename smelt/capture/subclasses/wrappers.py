"""Wrapper subclasses: tensors without memory of their own; their `__torch_dispatch__` computes with tensors in them.

The graph never holds a wrapper. An operation on wrappers runs in torch's C code on probes, which reach
`__torch_dispatch__` with each operator that torch would pass on; capture then interprets the program's method, and the
operators that it calls on inner tensors become nodes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import PyTree

from smelt.base import torch_c
from smelt.base.torch_private import OpOverload, schema_of
from smelt.capture.core.breaks import Break, user
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special
from smelt.capture.python.attribute_reads import find_in_class
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.symint import from_torch
from smelt.graph.nodes.casts import present_casts
from smelt.graph.trace.trace import TraceTensor, trace_like


class _Probe(torch.Tensor):
    """Stands for a tensor of the capture while torch's C code runs an operation on it.

    Attributes:
        run: the `_Operation` that the probe belongs to.
        stands_for: the tensor of the capture.
    """

    run: _Operation
    stands_for: TraceTensor

    __torch_function__ = torch_c.disabled_torch_function  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        first = next(value for value in _flat((args, kwargs or {})) if isinstance(value, _Probe))
        return first.run.dispatch(func, args, kwargs or {})


def _flat(value: PyTree) -> list[PyTree]:
    """The leaves of nested tuples, lists and dictionaries."""
    if isinstance(value, (tuple, list)):
        return [leaf for each in value for leaf in _flat(each)]
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in _flat(each)]
    return [value]


def _mapped(value: PyTree, how: Callable[[PyTree], PyTree]) -> PyTree:
    """The value with its leaves replaced."""
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, (tuple, list)):
        items = [_mapped(each, how) for each in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: _mapped(each, how) for key, each in value.items()}
    return how(value)


def _nothing() -> None:
    return None


class _Operation:
    """One operation of torch on wrappers, with the probes of its tensors.

    C code copies the result of some operators unless it holds the only reference to it, so the probes are not kept.
    """

    def __init__(self, vm: Interpreter) -> None:
        self.vm = vm
        self._probes: dict[int, weakref.ref[_Probe]] = {}

    def run(self, target: Callable[..., object], args: Args, kwargs: Mapping[str, object]) -> PyTree:
        """The result of the operation.

        Raises:
            Break: the operation reshapes a wrapper in place.
        """
        given, named = _mapped(args, self.probe), _mapped(dict(kwargs), self.probe)
        probes = [leaf for leaf in _flat((given, named)) if isinstance(leaf, _Probe)]
        out = user(target, *given, **named)
        for probe in probes:
            if probe.shape != probe.stands_for.shape or probe.stride() != probe.stands_for.stride():
                raise Break(f"a {self._name(probe.stands_for)} is reshaped in place", "its object keeps its shape")
        return _mapped(out, self.original)

    def probe(self, value: PyTree) -> PyTree:
        """The probe of a tensor; any other value unchanged."""
        if type(value) is not TraceTensor:
            return value
        known = self._probes.get(id(value), _nothing)()
        if known is None:
            made: PyTree = torch.Tensor._make_wrapper_subclass(
                _Probe,
                value.shape,
                strides=value.stride(),
                storage_offset=value.storage_offset(),
                dtype=value.dtype,
                device=value.device,
            )
            made.run, made.stands_for = self, value
            self._probes[id(value)] = weakref.ref(made)
            return made
        return known

    def original(self, value: PyTree) -> PyTree:
        """The tensor that a probe stands for; any other value unchanged.

        Raises:
            Break: the value is a tensor that C code made.
        """
        if isinstance(value, _Probe):
            return value.stands_for
        if isinstance(value, torch.Tensor) and type(value) is not TraceTensor:
            raise Break("a tensor is made by an operation on a wrapper", "capture did not see how")
        return value

    def _name(self, tensor: TraceTensor) -> str:
        return self.vm.type_of(tensor).__name__

    def dispatch(self, func: OpOverload, args: Args, kwargs: Kwargs) -> PyTree:
        """One operator: by the `__torch_dispatch__` of its wrappers, or as a node if it has none among its arguments.

        Raises:
            Break: an operator that no class implements, or one with gradients.
        """
        given, named = _mapped(tuple(args), self.original), _mapped(kwargs, self.original)
        wrappers = [leaf for leaf in _flat((given, named)) if self.vm.subclasses.is_wrapper(leaf)]
        if not wrappers:
            return _mapped(self.vm.tensors.run(func, given, named), self.probe)
        kinds: list[type] = []
        for tensor in wrappers:
            cls = self.vm.type_of(tensor)
            if cls not in kinds:  # subclasses are asked before their superclasses
                kinds.insert(next((i for i, kind in enumerate(kinds) if issubclass(cls, kind)), len(kinds)), cls)
        for cls in kinds:
            out = self._ask(cls, (func, tuple(kinds), given, named))
            if out is not NotImplemented:
                return _mapped(out, self.probe)
        raise Break(f"{func} of a {kinds[0].__name__}", "its __torch_dispatch__ returns NotImplemented")

    def _ask(self, cls: type, given: Args) -> PyTree:
        if not torch.is_grad_enabled():
            return self._call(cls, given)
        with self.vm.ambient.gradients(False):  # autograd is above the dispatch, also for inner tensors with gradients
            return self._call(cls, given)

    def _call(self, cls: type, given: Args) -> PyTree:
        raw = find_in_class(self.vm, cls, "__torch_dispatch__")
        if not isinstance(raw, (classmethod, staticmethod)):
            raise Break(f"{cls.__name__}.__torch_dispatch__ is a {type(raw).__name__}", "capture knows no such method")
        return self.vm.call(raw.__func__, (cls, *given) if isinstance(raw, classmethod) else given, {})


def desugar(vm: Interpreter, target: PyTree, args: Args, kwargs: Mapping[str, object]) -> PyTree:
    """The result of an operation of which some arguments are wrappers, by their `__torch_dispatch__`.

    Raises:
        Break: the operation has gradients, which follow from the operators on wrappers.
    """
    tensors = [leaf for leaf in _flat((args, dict(kwargs))) if type(leaf) is TraceTensor]
    cls = next(vm.type_of(tensor) for tensor in tensors if vm.subclasses.is_wrapper(tensor))
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        why = "autograd differentiates the operators on the wrapper, which no graph holds"
        raise Break(f"an operation on a {cls.__name__} with gradients", why, "compute it in torch.no_grad()")
    if any(enabled for enabled, _ in present_casts()):
        raise Break(f"an operation on a {cls.__name__} in autocast", "the operators on inner tensors are not cast")
    vm.work += 1
    return _Operation(vm).run(target, args, kwargs)


# -- wrappers that the frame makes ---------------------------------------------------------------------------------


@special(torch.Tensor._make_wrapper_subclass)
def make_wrapper(vm: Interpreter, args: Args, kwargs: Kwargs) -> TraceTensor:
    """Captured form of `torch.Tensor._make_wrapper_subclass(cls, size, ...)`.

    Raises:
        Break: the wrapper computes its sizes, device or layout itself.
    """
    cls, *given = args
    if any(kwargs.get(name) for name in ("dispatch_sizes_strides_policy", "dispatch_device", "dispatch_layout")):
        raise Break(f"a {cls.__name__} is made", "it computes its own sizes, device or layout")
    named = {name: value for name, value in kwargs.items() if name != "requires_grad"}
    plain = vm.effects.plain
    made: PyTree = user(torch.Tensor._make_wrapper_subclass, _Probe, *map(plain, given), **plain(named))
    if made.layout is not torch.strided:
        raise Break(f"a {cls.__name__} with layout {made.layout} is made", "capture knows strided tensors only")
    meta = TensorMeta(from_torch(tuple(made.shape)), made.dtype, from_torch(made.stride()), made.device)
    return vm.subclasses.adopt_wrapper(trace_like(meta, bool(kwargs.get("requires_grad"))), cls)


@special(return_and_correct_aliasing)
def correct_aliasing(vm: Interpreter, args: Args, kwargs: Kwargs) -> PyTree:
    """Captured form of `return_and_correct_aliasing(func, args, kwargs, out)`: an operator that writes to an argument
    returns the argument itself. Wrappers have no memory that could be shared.
    """
    names = ("func", "args", "kwargs", "out")
    func, given, named, out = [*args, *(kwargs[name] for name in names[len(args) :])]
    schema = schema_of(func)
    if len(schema.returns) != 1:
        return out
    alias = schema.returns[0].alias_info
    if alias is None or not alias.is_write:
        return out
    plain_args, plain_named = vm.effects.plain(given), vm.effects.plain(named or {})
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.before_set == alias.before_set:
            return plain_args[position] if position < len(plain_args) else plain_named[argument.name]
    return out
