"""smelt/bench/results.py and tables.py"""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from smelt.bench.results import Benchmark, Result, Row, Spread
from smelt.bench.tables import HEADS, failures, markdown, results_table
from smelt.bench.verdict import Verdict


def example() -> Benchmark:
    row = Row("bert", "named", "4x64", True, "fp32", "cpu", limit_s=0.1)
    row.results["eager"] = Result("eager", cold_s=0.9, step=Spread(0.8, 0.7, 0.9, 15), peak_mb=2100.0)
    row.results["smelt"] = Result(
        "smelt",
        cold_s=4.0,
        warm_s=1.0,
        step=Spread(0.4, 0.38, 0.42, 15),
        accuracy=Verdict(True, "grad.w", 1.2, 1e-6, 1e-6, 200),
        counts={"graphs": 1, "breaks": 0},
    )
    row.results["torch.compile"] = Result("torch.compile")
    row.results["torch.compile"].fail("timeout", "no end after 5 s")
    row.results["torch.compile"].fail("fail_run", "follows from it")
    row.rate()
    machine = {"cpu": "a CPU", "cores": 2, "threads": 2, "memory_gb": 8.0, "gpus": [], "python": "3.11", "packages": {}}
    return Benchmark("smelt bench bert", machine, "2030-01-01", [row])


def test_json_round_trip(tmp_path: Path) -> None:
    benchmark = example()
    benchmark.save(tmp_path / "b.json")
    assert Benchmark.load(tmp_path / "b.json") == benchmark
    assert [file.name for file in tmp_path.iterdir()] == ["b.json"]


def test_the_speedup_is_over_eagers_median() -> None:
    results = example().rows[0].results
    assert results["smelt"].speedup == 2.0
    assert results["torch.compile"].speedup is None


def test_the_first_failure_stays() -> None:
    assert failures(example().rows) == ["bert, torch.compile: timeout: no end after 5 s"]


def test_markdown_has_every_row_the_command_and_the_machine() -> None:
    text = markdown(example())
    lines = text.splitlines()
    assert lines[0] == "| " + " | ".join(HEADS) + " |"
    assert lines[3] == "| bert | smelt | 4.00 | 1.00 | 400.00 | 5% | 2.00 | 25% |  | 1.2x | 1 (0) | pass |"
    assert "`smelt bench bert`" in lines
    assert "a CPU, 2 cores" in text
    assert "torch.compile: timeout" in text


def test_the_terminal_table_fits_80_columns_and_shows_the_phase() -> None:
    out = io.StringIO()
    table = results_table(example().rows, "training", ("bert", "torch.compile", "cold start"))
    Console(file=out, width=80).print(table)
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "bert, torch.compile, cold start ..." in out.getvalue()
    assert "torch.compile" in out.getvalue()


def test_spread() -> None:
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0, 1)
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3.0, 2.0, 4.0, 5)
