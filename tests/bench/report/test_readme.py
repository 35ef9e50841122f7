"""smelt/bench/report/readme.py: the README's figures of a GPU."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from smelt.base.errors import SmeltError
from smelt.bench.bandwidth.run import Bandwidth, Figure, Measured
from smelt.bench.reading import write_dataclass
from smelt.bench.report.readme import BEGIN, END, NOTHING, gpu_section, read_files, replace_section, write_readme
from smelt.bench.results import Benchmark, Row, Spread
from tests.bench.report.made_up import MACHINE, passed, row, run

ROOT = Path(__file__).parents[3]
RIVAL = "torch.compile:reduce-overhead"


def on_gpu(made: Row, **changes: object) -> Row:
    return dataclasses.replace(made, **({"device": "cuda", "precision": "amp", "optimizer": "none"} | changes))


def baseline(name: str) -> Row:
    eager = passed("eager", 0.03, peak_mb=1000.0, cold_s=1.0)
    rival = passed("torch.compile", 0.02, peak_mb=1200.0, cold_s=40.0)
    made = row(name, "baselines", eager=eager, rival=rival)
    made.results[RIVAL] = passed(RIVAL, 0.01, peak_mb=1100.0, cold_s=44.0)
    made.results["smelt"] = passed("smelt", 0.008, peak_mb=990.0, cold_s=5.0)
    return on_gpu(made, side_by_side=4)


def bandwidth() -> Bandwidth:
    figures = {"eager": Figure(Spread(0.001, 0.001, 0.001, 9), 0.45), "smelt": Figure(error="no")}
    return Bandwidth(
        "smelt bench bandwidth", MACHINE, "2030-01-01", "cuda", "bf16", 4.3e12, [Measured("softmax", 10**9, figures)]
    )


def test_a_line_for_each_mode_of_torch_compile() -> None:
    text = gpu_section([run(baseline("bert-mlm"))], [])
    lines = [line for line in text.splitlines() if line.startswith("| bert-mlm")]
    assert lines == [
        "| bert-mlm, 4x3x8x8 | amp | default | 30.0 | 20.0 (1.50) | 8.0 (3.75) | 2.50 "
        "| 40.0 | 5.0 | 1000 | 1200 | 990 | 1.0x |",
        "| bert-mlm, 4x3x8x8 | amp | reduce-overhead; smelt default | 30.0 | 10.0 (3.00) | 8.0 (3.75) | 1.25 "
        "| 44.0 | 5.0 | 1000 | 1100 | 990 | 1.0x |",
    ]
    assert "smelt is 2.50 times as fast as torch.compile (geometric mean of 1 model, 2.50 to 2.50)" in text
    assert "First steps were taken 4 at a time" in text
    assert "`smelt bench --suite all`" in text and "a CPU, 2 cores" in text


def test_the_same_mode_of_smelt_is_preferred_and_failures_are_kept() -> None:
    made = baseline("bert-mlm")
    made.results["smelt:reduce-overhead"] = passed("smelt:reduce-overhead", 0.005)
    made.results["torch.compile"].fail("timeout", "no end")
    lines = [line for line in gpu_section([run(made)], []).splitlines() if line.startswith("| bert-mlm")]
    assert "| timeout | 8.0 (3.75) |  |" in lines[0]
    assert "| reduce-overhead | 30.0 | 10.0 (3.00) | 5.0 (6.00) | 2.00 |" in lines[1]


def test_whole_steps_samples_and_bandwidths_have_their_own_sections() -> None:
    whole = row("bert-mlm", "baselines", eager=0.04, smelt=0.02)
    whole.results["smelt:step"] = passed("smelt:step", 0.01)
    sample = on_gpu(row("resnet18", "timm", eager=0.02, smelt=0.01), optimizer="sgd")
    text = gpu_section([run(on_gpu(whole, optimizer="adamw"), sample)], [bandwidth()])
    assert "Whole steps, with the optimizer (adamw), on a machine whose card is not known (2030-01-01):" in text
    assert "| bert-mlm, 4x3x8x8 | amp | 40.0 | 20.0 (2.00) | 10.0 (4.00) |  |" in text
    assert "timm, training, amp, cuda, cpu size: smelt passes 1 of 1 rows; 2.00x (1 row) as fast as eager." in text
    assert "| softmax | 1000 | 45% |  |" in text and "4.30 TB/s" in text


def test_rows_of_a_cpu_are_left_out() -> None:
    assert gpu_section([run(row("bert", eager=1.0, smelt=0.5))], []) == NOTHING


def test_the_section_is_replaced_between_its_marks(tmp_path: Path) -> None:
    files = tmp_path / "a.json", tmp_path / "b.json"
    run(baseline("bert-mlm")).save(files[0])
    write_dataclass(bandwidth(), files[1])
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_readme(readme, files)
    text = readme.read_text()
    assert text.startswith(f"before\n{BEGIN}\nModels of the") and text.endswith(f"{END}\nafter\n")
    assert "old" not in text and "softmax" in text
    with pytest.raises(SmeltError, match="no place for the figures"):
        replace_section("nothing", "", "README.md")
    files[0].write_text("{")
    with pytest.raises(SmeltError, match="cannot read"):
        read_files(files)


def test_the_readme_has_the_figures_of_the_kept_files() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = gpu_section(*read_files((ROOT / "bench" / "results").glob("*.json")))
    assert replace_section(text, section, "README.md") == text, (
        "smelt bench report bench/results/*.json --readme README.md"
    )


def test_an_older_file_has_no_optimizer(tmp_path: Path) -> None:
    made = run(row("bert", eager=1.0))
    assert made.rows[0].optimizer == "sgd"
    made.save(tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text().replace('"optimizer": "sgd",', "").replace('"side_by_side": 1,', "")
    (tmp_path / "a.json").write_text(text)
    assert Benchmark.load(tmp_path / "a.json") == made
