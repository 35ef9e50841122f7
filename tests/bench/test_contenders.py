"""smelt/bench/contenders.py: names of contenders."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from smelt.base.errors import OptionError
from smelt.bench import contenders
from smelt.bench.contenders import (
    RIVAL_MODES,
    Prepare,
    SmeltCompile,
    TorchCompile,
    eager,
    family_of,
    find_contender,
    mode_of,
)
from smelt.bench.workload import Settings
from tests.bench.contenders import identity


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("eager", eager),
        ("torch.compile", TorchCompile()),
        ("torch.compile:reduce-overhead", TorchCompile("reduce-overhead")),
        ("smelt", SmeltCompile()),
        ("smelt:step", SmeltCompile(whole_step=True)),
        ("smelt:aot_eager", SmeltCompile(backend="aot_eager")),
        ("smelt:max-autotune:step", SmeltCompile("max-autotune", whole_step=True)),
        ("smelt:step:reduce-overhead:eager", SmeltCompile("reduce-overhead", "eager", True)),
        ("tests.bench.contenders:identity", identity),
    ],
)
def test_a_contender_name_has_compiler_and_mode(name: str, expected: Prepare) -> None:
    assert find_contender(name) == expected


@pytest.mark.parametrize(
    "name", ["egaer", "torch.compile:step", "torch.compile:fast", "smelt:a:b", "smelt:", "smelt:default:max-autotune"]
)
def test_an_unknown_name_gives_valid_ones(name: str) -> None:
    with pytest.raises(OptionError, match="(?s)unknown contender.*torch.compile:reduce-overhead"):
        find_contender(name)


def test_family_and_mode() -> None:
    assert (family_of("torch.compile:max-autotune"), mode_of("torch.compile:max-autotune")) == (
        "torch.compile",
        "max-autotune",
    )
    assert (family_of("smelt:step"), mode_of("smelt:step")) == ("smelt", None)


def test_the_mode_of_the_name_counts_before_that_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def record(target: Any, **options: Any) -> None:
        seen.append((options.get("mode"), options.get("options")))

    monkeypatch.setattr(torch, "compile", record)
    monkeypatch.setattr(contenders, "load_compiler", lambda: SimpleNamespace(compile=record))
    for compiler in ("torch.compile", "smelt"):
        for name in (compiler, f"{compiler}:reduce-overhead"):
            find_contender(name)(nn.Identity(), Settings(mode="max-autotune"))
    assert seen == 2 * [("max-autotune", None), ("reduce-overhead", None)]


def test_a_mode_stays_when_eagers_random_numbers_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(torch, "compile", lambda target, **options: seen.update(options))
    find_contender("torch.compile:reduce-overhead")(nn.Identity(), Settings(eager_rng=True))
    assert seen == {"dynamic": None, "options": {"triton.cudagraphs": True, "fallback_random": True}}
    model = find_contender("smelt:reduce-overhead")(nn.Linear(2, 2), Settings(eager_rng=True))
    assert model(torch.ones(2)).shape == (2,)


def test_the_modes_of_torch_are_those_that_torch_lists() -> None:
    inductor = pytest.importorskip("torch._inductor")
    assert {mode: inductor.list_mode_options(mode) for mode in RIVAL_MODES} == RIVAL_MODES
