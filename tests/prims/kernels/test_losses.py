"""Losses that walk over classes or alignments, against sums by hand and autograd."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tests.prims.prim_check import checked

NONE, MEAN, SUM = 0, 1, 2


def reduced(rows: list[float], reduction: int) -> torch.Tensor:
    each = torch.tensor(rows, dtype=torch.float64)
    return {NONE: each, MEAN: each.mean(), SUM: each.sum()}[reduction]


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_multi_margin(weighted: bool, p: int, reduction: int) -> None:
    x, target = torch.randn(4, 5, dtype=torch.float64), torch.tensor([0, 4, 2, 2])
    weight = torch.rand(5, dtype=torch.float64) if weighted else None
    rows = []
    for row, t in zip(x.tolist(), target.tolist(), strict=True):
        scale = 1.0 if weight is None else weight[t].item()
        rows.append(sum(scale * max(0, 0.7 - row[t] + v) ** p for c, v in enumerate(row) if c != t) / 5)
    got = checked("multi_margin_loss", x, target, p, 0.7, weight, reduction)
    torch.testing.assert_close(got, reduced(rows, reduction))
    leaf = x.clone().requires_grad_()
    loss = torch.nn.functional.multi_margin_loss(
        leaf, target, p, 0.7, weight, reduction=("none", "mean", "sum")[reduction]
    )
    grad = torch.randn_like(loss)
    (want,) = torch.autograd.grad(loss, leaf, grad)
    torch.testing.assert_close(checked("multi_margin_loss_backward", grad, x, target, p, 0.7, weight, reduction), want)


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
def test_multi_margin_of_one_row(reduction: int) -> None:
    x, target = torch.randn(5), torch.tensor(3)
    assert checked("multi_margin_loss", x, target, 1, 1.0, None, reduction).shape == ()
    grad = torch.tensor(1.0)
    assert checked("multi_margin_loss_backward", grad, x, target, 1, 1.0, None, reduction).shape == (5,)


@pytest.mark.parametrize("reduction", [NONE, MEAN, SUM])
@pytest.mark.parametrize("batch", [(), (1,), (3,)])
def test_multilabel_margin(batch: tuple[int, ...], reduction: int) -> None:
    x = torch.randn(*batch, 4, dtype=torch.float64)
    target = torch.tensor([2, 0, -1, 1]).expand(*batch, 4).contiguous()
    rows = []
    for row in x.reshape(-1, 4).tolist():
        others = [v for c, v in enumerate(row) if c not in (2, 0)]
        rows.append(sum(max(0, 1 - (row[t] - v)) for t, v in itertools.product((2, 0), others)) / 4)
    loss, hits = checked("multilabel_margin_loss", x, target, reduction)
    want = reduced(rows, reduction)
    torch.testing.assert_close(loss, want if batch else want.reshape(()))
    assert hits.reshape(-1, 4).tolist() == [[1, 0, 1, 0]] * len(rows)
    grad = torch.ones_like(loss)
    leaf = x.clone().requires_grad_()
    name = ("none", "mean", "sum")[reduction]
    torch.nn.functional.multilabel_margin_loss(leaf, target, reduction=name).sum().backward()
    got = checked("multilabel_margin_loss_backward", grad, x, target, reduction, hits)
    torch.testing.assert_close(got, leaf.grad)


@pytest.mark.parametrize("lengths", [(2, 1), (0, 2), (0, 0), (1,)])
def test_alignments(lengths: tuple[int, ...]) -> None:
    """All ways to write the targets with blanks (0) and repeats in 4 steps."""
    scores = torch.randn(4, len(lengths), 3, dtype=torch.float64).log_softmax(-1)
    targets = torch.tensor([[1, 2], [2, 2]])[: len(lengths)]
    steps = (4,) * len(lengths)
    losses, prefixes = checked("ctc_loss", scores, targets, steps, lengths, 0, False)
    for i, length in enumerate(lengths):
        row, label = scores[:, i], targets[i, :length].tolist()
        total = 0.0
        for path in itertools.product(range(3), repeat=4):
            if [c for c, _ in itertools.groupby(path) if c] == label:
                total += math.exp(sum(row[t, c].item() for t, c in enumerate(path)))
        assert losses[i].item() == pytest.approx(-math.log(total))
    grad = torch.ones_like(losses)
    leaf = scores.clone().requires_grad_()
    args = (targets, torch.tensor(steps), torch.tensor(lengths))
    torch.nn.functional.ctc_loss(leaf, *args, reduction="sum").backward()
    got = checked("ctc_loss_backward", grad, scores, targets, steps, lengths, losses, prefixes, 0, False)
    torch.testing.assert_close(got, leaf.grad)
