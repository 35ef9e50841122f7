"""Weights computed from a direction and a length, against eager."""

from __future__ import annotations

import pytest
import torch

from tests.prims.aten_check import check

aten = torch.ops.aten


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 2), (1, 5), (4, 1)])
@pytest.mark.parametrize("last", [False, True])
def test_weight_norm(shape: tuple[int, ...], last: bool) -> None:
    dim = len(shape) - 1 if last else 0
    v = torch.randn(shape, dtype=torch.float64)
    g = torch.rand([n if d == dim else 1 for d, n in enumerate(shape)], dtype=torch.float64)
    check(aten._weight_norm_interface.default, v, g, dim)
    out, lengths = aten._weight_norm_interface.default(v, g, dim)
    assert lengths.shape == g.shape
    check(aten._weight_norm_interface_backward.default, torch.randn_like(out), v, g, lengths, dim)
    check(aten._weight_norm_interface.default, v.float(), g.float(), dim)


def test_the_length_of_the_weight_is_g() -> None:
    v, g = torch.randn(3, 4, dtype=torch.float64), torch.tensor([[1.0], [2.0], [0.5]], dtype=torch.float64)
    out, lengths = check(aten._weight_norm_interface.default, v, g, 0)(v, g, torch.tensor(0))
    torch.testing.assert_close(out.norm(dim=1), g[:, 0])
    torch.testing.assert_close(lengths[:, 0], v.norm(dim=1))


def test_gradient() -> None:
    v, g = (
        torch.randn(3, 4, dtype=torch.float64, requires_grad=True),
        torch.rand(3, 1, dtype=torch.float64, requires_grad=True),
    )
    out = v * (g / v.norm(dim=1, keepdim=True))
    grad = torch.randn_like(out)
    want = torch.autograd.grad(out, (v, g), grad)
    args = (grad, v.detach(), g.detach(), v.detach().norm(dim=1, keepdim=True))
    got = check(aten._weight_norm_interface_backward.default, *args, 0)(*args, torch.tensor(0))
    torch.testing.assert_close(got, want)
