"""Calls of torch, which become graph nodes or mode switches, or have a fixed result during capture."""

from __future__ import annotations

import types
from typing import Any

import torch
import torch.overrides

from smelt.base import torch_c
from smelt.base.class_tables import isinstance
from smelt.base.python_text import module_name
from smelt.base.torch_private import OpOverload, OpOverloadPacket, is_view
from smelt.capture import _native as native
from smelt.capture.core import sources
from smelt.capture.core.breaks import Break, Restart, user, user_raise
from smelt.capture.core.interface import NO_OVERRIDE, Args, Interpreter, Kwargs
from smelt.capture.core.registry import ATTR, CALL, SPECIAL, TENSOR_METHODS, constant, special
from smelt.capture.guards.questions import is_not_shared, requires_grad_itself
from smelt.capture.python.attribute_reads import find_in_class, mirrored_dict, replaced_in_tensor
from smelt.capture.python.backward import tensor_backward
from smelt.capture.tensors.storage_offsets import (
    relative_to_input,
    require_aligned_view,
    scatter_strided,
    storage_offset,
)
from smelt.graph.trace.trace import TraceTensor

METADATA = frozenset(
    {"shape", "dtype", "device", "ndim", "requires_grad", "layout", "is_leaf", "names", "itemsize", "nbytes"}
    | {"is_cuda", "is_cpu", "is_mps", "is_xpu", "is_meta", "is_sparse", "is_quantized", "is_nested", "is_mkldnn"}
    | {"is_sparse_csr", "is_ipu", "is_xla", "is_vulkan", "is_hpu", "is_mtia", "is_maia", "retains_grad", "output_nr"}
)
"""Tensor attributes that the metadata gives."""

VIEWS = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
"""Tensor attributes that are tensors computed from the tensor."""

TENSOR_TYPES = tuple(cls for cls in torch.Tensor.__mro__ if cls is not object)

SWITCHES = frozenset(
    fn
    for fn in (
        torch_c.set_grad_enabled,
        torch.set_autocast_enabled,
        torch.set_autocast_dtype,
        torch.set_autocast_cache_enabled,
        torch.set_autocast_cpu_enabled,
        torch.set_autocast_gpu_dtype,
        torch.set_autocast_cpu_dtype,
        torch.autocast_increment_nesting,
        torch.autocast_decrement_nesting,
        torch.clear_autocast_cache,
        *torch_c.ATTENTION_SETTERS,
    )
)
"""C functions that switch a mode of the thread, or select the kernels that attention may use."""

constant(False, torch.jit.is_scripting, torch.jit.is_tracing)
constant(False, torch._jit_internal.is_scripting)
constant(True, torch.compiler.is_dynamo_compiling)
constant(False, torch.compiler.is_exporting)
constant(None, torch_c.log_api_usage_once, torch_c.get_tracing_state)

_torch_builtins: dict[int, bool] = {}


def is_torch_builtin(fn: object) -> bool:
    """Whether `fn` is a C function of torch."""
    known = _torch_builtins.get(id(fn))
    if known is None:
        module = module_name(getattr(fn, "__module__", None))
        owner = getattr(fn, "__self__", None)
        owned = module_name(getattr(owner, "__name__", "")) if isinstance(owner, (type, types.ModuleType)) else ""
        known = module.split(".")[0] == "torch" or owned.startswith(("torch", "_VariableFunctions", "_TensorBase"))
        # methods that are bound to objects of the program are short-lived
        if known and isinstance(owner, (type, types.ModuleType, type(None))):
            _torch_builtins[id(fn)] = known
            _kept_alive.append(fn)
    return known


_kept_alive: list[object] = []


_C_FUNCTION = types.BuiltinFunctionType


def call_torch(vm: Interpreter, fn: object, args: Args, kwargs: Kwargs) -> Any:
    """Call a C function of torch, or a Python function that becomes one node."""
    if isinstance(fn, _C_FUNCTION) and fn in SWITCHES:
        if any(type(value) is TraceTensor for value in (*args, *kwargs.values())):
            return vm.tensors.run(fn, args, kwargs)  # raises an error
        return vm.ambient.switch(fn, args, kwargs)
    name = getattr(fn, "__name__", "")
    if name.startswith(("set_", "_set_")) and not any(type(a) is TraceTensor for a in args):
        raise Break(f"torch.{name} changes global state", "a graph cannot hold it", "call it outside of the function")
    plain = vm.effects.plain
    args = tuple(map(plain, args))
    if kwargs:
        kwargs = {key: plain(value) for key, value in kwargs.items()}
    vm.effects.refuse_opaque(fn, args)
    vm.effects.refuse_opaque(fn, kwargs.values())
    if isinstance(fn, _C_FUNCTION):
        args, kwargs = _with_dtypes(args, kwargs)
    return vm.tensors.run(fn, args, kwargs)


def _with_dtypes(args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments with Python's number types, which torch accepts as dtypes, replaced by dtypes, which a graph can
    print.
    """
    if any(type(value) is type and value in DTYPES for value in (*args, *kwargs.values())):
        args = tuple(DTYPES[value] if type(value) is type and value in DTYPES else value for value in args)
        kwargs = {k: DTYPES[value] if type(value) is type and value in DTYPES else value for k, value in kwargs.items()}
    return args, kwargs


DTYPES: dict[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}


def _make_leaf(vm: Interpreter, tensor: TraceTensor) -> object:
    """Captured form of `tensor.requires_grad_()` on a tensor that the frame has made.

    Raises:
        Break: the tensor is external, or has a history.
        Restart: the tensor is external or has a history, and the frame has made a view of it and written to the
            memory. Capture stops before the view: results of the graph would be views of written memory, and autograd
            would give them the history of their base.
    """
    if vm.source_of(tensor) is not None or tensor.requires_grad:
        stop = Break(
            "tensor.requires_grad_()",
            "a graph's tensors keep their history: what asks for gradients inside would not be seen outside",
            "call it before the compiled function, on its arguments",
        )
        first = vm.tensors.first_view(tensor) if vm.tensors is vm.outermost else None
        if first is None:
            raise stop
        raise Restart(first, stop)
    return vm.tensors.make_leaf(tensor)


def _refuse_method(vm: Interpreter, name: str, tensor: TraceTensor) -> None:
    """Refuse methods that change objects outside of the graph."""
    if name == "detach_" and tensor.requires_grad and (id(tensor) in vm.sources or tensor.grad_fn is None):
        raise Break("detach_() of a tensor that others hold", "a graph leaves the history of its inputs as it is")
    if name in ("apply_", "map_", "map2_"):
        raise Break(f"tensor.{name}()", "a Python function runs on each element", "compute with whole tensors")
    if name in RESHAPING and id(tensor) in vm.sources:
        raise Break(f"tensor.{name}() of an argument", "a graph's inputs keep their shape and storage")


def call_tensor_method(vm: Interpreter, name: str, args: Args, kwargs: Kwargs) -> object:
    """Call a method of a trace tensor: `args[0].name(*args[1:])`."""
    if name == "backward":
        tensor_backward(vm, args, kwargs)
        return None
    if name in TENSOR_METHODS:
        return TENSOR_METHODS[name](vm, *args, **kwargs)
    if name == "requires_grad_" and _changes_requires_grad(vm, args[0], _requested_flag(*args[1:], **kwargs)):
        return _make_leaf(vm, args[0])
    _refuse_method(vm, name, args[0])
    plain = vm.effects.plain
    args = tuple(map(plain, args))
    if kwargs:
        kwargs = {key: plain(value) for key, value in kwargs.items()}
    if name == "storage_offset" and vm.subclasses.is_wrapper(args[0]):
        return args[0].storage_offset()
    if name in _ON_DATA and args[0].device.type != "meta":
        return _ON_DATA[name](vm, args[0])
    args, kwargs = _with_dtypes(args, kwargs)
    if name in ("as_strided", "as_strided_"):
        args, kwargs = relative_to_input(vm, *args, **kwargs)
    elif name == "as_strided_scatter":
        return scatter_strided(vm, *args, **kwargs)
    elif name == "view":
        require_aligned_view(vm, args, kwargs)
    return vm.tensors.run(_method(name), args, kwargs, method=name)


RESHAPING = frozenset(
    {
        "t_",
        "transpose_",
        "swapaxes_",
        "swapdims_",
        "unsqueeze_",
        "squeeze_",
        "as_strided_",
        "resize_",
        "resize_as_",
        "set_",
    }
)
"""Methods that change the tensor object rather than its elements."""


def _requested_flag(requires_grad: object = True, *others: object, **named: object) -> bool | None:
    """The flag that is passed to `requires_grad_`; None for arguments that the method refuses."""
    if type(requires_grad) is torch.SymBool:
        requires_grad = user(bool, requires_grad)
    return requires_grad if type(requires_grad) is bool and not others and not named else None


def _changes_requires_grad(vm: Interpreter, tensor: TraceTensor, wanted: bool | None) -> bool:
    """Whether `requires_grad_(wanted)` changes the tensor; False if `wanted` is None, for refused arguments."""
    if wanted is None:
        return False
    real = vm.tensors.real.get(id(tensor))
    if tensor.requires_grad != wanted or not wanted or real is None or isinstance(real, torch.nn.Parameter):
        return bool(tensor.requires_grad != wanted)
    if not requires_grad_itself(real):
        return True
    vm.guards.python(requires_grad_itself, [vm.sources[id(tensor)]])
    return False


def _needs_values(vm: Interpreter, tensor: TraceTensor) -> object:
    raise Break(
        "a tensor's value is needed in Python",
        "a graph is captured from shapes and dtypes; values are not known yet",
        "keep the computation in tensors, or move this read out of the compiled function",
    )


def _input_property(vm: Interpreter, tensor: TraceTensor, fn: Any, name: str) -> Any:
    """The result of a method without arguments on an input; the result is guarded."""
    real, source = vm.tensors.real.get(id(tensor)), vm.sources.get(id(tensor))
    if real is None or source is None:
        raise Break(
            f"tensor.{name}() of a tensor that the graph makes",
            "how a sparse tensor stores its elements is known when the program runs",
            "ask it of an argument, or outside of the compiled function",
        )
    return vm.external(fn(real), sources.called(source, fn, name))


def _is_coalesced(vm: Interpreter, tensor: TraceTensor) -> bool:
    return bool(_input_property(vm, tensor, torch.Tensor.is_coalesced, "is_coalesced"))


def _stored_elements(vm: Interpreter, tensor: TraceTensor) -> int:
    return _input_property(vm, tensor, torch.Tensor._nnz, "_nnz")


def _is_view(vm: Interpreter, tensor: TraceTensor) -> bool:
    """Whether the tensor is a view: guarded for an input, known from its storage view if the graph makes it."""
    if id(tensor) not in vm.sources:
        return tensor.storage_view.parent is not None
    return bool(_input_property(vm, tensor, is_view, "_is_view"))


def _is_inference(vm: Interpreter, tensor: TraceTensor) -> bool:
    """Whether the tensor was made in inference mode. For an input, the guard on dispatch keys includes this
    property.
    """
    return tensor in vm.tensors.inference


def _refuse_jiterator(vm: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> object:
    """Refuse a function of `torch.cuda.jiterator`, which launches a kernel on the addresses of its arguments."""
    what = f"a call of {fn.kernel_name}, a function of torch.cuda.jiterator"
    raise Break(what, "its kernel takes addresses of tensors: it runs between two graphs")


CALL(torch.cuda.jiterator._JittedFunction)(_refuse_jiterator)

ADDRESSES = frozenset({"__cuda_array_interface__"})
"""Attributes that contain the address of a tensor's elements."""

_ON_DATA = {"data_ptr": _needs_values, "untyped_storage": _needs_values, "storage": _needs_values}
_ON_DATA |= {"is_coalesced": _is_coalesced, "_is_coalesced": _is_coalesced, "_nnz": _stored_elements}
_ON_DATA |= {"storage_offset": storage_offset, "is_inference": _is_inference, "_is_view": _is_view}
_methods: dict[str, Any] = {}


def _method(name: str) -> object:
    if name not in _methods:
        _methods[name] = _Method(name)
    return _methods[name]


class _Method:
    """A function that calls the method of a given name on its first argument."""

    def __init__(self, name: str) -> None:
        self.name = self.__qualname__ = self.__name__ = name

    def __call__(self, tensor: object, *args: object, **kwargs: object) -> object:
        return getattr(tensor, self.name)(*args, **kwargs)


@special(torch.Tensor.is_shared)
def is_shared(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Captured form of `Tensor.is_shared()`: False for a tensor whose memory is not shared between processes; guarded.

    Raises:
        Break: the memory is shared, or the graph makes the tensor.
    """
    tensor = args[0]
    source = vm.sources.get(id(tensor))
    if source is None or vm.tensors.real[id(tensor)].is_shared():
        raise Break("Tensor.is_shared()", "the tensor has no memory yet, or shares it with other processes")
    vm.guards.python(is_not_shared, [source])
    return False


def _refuse_attr(vm: Interpreter, tensor: TraceTensor, name: str) -> None:
    """Refuse attributes that only a tensor with data has, and the version counter of an input."""
    if name == "_cdata":
        _needs_values(vm, tensor)
    if name == "_version" and vm.tensors.is_input_memory(tensor):
        raise Break("tensor._version of an argument", "it counts writes from before the call, too")
    if name in ADDRESSES and tensor.is_cuda and not tensor.requires_grad:  # eager gives none for others
        _needs_values(vm, tensor)


@ATTR(TraceTensor)
def load_tensor_attr(vm: Interpreter, tensor: TraceTensor, name: str) -> object:
    """The value of an attribute of a trace tensor."""
    cls = vm.subclasses.class_of(tensor) if vm.subclasses.present else None
    if cls is not None:
        value = vm.subclasses.read_attr(tensor, cls, name)
        if value is not NO_OVERRIDE:
            return value
    replaced = replaced_in_tensor(vm, tensor, name) if name in METADATA or name in VIEWS else None
    return load_own_attr(vm, tensor, name) if replaced is None else _replaced_attr(vm, tensor, name, replaced)


def load_own_attr(vm: Interpreter, tensor: TraceTensor, name: str) -> object:
    """The value of an attribute of a trace tensor by torch's own definition, where its class may have another one."""
    if name in METADATA or name in VIEWS:
        return _metadata_attr(vm, tensor, name)
    _refuse_attr(vm, tensor, name)
    if name == "__class__":
        return vm.type_of(tensor)
    if name == "grad_fn" and user(getattr, tensor, name) is not None:
        raise Break("tensor.grad_fn", "the graph has no autograd nodes yet, those of its inputs are outside of it")
    if (id(tensor), name) in vm.reads:
        return vm.reads[id(tensor), name]
    cls = vm.type_of(tensor)
    raw = find_in_class(vm, cls, name)
    real = vm.tensors.real.get(id(tensor))
    if real is not None and name in real.__dict__:  # the attribute hides a method of the class
        return _stored_attr(vm, tensor, name)
    if isinstance(raw, types.FunctionType):
        return types.MethodType(raw, tensor)
    if isinstance(raw, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return raw.__get__(tensor)
    return _stored_attr(vm, tensor, name)


def _replaced_attr(vm: Interpreter, tensor: TraceTensor, name: str, attribute: object) -> object:
    """The value of an attribute by which the program has replaced one of torch's."""
    if type(attribute) is not property or attribute.fget is None:
        raise Break(f"Tensor.{name} is a {type(attribute).__name__}", "capture knows no attribute of this kind")
    return vm.call(attribute.fget, (tensor,), {})


def _metadata_attr(vm: Interpreter, tensor: TraceTensor, name: str) -> object:
    """The value of an attribute that is in the metadata (`METADATA`), or is computed from the tensor by a node
    (`VIEWS`).
    """
    if name == "is_leaf" and tensor.requires_grad and id(tensor) in vm.sources:
        vm.external(vm.tensors.real[id(tensor)].is_leaf, vm.attr_source(vm.sources[id(tensor)], name, False))
    if name in _OBJECT_ATTRS and id(tensor) in vm.sources and not getattr(tensor, name):
        return _input_attr(vm, tensor, name)
    return user(getattr, tensor, name) if name in METADATA else vm.tensors.run(getattr, (tensor, name), {})


_OBJECT_ATTRS = frozenset({"retains_grad", "output_nr"})
"""Attributes that autograd stores for a tensor object; for a trace tensor they reflect only the captured operations."""


def _input_attr(vm: Interpreter, tensor: TraceTensor, name: str) -> object:
    """The value of an attribute in `_OBJECT_ATTRS` of an input; the value is guarded."""
    real, source = vm.tensors.real[id(tensor)], vm.sources[id(tensor)]
    return vm.external(getattr(real, name), vm.attr_source(source, name, False))


def _stored_attr(vm: Interpreter, tensor: TraceTensor, name: str) -> object:
    """The value of the gradient, or of an attribute that the program has set on the tensor object."""
    real = vm.tensors.real.get(id(tensor))
    if real is None:
        if name == "grad_fn":
            return None
        if name == "grad":
            vm.tensors.runner.run(getattr, (tensor, name), {})  # warns where the tensor does not retain its gradient
            return None
        if name == "__dict__":
            raise Break("tensor.__dict__ of a tensor that the graph makes", "the tensor object does not exist yet")
        return _class_attr(vm, tensor, name)
    attributes = mirrored_dict(vm, tensor)
    if attributes is not None and (name in attributes or name in real.__dict__):
        return attributes[name] if name in attributes else _class_attr(vm, tensor, name)
    source = vm.sources[id(tensor)]
    if not hasattr(real, name):
        vm.guards.check(sources.instance_dict(source), native.NOT_KEY, name)
    value = user(getattr, real, name) if name != "grad" else vm.tensors.runner.run(getattr, (real, name), {})
    from_dict = name in getattr(real, "__dict__", {})
    base = sources.instance_dict(source) if name == "__dict__" else vm.attr_source(source, name, from_dict)
    value = vm.external(value, base)
    if attributes is None:  # else the read is not kept: the program may write to the attribute dictionary
        vm.reads[id(tensor), name] = value
    return value


def _class_attr(vm: Interpreter, tensor: TraceTensor, name: str) -> object:
    """The value of an attribute that is not in the object's own dictionary.

    Raises:
        UserError: there is no such attribute.
    """
    if hasattr(tensor, name):
        return user(getattr, tensor, name)
    cls = vm.type_of(tensor)
    return user_raise(AttributeError(f"{cls.__name__!r} object has no attribute {name!r}", name=name, obj=tensor))


@CALL(OpOverload, OpOverloadPacket)
def call_operator(vm: Interpreter, fn: object, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch.ops.namespace.name(...)`."""
    known = SPECIAL.get(id(fn))
    if known is not None:
        return known(vm, args, {"input" if name == "self" else name: value for name, value in kwargs.items()})
    return call_torch(vm, fn, args, kwargs)


@special(torch_c.swap_implementations)
def swap_implementations(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Refuse `torch.utils.swap_tensors`, which exchanges the contents of two tensor objects."""
    raise Break("swap_tensors()", "a graph's inputs keep their shape, storage and history")


@special(torch.is_tensor)
def is_tensor(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Captured form of `torch.is_tensor(x)`."""
    return isinstance(args[0], torch.Tensor)


@special(torch.jit.annotate)
def annotate(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch.jit.annotate(type, value)`: returns the value; only TorchScript uses the type."""
    return [*args, *kwargs.values()][1]


@special(torch.manual_seed, torch.random.manual_seed, torch.seed, torch.set_rng_state, torch.get_rng_state)
def seed(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """End the graph at functions of the random state: a program that sets it may expect eager's numbers in later
    graphs.
    """
    session = native.owner()
    if session is not None:
        session.draw_as_eager()
    raise Break("the random state is read or set", "a graph cannot hold it", "do it outside of the function")
