"""smelt/bench/census/cheap_weights.py: every large tensor has finite numbers in the end, small ones as usual."""

from __future__ import annotations

import torch
from torch import nn

from smelt.bench.census.cheap_weights import CheapWeights


class Initialised(nn.Module):
    """Weights drawn in the ways that libraries use."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(500, 500)
        self.methods = nn.Parameter(torch.empty(500, 500))
        self.through_data = nn.Parameter(torch.empty(500, 500))
        self.small = nn.Parameter(torch.zeros(3))
        self.register_buffer("table", torch.arange(300_000))
        nn.init.trunc_normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)
        with torch.no_grad():
            self.methods.uniform_(-1, 1).mul_(3.0).add_(1.0).clamp_(-1, 1)
        self.through_data.data.normal_()


def test_large_tensors_are_filled_late_small_ones_at_once() -> None:
    weights = CheapWeights()
    with weights:
        model = Initialised()
        assert torch.equal(model.linear.bias, torch.zeros(500))
        read = nn.Parameter(torch.empty(400, 400))
        nn.init.normal_(read)
        copied = read.clone()
        scratch = torch.empty(500, 500).normal_()
    waiting = {name for name, value in model.named_parameters() if value.data_ptr() in weights._pending}
    assert waiting - {"linear.weight"} == {"methods", "through_data"}  # torch 2.13 reads what `trunc_normal_` draws
    assert len(weights._pending) == len(waiting)
    weights.fill(model)
    for value in (model.linear.weight, model.methods, model.through_data, copied):
        assert value.isfinite().all()
        assert 0.005 < value.std() < 0.03
    assert torch.equal(copied, read)
    assert 0.9 < scratch.std() < 1.1
    assert torch.equal(model.small, torch.zeros(3))
    assert torch.equal(model.table, torch.arange(300_000))
