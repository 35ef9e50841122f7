"""The distributions of random rules, by their moments."""

from __future__ import annotations

import math
from typing import Any

import torch

from smelt.prims.decompose import decompose
from tests.prims.aten_check import aten_graph

aten = torch.ops.aten
COUNT = 40000


def draw(op: Any, *args: Any) -> torch.Tensor:
    gm, inputs = aten_graph(op, args, {}, op(*args))
    return decompose(gm)(*inputs)[0]


def test_normal_with_tensors():
    mean = torch.arange(2.0).repeat_interleave(COUNT)
    got = draw(aten.normal.Tensor_Tensor, mean, mean + 1).reshape(2, COUNT)
    torch.testing.assert_close(got.mean(1), torch.tensor([0.0, 1.0]), atol=0.05, rtol=0)
    torch.testing.assert_close(got.std(1), torch.tensor([1.0, 2.0]), atol=0.05, rtol=0)


def test_cauchy_quartiles():
    got = draw(aten.cauchy.default, torch.zeros(COUNT), 1.0, 2.0)
    quartiles = got.quantile(torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(quartiles, torch.tensor([-1.0, 1.0, 3.0]), atol=0.15, rtol=0)


def test_geometric_mean_and_least_value():
    got = draw(aten.geometric.default, torch.zeros(COUNT), 0.25)
    assert got.min() == 1 and got.equal(got.round())
    assert abs(got.mean().item() - 4) < 0.1 and abs(got.var().item() - 12) < 1


def test_log_normal():
    got = draw(aten.log_normal.default, torch.zeros(COUNT), 0.5, 0.25).log()
    assert abs(got.mean().item() - 0.5) < 0.01 and math.isclose(got.std().item(), 0.25, abs_tol=0.01)


def test_multinomial_with_replacement_follows_the_weights():
    got = draw(aten.multinomial.default, torch.tensor([1.0, 0.0, 3.0]), COUNT, True)
    shares = torch.bincount(got, minlength=3) / COUNT
    torch.testing.assert_close(shares, torch.tensor([0.25, 0.0, 0.75]), atol=0.02, rtol=0)


def test_multinomial_without_replacement_draws_each_once():
    weights = torch.tensor([1.0, 2.0, 0.0, 5.0]).expand(COUNT // 4, 4)
    got = draw(aten.multinomial.default, weights, 3)
    assert got.sort(1)[0].equal(torch.tensor([0, 1, 3]).expand(COUNT // 4, 3))
    first = torch.bincount(got[:, 0], minlength=4) / (COUNT // 4)
    torch.testing.assert_close(first, torch.tensor([0.125, 0.25, 0.0, 0.625]), atol=0.03, rtol=0)
