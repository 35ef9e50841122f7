"""Matrix products with rows that tensor cores can load: the pads, who shares them, and the values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import smelt
from smelt.autograd.trace.joint import trace_joint
from smelt.base.options import Options
from smelt.graph.ir.meta import TensorMeta
from smelt.prims import aligned
from smelt.prims.aligned import step
from smelt.prims.decompose import decompose
from smelt.prims.table import PRIMS
from tests.autograd.joint_examples import lifted


@pytest.fixture(autouse=True)
def small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CUDA, with sizes of a test."""
    monkeypatch.setattr(aligned, "step", lambda x: 8)
    monkeypatch.setattr(aligned, "MIN_PADDED_SIZE", 4)


class Head(nn.Module):
    """Logits of a vocabulary of 37 words, which are also a result, and their loss."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.head = nn.Linear(16, 37, bias=bias)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(torch.tanh(x))
        return F.cross_entropy(logits.reshape(-1, 37), labels.reshape(-1)), logits


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 6, 16, requires_grad=True), torch.randint(37, (4, 6))


def products(gm: fx.GraphModule) -> list[tuple[TensorMeta, TensorMeta, TensorMeta]]:
    found = []
    for node in gm.graph.nodes:
        if node.target is PRIMS["mm"]:
            a, b = node.args
            found.append((a.meta["val"], b.meta["val"], node.meta["val"]))
    return found


@pytest.mark.parametrize("bias", [False, True])
def test_the_rows_of_all_three_products_are_whole(bias: bool) -> None:
    gm, inputs = lifted(Head(bias), arguments())
    prims = decompose(trace_joint(gm, inputs, Options()).module, Options())
    every = products(prims)
    assert len(every) == 3
    for metas in every:
        for meta in metas:
            assert max(meta.stride) % 8 == 0, meta
    # the weight, and the gradient of the logits: each is padded once for two products
    assert sum(node.target is PRIMS["pad"] for node in prims.graph.nodes) == 2


@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize(
    ("bias", "dtype"), [(False, torch.float32), (True, torch.float32), (True, torch.bfloat16)], ids=str
)
def test_values_and_strides_are_eagers(bias: bool, dtype: torch.dtype, target: str) -> None:
    model, (x, labels) = Head(bias).to(dtype), arguments()
    x = x.detach().to(dtype).requires_grad_()
    loss, logits = model(x, labels)
    want = torch.autograd.grad(loss + logits.square().mean(), [x, *model.parameters()])
    compiled = smelt.compile(model, fullgraph=True, options={"target": target})
    got_loss, got_logits = compiled(x, labels)
    got = torch.autograd.grad(got_loss + got_logits.square().mean(), [x, *model.parameters()])
    near = {} if dtype is torch.float32 else {"rtol": 0.03, "atol": 2e-3}
    torch.testing.assert_close((got_loss, got_logits, *got), (loss, logits, *want), **near)
    assert got_logits.stride() == logits.stride()


def test_only_what_matters_is_padded() -> None:
    """A size that is no row's length in memory costs nothing."""

    def count(a: torch.Tensor, b: torch.Tensor) -> int:
        gm, inputs = lifted(_Product(), (a, b))
        prims = decompose(trace_joint(gm, inputs, Options()).module, Options())
        return sum(node.target is PRIMS["pad"] for node in prims.graph.nodes)

    whole = torch.randn(16, 24)
    assert count(torch.randn(13, 16), whole) == 0  # rows of 16
    assert count(torch.randn(16, 13).t(), whole) == 1  # rows of 13
    assert count(torch.randn(8, 13), torch.randn(13, 24)) == 2
    assert count(torch.randn(8, 16), torch.randn(13, 16).t()) == 1  # the result has rows of 13
    assert count(torch.randn(3, 16), torch.randn(16, 13)) == 0  # too small


class _Product(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b


def _meta(dtype: torch.dtype, device: str) -> TensorMeta:
    return TensorMeta((8, 13), dtype, (13, 1), torch.device(device))


def test_the_rule_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    rule: Any = step
    assert [rule(_meta(t, "cuda:0")) for t in (torch.bfloat16, torch.float16, torch.float64)] == [8, 8, 1]
    assert rule(_meta(torch.bfloat16, "cpu")) == 1
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        assert rule(_meta(torch.float32, "cuda:0")) == 1
        torch.set_float32_matmul_precision("high")
        assert rule(_meta(torch.float32, "cuda:0")) == 4
    finally:
        torch.set_float32_matmul_precision(precision)
