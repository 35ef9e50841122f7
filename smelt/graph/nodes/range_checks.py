"""Operators that raise errors for values out of a range, and a node with only that check, for unused results.

Eager runs an operator even if its result is unused, and so checks its operands. A graph drops unused nodes, but must
raise the same errors: capture keeps such calls (`finish_graph`), and a joint graph gets an `in_range` node instead. If
only the operator's own kernel can find the error (a singular matrix), the operator stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from smelt.abi.faults import (
    ALL_WEIGHTS_ZERO,
    DIVIDED_BY_ZERO,
    NEGATIVE_DEVIATION,
    NEGATIVE_REPEATS,
    NO_PROBABILITY,
    NO_WEIGHTS,
    NOT_IN_UNIT,
    OUT_OF_RANGE,
    TARGET_NOT_IN_UNIT,
    TOO_FEW,
    fault_error,
)
from smelt.base.torch_private import OpOverload
from smelt.graph.ir.functional_form import check_form, is_checked_form
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.schema import is_collective
from smelt.shapes.size import same

aten = torch.ops.aten


class Range(NamedTuple):
    """The values that an operator accepts in one operand.

    Attributes:
        low, high: the minimum and the maximum; None: unbounded.
        fault: the error that eager raises (`abi.faults`).
        ignored: a value that is always accepted.
        waits: whether on a GPU eager waits and checks before the kernel starts, so that the context survives; else a
            kernel asserts.
        excluded: a value inside of the range that is not accepted.
        summed: dimensions over which the operand is summed before the check; None: its elements are checked.
    """

    operand: fx.Node
    low: Any
    high: Any
    fault: int
    ignored: int | None = None
    waits: bool = False
    excluded: int | None = None
    summed: tuple[int, ...] | None = None


Rule = Callable[[Sequence[Any]], Iterator[Range]]


def _shape(node: fx.Node) -> tuple[Any, ...]:
    return node.meta["val"].shape or (1,)


def _indices_along(dim: int | None, position: int) -> Rule:
    """Returns the rule of an operator whose operand at `position` contains indices along dimension `args[dim]` of the
    first operand (its first dimension for None).
    """

    def rule(args: Sequence[Any]) -> Iterator[Range]:
        shape = _shape(args[0])
        yield Range(args[position], 0, shape[0 if dim is None else args[dim] % len(shape)] - 1, OUT_OF_RANGE)

    return rule


def _indices(args: Sequence[Any]) -> Iterator[Range]:
    at = 0
    for index in args[1]:
        if index is not None and index.meta["val"].dtype in (torch.bool, torch.uint8):
            at += len(index.meta["val"].shape)
            continue
        if index is not None:
            size = args[0].meta["val"].shape[at]
            yield Range(index, -size, size - 1, OUT_OF_RANGE)
        at += 1


def _wrapping(args: Sequence[Any]) -> Iterator[Range]:
    shape = _shape(args[0])
    size = shape[args[1] % len(shape)]
    yield Range(args[2], -size, size - 1, OUT_OF_RANGE)


def _take(args: Sequence[Any]) -> Iterator[Range]:
    size = args[0].meta["val"].numel
    yield Range(args[1], -size, size - 1, OUT_OF_RANGE)


def _classes(args: Sequence[Any]) -> Iterator[Range]:
    shape = _shape(args[0])
    yield Range(args[1], 0, shape[1 if len(shape) > 1 else 0] - 1, OUT_OF_RANGE, args[4])


def _cross_entropy(args: Sequence[Any]) -> Iterator[Range]:
    yield Range(args[0], 0.0, 1.0, NOT_IN_UNIT)
    yield Range(args[1], 0.0, 1.0, TARGET_NOT_IN_UNIT)


def _bernoulli(args: Sequence[Any]) -> Iterator[Range]:
    yield Range(args[0], 0.0, 1.0, NO_PROBABILITY)


def _normal(args: Sequence[Any]) -> Iterator[Range]:
    yield Range(args[1], 0.0, None, NEGATIVE_DEVIATION, None, True)


def _divisor(args: Sequence[Any]) -> Iterator[Range]:
    """Yields the range of the divisor of an integer division on a CPU, which must not be 0; a GPU returns a number."""
    whole = all(
        not (x.meta["val"].dtype.is_floating_point if isinstance(x, fx.Node) else isinstance(x, float))
        for x in args[:2]
    )
    empty = isinstance(args[0], fx.Node) and same(args[0].meta["val"].numel, 0)
    if isinstance(args[1], fx.Node) and whole and not empty and args[1].meta["val"].device.type == "cpu":
        yield Range(args[1], None, None, DIVIDED_BY_ZERO, excluded=0)


def _divided(args: Sequence[Any]) -> Iterator[Range]:
    """Yields the range of the divisor of `div` with a rounding mode, which comes last; true division of integers gives
    floats.
    """
    yield from _divisor(args) if len(args) > 2 and args[2] is not None else ()


def _weights(args: Sequence[Any]) -> Iterator[Range]:
    x = args[0]
    yield Range(x, 0.0, torch.finfo(x.meta["val"].dtype).max, NO_WEIGHTS)
    yield Range(x, None, None, ALL_WEIGHTS_ZERO, excluded=0, summed=(len(x.meta["val"].shape) - 1,))


def _masked(args: Sequence[Any]) -> Iterator[Range]:
    """Yields the range of a mask: if it is broadcast to x's shape, each true element consumes one source element per
    repetition.
    """
    shape, mask = args[0].meta["val"].shape, args[1].meta["val"].shape
    ranks = (0,) * (len(mask) - len(shape)), (0,) * (len(shape) - len(mask))
    pairs = zip((*ranks[0], *shape), (*ranks[1], *mask), strict=True)
    times = math.prod(n for n, m in pairs if not same(n, m) and not same(n, 1) and n != 0 and (m == 0 or same(m, 1)))
    if all(not same(n, 0) for n in shape):
        yield Range(args[1], None, args[2].meta["val"].numel // times, TOO_FEW, summed=tuple(range(len(mask))))


def _repeats(args: Sequence[Any]) -> Iterator[Range]:
    yield Range(args[0], 0, None, NEGATIVE_REPEATS)


_RULES: dict[OpOverload, Rule] = {
    aten.index.Tensor: _indices,
    aten.index_put.default: _indices,
    **dict.fromkeys((aten.floor_divide.default, aten.remainder.Tensor, aten.remainder.Scalar_Tensor), _divisor),
    aten.fmod.Tensor: _divisor,
    aten.div.Tensor_mode: _divided,
    aten.multinomial.default: _weights,
    aten.repeat_interleave.Tensor: _repeats,
    aten.masked_scatter.default: _masked,
    aten.embedding.default: _indices_along(None, 1),
    **dict.fromkeys((aten.take.default, aten.put.default), _take),
    **dict.fromkeys((aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), _wrapping),
    **dict.fromkeys(
        (aten.gather.default, aten.index_select.default, aten.scatter.src, aten.scatter.value, aten.scatter_add.default,
         aten.index_add.default, aten.index_copy.default),
        _indices_along(1, 2),
    ),
    aten.nll_loss_forward.default: _classes,
    aten.nll_loss2d_forward.default: _classes,
    aten.binary_cross_entropy.default: _cross_entropy,
    aten.bernoulli.default: _bernoulli,
    aten.normal.Tensor_Tensor: _normal,
    aten.normal.float_Tensor: _normal,
}  # fmt: skip


_RUN_IF_UNUSED: frozenset[OpOverload] = frozenset(
    {
        aten.poisson.default, aten.histc.default, aten.bincount.default, aten._embedding_bag.default,
        aten._embedding_bag_forward_only.default, aten.multi_margin_loss.default,
        aten.multilabel_margin_loss_forward.default, aten.max_unpool2d.default, aten.max_unpool3d.default,
        aten._linalg_svd.default, aten._linalg_eigh.default, aten._linalg_eigvals.default, aten.linalg_eig.default,
        aten.linalg_lstsq.default,
    }
)  # fmt: skip
"""Operators that run even if their result is unused, because no cheaper check finds whether they raise an error."""


def looks_at_values(func: OpOverload) -> bool:
    """Whether the operator raises an error for some values of its operands."""
    return func in _LOOKING


_LOOKING = frozenset({*_RULES, *_RUN_IF_UNUSED, aten._linalg_check_errors.default})


def runs_by_itself(node: fx.Node) -> bool:
    """Whether the node has to run even if its value is unused: it may raise, or other processes take part in it."""
    alone = node.target in _RUN_IF_UNUSED or is_checked_form(node.target) or is_collective(node.target)
    return alone and node.op == "call_function" and not _is_backward(node)


def ranges_of(func: OpOverload, args: Sequence[Any]) -> Iterator[Range]:
    """Yields the ranges that an operator accepts in its operands."""
    return _RULES[func](args)


def checks_of_dead(graph: fx.Graph, live: Callable[[], set[fx.Node]]) -> Iterable[Range]:
    """Returns the ranges of nodes outside of `live()`, except of backward nodes, whose forward has checked the same
    values.
    """
    found = [n for n in graph.nodes if n.target in _RULES and not _is_backward(n)]
    if not found:
        return
    used, seen = live(), set()
    for node in found:
        if node in used:
            continue
        for each in ranges_of(node.target, (*node.args, *node.kwargs.values())):
            val = each.operand.meta["val"]
            if each not in seen and not any(same(n, 0) for n in val.shape):
                seen.add(each)
                yield each


def waits(node: fx.Node) -> bool:
    """Whether eager waits for the GPU at this operator, to check values before it starts.

    A compiled program also does so, since a failed assertion in a kernel ends the context.
    """
    if node.target not in _CHECKED_FIRST or _is_backward(node) or not _on_gpu(node.meta["val"].device):
        return False
    return any(each.waits for each in ranges_of(node.target, (*node.args, *node.kwargs.values())))


_CHECKED_FIRST = (aten.normal.Tensor_Tensor, aten.normal.float_Tensor)


def _is_backward(node: fx.Node) -> bool:
    """Whether the node's indices were checked by a forward node: the gradient of `x[i]` writes at the indices that
    `x[i]` read.
    """
    return bool(node.meta.get("backward")) or "derivative" in node.meta


def _on_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def _in_range(
    x: torch.Tensor,
    low: Any,
    high: Any,
    ignored: int | None,
    fault: int,
    waits: bool,
    excluded: int | None = None,
    summed: Sequence[int] | None = None,
) -> torch.Tensor:
    if waits:
        return _ends_in_range(x, low, high, fault)
    if summed is not None:
        x = x.sum(tuple(summed))
    wrong = torch.zeros_like(x, dtype=torch.bool)
    if excluded is not None:
        wrong |= x == excluded
    if low is not None:
        wrong |= ~(x >= low)
    if high is not None:
        wrong |= ~(x <= high)
    if ignored is not None:
        wrong &= x != ignored
    if wrong.any():
        raise fault_error(fault)
    return wrong.any()


def _ends_in_range(x: torch.Tensor, low: Any, high: Any, fault: int) -> torch.Tensor:
    """Check the smallest and the largest element, with one wait for each, as in eager; a NaN is treated as both."""
    ends = torch.aminmax(x) if x.numel() else None
    for end, inside in ((0, lambda least: least >= low), (1, lambda largest: largest <= high)):
        if ends is not None and (low, high)[end] is not None and not inside(ends[end].item()):
            raise fault_error(fault)
    return x.new_zeros((), dtype=torch.bool)


_PARAMETERS = "Tensor x, Scalar? low, Scalar? high, int? ignored, int fault, bool waits, int? excluded, int[]? summed"
IN_RANGE = check_form("in_range", _PARAMETERS, _in_range)
"""An operator that returns a bool without dimensions, False, and raises an error for values out of range. `waits`:
whether the host checks, not a kernel.
"""

AFTER = check_form("after", "Tensor x, Tensor[] others", lambda x, others: x.clone())
"""An operator that returns a copy of `x` when all of `others` exist: what has to run before a result of the graph."""


def check_node(emit: Callable[..., fx.Node], each: Range) -> fx.Node:
    """Returns the node that raises an error for values out of this range."""
    val = TensorMeta((), torch.bool, (), each.operand.meta["val"].device)
    first = each.waits and _on_gpu(val.device)
    limits = (each.low, each.high, each.ignored, each.fault, first, each.excluded, each.summed)
    return emit(IN_RANGE, (each.operand, *limits), {}, val)
