"""Python forms of torch's higher-order operators; capture interprets them in place of the operators' calls.

An operator such as `scan` gets functions of the program. Its form calls them as eager's implementation does, so that
their operations become nodes of the graph: loops over a tensor's rows are unrolled, and a branch on a tensor's value
becomes a conditional node. The public functions of torch have validated and flattened the arguments before.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

Function = Callable[..., Any]
"""A function of the program."""

Values = Sequence[object]
Tensors = Sequence[Tensor]


def cond(pred: object, true_fn: Function, false_fn: Function, operands: Values = ()) -> object:
    """`torch.cond`: the result of one of two functions.

    Args:
        pred: bool, number or tensor of one element.
        operands: arguments of both functions.
    """
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)


def while_loop(cond_fn: Function, body_fn: Function, carried_inputs: Values) -> object:
    """`while_loop`: what `body_fn` gave last when `cond_fn` is false; copies of `carried_inputs` if it never ran.

    Args:
        carried_inputs: tuple or list of tensors, numbers and nested containers of them: arguments of both functions.
    """
    values: Values | None = None
    while cond_fn(*(carried_inputs if values is None else values)):
        values = body_fn(*(carried_inputs if values is None else values))
    return tree_map(_copied, tuple(carried_inputs)) if values is None else values


def _copied(value: object) -> object:
    return value.clone() if isinstance(value, Tensor) else value


def scan(combine_fn: Function, init: Values, xs: Tensors, additional_inputs: Values = ()) -> tuple[object, object]:
    """`scan` over dimension 0: the last carry, and the outputs of all steps stacked along dimension 0.

    Args:
        combine_fn: `(*carry leaves, *rows, *additional_inputs)` -> (carry, output), nested containers of tensors.
        init: leaves of the first carry.
        xs: tensors of equal size in dimension 0, which is at least 1.
    """
    carry, steps = init, []
    for at in range(xs[0].shape[0]):
        last, output = combine_fn(*carry, *[each.select(0, at) for each in xs], *additional_inputs)
        carry = tree_leaves(last)
        steps.append(output)
    return last, _stacked(steps)


def map_rows(f: Function, xs: Tensors, pos_args: Values) -> object:
    """`map`: the results of `f(*rows, *pos_args)` for all rows of `xs`, stacked along dimension 0."""
    return _stacked([f(*[each.select(0, at) for each in xs], *pos_args) for at in range(xs[0].shape[0])])


def _stacked(results: list[object]) -> object:
    """Containers of equal structure as one, with their tensors stacked along dimension 0; None stays None."""
    columns = zip(*map(tree_leaves, results), strict=True)
    stacked = [None if leaves[0] is None else torch.stack(leaves) for leaves in columns]
    return tree_unflatten(stacked, tree_flatten(results[0])[1])


def associative_scan(combine_fn: Function, xs: Tensors, additional_inputs: Values = ()) -> object:
    """`associative_scan` along dimension 0, in eager's order of combinations: neighbours first, then recursively.

    Args:
        combine_fn: `(*left, *right, *additional_inputs)` -> nested containers of tensors, elementwise.
        xs: tensors of equal shape.

    Returns:
        Tensors shaped like `xs` in the structure that `combine_fn` gives.
    """
    structure = tree_flatten(combine_fn(*xs, *xs, *additional_inputs))[1]
    return tree_unflatten(_scan_pairs(combine_fn, xs, additional_inputs), structure)


def _scan_pairs(combine_fn: Function, xs: Tensors, additional: Values) -> list[Tensor]:
    count = xs[0].shape[0]
    if count < 2:
        return list(xs)
    pairs = tree_leaves(combine_fn(*[x[:-1:2] for x in xs], *[x[1::2] for x in xs], *additional))
    odd, even = _scan_pairs(combine_fn, pairs, additional), [x[:1] for x in xs]
    if count > 2:
        before = [x[:-1] for x in odd] if count % 2 == 0 else odd
        combined = tree_leaves(combine_fn(*before, *[x[2::2] for x in xs], *additional))
        even = [torch.cat(rows) for rows in zip(even, combined, strict=True)]
    return [_interleaved(*rows) for rows in zip(even, odd, strict=True)]


def _interleaved(even: Tensor, odd: Tensor) -> Tensor:
    """Rows of two tensors in turn; `even` has as many rows as `odd`, or one more."""
    count = odd.shape[0]
    pairs = torch.stack([even[:count], odd], dim=1).flatten(0, 1)
    return pairs if even.shape[0] == count else torch.cat([pairs, even[count:]])


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Function,
    block_mask: Sequence[Function],
    scale: float,
    *options: Values,
) -> tuple[Tensor, Tensor, Tensor]:
    """`flex_attention` as eager computes it: scores, their modification and mask, softmax, product with the values.

    Under autocast the inputs are cast once, and nothing after them.

    Args:
        query: (batch, heads, queries, features).
        key, value: (batch or 1, heads / group, keys, features).
        score_mod: (score, batch, head, query, key, *buffers) -> score, of scalars.
        block_mask: its last entry is the mask: (batch, head, query, key, *buffers) -> bool, of scalars.
        options: options of the kernel, which eager ignores; buffers of `score_mod` and of the mask.

    Returns:
        The output (batch, heads, queries, features of the values); the logarithms to base 2 of the sums of
        exponentials, and the maxima of scores in units of log(2): (batch, heads, queries).
    """
    device, buffers = query.device.type, (*options, (), ())[1:3]
    if torch.is_autocast_enabled(device) and query.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    with torch.autocast(device, enabled=False):
        return _attention(query, key, value, scale, _modified_by(score_mod, buffers[0], block_mask[-1], buffers[1]))


def _modified_by(
    score_mod: Function, of_scores: Values, mask_mod: Function, of_mask: Values
) -> Callable[[Tensor], Tensor]:
    """A function of all scores (batch, heads, queries, keys): modified, and -inf where the mask is False."""

    def modified(scores: Tensor) -> Tensor:
        indices = [torch.arange(size, device=scores.device) for size in scores.shape]
        changed = _for_all(score_mod, True, len(of_scores))(scores, *indices, *of_scores)
        allowed = _for_all(mask_mod, False, len(of_mask))(*indices, *of_mask)
        return torch.where(allowed, changed, torch.tensor(-math.inf, dtype=scores.dtype, device=scores.device))

    return modified


def _attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, modify: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    group = query.size(1) // key.size(1)
    key = torch.repeat_interleave(key, group, dim=1).expand(query.size(0), -1, -1, -1)
    value = torch.repeat_interleave(value, group, dim=1).expand(query.size(0), -1, -1, -1)
    working = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = modify((query.to(working) @ key.to(working).transpose(-2, -1)) * scale)
    sums = torch.where(torch.all(scores == -math.inf, dim=-1), -math.inf, scores.logsumexp(dim=-1))
    largest = torch.max(scores, dim=-1)[0]
    out = torch._safe_softmax(scores, dim=-1).to(query.dtype) @ value.to(query.dtype)
    return _in_memory_order_of(query, out), sums / math.log(2), largest / math.log(2)


def _for_all(function: Function, of_scores: bool, buffers: int) -> Function:
    """`function` of scalars over all batches, heads, queries and keys; its last arguments are whole buffers."""
    first = (0,) if of_scores else ()
    function = functools.partial(index_by_tensors, function)
    for axis in (3, 2, 1, 0):
        dims: list[int | None] = [None, None, None, None]
        dims[axis] = 0
        function = torch.vmap(function, in_dims=(*first, *dims, *[None] * buffers))
    return function


def index_by_tensors(function: Function, *args: object) -> object:
    """Call a function in which `table[index]` picks elements where `index` is a tensor without dimensions: its value is
    not read. Capture gives the call this meaning.
    """
    return function(*args)


def _in_memory_order_of(query: Tensor, out: Tensor) -> Tensor:
    """`out` with its dimensions in the order that the query's have in memory; the last one is always innermost."""
    outer = sorted(range(query.dim() - 1), key=query.stride, reverse=True)
    if outer == list(range(query.dim() - 1)):
        return out
    strides, stride = [1] * query.dim(), out.size(-1)
    for at in reversed(outer):
        strides[at] = stride
        stride *= out.size(at)
    return out.new_empty_strided(out.shape, strides).copy_(out)
