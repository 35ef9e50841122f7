"""Training steps of the contenders."""

import copy

import pytest
import torch

from smelt.bench.contenders import find_contender
from smelt.bench.steps import Stepper, build_batch, build_model
from smelt.bench.workload import Settings
from smelt.bench.workloads import find_workload


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_whole_step_gives_eagers_losses(optimizer: str) -> None:
    settings = Settings(optimizer=optimizer, learning_rate=0.05, eager_rng=True)
    workload = find_workload("tiny-mlp")
    model, batch = build_model(workload, settings), build_batch(workload, settings)
    losses = []
    for name in ("eager", "smelt:step"):
        step = Stepper(workload, copy.deepcopy(model), batch, settings).compile(find_contender(name))
        torch.manual_seed(0)
        losses.append([step() for _ in range(4)])
    assert losses[0][0] != losses[0][-1]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert set(step.eager_operators()) <= {"bernoulli"}  # eager's own random numbers were asked for
