"""smelt/demo: data, tasks, race, report, on small models and short races; `compile` is the identity."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional as F

from smelt.base.errors import OptionError
from smelt.demo import run, tasks
from smelt.demo.data import ALPHABET, decode, encode, handwritten_digits, standard_library_text
from smelt.demo.race import Runner, race
from smelt.demo.report import Part, smooth, summary_rows, verdict, write_report
from smelt.demo.run import run_demo
from smelt.demo.tasks import LENGTH, Task, build_gpt2, build_resnet, find_task

MACHINE = {"cpu": "a <CPU>", "cores": 2, "python": "3.11", "packages": {"torch": "2.13"}}


def tiny_task() -> Task:
    def batches() -> Any:
        generator = torch.Generator().manual_seed(3)
        while True:
            yield torch.randn(4, 8, generator=generator)

    return Task(
        name="tiny",
        title="a tiny task",
        build=lambda: nn.Linear(8, 1),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        batches=batches,
        loss=lambda model, batch: F.mse_loss(model(batch), batch.sum(1, keepdim=True)),
        score_name="held-out loss",
        score=lambda model: float(model(torch.ones(1, 8))),
        sample=lambda model: "def <sample>",
    )


@pytest.fixture
def runners() -> list[Runner]:
    return race(tiny_task(), lambda model: model, 0.2, lambda _: None)


def test_text_is_real_and_split() -> None:
    text = standard_library_text(20_000)
    assert 15_000 < len(text.train) + len(text.held_out) <= 20_000
    assert "import" in decode(text.train)
    assert int(text.train.max()) < len(ALPHABET)
    first, again = (next(text.batches(seed=1, batch=2, length=16)) for _ in range(2))
    assert first.shape == (2, 16) and torch.equal(first, again)
    assert [window.shape for window in text.windows(2, 16, 3)] == [(2, 16)] * 3


def test_encode_and_decode() -> None:
    assert decode(encode("def f(x):\n    return x\u00e9")) == "def f(x):\n    return x"


def test_digits_are_real_and_split() -> None:
    digits = handwritten_digits()
    assert len(digits.targets) + len(digits.test_targets) == 1797
    assert digits.images.shape[1:] == (1, 32, 32)
    assert abs(float(digits.images.mean())) < 0.1
    images, targets = next(digits.batches(seed=1, batch=32))
    assert images.shape == (32, 1, 32, 32) and targets.shape == (32,)
    assert set(digits.test_targets.tolist()) == set(range(10))


def test_the_models_take_their_tasks_batches() -> None:
    tokens = encode("x" * LENGTH)[None]
    assert build_gpt2()(input_ids=tokens, labels=tokens).loss.shape == ()
    assert build_resnet()(torch.randn(2, 1, 32, 32)).shape == (2, 10)


def test_the_text_model_writes() -> None:
    written = tasks.write_text(build_gpt2().eval(), characters=3)
    assert written.startswith(tasks.PROMPT) and len(written) == len(tasks.PROMPT) + 3


def test_an_unknown_section_suggests_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean 'text'"):
        find_task("txt")


def test_both_sides_see_the_same(runners: list[Runner]) -> None:
    eager, smelt = runners
    assert (eager.name, smelt.name) == ("eager", "smelt")
    assert len(eager.losses) == len(smelt.losses) > 1
    assert eager.losses == smelt.losses
    assert eager.score == smelt.score
    assert eager.losses[-1] < eager.losses[0]


def test_compiling_counts_as_first_step() -> None:
    def slow(model: nn.Module) -> Any:
        torch.linalg.svd(torch.randn(300, 300))
        return model

    smelt = race(tiny_task(), slow, 0.05, lambda _: None)[1]
    assert smelt.first_s > smelt.seconds[0]


def test_the_verdict_names_ratio_and_break_even(runners: list[Runner]) -> None:
    eager, smelt = runners
    eager.seconds, smelt.seconds = [0.3, 0.2, 0.2], [0.3, 0.1, 0.1]
    eager.first_s, smelt.first_s = 0.3, 5.3
    text = verdict(Part("t", "loss", runners))
    assert "100 ms" in text and "200 ms: 2.00 times as fast" in text
    assert "5.0 s, earned back after 50 steps" in text
    smelt.seconds = [0.3, 0.4, 0.4]
    assert "times as fast" not in verdict(Part("t", "loss", runners))


def test_smoothing_looks_back() -> None:
    assert smooth([1.0, 2.0]) == [1.0, 2.0]
    smoothed = smooth([float(value) for value in range(100)])
    assert len(smoothed) == 100 and smoothed[:2] == [0.0, 0.5] and smoothed[-1] == 98.5


def test_the_report_is_one_file_that_needs_nothing(runners: list[Runner], tmp_path: Path) -> None:
    part = Part("a <title>", "held-out loss", runners, "def <sample>")
    file = write_report(tmp_path / "report", [part], MACHINE)
    page = file.read_text()
    assert [path.name for path in file.parent.iterdir()] == ["index.html"]
    assert not re.findall(r'(?:src|href)="(?!data:)', page)
    assert "data:image/png;base64," in page
    assert "a &lt;title&gt;" in page and "def &lt;sample&gt;" in page and "a &lt;CPU&gt;" in page
    assert summary_rows(part)[0][1] in page


def test_the_whole_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "find_task", lambda name: tiny_task())
    out = io.StringIO()
    file = run_demo(
        seconds=0.1, out=tmp_path, parts=["a"], console=Console(file=out, width=100), compile=lambda model: model
    )
    assert file == tmp_path / "index.html" and file.is_file()
    assert "index.html" in out.getvalue()
    assert "eager" in out.getvalue() and "smelt" in out.getvalue()
