"""The table of primitives: what every stage after autograd has to know, and nothing else.

A Prim holds name, kind, signature, meta rule, eager reference and facts. It is the target of the fx nodes of a
prim graph and calls its reference, so a prim GraphModule runs. Arguments are always positional and
complete (defaults filled in), so that a later stage can unpack `node.args`.
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
from smelt.base.imported_again import is_forgotten
from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.meta import TensorMeta, contiguous_stride, is_dense
from smelt.graph.ir.symint import has_size


class Kind(enum.Enum):
    """What a primitive does to its operands; the partitioner and the loops stage go by it."""

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
    KERNEL = "kernel"  # one kernel of torch's library by name: see `kernel`


class Takes(enum.Enum):
    """The dtypes that a pointwise primitive takes as operands, besides bool."""

    ANY = "any"
    FLOATS = "floats"  # a decomposition converts whole numbers before
    WHOLE = "whole numbers"


class Keeps(enum.Enum):
    """Dtypes of operands that a pointwise primitive returns unchanged."""

    NOTHING = "nothing"
    BOOLS = "bools"
    WHOLE = "bools and whole numbers"  # it gives whole numbers


class Strides(enum.Enum):
    """The strides of operands that the kernel of an external primitive reads without a copy of its own."""

    GIVEN = "any without repeats"
    ROWS = "any; only rows that repeat along their last dimension are copied"
    MATRIX = "whole rows or whole columns"
    IMAGES = "eager's order of channels: kernels are chosen by it"


@dataclass(frozen=True)
class Fold:
    """A reduction as a fold of its elements.

    Attributes:
        combine: two elements to one: "sum", "prod", "max" or "min" (of bools "max" is or, "min" is and).
        neutral: the number that changes nothing; None: the lowest (max) or highest (min) number of the dtype.
        finds: the result is the index of the first element that wins, not its value.
    """

    combine: str
    neutral: bool | int | None = None
    finds: bool = False


Flops = Callable[[Sequence[TensorMeta], Sequence[TensorMeta]], Any]
"""(results, but for absent ones; operands) -> multiplications and additions."""


@dataclass(frozen=True)
class Facts:
    """What stages ask about a primitive besides its metadata and its values.

    Attributes:
        cost: arithmetic of one element, roughly, in additions.
        takes: the dtypes of the operands of a pointwise primitive.
        commutative: the operands may be swapped.
        boolean: the result is bool whatever the operands are.
        exact: the result for low-precision floats is one of their values: it needs no rounding.
        keeps: dtypes of operands that it returns unchanged.
        of_whole: the result for every integer operand, if it is the same for all.
        for_bool: the primitive that computes the same of bools.
        periodic: large arguments need a range reduction first, which costs more than all other steps.
        divides: eager raises for an integer division by 0.
        moves: it reads operands at another position than its own.
        annihilated_by: positions of operands; where one of them is 0 everywhere, so is the result.
        linear_in: positions of arguments; where all of them are 0 everywhere, so is the result.
        fold: of a reduction.
        matmul: (..., n, k) times (..., k, m) -> (..., n, m).
        into: its kernel writes into a given tensor, without a copy of its own.
        fresh: the results share no memory with other tensors, so their buffers may be reused.
        strides: strides of operands that its kernel reads without a copy.
        flops: of a product.
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
        return self.name  # a global of smelt.prims.ops

    def __copy__(self) -> Prim:
        return self

    def __deepcopy__(self, memo: object) -> Prim:
        return self

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Positional, complete arguments.

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
        """The arguments as the overload `kernel` takes them: by position, and by name."""
        assert self.kernel is not None
        fixed = sum(not a.kwarg_only for a in schema_of(self.kernel).arguments)
        return tuple(args[:fixed]), dict(zip(self.parameters[fixed:], args[fixed:], strict=True))

    def schema(self) -> str:
        """`add(x: Tensor, y: Tensor | Number)`: the typed signature as text."""
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
    """Enter a primitive; the decorated function is its meta rule: operand metas in, result meta (or tuple) out."""

    def enter(meta: Callable[..., Any]) -> Callable[..., Any]:
        if name in PRIMS and not is_forgotten(PRIMS[name].meta):
            raise CompileError(f"prim {name} is defined twice")
        PRIMS[name] = Prim(name, kind, meta, reference, facts)
        return meta

    return enter


def kernel(
    name: str, overload: OpOverload, facts: Facts = NO_FACTS
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a primitive that is a call of one kernel of torch's library. The decorated function is its meta rule.

    Its parameters are the operator's first arguments in their order, then any of those that have to be named, under
    their names; what it leaves out keeps the operator's default.
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
    """The meta of a fresh contiguous result."""
    return TensorMeta(shape, dtype, contiguous_stride(shape), device)


def require(condition: bool, what: str) -> None:
    """Raise CompileError with `what` unless the condition holds (meta rules check their operands)."""
    if not condition:
        raise CompileError(what)


_dense_plain = lru_cache(maxsize=4096)(is_dense)


def _dense(shape: Shape, stride: Shape) -> bool:
    """Of plain numbers it is remembered: a symbolic size would keep all that was assumed where it comes from."""
    return (is_dense if has_size((shape, stride)) else _dense_plain)(shape, stride)


def pointwise_like(operands: Sequence[TensorMeta], dtype: torch.dtype) -> TensorMeta:
    """The result meta of a pointwise op: the layout of the first dense operand, else contiguous."""
    first = operands[0]
    for x in operands:
        if _dense(x.shape, x.stride):
            if x.dtype == dtype and not x.requires_grad:
                return x
            return TensorMeta(first.shape, dtype, x.stride, first.device)
    return make(first.shape, dtype, first.device)
