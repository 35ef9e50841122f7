"""`torch.autograd.Function` in compiled code."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.autograd.scenarios import X, same

Function = torch.autograd.Function


class Product(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        ctx.save_for_backward(x, y)
        ctx.factor = 3
        return x * y, x + 1

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> Any:
        x, y = ctx.saved_tensors
        return g * y * ctx.factor + h, g * x


class Sort(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        values, places = x.sort()
        ctx.mark_non_differentiable(places)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(places)
        return values, places

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        assert h is None
        (places,) = ctx.saved_tensors
        return None if g is None else torch.zeros_like(g).scatter(-1, places, g)


class Waves(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, materialize: bool) -> Any:
        ctx.set_materialize_grads(materialize)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        return (g * 2 if h is None else g * 2 + h + 1), None


class Power(Function):
    @staticmethod
    def forward(x: torch.Tensor, n: int) -> torch.Tensor:
        return x**n

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.n = inputs[1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return (g * ctx.n * x ** (ctx.n - 1) if ctx.needs_input_grad[0] else None), None


class Double(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * 2


CASES = {
    "saved tensors": lambda x, y: Product.apply(x, y),
    "not differentiable": lambda x, y: Sort.apply(x * y),
    "materialized": lambda x, y: Waves.apply(x * y, True)[0],
    "not materialized": lambda x, y: Waves.apply(x * y, False)[0],
    "setup_context": lambda x, y: Power.apply(x, 3) * Power.apply(y.detach(), 2),
    "written value": lambda x, y: (Double.apply(x * 1), y),
    "written argument": lambda x, y: Double.apply(y) + x,
}


@pytest.mark.parametrize("name", CASES)
def test_functions(name):
    def run(compile):
        x, leaf = X.clone().requires_grad_(), (X + 1).requires_grad_()
        y = leaf * 1
        out = compile(CASES[name])(x, y)
        out = out if isinstance(out, tuple) else (out,)
        sum((o * o).sum() for o in (*out, y) if o.requires_grad).backward()
        return [*out, x.grad, leaf.grad]

    same(run)
