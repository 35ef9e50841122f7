"""smelt/bench/accuracy.py"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from smelt.bench import accuracy
from smelt.bench.accuracy import EagerFailed, judge_workload
from smelt.bench.contenders import eager
from smelt.bench.verdict import FACTOR, chance, judge
from smelt.bench.workload import Settings
from smelt.bench.workloads import find_workload
from tests.bench.contenders import wrong

TINY = ["tiny-mlp", "tiny-conv", "tiny-bert"]


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("precision", ["fp32", "amp"])
@pytest.mark.parametrize("train", [True, False])
def test_eager_passes(name: str, precision: str, train: bool) -> None:
    verdict = judge_workload(find_workload(name), Settings(train=train, precision=precision), eager)
    assert verdict.ok, verdict
    assert verdict.ratio <= 1.0
    assert verdict.dropout == ("none" if name == "tiny-conv" or not train else "off")


@pytest.mark.parametrize("name", TINY)
def test_one_perturbed_gradient_is_caught(name: str) -> None:
    verdict = judge_workload(find_workload(name), Settings(), wrong)
    assert not verdict.ok
    assert verdict.worst.startswith("grad.")
    assert verdict.ratio > FACTOR
    assert any(verdict.worst in failure for failure in verdict.failures)


def test_changed_buffers_are_compared() -> None:
    def no_statistics(model: nn.Module, settings: Settings) -> Any:
        model[1].momentum = 0.0
        return model

    verdict = judge_workload(find_workload("tiny-conv"), Settings(), no_statistics)
    assert not verdict.ok
    assert any("buffer.1.running_mean" in failure for failure in verdict.failures)


def test_where_training_is_chaotic_eval_mode_is_judged_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_in_eval_mode(model: nn.Module, settings: Settings) -> Any:
        return model if model.training else wrong(model, settings)

    assert judge_workload(find_workload("tiny-conv"), Settings(), wrong_in_eval_mode).ok
    monkeypatch.setitem(accuracy.NOISY, "fp32", 0.0)
    verdict = judge_workload(find_workload("tiny-conv"), Settings(), wrong_in_eval_mode)
    assert not verdict.ok
    assert verdict.failures[0].startswith("in eval mode, grad.")


def tensors(**values: Tensor | None) -> dict[str, Tensor | None]:
    return {name.replace("__", "."): value for name, value in values.items()}


def exactly(value: list[float]) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_the_yardstick_is_eagers_error() -> None:
    reference = tensors(grad__w=exactly([1.0, 1.0]))
    expected = tensors(grad__w=torch.tensor([1.0 + 1e-3, 1.0]))
    limit = 1e-3 * FACTOR * chance(2)
    assert judge(reference, expected, tensors(grad__w=torch.tensor([1.0, 1.0 + 0.98 * limit]))).ok
    assert not judge(reference, expected, tensors(grad__w=torch.tensor([1.0, 1.0 + 1.02 * limit]))).ok
    assert judge(reference, expected, tensors(grad__w=torch.tensor([1.0, 1.0 + 1.02 * limit])), widening=2.0).ok


def test_many_elements_leave_nothing_to_chance() -> None:
    assert chance(1) == 5 and chance(10**6) < 1.01


def test_modules_do_not_hide_each_other() -> None:
    reference = tensors(grad__big__w=exactly([1e9] * 64), grad__small__w=exactly([1.0] * 64))
    expected = {name: value.float() * (1 + 1e-6) for name, value in reference.items() if value is not None}
    wrong = expected | {"grad.small.w": torch.full((64,), 1.01)}
    assert judge(reference, dict(expected), dict(expected)).ok
    assert judge(reference, dict(expected), dict(wrong)).failures[0].startswith("grad.small.w")


def test_a_model_that_does_not_run_in_eval_mode_is_judged_in_train_mode() -> None:
    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            assert self.training
            return self.layer(x)

    tiny = find_workload("tiny-mlp")
    noisy = dataclasses.replace(tiny, build=Trained, noise=0.01)
    assert judge_workload(noisy, Settings(), eager).ok
    with pytest.raises(EagerFailed):
        judge_workload(noisy, Settings(train=False), eager)


def test_rounding_at_a_kink_is_luck_and_an_error_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def unlucky(model: nn.Module, settings: Settings) -> Any:
        seeds.append(settings.seed)
        return wrong(model, settings) if settings.seed == 0 else model

    workload = find_workload("tiny-mlp")
    verdict = judge_workload(workload, Settings(), unlucky)
    assert verdict.ok and verdict.unlucky and set(seeds) == {0, *accuracy.SEEDS}
    assert not judge_workload(workload, Settings(), wrong).ok
    assert accuracy.judge_mode(workload, Settings(), unlucky, False).unlucky
    assert not accuracy.judge_mode(workload, Settings(), wrong, False).ok


def test_eagers_error_is_the_largest_of_several_runs() -> None:
    reference = tensors(grad__w=exactly([1.0] * 100))
    expected = tensors(grad__w=torch.ones(100))
    actual = tensors(grad__w=torch.full((100,), 1.001))
    assert not judge(reference, expected, actual).ok
    assert judge(reference, expected, actual, perturbed=[{"grad.w": 0.0}, {"grad.w": 0.005}]).ok


def test_none_against_none() -> None:
    assert judge(tensors(grad__w=None), tensors(grad__w=None), tensors(grad__w=None)).ok
    verdict = judge(tensors(grad__w=None), tensors(grad__w=None), tensors(grad__w=torch.zeros(2)))
    assert verdict.failures == ["grad.w: float32[2] where eager gives None"]


def test_wrong_dtype_shape_and_missing_tensors() -> None:
    reference, expected = tensors(loss=exactly([1.0])), tensors(loss=torch.ones(1))
    assert not judge(reference, expected, tensors(loss=torch.ones(1, dtype=torch.bfloat16))).ok
    assert not judge(reference, expected, tensors(loss=torch.ones(1, 1))).ok
    assert not judge(reference, expected, tensors()).ok


def test_nan_must_be_on_both_sides() -> None:
    reference, expected = tensors(loss=exactly([1.0, 1.0])), tensors(loss=torch.tensor([1.0, float("nan")]))
    assert judge(reference, expected, tensors(loss=torch.tensor([1.0, float("nan")]))).ok
    assert not judge(reference, expected, tensors(loss=torch.tensor([1.0, 1.0]))).ok


def test_a_gradient_that_is_truly_zero_may_hold_rounding_noise() -> None:
    reference = tensors(grad__big=torch.full((100,), 1.0, dtype=torch.float64), grad__zero=exactly([0.0, 0.0]))
    expected = tensors(grad__big=torch.full((100,), 1.0 + 1e-6), grad__zero=torch.tensor([0.0, 0.0]))
    noise = tensors(grad__big=torch.ones(100), grad__zero=torch.tensor([1e-6, -1e-6]))
    assert judge(reference, expected, noise).ok
    loud = tensors(grad__big=torch.ones(100), grad__zero=torch.tensor([1e-4, 0.0]))
    assert not judge(reference, expected, loud).ok
