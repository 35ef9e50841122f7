"""Runs a compiled backward for many gradients at once: `is_grads_batched`, `vmap` of a gradient, vectorized jacobians.

Compiled code reads memory, and a batched tensor of `torch.vmap` has no memory in its own layout. So the program runs
once for each sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.base.torch_c import batch_level, functorch_transforms_active, is_batched_before_transforms

Gradients = Callable[[list[torch.Tensor], Sequence[torch.Tensor | None]], tuple[torch.Tensor, ...]]


def batched(run: Gradients) -> Gradients:
    """Returns `run`, extended to gradients that may be batched tensors."""

    def run_batched(saved: list[torch.Tensor], grads: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        if functorch_transforms_active():
            return tuple(Batched.apply(run, len(saved), *saved, *grads))
        level = batch_level()
        if not level or not any(grad is not None and is_batched_before_transforms(grad) for grad in grads):
            return run(saved, grads)
        return _one_by_one(run, saved, grads, level)

    return run_batched


def _one_by_one(
    run: Gradients, saved: Sequence[torch.Tensor], grads: Sequence[torch.Tensor | None], level: int
) -> tuple[torch.Tensor, ...]:
    """Run once per sample for the older `vmap` (`is_grads_batched`), whose innermost level is `level`."""
    physical = [g if g is None else torch._remove_batch_dim(g, level, 1, 0) for g in grads]
    size = max(len(g) for g in physical if g is not None)
    found = []
    for sample in range(size):
        one = [g if g is None else g[sample if len(g) == size else 0] for g in physical]
        found.append(run([*saved], one))
    return tuple(torch._add_batch_dim(torch.stack(each), 0, level) for each in zip(*found, strict=True))


class Batched(torch.autograd.Function):
    """`run(saved, grads)` as a function with a `vmap` rule, for functorch transforms."""

    @staticmethod
    def forward(run: Gradients, count: int, *tensors: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Run on `tensors`: `count` saved tensors, then the gradients of the results."""
        return run(list(tensors[:count]), tensors[count:])  # type: ignore[arg-type]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        """Save nothing: `backward` only raises."""

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        """Raise: derivatives of a gradient are supported only if it was computed with `create_graph=True`."""
        raise RuntimeError("a compiled gradient of many samples has no derivatives: pass create_graph=True")

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], run: Gradients, count: int, *tensors: torch.Tensor | None
    ) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
        """The `vmap` rule: run once for each sample and stack the results."""
        found = []
        for sample in range(info.batch_size):
            pairs = zip(tensors, in_dims[2:], strict=True)
            one = [t if t is None or d is None else t.select(d, sample) for t, d in pairs]
            found.append(Batched.apply(run, count, *one))
        stacked = tuple(torch.stack(each) for each in zip(*found, strict=True))
        return stacked, (0,) * len(stacked)
