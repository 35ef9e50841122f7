"""Attributes, methods and operators of arrays of the graph, and the calls of NumPy that take them."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping, Sequence

import numpy
import torch
from torch.utils._pytree import PyTree

from smelt.base.class_tables import isinstance
from smelt.capture.arrays import products, reductions, shapes
from smelt.capture.arrays.array import (
    BINARY,
    IN_PLACE,
    NUMPY_OF,
    OTHERS,
    UNARY,
    ArrayMethod,
    TensorArray,
    has_arrays,
    needs_values,
)
from smelt.capture.arrays.indexing import item, store
from smelt.capture.arrays.operands import record, refuse_keywords, shown
from smelt.capture.arrays.ufuncs import call_ufunc, write
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import ATTR, CALL, TENSOR_METHODS, special
from smelt.graph.trace.trace import TraceTensor

_OPERATORS: dict[str, PyTree] = {
    "add": numpy.add,
    "sub": numpy.subtract,
    "mul": numpy.multiply,
    "truediv": numpy.true_divide,
    "floordiv": numpy.floor_divide,
    "mod": numpy.remainder,
    "pow": numpy.power,
    "matmul": numpy.matmul,
    "and": numpy.bitwise_and,
    "or": numpy.bitwise_or,
    "xor": numpy.bitwise_xor,
    "lt": numpy.less,
    "le": numpy.less_equal,
    "gt": numpy.greater,
    "ge": numpy.greater_equal,
    "eq": numpy.equal,
    "ne": numpy.not_equal,
}
_UNARY: dict[str, numpy.ufunc] = {
    "neg": numpy.negative,
    "pos": numpy.positive,
    "abs": numpy.absolute,
    "invert": numpy.invert,
}
_POWERS: dict[float, numpy.ufunc] = {2: numpy.square, 0.5: numpy.sqrt, -1: numpy.reciprocal}
"""Exponents of `**` for which NumPy calls another function."""


def to_array(vm: Interpreter, tensor: TraceTensor, *, force: bool = False) -> TensorArray:
    """Captured form of `tensor.numpy(force=force)`.

    Raises:
        Break: the call raises an error, or copies from another device.
    """
    if force and tensor.requires_grad:
        tensor = record(vm, torch.Tensor.detach, tensor, method="detach")
    if tensor.requires_grad or tensor.device.type != "cpu" or tensor.layout != torch.strided or _is_lazy(tensor):
        raise needs_values("tensor.numpy() of a tensor that is not plain memory of the CPU")
    if vm.tensors is not vm.outermost:
        raise needs_values("tensor.numpy() in a function that a transform runs")
    if tensor.dtype not in NUMPY_OF:
        raise needs_values(f"tensor.numpy() of {tensor.dtype}")
    return shown(vm, tensor)


def _is_lazy(tensor: TraceTensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


TENSOR_METHODS["numpy"] = to_array


def to_tensor(vm: Interpreter, array: TensorArray) -> PyTree:
    """Captured form of `torch.from_numpy(array)`: another tensor with the array's memory."""
    if array.scalar:
        raise needs_values("torch.from_numpy of a numpy number")
    return record(vm, torch.Tensor.detach, array.tensor, method="detach")


def as_tensor(vm: Interpreter, array: TensorArray, settings: Kwargs) -> PyTree:
    """Captured form of `torch.as_tensor(array, dtype=..., device=...)`, which shares the array's memory if it can."""
    return _placed(vm, to_tensor(vm, array), settings, ("dtype", "device"))


def new_tensor(vm: Interpreter, array: TensorArray, settings: Kwargs) -> PyTree:
    """Captured form of `torch.tensor(array, dtype=..., device=...)`: a copy."""
    return _placed(vm, record(vm, torch.clone, array.tensor), settings, ("data", "dtype", "device"))


def _placed(vm: Interpreter, tensor: PyTree, settings: Kwargs, known: Sequence[str]) -> PyTree:
    refuse_keywords("tensor", (), settings, known, 0)
    dtype, device = settings.get("dtype"), settings.get("device")
    device = torch.get_default_device() if device is None else torch.device(device)
    if (dtype is None or dtype == tensor.dtype) and device.type == "cpu":
        return tensor
    return record(vm, torch.Tensor.to, tensor, method="to", device=device, dtype=dtype or tensor.dtype)


# -- operators --------------------------------------------------------------------------------------------------------


def binary(vm: Interpreter, name: str, left: object, right: object) -> object:
    """The result of an operator, one of whose operands is an array."""
    if type(left) is TraceTensor or type(right) is TraceTensor:
        return vm.call(_PYTHON[name], (_as_number(vm, left), _as_number(vm, right)), {})
    fn = _OPERATORS.get(name)
    if fn is None:
        raise needs_values(f"the operator {name} of an array")
    if fn is numpy.matmul:
        return products.matmul(vm, left, right)
    if fn is numpy.power and type(left) is TensorArray and left.np_dtype.kind == "f" and type(right) in (int, float):
        power = _POWERS.get(right)  # type: ignore[call-overload]
        if power is not None:
            return call_ufunc(vm, power, (left,), {})
    return call_ufunc(vm, fn, (left, right), {})


_PYTHON: Mapping[str, Callable[..., PyTree]] = {
    name: getattr(operator, name if name not in ("and", "or") else f"{name}_") for name in _OPERATORS
}


def _as_number(vm: Interpreter, value: object) -> object:
    """A NumPy number as a Python number, which torch takes it for."""
    if type(value) is not TensorArray:
        return value
    if not value.scalar or value.np_dtype.kind == "c":
        raise needs_values("an operator of an array and a tensor")
    return number(vm, value)


def number(vm: Interpreter, array: TensorArray) -> object:
    """`array.item()`: the graph reads the number."""
    if array.tensor.dim():
        raise needs_values("the number in an array with axes")
    return vm.call(torch.Tensor.item, (array.tensor,), {})


def _length(vm: Interpreter, array: TensorArray) -> PyTree:
    if not array.tensor.dim():
        raise needs_values("len() of a number")
    return array.tensor.shape[0]


def _items(vm: Interpreter, array: TensorArray) -> object:
    return iter([item(vm, array, index) for index in range(_length(vm, array))])


def _converted(kind: type) -> Callable[..., object]:
    def convert(vm: Interpreter, array: TensorArray) -> object:
        if array.tensor.dim():
            raise needs_values(f"{kind.__name__}() of an array with axes")
        return vm.call(kind, (array.tensor,), {})

    return convert


_SPECIAL_UNARY: dict[str, Callable[..., object]] = {
    "len": _length,
    "iter": _items,
    "int": _converted(int),
    "float": _converted(float),
    "bool": _converted(bool),
    "index": _converted(int),
}


def _register(name: str, how: Callable[..., object]) -> None:
    def run(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
        return how(vm, *args)

    special(vars(TensorArray)[f"__{name}__"])(run)


def _register_unary(name: str) -> None:
    ufunc = _UNARY.get(name)
    if ufunc is not None:
        _register(name, lambda vm, array: call_ufunc(vm, ufunc, (array,), {}))
    else:
        _register(name, _SPECIAL_UNARY.get(name) or _refused(name))


def _refused(name: str) -> Callable[..., object]:
    def refuse(vm: Interpreter, array: TensorArray, *_: object) -> object:
        raise needs_values(f"{name}() of a {array.cls.__name__}")

    return refuse


def _register_binary(name: str) -> None:
    if name == "getitem":
        _register(name, item)
    elif name in _OPERATORS:
        _register(name, lambda vm, array, other: binary(vm, name, array, other))
    elif name[1:] in _OPERATORS:
        _register(name, lambda vm, array, other: binary(vm, name[1:], other, array))
    else:
        _register(name, _refused(name))


def _register_in_place(name: str) -> None:
    def update(vm: Interpreter, array: TensorArray, other: object) -> object:
        out = binary(vm, name[1:], array, other)
        return out if array.scalar or type(out) is not TensorArray else write(vm, array, out)

    _register(name, update)


def _register_all() -> None:
    for name in UNARY:
        _register_unary(name)
    for name in BINARY:
        _register_binary(name)
    for name in IN_PLACE:
        _register_in_place(name)
    for name in OTHERS:
        if name != "call":
            _register(name, store if name == "setitem" else _refused(name))


_register_all()

# -- attributes and methods -------------------------------------------------------------------------------------------


def _strides(array: TensorArray) -> tuple[PyTree, ...]:
    return tuple(step * array.np_dtype.itemsize for step in array.tensor.stride())


_PROPERTIES: dict[str, Callable[[TensorArray], object]] = {
    "shape": lambda array: tuple(array.tensor.shape),
    "ndim": lambda array: array.tensor.dim(),
    "size": lambda array: array.tensor.numel(),
    "dtype": lambda array: array.np_dtype,
    "itemsize": lambda array: array.np_dtype.itemsize,
    "nbytes": lambda array: array.tensor.numel() * array.np_dtype.itemsize,
    "strides": _strides,
    "__class__": lambda array: array.cls,
}

_METHODS: dict[str, Callable[..., object]] = {
    **shapes.METHODS,
    "item": number,
    "dot": products.dot,
    "trace": products.trace,
    "conj": lambda vm, array: call_ufunc(vm, numpy.conjugate, (array,), {}),
    "conjugate": lambda vm, array: call_ufunc(vm, numpy.conjugate, (array,), {}),
}


@ATTR(TensorArray)
def load_attr(vm: Interpreter, array: TensorArray, name: str) -> object:
    """An attribute or method of an array or NumPy number."""
    if name in _PROPERTIES:
        return _PROPERTIES[name](array)
    if name == "T":
        return shapes.transpose(vm, array)
    if name == "real" and array.np_dtype.kind != "c":
        return array
    special_method = name.startswith("__") and name in vars(TensorArray)
    if special_method or name in _METHODS or name in reductions.NAMES:
        return ArrayMethod(array, name)
    raise needs_values(f"{array.cls.__name__}.{name} of an array that the graph computes")


@ATTR(ArrayMethod)
def load_method_attr(vm: Interpreter, method: ArrayMethod, name: str) -> object:
    """An attribute of a method of an array."""
    if name == "__self__":
        return method.owner
    if name in ("__name__", "__doc__", "__class__"):
        return getattr(method.stand_in, name)
    raise needs_values(f"{name} of ndarray.{method.name}")


@CALL(ArrayMethod)
def call_method(vm: Interpreter, method: ArrayMethod, args: Args, kwargs: Kwargs) -> object:
    """Call a method of an array."""
    if method.name in reductions.NAMES:
        return reductions.reduce(vm, method.name, (method.owner, *args), kwargs)
    if method.name not in _METHODS:
        raise needs_values(f"ndarray.{method.name}() called by name")
    return _fitting(vm, _METHODS[method.name], f"ndarray.{method.name}", (method.owner, *args), kwargs)


def call_function(vm: Interpreter, fn: PyTree, args: Args, kwargs: Kwargs) -> object:
    """A call of NumPy with arrays of the graph among its arguments.

    Raises:
        Break: the function has no captured form for these arguments.
    """
    if fn in products.FUNCTIONS:
        return _fitting(vm, products.FUNCTIONS[fn], fn.__name__, args, kwargs)
    if isinstance(fn, numpy.ufunc):
        return call_ufunc(vm, fn, args, kwargs)
    if fn in reductions.FUNCTIONS:
        return reductions.reduce(vm, reductions.FUNCTIONS[fn], args, _without_name(kwargs, args))
    if fn in shapes.FUNCTIONS:
        return _fitting(vm, shapes.FUNCTIONS[fn], fn.__name__, args, kwargs)
    raise needs_values(f"numpy.{getattr(fn, '__name__', fn)} of an array that the graph computes")


def _without_name(kwargs: Kwargs, args: Args) -> Kwargs:
    if not args:
        raise needs_values("numpy with its array by name")
    return kwargs


def _fitting(vm: Interpreter, how: Callable[..., object], name: str, args: Args, kwargs: Kwargs) -> object:
    """The result of a captured form, if the arguments fit its parameters."""
    try:
        inspect.signature(how).bind(vm, *args, **kwargs)
    except TypeError as error:
        raise needs_values(f"numpy.{name} with other arguments: {error}") from None
    return how(vm, *args, **kwargs)


def takes(fn: object, args: Args, kwargs: Kwargs) -> bool:
    """Whether this is a call of NumPy with arrays of the graph among its arguments."""
    module = getattr(getattr(fn, "__objclass__", fn), "__module__", None)
    is_numpy = isinstance(fn, numpy.ufunc) or isinstance(module, str) and module.split(".")[0] == "numpy"
    return is_numpy and (has_arrays(args) or has_arrays(kwargs))
