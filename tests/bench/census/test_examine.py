"""smelt/bench/census/examine.py: what becomes of a model, told from small models that are whole, broken, wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.bench.census.examine import EagerFails, Subject, examine
from smelt.bench.workload import Batch


class Whole(nn.Module):
    """Dropout and batch statistics: both sides must draw and count alike."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"y": nn.functional.dropout(self.norm(x), 0.5, self.training), "n": x.shape[0]}


class Broken(Whole):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        smelt.graph_break()
        return super().forward(x)


class Forking(Whole):
    def forward(self, x: torch.Tensor) -> Any:
        return x * 2 if torch.compiler.is_compiling() else x * 3


class ForkingInParts(Forking):
    def forward(self, x: torch.Tensor) -> Any:
        smelt.graph_break()
        return super().forward(x)


class Drifting(Whole):
    """Another result at each construction of a copy: eager does not repeat itself."""

    calls = 0

    def forward(self, x: torch.Tensor) -> Any:
        Drifting.calls += 1
        return x * Drifting.calls


class Failing(Whole):
    def forward(self, x: torch.Tensor) -> Any:
        raise RuntimeError("no")


def found(model: nn.Module, phases: list[str] | None = None) -> dict[str, Any]:
    subject = Subject(model, Batch((torch.randn(3, 4),)), "kind", "3x4")
    return examine(lambda: subject, [].append if phases is None else phases.append)["modes"]


def test_a_whole_model() -> None:
    phases: list[str] = []
    for outcome in found(Whole(), phases).values():
        assert outcome == {"status": "whole", "graphs": 1, "breaks": 0, "reasons": {}, "recompiles": 0}
    assert phases == ["eager", "eager", "capture", "eager", "capture"]


def test_breaks_have_reasons() -> None:
    outcome = found(Broken())["eval"]
    assert outcome["status"] == "breaks"
    assert outcome["breaks"] == sum(outcome["reasons"].values()) == 1


def test_a_wrong_capture_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smelt, "compile", lambda model, backend: lambda x: {"y": model(x)["y"] + 1e-7, "n": 3})
    outcome = found(Whole())["eval"]
    assert outcome["status"] == "wrong"
    assert "output.0.y: " in outcome["error"]


def test_a_compiler_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile(model: nn.Module, backend: str) -> Any:
        raise RuntimeError("broken at /a/b/c.py")

    monkeypatch.setattr(smelt, "compile", compile)
    assert found(Whole())["train"] == {"status": "error", "error": "RuntimeError: broken at c.py"}


def test_a_library_that_forks_is_not_called_wrong() -> None:
    assert found(Forking())["eval"]["status"] == "forks"
    assert found(ForkingInParts())["eval"]["status"] == "breaks"


def test_eager_is_tried_first() -> None:
    with pytest.raises(EagerFails, match="RuntimeError: no"):
        found(Failing())


def test_eager_that_does_not_repeat_itself_is_not_counted() -> None:
    with pytest.raises(EagerFails, match="does not repeat itself"):
        found(Drifting())
