"""smelt/bench/suites/entries.py and inputs.py: the 163 entries as data."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from smelt.base.errors import OptionError
from smelt.bench.losses import LOSSES, mean_loss, padded_loss
from smelt.bench.steps import build_batch, build_model, precision
from smelt.bench.suites.entries import EntryError, entry_workload, read_entries, suite_workloads
from smelt.bench.suites.inputs import KINDS, make_inputs
from smelt.bench.workload import Batch, Settings, Workload
from smelt.bench.workloads import WORKLOADS, find_workload


def test_there_are_163_models_in_three_suites() -> None:
    assert Counter(entry["suite"] for entry in read_entries().values()) == {
        "huggingface": 46,
        "timm": 61,
        "torchbench": 56,
    }


@pytest.mark.parametrize("size", ["cpu", "full"])
def test_every_entry_makes_a_workload_with_inputs(size: str) -> None:
    for workload in suite_workloads("all", size):
        assert workload.shape, workload.name
    # Making the full inputs of all models would take gigabytes: their specifications are read instead.
    for entry in read_entries().values():
        for kind in _kinds(entry[size]):
            assert kind in KINDS, entry["name"]


def _kinds(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [kind for part in value.values() for kind in _kinds(part)]
    if isinstance(value, list):
        if value and isinstance(value[0], str):
            return [value[0]]
        return [kind for part in value for kind in _kinds(part)]
    return []


def test_cpu_inputs_have_the_shapes_that_are_written() -> None:
    batch = find_workload("torchbench/dlrm").batch()
    dense, offsets, indices = batch.args
    assert (dense.shape, offsets.shape, len(indices)) == ((4, 32), (8, 4), 8)
    assert offsets[0].tolist() == [0, 10, 20, 30]
    detection = find_workload("torchbench/vision_maskrcnn").batch()
    assert detection.args[1][0]["masks"].dtype == torch.uint8
    assert find_workload("resnet18").batch().target is not None


def test_padded_targets_get_shorter_and_never_empty() -> None:
    targets = make_inputs(["padded_targets", 4, 3, 50])
    assert (targets != -1).sum(1).tolist() == [3, 2, 1, 1]


def test_a_name_may_be_given_with_its_suite() -> None:
    assert find_workload("torchbench/resnet50").suite == "torchbench"
    assert find_workload("resnet50") is WORKLOADS["resnet50"]
    assert find_workload("hf_Bert").key == "torchbench/hf_Bert"


@pytest.mark.parametrize("name", ["torchbench/hf_Brt", "timm/hf_Bert", "hfbert"])
def test_an_unknown_name_gives_the_nearest(name: str) -> None:
    with pytest.raises(OptionError, match="hf_Bert"):
        find_workload(name)


@pytest.mark.parametrize("part", ["builder", "loss"])
def test_an_unknown_builder_or_loss_names_its_entry(part: str) -> None:
    entry = dict(read_entries()["dcgan"])
    entry[part] = {"library": "bazel"} if part == "builder" else "bazel"
    with pytest.raises(EntryError, match=f"(?s)'dcgan'.*{part} 'bazel'"):
        entry_workload(entry)


@pytest.mark.parametrize("name", ["suite", "size"])
def test_unknown_suites_and_sizes_are_named(name: str) -> None:
    with pytest.raises(OptionError, match=f"unknown {name} 'torchbank'"):
        suite_workloads(**({"suite": "all"} | {name: "torchbank"}))


def test_losses_of_nested_outputs() -> None:
    two, four = torch.full((2,), 2.0), torch.full((3,), 4.0)
    assert mean_loss({"a": two, "b": (four, None)}, Batch()) == 6
    normal = torch.distributions.Normal(torch.tensor([1.0, 3.0]), 1.0)
    assert mean_loss(normal, Batch()) == 2
    scores = torch.zeros(1, 2, 4)
    assert torch.isclose(padded_loss((scores, torch.tensor([[3, -1]])), Batch()), torch.tensor(4.0).log())
    assert set(LOSSES) == {entry["loss"] for entry in read_entries().values()}


@pytest.mark.parametrize(
    "workload",
    [each for each in suite_workloads("all") if {"amp", "amp on cpu"} & {*each.unable}],
    ids=lambda w: w.name,
)
def test_eager_indeed_cannot_run_it(workload: Workload) -> None:
    settings = Settings(precision="amp")
    model, batch = build_model(workload, settings), build_batch(workload, settings)
    with precision(settings), pytest.raises(RuntimeError, match="BFloat16|dtype"):
        model(*batch.args, **batch.kwargs)


def test_a_model_without_labels_has_the_mean_of_its_scores_for_a_loss() -> None:
    """The `hf_*` models of TorchBench at full size."""
    workload = find_workload("torchbench/hf_Reformer")
    batch = workload.batch()
    output = workload.build().eval()(input_ids=batch.kwargs["input_ids"])
    assert torch.equal(workload.loss(output, batch), output.logits.mean())
    scores = {"start_logits": torch.full((2,), 2.0), "end_logits": torch.full((3,), 4.0), "states": torch.ones(1)}
    assert LOSSES["own"](scores, Batch()) == 6
    with pytest.raises(KeyError, match="loss"):
        LOSSES["own"]({"states": torch.ones(1)}, Batch())


def test_tables_that_are_no_buffers_follow_the_model() -> None:
    workload, settings = find_workload("Speech2Text2ForCausalLM"), Settings(device="meta")
    model, batch = build_model(workload, settings), build_batch(workload, settings)
    assert workload.loss(model(*batch.args, **batch.kwargs), batch).device.type == "meta"
