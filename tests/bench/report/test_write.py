"""smelt/bench/report: sections, rows, plots, markdown, html and write"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from smelt.base.errors import SmeltError
from smelt.bench.report.compare import compare
from smelt.bench.report.html import report_html
from smelt.bench.report.markdown import escape, report_markdown
from smelt.bench.report.rows import HEADS, beside, entries, entry_cells, stage_lines
from smelt.bench.report.sections import headline
from smelt.bench.report.write import write_report
from smelt.bench.results import Benchmark, Row
from tests.bench.report.made_up import passed, row, run

VOID = {"meta", "input"}


class Page(HTMLParser):
    """A page that must close what it opens. Keeps tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.values: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href", "action")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def full_row(name: str, suite: str = "timm") -> Row:
    """A row with every figure."""
    made = row(
        name,
        suite,
        eager=passed("eager", 1.0, 0.1, cold_s=1.0, warm_s=1.0, peak_mb=100.0),
        rival=passed("torch.compile", 0.5, 0.1, cold_s=40.0, warm_s=4.0, peak_mb=110.0),
        smelt=passed("smelt", 0.25, 0.1, cold_s=4.0, warm_s=1.0, peak_mb=90.0),
    )
    made.results["smelt"].counts = {
        "graphs": 2,
        "breaks": 1,
        "ops": 307,
        "break_reasons": {"print (m.py:3)": 1},
        "extern_ops": {"aten.mm": 4},
        "compile_s": 2.0,
        "stage_s": {"joint": 0.5, "build": 1.0},
    }
    return made


def full_run() -> Benchmark:
    return run(
        full_row("resnet"),
        full_row("bert", "huggingface"),
        row("bad<script>", eager=1.0, smelt=("fail_compile", "a < b && 'c' | \"d\" </pre><script>alert(1)</script>")),
        row("slow", eager=1.0, rival=("timeout", "no end after 5 s"), smelt=2.0),
        row("absent", eager=("skipped", "pip install x"), smelt=("skipped", "pip install x")),
    )


def test_the_page_parses_and_needs_nothing_else() -> None:
    text = report_html([full_run()])
    page = Page(text)
    assert "http" not in text and "@import" not in text
    assert all(value.startswith("#") for value in page.values)
    assert page.tags.count("svg") == 2
    assert page.tags.count("script") == 1
    assert not re.search("#0a0b..", text)
    for words in ("aten.mm: 4", "print (m.py:3): 1", "build: 1.000 s, 50%", "operators captured: 307", "4x3x8x8"):
        assert any(words in part for part in page.text), words


def test_ids_of_the_page_are_its_own() -> None:
    ids = re.findall(r'\bid="([^"]+)"', report_html([full_run()]))
    assert len(ids) == len(set(ids))


def test_names_in_a_model_are_shown_as_text() -> None:
    page = Page(report_html([full_run()]))
    assert "a < b && 'c' | \"d\" </pre><script>alert(1)</script>" in page.text
    assert "bad<script>" in page.text
    odd = run(row("$x_$ & <b>", eager=passed("eager", 1, cold_s=1.0), smelt=passed("smelt", 1, cold_s=1.0)))
    assert "<b>" not in report_html([odd])
    assert escape("a|b\n <i> `c` [d] _e_ f_g *h*") == r"a\|b \<i> \`c\` \[d\] \_e\_ f_g \*h\*"


def test_markdown_tables_are_even() -> None:
    for block in report_markdown([full_run()], compare(full_run(), run())).split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) <= 1, block


def test_the_headline_names_contenders_and_counts() -> None:
    assert headline(full_run().rows) == [
        "all suites, training, fp32, cpu, cpu size: smelt passes 3 of 4 rows; 2.00x (3 rows) as fast as eager; "
        "2.00x (2 rows) as fast as torch.compile; cold start 0.10x (2 rows) that of torch.compile."
    ]
    text = report_markdown([full_run()])
    assert (
        "| huggingface | training, fp32, cpu, cpu size | smelt | 4.00x | 1 | 0 | 4.00 - 4.00 | 2.00x | 1 | 0 |" in text
    )
    assert "| torch.compile | timeout | no end after 5 s | slow | 1 |" in text
    assert "| pip install x | absent | 1 |" in text
    assert "a CPU, 2 cores" in text and "smelt bench --suite all" in text


def test_every_figure_has_its_ratio() -> None:
    assert beside(2.0, None) == beside(None, 2.0) == ""
    made = row("a", eager=1.0, rival=("timeout", "late"), smelt=passed("smelt", 0.5, cold_s=3.0))
    rival, smelt = (dict(zip(HEADS, entry_cells(*entry), strict=True)) for entry in entries([made]))
    assert rival["step ms (x eager)"] == rival["cold s (ratio)"] == smelt["cold s (ratio)"] == ""
    assert smelt["step ms (x eager)"] == "500.00 (2.00x)"


def test_stages_have_their_shares() -> None:
    assert stage_lines({"compile_s": 4.0, "stage_s": {"a": 1.0, "b": 2.0, "c": 0.0}}) == [
        ("b", "2.000 s, 50%"),
        ("a", "1.000 s, 25%"),
    ]
    assert stage_lines({}) == stage_lines({"stage_s": {}}) == []


@pytest.mark.parametrize(
    "benchmark",
    [
        run(),
        Benchmark("smelt bench"),
        run(row("alone", eager=1.0)),
        run(row("alone", smelt=1.0)),
        run(row("alone", eager=1.0, smelt=("timeout", None))),
        run(row("alone", eager=1.0, rival=0.5)),
        run(row("alone", eager=1.0, **{"smelt:aot_eager": 0.5})),
        run(full_row("alone")),
        run(row("alone")),
    ],
    ids=["empty", "bare", "eager", "smelt", "failed", "rival", "backend", "full", "nobody"],
)
def test_small_runs(benchmark: Benchmark) -> None:
    Page(report_html([benchmark]))
    assert "nan" not in report_markdown([benchmark])


def test_runs_of_different_machines_are_distinguished() -> None:
    text = report_markdown([run(full_row("a")), run(full_row("a"), full_row("b"), cpu="another CPU")])
    assert "The runs differ in machine or versions" in text
    assert "1 row stood in more than one run" in text
    assert "a CPU" in text and "another CPU" in text


def test_files_and_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    old, new = full_run(), run(full_row("resnet"))
    paths = write_report(tmp_path / "deep" / "out", [new], compare(old, new))
    assert [path.name for path in paths] == ["report.md", "index.html"]
    for path in paths:
        assert "Compared with the run before" in path.read_text()
    (tmp_path / "file").touch()
    with pytest.raises(SmeltError, match="--out"):
        write_report(tmp_path / "file", [new])
