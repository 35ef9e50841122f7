"""The operators of `torch.amp.GradScaler`: unscaling gradients with a test for infinities, and updating the scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from smelt.prims.registry import DECOMPOSITIONS, Lowering, aten, decomposition


@decomposition(aten._amp_foreach_non_finite_check_and_unscale.default)
def unscale(p: Lowering, gradients: Sequence[Node], found_inf: Node, inv_scale: Node) -> tuple[Node, ...]:
    """Returns each gradient times `inv_scale`, then `found_inf`, set to 1 if an element of a gradient is not finite."""
    metas, results, found = p.result, [], found_inf
    for meta, x in zip(metas, gradients, strict=False):
        p.result = meta
        results.append(DECOMPOSITIONS[aten.mul.Tensor](p, x, inv_scale))
        lost = p.any(p.logical_not(p.isfinite(p.widen(x))), p.dims_of(x, None))
        found = p.where(p.broadcast(lost, found.meta["val"].shape), 1.0, found)
    p.result = metas
    return (*results, found)


@decomposition(aten._amp_update_scale.default)
def update_scale(
    p: Lowering, scale: Node, tracker: Node, found_inf: Node, growth: float, backoff: float, interval: int
) -> Any:
    """Returns (new scale, new tracker). The tracker counts consecutive steps in which all gradients were finite.

    After a gradient that is not finite, the scale is multiplied by `backoff`; after `interval` steps in a row without
    one, by `growth`, unless the product overflows. In both cases the tracker restarts at 0.
    """
    if any(x.meta["val"].shape != scale.meta["val"].shape for x in (tracker, found_inf)):
        return NotImplemented
    lost = p.ne(found_inf, 0.0)
    row = p.add(tracker, 1)
    long = p.eq(row, interval)
    more = p.mul(scale, growth)
    grown = p.where(p.logical_and(long, p.isfinite(more)), more, scale)
    zero = p.full(tracker.meta["val"].shape, 0, torch.int32, tracker.meta["val"].device)
    return p.where(lost, p.mul(scale, backoff), grown), p.where(p.logical_or(lost, long), zero, row)
