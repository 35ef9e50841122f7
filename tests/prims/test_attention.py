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
