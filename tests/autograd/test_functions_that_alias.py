"""A `torch.autograd.Function` whose result is a view of its argument, or the argument: its derivative stays its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return -3 * grad


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, by: float) -> torch.Tensor:
        ctx.by = by
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad * ctx.by, None


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 5 * grad


class Crossed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return y.view_as(y), x.t()

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return b.t() * 2, a * 3


def _broken(h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = Reversed.apply(h)
    y.detach().numpy().sum()
    return y * 2, Reversed.apply(y), y


def _of_intermediate(h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    k = h * 2
    return k, Reversed.apply(k), Scaled.apply(k[0], 2.0), k * 3


def _written(h: torch.Tensor) -> tuple[torch.Tensor, ...]:
    k = h * 1
    return Doubled.apply(k), k


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "alone": lambda h: Reversed.apply(h),
    "argument": lambda h: Scaled.apply(h, 4.0),
    "then a view": lambda h: Reversed.apply(h)[0],
    "of a view": lambda h: Reversed.apply(h.t()[0]),
    "beside others": lambda h: (h, Reversed.apply(h), Reversed.apply(h)[1], h.t()),
    "twice": lambda h: Reversed.apply(Reversed.apply(h)),
    "of an intermediate": _of_intermediate,
    "crossed": lambda h: Crossed.apply(h, h * 2),
    "crossed back": lambda h: Crossed.apply(h * 3, h),
    "detached": lambda h: (Reversed.apply(h.detach()), h * 2),
    "without gradients": torch.no_grad()(lambda h: Reversed.apply(h)),
    "dirty": _written,
    "before a break": _broken,
}


@pytest.mark.parametrize("leaf", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_and_memory(name: str, leaf: bool) -> None:
    f, found = PROGRAMS[name], []
    for run in (f, smelt.compile(f)):
        for _ in range(2):
            x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
            h = x if leaf else x * 1
            out = run(h)
            outs = out if isinstance(out, tuple) else (out,)
            facts = [(o.requires_grad, o.data_ptr() == h.data_ptr(), o.is_leaf, o is h, o.tolist()) for o in outs]
            total = sum(((i + 1) * o.sum() for i, o in enumerate(outs) if o.requires_grad), torch.zeros(()))
            if total.requires_grad:
                total.backward()
            found.append((facts, None if x.grad is None else x.grad.tolist()))
    assert found[0] == found[1] == found[2] == found[3]


def test_such_a_result_may_not_be_written_as_in_eager() -> None:
    x = torch.ones(2, requires_grad=True) * 1
    y = smelt.compile(lambda t: Reversed.apply(t))(x)
    with pytest.raises(RuntimeError, match="is a view"):
        y.mul_(2)
