"""A wrong compiler is caught in every suite: the same comparison that passes eager fails one perturbed gradient."""

from __future__ import annotations

import pytest

from smelt.bench.accuracy import judge_workload
from smelt.bench.workload import Settings
from smelt.bench.workloads import find_workload
from tests.bench.contenders import identity, wrong

MODELS = (
    "huggingface/DistilBertForMaskedLM",
    "timm/mobilenetv2_100",  # chaotic in train mode: caught in eval mode
    "torchbench/pytorch_struct",
    "torchbench/dlrm",  # sparse gradients
    "torchbench/demucs",  # random augmentation
)


@pytest.mark.parametrize("name", MODELS)
def test_one_perturbed_gradient_is_caught(name: str) -> None:
    workload = find_workload(name)
    assert judge_workload(workload, Settings(), identity).ok
    verdict = judge_workload(workload, Settings(), wrong)
    assert not verdict.ok
    assert any("grad." in failure for failure in verdict.failures)
