"""smelt/cli/main.py, bench.py, groups.py and ops.py: the commands as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from smelt.bench import run as bench_run
from smelt.bench.measure import measure_row
from smelt.bench.report.readme import BEGIN, END, NOTHING
from smelt.bench.results import Benchmark, Row, Spread
from smelt.cli.main import app
from smelt.demo import run as demo_run


def smelt(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replaces the measuring; returns what it was asked for."""
    asked: list[dict[str, Any]] = []

    def measure(workload: Any, settings: Any, contenders: Any, plan: Any, notify: Any, server: Any) -> Row:
        asked.append({"model": workload.name, "settings": settings, "contenders": contenders, "plan": plan})
        row = measure_row(workload, settings, [], plan)
        row.results = {name: bench_run_result(name) for name in contenders}
        notify(row, contenders[0], "steps")
        row.rate()
        return row

    monkeypatch.setattr(bench_run, "measure_row", measure)
    return asked


def bench_run_result(name: str) -> Any:
    from smelt.bench.results import Result

    return Result(name, step=Spread(0.1, 0.1, 0.1, 3))


def test_help_lists_the_commands() -> None:
    output = smelt("--help").output
    for name in ("verify", "demo", "bench", "ops"):
        assert name in output


def test_bench_models_need_no_subcommand(quick: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    result = smelt("bench", "tiny-mlp", "tiny-conv", "--infer", "--steps", "3", "--json", str(file))
    assert result.exit_code == 0, result.output
    assert [item["model"] for item in quick] == ["tiny-mlp", "tiny-conv"]
    assert quick[0]["contenders"] == ["eager", "torch.compile", "smelt"]
    assert not quick[0]["settings"].train
    assert quick[0]["plan"].rounds == 3
    assert len(Benchmark.load(file).rows) == 2


def test_bench_options_reach_the_measurement(quick: list[dict[str, Any]]) -> None:
    result = smelt("bench", "--precision", "amp", "--rivals", "eager", "--no-cold", "--no-check", "tiny-mlp")
    assert result.exit_code == 0, result.output
    assert quick[0]["contenders"] == ["eager", "smelt"]
    assert quick[0]["settings"].precision == "amp"
    assert not quick[0]["plan"].cold and not quick[0]["plan"].check


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (("brt",), "bert"),
        (("--suite", "tim"), "timm"),
        (("tiny-mlp", "--rivals", "eagr"), "eager"),
        (("tiny-mlp", "--precision", "apm"), "amp"),
    ],
)
def test_an_unknown_name_gives_the_nearest(arguments: tuple[str, ...], nearest: str) -> None:
    result = smelt("bench", *arguments)
    assert result.exit_code == 2
    assert f"did you mean '{nearest}'" in result.output


def test_bench_runs_the_models_that_match_a_pattern(quick: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    arguments = ("bench", "--suite", "torchbench", "--only", "^torchbench/resnet", "--size", "full", "--jobs", "2")
    result = smelt(*arguments, "--json", str(file))
    assert result.exit_code == 0, result.output
    assert sorted(item["model"] for item in quick) == ["resnet152", "resnet18", "resnet50"]
    assert [row.size for row in Benchmark.load(file).rows] == ["full"] * 3
    again = smelt(*arguments, "--json", str(file))
    assert again.exit_code == 2 and "--resume" in again.output
    assert smelt(*arguments, "--json", str(file), "--resume").exit_code == 0
    assert len(quick) == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--suite", "all", "--only", "nothing-like-it"), "smelt bench models"),
        (("--suite", "all", "--only", "("), "not a regular expression"),
        (("--only", "bert"), "--suite all"),
        (("--rivals", "eager"), "no model is named"),
        (("--suite", "timm", "--size", "ful"), "did you mean 'full'"),
        (("hf_Brt",), "hf_Bert"),
    ],
)
def test_a_choice_that_finds_nothing_is_explained(arguments: tuple[str, ...], text: str) -> None:
    result = smelt("bench", *arguments)
    assert result.exit_code == 2
    assert text in " ".join(result.output.split())


def test_baselines_have_settings_of_their_own(quick: list[dict[str, Any]]) -> None:
    arguments = ("--suite", "baselines", "--rivals", "eager,torch.compile:reduce-overhead", "--trust-rivals")
    arguments += ("--side-by-side", "3", "--shard", "1/4")
    assert smelt("bench", *arguments).exit_code == 0
    assert [(item["model"], item["settings"].precision) for item in quick] == [
        ("bert-mlm", "amp"),
        ("distilbert-mlm", "amp"),
    ]
    assert quick[0]["settings"].optimizer == "none" and quick[0]["settings"].size == "cpu"
    assert (
        quick[0]["plan"].unjudged == ("eager", "torch.compile:reduce-overhead") and quick[0]["plan"].side_by_side == 3
    )
    smelt("bench", *arguments, "--optimizer", "adamw", "--precision", "fp32")
    assert {(item["settings"].precision, item["settings"].optimizer) for item in quick[2:]} == {("fp32", "adamw")}


def test_a_sample_of_the_suites(quick: list[dict[str, Any]]) -> None:
    assert smelt("bench", "--suite", "all", "--sample", "2", "--seed", "7", "--amp").exit_code == 0
    assert len(quick) == 6 and {item["settings"].precision for item in quick} == {"amp"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--amp", "--precision", "fp32"), "exclude each other"),
        (("--device", "gpu"), "unknown device 'gpu'"),
        (("--device", "cuda"), "--device cpu"),
    ],
)
def test_unsupported_gpu_features_are_reported(
    arguments: tuple[str, ...], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.version.cuda", None)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    result = smelt("bench", "tiny-mlp", *arguments)
    assert result.exit_code == 2
    assert text in " ".join(result.output.split())


def test_bench_bandwidth(tmp_path: Path) -> None:
    result = smelt("bench", "bandwidth", "--device", "cpu", "--contenders", "eager", "--only", "^softmax$")
    assert result.exit_code == 0, result.output
    assert "softmax: eager" in result.output
    assert smelt("bench", "bandwidth", "--device", "cpu", "--dtype", "fp8").exit_code == 2


def test_bench_report_writes_the_readme(quick: list[dict[str, Any]], tmp_path: Path) -> None:
    file, readme = tmp_path / "b.json", tmp_path / "README.md"
    smelt("bench", "tiny-mlp", "--json", str(file))
    readme.write_text(f"{BEGIN}\n{END}\n")
    assert smelt("bench", "report", str(file), "--readme", str(readme)).exit_code == 0
    assert NOTHING in readme.read_text()  # it is a run of a CPU
    readme.write_text("")
    assert smelt("bench", "report", str(file), "--readme", str(readme)).exit_code == 2


def test_bench_models_lists_them() -> None:
    output = smelt("bench", "models", "--suite", "torchbench").output
    assert "torchbench/dlrm" in output and "sparse" in output.lower()


def test_ctrl_c_keeps_the_rows(quick: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measure = bench_run.measure_row

    def interrupted(workload: Any, *rest: Any) -> Row:
        if workload.name == "tiny-conv":
            raise KeyboardInterrupt
        return measure(workload, *rest)

    monkeypatch.setattr(bench_run, "measure_row", interrupted)
    file = tmp_path / "b.json"
    result = smelt("bench", "tiny-mlp", "tiny-conv", "--json", str(file))
    assert result.exit_code == 1
    assert "interrupted after 1 of 2 models" in result.output
    assert [row.model for row in Benchmark.load(file).rows] == ["tiny-mlp"]


def test_bench_report_prints_markdown(quick: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "b.json"
    smelt("bench", "tiny-mlp", "--json", str(file))
    result = smelt("bench", "report", str(file))
    assert "| tiny-mlp | smelt |" in result.output
    assert smelt("bench", "report", str(tmp_path / "none.json")).exit_code == 2


def test_bench_overhead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run_task(task: dict[str, Any], *_: Any, **__: Any) -> Any:
        if task["contender"] == "torch.compile":
            return bench_run.Failure("fail_run", "gone")
        return {"call_s": 2e-6} | ({"guards_s": 1.5e-5} if task["guards"] else {})

    monkeypatch.setattr(bench_run, "run_task", run_task)
    result = smelt("bench", "overhead", "--json", str(tmp_path / "o.json"))
    assert result.exit_code == 0, result.output
    assert "15.0" in result.output and "fail_run: gone" in result.output
    assert json.loads((tmp_path / "o.json").read_text())["overhead"]["smelt"]["guards_s"] == 1.5e-5


def test_ops_lists_the_primitives() -> None:
    output = smelt("ops").output
    assert "add(" in output and "primitives" in output
    assert "aten." in smelt("ops", "--aten").output


def test_demo_refuses_an_unknown_section() -> None:
    result = smelt("demo", "--part", "digit", "--seconds", "1")
    assert result.exit_code == 2
    assert "did you mean 'digits'" in result.output


def test_demo_passes_its_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(demo_run, "run_demo", lambda **options: asked.update(options))
    assert smelt("demo", "--seconds", "5", "--out", str(tmp_path), "--part", "text").exit_code == 0
    assert (asked["seconds"], asked["out"], asked["parts"]) == (5.0, tmp_path, ["text"])
