"""Twelve models that hold the suites' oddities, through the same measurement as `smelt bench --suite`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from smelt.base.options import environment
from smelt.bench.measure import Plan, measure_row
from smelt.bench.processes.process import Server
from smelt.bench.processes.server import OPTIMIZERS
from smelt.bench.results import Row
from smelt.bench.workload import Settings
from smelt.bench.workloads import find_workload

MODELS = {
    "huggingface/GoogleFnet": "complex FFT",
    "huggingface/DebertaForMaskedLM": "autograd functions and graph breaks",
    "huggingface/AllenaiLongformerBase": "control flow on tensor values, as_strided windows",
    "timm/levit_128": "attention biases looked up by index, batch norms changed by forward",
    "timm/convmixer_768_32": "chaotic gradients in train mode",
    "torchbench/hf_BigBird": "numpy randomness inside of forward",
    "torchbench/dlrm": "sparse gradients, lists as inputs",
    "torchbench/drq": "a distribution as output, a side effect on the module",
    "torchbench/speech_transformer": "shapes that depend on data",
    "torchbench/maml_omniglot": "batch norms that forget all but the last batch, pooling to one pixel",
    "torchbench/tts_angular": "an LSTM",
    "torchbench/demucs": "random augmentation inside of forward",
}
PLAN = Plan(rounds=1, warmup=0, cold=False, timeout_s=300)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(["transformers", "timm", "torchvision", OPTIMIZERS]) as started:
        yield started


@pytest.mark.parametrize("name", list(MODELS))
def test_it_trains_as_right_as_eager(name: str, server: Server) -> None:
    row = measure_row(find_workload(name), Settings(), ["eager", "smelt"], PLAN, server=server)
    ours = row.results["smelt"]
    assert ours.status == "pass", ours.error
    assert ours.counts["graphs"] > 0 and ours.counts["ops"] > 0
    if not environment().debug_memory:  # the mode looks at memory by operators of PyTorch
        assert sum(ours.counts["eager_ops"].values()) < sum(row.results["eager"].counts["eager_ops"].values())
    assert ours.step is not None and ours.cold_s and ours.peak_mb
    _said(row)


def _said(row: Row) -> None:
    """A row says how random numbers were dealt with, and every break has a reason."""
    counts = row.results["smelt"].counts
    assert row.dropout in ("none", "off", "eager_rng")
    assert bool(counts["breaks"]) == bool(counts["break_reasons"])
