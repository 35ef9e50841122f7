"""Kernels that want more than their schema says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from smelt.abi.kernels import KERNELS, lstm_layer, lstm_layer_backward
from smelt.base.errors import SmeltError

aten = torch.ops.aten


def arguments(x: torch.Tensor, train: bool = True) -> tuple[object, ...]:
    torch.manual_seed(0)
    lstm = nn.LSTM(x.shape[2], 5)
    state = torch.zeros(x.shape[1], 5)
    weights = [p.detach() for p in lstm.parameters()]
    return (x, *weights, state, state, False, [], 2, 5, 1, True, False, False, train)


def test_a_layer_reads_any_strides() -> None:
    x = torch.randn(3, 6, 7).permute(2, 0, 1)
    ours, rowmajor = lstm_layer(*arguments(x)), lstm_layer(*arguments(x.contiguous()))
    for a, b in zip(ours, rowmajor, strict=True):
        assert torch.equal(a, b)


def test_the_workspace_has_no_elements_and_reaches_the_backward() -> None:
    args = arguments(torch.randn(7, 3, 6))
    with torch.no_grad():
        output, hidden, cell, workspace = lstm_layer(*args)
    assert workspace.shape == (0,) and workspace.untyped_storage().nbytes() > 0
    x, *rest = args
    given = (*args[:7], output, hidden, cell, torch.ones_like(output), None, None, False, 2, 5, 1, True, True, False)
    gradient, *_ = lstm_layer_backward(*given, [], False, workspace)
    assert torch.isfinite(gradient).all() and gradient.shape == (7, 3, 6)
    with pytest.raises(SmeltError, match="workspace"):
        lstm_layer_backward(*given, [], False, workspace.clone())


def test_statistics_of_a_layer_norm_may_be_expanded() -> None:
    x, grad = torch.randn(4, 3, 5), torch.randn(4, 3, 5)
    mean, rstd = torch.randn(3, 1).expand(4, 3, 1), torch.rand(3, 1).expand(4, 3, 1)
    op, rest = aten.native_layer_norm_backward.default, (None, None, [True, False, False])
    ours = KERNELS[op](grad, x, [5], mean, rstd, *rest)[0]
    assert torch.equal(ours, op(grad, x, [5], mean.contiguous(), rstd.contiguous(), *rest)[0])


def test_the_table_names_operators() -> None:
    assert all(isinstance(op, torch._ops.OpOverload) for op in KERNELS)


@pytest.mark.gpu
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_attention_stores_its_seed_on_the_device_of_its_results(dropout: float) -> None:
    forward, backward = aten._efficient_attention_forward.default, aten._efficient_attention_backward.default
    q = torch.randn(2, 16, 4, 32, dtype=torch.half, device="cuda")
    given = (q, q, q, None, None, None, None, None, dropout, 0, True)
    torch.manual_seed(0)
    out, sums, seed, offset, *lengths = KERNELS[forward](*given)
    torch.manual_seed(0)
    _, _, real_seed, real_offset, *_ = forward(*given)
    assert seed.device == offset.device == q.device
    rest = (*lengths, sums, dropout)
    ours = KERNELS[backward](out, q, q, q, None, out, None, None, *rest, seed, offset, 0, False)
    eager = backward(out, q, q, q, None, out, None, None, *rest, real_seed, real_offset, 0, False)
    for a, b in zip(ours[:3], eager[:3], strict=True):
        assert torch.allclose(a, b, atol=1e-2)
