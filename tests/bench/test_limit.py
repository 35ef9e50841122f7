"""smelt/bench/limit.py: operations of products and bytes of a step, computed by hand beside."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from smelt.abi.ceilings import Ceilings
from smelt.bench.contenders import find_contender
from smelt.bench.limit import least_bytes, least_seconds, product_flops
from smelt.bench.steps import Stepper, build_batch, build_model
from smelt.bench.workload import Settings
from smelt.bench.workloads import find_workload


def test_products_are_counted_by_dtype() -> None:
    linear, x = nn.Linear(8, 16), torch.randn(4, 8)
    assert product_flops(lambda: linear(x)) == {"float32": 2 * 4 * 8 * 16}
    assert product_flops(lambda: linear(x).sum().backward()) == {"float32": 2 * 2 * 4 * 8 * 16}  # the weight's gradient
    with torch.autocast("cpu", torch.bfloat16):
        assert product_flops(lambda: linear(x)) == {"bfloat16": 2 * 4 * 8 * 16}
    assert product_flops(lambda: x.exp()) == {}


def test_attention_and_convolutions_are_counted() -> None:
    q = torch.randn(2, 3, 5, 8)
    assert product_flops(lambda: F.scaled_dot_product_attention(q, q, q)) == {"float32": 2 * (2 * 2 * 3 * 5 * 5 * 8)}
    convolution = nn.Conv2d(3, 4, 3, padding=1)
    flops = product_flops(lambda: convolution(torch.randn(2, 3, 6, 6)))
    assert flops == {"float32": 2 * 2 * 4 * 6 * 6 * 3 * 9}


@pytest.mark.parametrize("train, optimizer, times", [(False, "sgd", 1), (True, "none", 1), (True, "sgd", 2)])
def test_each_parameter_is_read_and_in_training_written(train: bool, optimizer: str, times: int) -> None:
    settings = Settings(train=train, optimizer=optimizer)
    workload = find_workload("tiny-mlp")
    model = build_model(workload, settings)
    stepper = Stepper(workload, model, build_batch(workload, settings), settings).compile(find_contender("eager"))
    stepper()
    assert least_bytes(stepper) == times * sum(4 * each.numel() for each in model.parameters())


def test_the_larger_time_counts() -> None:
    machine = Ceilings("a machine", ((1, 1e9),), {"float32": 1e9, "bfloat16": 4e9}, 1e9)
    assert least_seconds({"float32": 10**9, "bfloat16": 4 * 10**9}, 10**6, machine) == pytest.approx(2.0)
    assert least_seconds({"float32": 10**6}, 10**9, machine) == pytest.approx(1.0)
