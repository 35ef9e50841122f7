"""The fused attention kernels of CUDA, by their references, against torch's own attention and its gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from smelt.prims import ops


def make(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
def test_fused_attention(kind: str, causal: bool, scale: float | None, masked: bool):
    if masked and (causal or kind == "flash"):
        pytest.skip("no such call")
    q, k, v = make(2, 3, 5, 8), make(2, 3, 5, 8), make(2, 3, 5, 8)
    bias = make(2, 3, 5, 5) if masked else None
    want = F.scaled_dot_product_attention(q, k, v, bias, is_causal=causal, scale=scale)
    grad = torch.randn_like(want)
    leaves = [x for x in (q, k, v, bias) if x is not None]
    gradients = torch.autograd.grad(want, leaves, grad)
    with torch.no_grad():
        if kind == "flash":
            out, sums = ops.attention_flash(q, k, v, causal, scale)
            found = ops.attention_flash_backward(grad, q, k, v, out, sums, causal, scale)
        elif kind == "efficient":
            out, sums = ops.attention_efficient(q, k, v, bias, True, causal, scale)
            wanted = (True, True, True, masked)
            found = ops.attention_efficient_backward(grad, q, k, v, bias, out, sums, wanted, causal, scale)
            assert sums.shape == (2, 3, 32)
        else:
            out, sums = ops.attention_cudnn(q, k, v, bias, True, causal, scale)
            found = ops.attention_cudnn_backward(grad, q, k, v, out, sums, bias, causal, scale)
    torch.testing.assert_close(out, want.detach())
    for got, expected in zip(found, gradients, strict=False):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("case", ["plain", "causal", "masked"])
def test_tiled_attention(case: str, dropout: float):
    """Against the formula in float64 and its derivative; which weights are dropped is what `random` says."""
    q, k, v = (make(2, 3, n, 8) for n in (5, 7, 7))
    bias = make(1, 3, 5, 7) if case == "masked" else None
    seed, scale = torch.tensor(11), 0.4
    wide = [x.detach().double().requires_grad_() for x in (q, k, v, bias) if x is not None]
    scores = wide[0] @ wide[1].mT * scale + (wide[3].expand(2, 3, 5, 7) if bias is not None else 0)
    if case == "causal":
        scores = scores.masked_fill(torch.ones(5, 7, dtype=torch.bool).triu(1), -torch.inf)
    scores.retain_grad()
    chance = ops.PRIMS["random"](seed, 4, (2, 3, 5, 7))
    want = (scores.softmax(-1) * (chance < 1 - dropout) / (1 - dropout)) @ wide[2]
    grad = torch.randn(2, 3, 5, 8)
    want.backward(grad.double())
    expected = [*(x.grad for x in wide[:3]), scores.grad if bias is not None else None]
    drawn = (seed if dropout else None,)
    given = (q, k, v, None if bias is None else bias.expand(2, 3, 5, 7))
    with torch.no_grad():
        out, sums = ops.attention_tiled(*given, *drawn, True, case == "causal", scale, dropout, 4, "ieee")
        mask = (True, True, True, bias is not None)
        last = (mask, case == "causal", scale, dropout, 4, "ieee")
        found = ops.attention_tiled_backward(grad, *given, out, sums, *drawn, *last)
    assert sums.shape == (2, 3, 32) and sums[..., 5:].isposinf().all()
    torch.testing.assert_close(out, want.detach().float())
    for got, one in zip(found, expected, strict=True):
        assert got is one is None or torch.allclose(got, one.float(), rtol=1e-4, atol=1e-5)
