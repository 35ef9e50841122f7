"""cuDNN's backward of attention is called with the layouts that its plan was made for, and never with eager's plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt
from smelt.abi import cudnn_attention

Calls = list[tuple[Any, ...]]
ROWS, HEADS = (lambda x: x.contiguous()), (lambda x: x.transpose(1, 2).contiguous().transpose(1, 2))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What the operator was called with."""
    made: Calls = []

    def operator(*args: Any, scale: float | None) -> tuple[Tensor, ...]:
        made.append(args)
        return args[1:4]

    monkeypatch.setattr(cudnn_attention, "_OP", operator)
    monkeypatch.setattr(cudnn_attention, "_planned", {})
    return made


def backward(grad: Tensor, q: Tensor, out: Tensor, dropout: float = 0.0, bias: Tensor | None = None) -> None:
    rest = torch.zeros(1), torch.zeros(1), torch.zeros(1), bias, None, None, q.shape[2], q.shape[2], dropout, False
    cudnn_attention.cudnn_attention_backward(grad, q, q, q, out, *rest, scale=None)


def test_calls_of_one_plan_bring_the_layouts_of_the_first(calls: Calls) -> None:
    q, out, grad = (torch.rand(2, 3, 5, 8) for _ in range(3))
    for layout in (HEADS, ROWS, lambda x: x[:, :, :1].expand_as(x), lambda x: x[..., :1].expand_as(x)):
        backward(layout(grad), q, out)
        backward(layout(grad), q, HEADS(out))
    assert {(c[0].stride(), c[4].stride()) for c in calls} == {(HEADS(grad).stride(), out.stride())}
    for call, given in zip(calls[:4], (grad,) * 4, strict=True):
        assert torch.equal(call[0], given) and torch.equal(call[4], out)
    assert torch.equal(calls[4][0], grad[:, :, :1].expand_as(grad))
    assert torch.equal(calls[6][0], grad[..., :1].expand_as(grad))


def test_a_gradient_in_the_layout_of_the_plan_is_passed_as_it_is(calls: Calls) -> None:
    q, out, grad = (torch.rand(2, 3, 5, 8) for _ in range(3))
    for _ in range(2):
        backward(HEADS(grad), q, out)
    given = HEADS(grad)
    backward(given, q, out)
    assert calls[-1][0] is given and calls[-1][4] is out


@pytest.mark.parametrize("other", [lambda q: HEADS(q), lambda q: q[:, :, :4], lambda q: q.double()])
def test_other_operands_have_a_plan_of_their_own(calls: Calls, other: Callable[[Tensor], Tensor]) -> None:
    q, grad = torch.rand(2, 3, 5, 8), torch.rand(2, 3, 5, 8)
    backward(HEADS(grad), q, grad)
    q = other(q)
    grad = grad[:, :, : q.shape[2]].contiguous()
    backward(grad, q, grad)
    assert calls[-1][0] is grad


def test_the_key_is_not_that_of_eager_s_calls(calls: Calls) -> None:
    x = torch.rand(2, 3, 5, 8)
    backward(x, x, x)
    assert calls[-1][-2] == 0 and math.copysign(1, calls[-1][-2]) == -1
    backward(x, x, x, dropout=0.25)
    assert calls[-1][-2] == 0.25


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": ROWS,
    "heads": HEADS,
    "packed": lambda x: torch.stack([x, x, x]).permute(1, 3, 0, 2, 4).contiguous()[:, :, 1].transpose(1, 2),
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("first", ["eager", "smelt"])
@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_gradients_of_attention_in_any_order_of_calls(dtype: torch.dtype, first: str, layout: str) -> None:
    """With gradients of the output in each layout after the other, eager's before ours and after them."""
    lengths = {"rows": 24, "heads": 40, "packed": 56}[layout] + 8 * (first == "smelt")  # plans of their own
    compiled = smelt.compile(F.scaled_dot_product_attention)
    for of_grad in (ROWS, HEADS, lambda x: x[:, :, :1].expand_as(x), ROWS):
        torch.manual_seed(0)
        given = [torch.randn(2, 4, lengths, 64, device="cuda", dtype=dtype) for _ in range(3)]
        grad = of_grad(torch.randn(2, 4, lengths, 64, device="cuda", dtype=dtype))
        exact = [x.double().requires_grad_() for x in given]
        F.scaled_dot_product_attention(*exact).backward(grad.double())
        for run in (F.scaled_dot_product_attention, compiled) if first == "eager" else (compiled,):
            leaves = [LAYOUTS[layout](x).detach().requires_grad_() for x in given]
            found = torch.autograd.grad(run(*leaves), leaves, grad)
            if run is compiled:
                for one, leaf in zip(found, exact, strict=True):
                    torch.testing.assert_close(one.double(), leaf.grad, atol=3e-2, rtol=3e-2)
