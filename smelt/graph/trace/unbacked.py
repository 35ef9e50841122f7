"""Reads of values in a trace: `.item()`, `nonzero` and similar operators give unbacked numbers, known only at run time.

A trace that supports reads enters the context `reading(numbers)`, and keeps the numbers. Outside of this context the
operators raise `DataDependent`, as they need values.
"""

from __future__ import annotations

import builtins
import operator
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import torch

from smelt.base.process_state import switch
from smelt.base.torch_private import OpOverload
from smelt.graph.ir.meta import TensorMeta, contiguous_stride
from smelt.graph.ir.storage_view import Layout, ViewedTensor
from smelt.graph.ir.sym_bool import SymbolicPredicate, compare
from smelt.graph.ir.symint import SizeNode
from smelt.graph.meta_rules.infer import depends_on_values
from smelt.graph.meta_rules.layouts import arguments_by_name, fresh, val_of, without
from smelt.graph.meta_rules.least_squares import without_residuals
from smelt.shapes.assumptions import Assumed, Assumptions
from smelt.shapes.real import Real
from smelt.shapes.size import IntLike, Size, bounds, same
from smelt.shapes.unbacked import LOWEST, Origin

aten = torch.ops.aten


class Numbers(Protocol):
    """The numbers that one trace reads from tensors. A repeated read of an unchanged tensor gives the same number."""

    known: dict[Hashable, Any]

    @property
    def owner(self) -> Assumptions:
        """The owner of the numbers' symbols."""

    def identity(self, tensor: Any) -> Hashable:
        """Returns a key for the contents of a tensor until the next write."""

    def origin(self) -> Origin:
        """Returns the present step and line of the program."""

    def read(self, number: Size | Real, tensor: Any) -> None:
        """Record a new number: the value of `tensor`."""

    def read_size(self, number: Size, tensor: Any, dim: int) -> None:
        """Record a new number: the size of dimension `dim` of `tensor`."""


_thread = threading.local()
switch("reading", lambda: getattr(_thread, "numbers", None), lambda before: setattr(_thread, "numbers", before))


@contextmanager
def reading(numbers: Numbers | None) -> Iterator[None]:
    """A context in which operators may read values."""
    before = getattr(_thread, "numbers", None)
    _thread.numbers = numbers
    try:
        yield
    finally:
        _thread.numbers = before


def current(what: str) -> Any:
    """Returns the `Numbers` object that keeps the numbers read in the present context (see `reading`).

    Raises:
        DataDependent: the present context does not support reads.
    """
    numbers = getattr(_thread, "numbers", None)
    if numbers is None:
        raise depends_on_values(what)
    return numbers


# -- reads ---------------------------------------------------------------------------------------------------------


def read_scalar(tensor: ViewedTensor, what: str) -> Size | Real:
    """Returns the value of a tensor of one element as a number."""
    val = tensor.storage_view.layout.val
    numbers = current(what)
    if val.dtype is torch.bool or val.dtype.is_complex:
        raise depends_on_values(what)
    key = ("value", numbers.identity(tensor))
    known = numbers.known.get(key)
    if known is None:
        if val.dtype.is_floating_point:
            known = numbers.owner.unbacked_real(numbers.origin())
        else:
            info = torch.iinfo(val.dtype)
            low, high = (LOWEST, None) if val.dtype is torch.int64 else (info.min, info.max)
            known = numbers.owner.unbacked(numbers.origin(), low, high)
        numbers.known[key] = known
        numbers.read(known, tensor)
    return known


class Measured(NamedTuple):
    """The result of an operator with a data-dependent number of rows.

    Attributes:
        answer: the inferred layouts.
        shows: the index of a result that has `rows` as a size; None: the only result.
        rows: the number.
        new: whether the number was not read before.
        dim: the dimension of that result.
    """

    answer: Any
    shows: int | None
    rows: IntLike
    new: bool
    dim: int = 0


def measure(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Measured:
    """Returns the result of an operator of `MEASURED`.

    Raises:
        DataDependent: values cannot be read now.
    """
    return MEASURED[func](func, arguments_by_name(func, args, kwargs))


def _count(func: OpOverload, key: Hashable, tensor: Any, low: int, high: IntLike | None) -> tuple[Size, bool]:
    """Returns (number of rows, whether it is new)."""
    numbers = current(f"{func}")
    key = (key, numbers.identity(tensor))
    known = numbers.known.get(key)
    if known is not None:
        return known, False
    top = None if high is None else bounds(high)[1]
    number = numbers.known[key] = numbers.owner.unbacked(numbers.origin(), low, top)
    if isinstance(high, Size):
        numbers.owner.learn(Assumed(">=", high, number, ""))
    return number, True


def _nonzero(func: OpOverload, named: dict[str, Any]) -> Measured:
    val = val_of(named["self"])
    if same(val.numel, 0):
        return Measured(fresh(val, (0, val.ndim), torch.int64, (1, 0)), None, 0, False)
    count, new = _count(func, "nonzero", named["self"], 0, val.numel)
    stride = (1, count) if val.ndim else (1, 1)  # eager makes a row for each dimension, and transposes
    return Measured(fresh(val, (count, val.ndim), torch.int64, stride), None, count, new)


def _unique(func: OpOverload, named: dict[str, Any]) -> Measured:
    val, dim = val_of(named["self"]), named.get("dim")
    if dim is not None and val.ndim:
        dim %= val.ndim
    if dim is not None and any(same(n, 0) for n in val.shape):  # eager refuses all other such shapes
        none = fresh(val, (0,), torch.int64)
        return Measured((fresh(val, val.shape), none, none), None, 0, False)
    length = val.numel if dim is None else val.shape[dim]
    low = 0 if isinstance(length, Size) or length == 0 else 1
    count, new = _count(func, (str(func).split("_")[1], dim), named["self"], low, length)
    inverse_shape: Sequence[IntLike] = val.shape if dim is None else (length,)
    counts: Sequence[IntLike] = (count,)
    if dim is None:  # the other results are empty unless requested
        inverse_shape = inverse_shape if named["return_inverse"] else (0,)
        counts = counts if named["return_counts"] else (0,)
    rest = (fresh(val, inverse_shape, torch.int64), fresh(val, counts, torch.int64))
    if dim is None:
        return Measured((fresh(val, (count,)), *rest), 0, count, new)
    return Measured((_with_outer_dim(val, dim, count), *rest), 0, count, new, dim)


def _with_outer_dim(val: TensorMeta, dim: int, count: Size) -> Layout:
    """Returns `val` with size `count` in `dim`, which is outermost in memory: the kernel selects slices and moves them
    back.
    """
    others = without(val.shape, dim)
    first, *steps = contiguous_stride((count, *others))  # type: ignore[arg-type]
    return fresh(val, (*others[:dim], count, *others[dim:]), None, (*steps[:dim], first, *steps[dim:]))


def _ctc_loss(func: OpOverload, named: dict[str, Any]) -> Measured:
    """Measure `ctc_loss`: the table of probabilities has two columns plus one for each element of the longest
    target.
    """
    val = val_of(named["log_probs"])
    batch, steps = (val.shape[1], val.shape[0]) if val.ndim == 3 else (1, val.shape[0])
    columns, new = _count(func, "longest", named["target_lengths"], 1, None)
    lead = (batch,) if val.ndim == 3 else ()
    return Measured((fresh(val, lead), fresh(val, (batch, steps, columns))), 1, columns, new, 2)


def _repeats(func: OpOverload, named: dict[str, Any]) -> Measured:
    val = val_of(named["repeats"])
    if named["output_size"] is not None:
        raise AssertionError("the number of repeats is known")
    count, new = _count(func, "repeats", named["repeats"], 0, None)
    return Measured(fresh(val, (count,)), None, count, new)


def _lstsq(func: OpOverload, named: dict[str, Any]) -> Measured:
    """Measure `lstsq`: it has a residual for each right-hand side if the matrix has full rank, else none."""
    solution, rank, values = without_residuals(func, named)
    val = val_of(named["b"])
    count, new = _count(func, "residuals", named["self"], 0, val.shape[-1])
    return Measured((solution, fresh(val, (count,), val.dtype.to_real()), rank, values), 1, count, new)


def _bincount(func: OpOverload, named: dict[str, Any]) -> Measured:
    val, weights, least = val_of(named["self"]), named["weights"], named["minlength"]
    dtype = torch.int64
    if weights is not None:
        dtype = torch.float32 if val_of(weights).dtype is torch.float32 else torch.float64
    if same(val.numel, 0):
        current(f"{func}")
        return Measured(fresh(val, (least,), torch.int64), None, least, False)
    count, new = _count(func, ("bincount", least), named["self"], max(least, 1), None)
    return Measured(fresh(val, (count,), dtype), None, count, new)


MEASURED: dict[OpOverload, Callable[[OpOverload, dict[str, Any]], Measured]] = {
    aten.nonzero.default: _nonzero,
    aten._unique2.default: _unique,
    aten.unique_consecutive.default: _unique,
    aten.unique_dim.default: _unique,
    aten.repeat_interleave.Tensor: _repeats,
    aten._ctc_loss.Tensor: _ctc_loss,
    aten.bincount.default: _bincount,
    aten.linalg_lstsq.default: _lstsq,
}
"""Operators whose results have a data-dependent number of rows."""


# -- checks --------------------------------------------------------------------------------------------------------


def check_elements(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Make compiled code check that the reduced dimensions have elements: eager raises an error for an empty
    extremum.
    """
    values = arguments_by_name(func, args, kwargs)
    val = val_of(values["self"])
    dim = values.get("dim")
    dims = range(val.ndim) if dim is None or dim == [] else dim if isinstance(dim, (list, tuple)) else [dim]
    for size in (val.shape[d] for d in dims if val.ndim):
        question = compare("<", size, 1, True)
        if isinstance(question, SymbolicPredicate):
            question.expect(f"{func}: the dimension to reduce has no elements", "IndexError")


NEED_ELEMENTS = frozenset(
    getattr(getattr(aten, name), overload)
    for name, overloads in {
        "amax": ["default"],
        "amin": ["default"],
        "aminmax": ["default"],
        "argmax": ["default"],
        "argmin": ["default"],
        "max": ["default", "dim"],
        "min": ["default", "dim"],
        "median": ["default", "dim"],
        "mode": ["default"],
        "kthvalue": ["default"],
    }.items()
    for overload in overloads
)
"""Operators that raise an error for a dimension without elements."""


def require(cond: Any, text: str, error: str = "RuntimeError") -> None:
    """Apply `torch._check(cond, lambda: text)` in a graph; the condition may be symbolic.

    Raises:
        Exception: the condition is false; the class is the one named `error`.
    """
    question = cond.node.value if isinstance(cond, torch.SymBool) and isinstance(cond.node, SizeNode) else cond
    if isinstance(question, SymbolicPredicate) and question.expect(text, error):
        return
    if not cond:
        raise getattr(builtins, error)(text)


def holds(left: int, sign: str, right: int, text: str, error: str) -> int:
    """Check a fact in compiled code; returns 0 if it is true.

    Raises:
        Exception: the fact is false; the class is the one named `error`.
    """
    if not _HOLDS[sign](left, right):
        raise getattr(builtins, error)(text)
    return 0


_HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">=": operator.ge,
}
