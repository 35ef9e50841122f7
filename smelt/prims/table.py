"""The table of primitives, with the properties of each that the stages after autograd use.

A Prim has a name, a kind, a signature, a meta rule, an eager reference and facts. It is the target of fx nodes of a
prim graph. Calling it runs the reference, so that a GraphModule of prims can run. Arguments of nodes are always
positional and complete (defaults included), so that later stages can unpack `node.args`.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from smelt.abi.kernels import KERNELS
from smelt.base.errors import CompileError
from smelt.base.imports import is_of_dropped_module
from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.meta import TensorMeta, contiguous_stride, is_dense
from smelt.graph.ir.symint import has_size


class Kind(enum.Enum):
    """The way in which a primitive's result depends on its operands. The partitioner and the loops stage choose by
    kind.
    """

    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    VIEW = "view"  # an index remap of one operand
    COPY = "copy"  # an index remap that selects among operands or a constant: cat, pad
    INDEXING = "indexing"  # reads at data-dependent indices: gather, index
    SCATTER = "scatter"  # writes at data-dependent indices
    CREATION = "creation"
    RANDOM = "random"
    SCAN = "scan"  # cumsum, sort, topk
    PRODUCT = "product"  # matrix products, convolution, attention
    WINDOW = "window"  # pooling
    KERNEL = "kernel"  # a call of one kernel of torch: see the function `kernel`


class Takes(enum.Enum):
    """The dtypes that a pointwise primitive takes as operands, in addition to bool."""

    ANY = "any"
    FLOATS = "floats"  # decompositions convert integers to floats first
    WHOLE = "whole numbers"


class Keeps(enum.Enum):
    """Dtypes of operands that a pointwise primitive returns unchanged."""

    NOTHING = "nothing"
    BOOLS = "bools"
    WHOLE = "bools and whole numbers"  # the result is an integer for any operand, so integers are unchanged


class Strides(enum.Enum):
    """The strides of operands that the kernel of an external primitive reads directly; operands with other strides are
    copied."""

    GIVEN = "any without repeats"
    ROWS = "any; only rows that repeat along their last dimension are copied"
    MATRIX = "whole rows or whole columns"
    IMAGES = "eager's order of channels: kernels are chosen by it"


@dataclass(frozen=True)
class Fold:
    """A reduction as a fold of its elements.

    Attributes:
        combine: the operation on two elements: "sum", "prod", "max" or "min" (of bools, "max" is or and "min" is and).
        neutral: the neutral element of `combine`; None: the lowest (max) or highest (min) number of the dtype.
        finds: whether the result is the index of the first maximum or minimum, not its value.
    """

    combine: str
    neutral: bool | int | None = None
    finds: bool = False


Flops = Callable[[Sequence[TensorMeta], Sequence[TensorMeta]], Any]
"""Function of (metas of the results that are not None, metas of the operands) that returns the number of
multiplications and additions.
"""


@dataclass(frozen=True)
class Facts:
    """Properties of a primitive that stages use, besides its meta rule and its reference.

    Attributes:
        cost: approximate cost of the arithmetic of one element, in additions.
        takes: the dtypes of the operands of a pointwise primitive.
        commutative: whether the operands may be swapped.
        boolean: whether the result is bool for operands of any dtype.
        exact: whether, for low-precision floats, the result is representable in their dtype and needs no rounding.
        keeps: dtypes whose values the primitive returns unchanged.
        of_whole: the result for integer operands, if it is the same for all of them (isnan, for example); else None.
        for_bool: the name of the primitive that computes the same function of bool operands.
        periodic: whether large arguments need a range reduction first, which costs more than all other steps.
        divides: whether eager raises an error for an integer division by 0.
        moves: whether an element of the result is read from another position of the operand.
        annihilated_by: positions of operands; if one of them is 0 everywhere, the result is 0 everywhere.
        linear_in: positions of arguments; if all of them are 0 everywhere, the result is 0 everywhere.
        fold: for a reduction, the fold that combines its elements.
        matmul: whether the primitive is a plain matrix product, (..., n, k) times (..., k, m) -> (..., n, m).
        into: whether its kernel can write the result into a given tensor.
        fresh: whether the results share no memory with other tensors, so that their buffers may be reused.
        strides: the strides of operands that its kernel reads without a copy.
        flops: for a product, the number of its multiplications and additions.
    """

    cost: int = 1
    takes: Takes = Takes.ANY
    commutative: bool = False
    boolean: bool = False
    exact: bool = False
    keeps: Keeps = Keeps.NOTHING
    of_whole: bool | None = None
    for_bool: str | None = None
    periodic: bool = False
    divides: bool = False
    moves: bool = False
    annihilated_by: tuple[int, ...] = ()
    linear_in: tuple[int, ...] = ()
    fold: Fold | None = None
    matmul: bool = False
    into: bool = False
    fresh: bool = False
    strides: Strides = Strides.GIVEN
    flops: Flops | None = None


NO_FACTS = Facts()
LINEAR = Facts(linear_in=(0,))


class Prim:
    """One primitive. `prim(*tensors_and_parameters)` runs the eager reference."""

    __module__ = "smelt.prims.ops"

    def __init__(
        self, name: str, kind: Kind, meta: Callable[..., Any], reference: Callable[..., Any], facts: Facts = NO_FACTS
    ) -> None:
        self.__name__ = self.__qualname__ = self.name = name
        self.kind = kind
        self.facts = facts
        self.meta = meta
        self.reference = reference
        self.kernel: OpOverload | None = None
        self.signature = inspect.signature(meta)
        self.parameters = tuple(self.signature.parameters)
        self.defaults = tuple(p.default for p in self.signature.parameters.values())
        self.__doc__ = meta.__doc__

    def __call__(self, *args: Any) -> Any:
        return self.reference(*args)

    def __repr__(self) -> str:
        return f"prims.{self.name}"

    def __reduce__(self) -> str:
        return self.name  # pickled by name, as an attribute of smelt.prims.ops

    def __copy__(self) -> Prim:
        return self

    def __deepcopy__(self, memo: object) -> Prim:
        return self

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Returns the arguments as a complete positional tuple, defaults included.

        Raises:
            CompileError: an argument is missing or unknown.
        """
        if not kwargs and len(args) == len(self.parameters):
            return tuple(args)
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise CompileError(f"prim {self.name}: {error}") from None
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    def kernel_arguments(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments in the form of the ATen overload `self.kernel`: the positional ones, and those by
        keyword.
        """
        assert self.kernel is not None
        fixed = sum(not a.kwarg_only for a in schema_of(self.kernel).arguments)
        return tuple(args[:fixed]), dict(zip(self.parameters[fixed:], args[fixed:], strict=True))

    def schema(self) -> str:
        """Returns the typed signature as text: `add(x: Tensor, y: Tensor | Number)`."""
        parameters = []
        for p in self.signature.parameters.values():
            kind = str(p.annotation).replace("TensorMeta", "Tensor").replace("torch.", "")
            parameters.append(f"{p.name}: {kind}" + ("" if p.default is p.empty else f" = {p.default!r}"))
        return f"{self.name}({', '.join(parameters)})"


PRIMS: dict[str, Prim] = {}
"""Every primitive by name, in the order of definition."""


def prim(
    name: str, *, kind: Kind, reference: Callable[..., Any], facts: Facts = NO_FACTS
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that defines a primitive; the decorated function is its meta rule, from operand metas to the result
    meta (or a tuple).
    """

    def enter(meta: Callable[..., Any]) -> Callable[..., Any]:
        if name in PRIMS and not is_of_dropped_module(PRIMS[name].meta):
            raise CompileError(f"prim {name} is defined twice")
        PRIMS[name] = Prim(name, kind, meta, reference, facts)
        return meta

    return enter


def kernel(
    name: str, overload: OpOverload, facts: Facts = NO_FACTS
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator that defines a primitive that calls one kernel of torch. The decorated function is its meta rule.

    The rule's parameters are the operator's first positional arguments in order (under any name), then some of its
    keyword-only arguments by name. Arguments that the rule leaves out have the operator's defaults.
    """
    fixed = [a.name for a in schema_of(overload).arguments if not a.kwarg_only]
    named = {a.name for a in schema_of(overload).arguments if a.kwarg_only}

    def enter(meta: Callable[..., Any]) -> Callable[..., Any]:
        prim(name, kind=Kind.KERNEL, reference=lambda *args: _as_tuple(run(*args)), facts=facts)(meta)
        made = PRIMS[name]
        made.kernel = overload
        if not named.issuperset(made.parameters[len(fixed) :]):
            raise CompileError(f"prim {name}: {made.parameters} do not fit {schema_of(overload)}")
        return meta

    def run(*args: Any) -> Any:
        positional, keywords = PRIMS[name].kernel_arguments(args)
        return KERNELS.get(overload, overload)(*positional, **keywords)

    return enter


def _as_tuple(result: Any) -> Any:
    return tuple(result) if isinstance(result, list) else result


Number = bool | int | float
Shape = tuple[int, ...]


def make(shape: Shape, dtype: torch.dtype, device: torch.device) -> TensorMeta:
    """Returns the meta of a new contiguous tensor."""
    return TensorMeta(shape, dtype, contiguous_stride(shape), device)


def require(condition: bool, what: str) -> None:
    """Raise CompileError with the message `what` unless the condition is true. Meta rules check their operands
    with it.
    """
    if not condition:
        raise CompileError(what)


_dense_plain = lru_cache(maxsize=4096)(is_dense)


def _dense(shape: Shape, stride: Shape) -> bool:
    """Cached `is_dense`. Symbolic sizes are not cached: the cache would keep their owner, with all its assumptions,
    alive."""
    return (is_dense if has_size((shape, stride)) else _dense_plain)(shape, stride)


def pointwise_like(operands: Sequence[TensorMeta], dtype: torch.dtype) -> TensorMeta:
    """Returns the result meta of a pointwise primitive: in the layout of the first dense operand, or contiguous if no
    operand is dense.
    """
    first = operands[0]
    for x in operands:
        if _dense(x.shape, x.stride):
            if x.dtype == dtype and not x.requires_grad:
                return x
            return TensorMeta(first.shape, dtype, x.stride, first.device)
    return make(first.shape, dtype, first.device)
