"""Many gradients at once through compiled code: `is_grads_batched`, `vmap` of a gradient, vectorized jacobians."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

import smelt


def program(x: Tensor) -> tuple[Tensor, Tensor]:
    return x**2 * x.sum(), x.cos().t() @ x.sin()


@pytest.fixture(scope="module", params=["aot_eager", "smelt"])
def compiled(request: Any) -> Any:
    return smelt.compile(program, backend=request.param)


def rows(out: Tensor) -> Tensor:
    return torch.eye(out.numel(), dtype=out.dtype).view(-1, *out.shape)


@pytest.mark.parametrize("which", [0, 1])
def test_batches_of_gradients(compiled: Any, which: int) -> None:
    found = []
    for fn in (program, compiled):
        x = torch.arange(6.0).view(3, 2).requires_grad_()
        out = fn(x)[which]

        def of(g: Tensor, out: Tensor = out, x: Tensor = x) -> Tensor:
            return torch.autograd.grad(out, x, g, retain_graph=True)[0]

        batched = torch.autograd.grad(out, x, rows(out), is_grads_batched=True, retain_graph=True)[0]
        nested = torch.vmap(torch.vmap(of))(torch.stack([rows(out), 2 * rows(out)]))
        found.append((batched, torch.vmap(of)(rows(out)), nested, of(torch.ones_like(out))))
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def test_jacobians(compiled: Any) -> None:
    x = torch.arange(6.0).view(3, 2)
    for vectorize in (False, True):
        for which in (0, 1):
            want, got = (
                jacobian(lambda v, fn=fn, which=which: fn(v)[which], x, vectorize=vectorize)
                for fn in (program, compiled)
            )
            torch.testing.assert_close(got, want)
    want, got = (hessian(lambda v, fn=fn: fn(v)[0].sum(), x, vectorize=True) for fn in (program, compiled))
    torch.testing.assert_close(got, want)


def test_parts_without_gradients() -> None:
    def two(x: Tensor, y: Tensor) -> Tensor:
        return (x * 2).sin() + y

    x, y = torch.ones(3, requires_grad=True), torch.ones(3)
    out = smelt.compile(two, backend="aot_eager")(x, y)
    got = torch.autograd.grad(out, x, torch.eye(3), is_grads_batched=True)[0]
    torch.testing.assert_close(got, torch.eye(3) * 2 * torch.cos(torch.tensor(2.0)))


def test_anomaly_mode(compiled: Any) -> None:
    with torch.autograd.detect_anomaly(check_nan=True):
        run = smelt.compile(lambda x: x.sqrt() * 2, backend="aot_eager")
        x = torch.ones(2, requires_grad=True)
        run(x).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [1, 1]
        bad = torch.tensor([-1.0, 1.0], requires_grad=True)
        with pytest.raises(RuntimeError, match="nan"):
            run(bad).sum().backward()
