"""The eight baselines: what they are at full size, and that they train at the size of tests."""

from __future__ import annotations

import pytest
import torch

from smelt.bench.accuracy import judge_mode
from smelt.bench.bandwidth.measure import measure_copy, measure_problem
from smelt.bench.contenders import smelt_compile
from smelt.bench.measure import Plan, measure_row
from smelt.bench.suites.entries import suite_workloads
from smelt.bench.workload import Settings
from smelt.bench.workloads import find_workload

PARAMETERS = {  # in the order of the file
    "bert-mlm": 109.5,
    "resnet50-224": 25.6,
    "gpt2-1024": 124.4,
    "mobilenetv3-large": 5.5,
    "distilbert-mlm": 67.0,
    "t5-small": 60.5,
    "bert-mlm-tf32": 109.5,
    "vit-b16": 86.6,
}
"""Millions, by name."""

SHAPES = {
    "bert-mlm": "16x512",
    "resnet50-224": "64x3x224x224",
    "gpt2-1024": "8x1024",
    "mobilenetv3-large": "64x3x224x224",
    "distilbert-mlm": "32x128",
    "t5-small": "8x512",
    "bert-mlm-tf32": "16x512",
    "vit-b16": "64x3x224x224",
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_full_sizes_are_the_published_ones(name: str) -> None:
    workload = find_workload(name, "full")
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in workload.build().parameters())
    assert parameters / 1e6 == pytest.approx(PARAMETERS[name], abs=0.1)
    assert workload.shape == SHAPES[name]


def test_the_most_telling_come_first() -> None:
    assert [each.name for each in suite_workloads("baselines")] == list(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_baseline_trains_at_the_size_of_tests(name: str) -> None:
    workload = find_workload(name)
    batch = workload.batch()
    workload.loss(workload.build()(*batch.args, **batch.kwargs), batch).backward()


@pytest.mark.parametrize("name", ["bert-mlm", "distilbert-mlm", "gpt2-1024", "t5-small", "vit-b16"])
def test_a_baseline_is_compiled_right(name: str) -> None:
    workload = find_workload(name)
    settings = Settings(precision=workload.defaults["precision"])
    verdict = judge_mode(workload, settings, smelt_compile, True)
    assert verdict.ok, verdict


@pytest.mark.gpu
def test_a_row_on_a_gpu() -> None:
    names = ["eager", "tests.bench.contenders:identity", "tests.bench.contenders:wrong"]
    plan = Plan(rounds=5, cold=False, side_by_side=2, timeout_s=120)
    row = measure_row(
        find_workload("bert-mlm"), Settings(device="cuda", precision="amp", optimizer="none"), names, plan
    )
    told = {name: (result.status, result.error, result.accuracy) for name, result in row.results.items()}
    assert [row.results[name].status for name in names] == ["pass", "pass", "fail_accuracy"], told
    for result in row.results.values():
        assert result.step and result.step.median > 1e-4, result
        assert result.peak_mb and result.reserved_mb and result.reserved_mb >= result.peak_mb, result


@pytest.mark.gpu
def test_nothing_is_faster_than_a_copy_by_much() -> None:
    found = measure_problem("GELU chain", "bf16", "cuda", ["eager"], rounds=5)
    speed = found["moved"] / min(found["contenders"]["eager"]["seconds"])
    copy = measure_copy("cuda", rounds=5)
    assert 0.05 < speed / copy < 1.2, (speed, copy)
