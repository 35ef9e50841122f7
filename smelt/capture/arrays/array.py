"""The stand-in of a NumPy array or NumPy number whose elements a tensor of the graph holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

import numpy
import torch
from torch.utils._pytree import PyTree

from smelt.capture.core.breaks import Break
from smelt.graph.trace.trace import TraceTensor

Dtype: TypeAlias = "numpy.dtype[numpy.generic]"

NUMPY_OF: Final[dict[torch.dtype, Dtype]] = {
    torch.bool: numpy.dtype(bool),
    torch.uint8: numpy.dtype("uint8"),
    torch.int8: numpy.dtype("int8"),
    torch.int16: numpy.dtype("int16"),
    torch.int32: numpy.dtype("int32"),
    torch.int64: numpy.dtype("int64"),
    torch.float16: numpy.dtype("float16"),
    torch.float32: numpy.dtype("float32"),
    torch.float64: numpy.dtype("float64"),
    torch.complex64: numpy.dtype("complex64"),
    torch.complex128: numpy.dtype("complex128"),
}
"""Dtype of a tensor -> dtype of an array, for dtypes in which both libraries compute."""

TORCH_OF: Final = {array: tensor for tensor, array in NUMPY_OF.items()}


class TensorArray:
    """An array that shares the memory of a tensor of the graph, or a NumPy number that a 0-dimensional tensor holds.

    The methods that Python calls for operators have special meanings under capture (`arrays.methods`). Code that calls
    them otherwise ends the graph.

    Attributes:
        tensor: the tensor. It requires no gradient.
        scalar: whether this is a NumPy number (`numpy.float64`), which is immutable, not an array.
    """

    __slots__ = ("tensor", "scalar", "__weakref__")

    def __init__(self, tensor: TraceTensor, scalar: bool = False) -> None:
        self.tensor, self.scalar = tensor, scalar

    @property
    def np_dtype(self) -> Dtype:
        """The array's dtype."""
        return NUMPY_OF[self.tensor.dtype]

    @property
    def cls(self) -> type:
        """The class that the program sees."""
        return self.np_dtype.type if self.scalar else numpy.ndarray

    @property
    def stand_in(self) -> object:
        """A real object of the class that the program sees."""
        return self.np_dtype.type(0) if self.scalar else numpy.zeros((0,) * self.tensor.dim(), self.np_dtype)


UNARY = "neg pos abs invert len iter bool int float index complex hash round trunc floor ceil".split()
BINARY = (
    "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift divmod radd rsub rmul rtruediv rfloordiv "
    "rmod rpow rmatmul rand ror rxor rlshift rrshift rdivmod lt le gt ge eq ne getitem contains"
).split()
IN_PLACE = "iadd isub imul itruediv ifloordiv imod ipow imatmul iand ior ixor ilshift irshift".split()
OTHERS = (
    "dir sizeof setitem delitem array array_ufunc array_function call copy deepcopy reduce_ex str repr format".split()
)


def _method(name: str) -> Callable[..., PyTree]:
    def read(self: TensorArray, *args: object, **kwargs: object) -> PyTree:
        raise needs_values(f"{name.strip('_')}() of a {self.cls.__name__}")

    read.__name__ = read.__qualname__ = name
    return read


for _name in (*UNARY, *BINARY, *IN_PLACE, *OTHERS):
    if _name != "call":
        setattr(TensorArray, f"__{_name}__", _method(f"__{_name}__"))


def needs_values(what: str) -> Break:
    """The break where Python or NumPy needs the elements of an array that the graph computes."""
    return Break(what, "the graph computes the array; NumPy computes this on its elements")


class ArrayMethod:
    """A bound method of a `TensorArray`."""

    __slots__ = ("owner", "name")

    def __dir__(self) -> list[str]:
        raise needs_values(f"dir() of ndarray.{self.name}")

    def __init__(self, owner: TensorArray, name: str) -> None:
        self.owner, self.name = owner, name

    def __eq__(self, other: object) -> bool:
        return type(other) is ArrayMethod and self.owner is other.owner and self.name == other.name

    def __hash__(self) -> int:
        raise needs_values(f"the hash of ndarray.{self.name}, which follows from an address,")

    def __repr__(self) -> str:
        raise needs_values(f"the text of ndarray.{self.name}, which has an address,")

    @property
    def stand_in(self) -> object:
        """A real object of the class that the program sees."""
        return getattr(self.owner.stand_in, self.name)

    def __call__(self, *_: object, **__: object) -> PyTree:
        """Makes the object callable for `callable()`; the interpreter does not call it this way."""
        raise needs_values(f"ndarray.{self.name}() called by C code")


def arrays_in(value: PyTree) -> Iterator[TensorArray]:
    """The arrays in a value or its nested containers."""
    kind = type(value)
    if kind is TensorArray:
        yield value
    elif kind is ArrayMethod:
        yield value.owner
    elif kind is tuple or kind is list:
        for item in value:
            yield from arrays_in(item)
    elif kind is dict:
        for item in value.values():
            yield from arrays_in(item)
    elif kind is slice:
        yield from arrays_in((value.start, value.stop, value.step))


def has_arrays(value: object) -> bool:
    """Whether there is an array in a value or its nested containers."""
    return any(True for _ in arrays_in(value))


def refuse_arrays(name: str, args: object, kwargs: object) -> None:
    """End the graph before a torch function that is given an array, which it would read or refuse."""
    if has_arrays(args) or has_arrays(kwargs):
        raise needs_values(f"{name} with an array of numpy")


def as_index(key: PyTree) -> PyTree:
    """The key of a tensor's item, with tensors in place of arrays of whole numbers and truth values."""
    if type(key) is tuple:
        return tuple(map(as_index, key))
    if type(key) is not TensorArray:
        return key
    if key.tensor.dtype not in (torch.bool, torch.int64) or key.scalar:
        raise needs_values("a tensor indexed by an array of numpy")
    return key.tensor
