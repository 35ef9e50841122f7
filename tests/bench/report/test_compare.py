"""smelt/bench/report/compare.py"""

from __future__ import annotations

import pytest

from smelt.base.errors import OptionError
from smelt.bench.report.compare import compare, noise, regressions
from smelt.bench.report.markdown import comparison_markdown
from smelt.bench.results import Benchmark
from tests.bench.report.made_up import passed, row, run

FAILED = ("fail_compile", "no rule for it")


def two_runs() -> tuple[Benchmark, Benchmark]:
    """Runs between which every kind of change happens once, or twice for slower steps."""
    old = run(
        row("gone", eager=1.0, smelt=0.5),
        row("leaner", eager=1.0, smelt=passed("smelt", 0.5, peak_mb=200.0)),
        row("faster", eager=1.0, smelt=0.5),
        row("fixed", eager=1.0, smelt=FAILED),
        row("same", eager=1.0, smelt=0.5),
        row("breaks", eager=1.0, smelt=passed("smelt", 0.5, counts={"graphs": 1, "breaks": 0})),
        row("fatter", eager=1.0, smelt=passed("smelt", 0.5, peak_mb=100.0)),
        row("colder", eager=passed("eager", 1.0, cold_s=1.0), smelt=passed("smelt", 0.5, cold_s=2.0)),
        row("slower", eager=1.0, smelt=0.5),
        row("slowest", eager=1.0, smelt=0.5),
        row("broke", eager=1.0, smelt=0.5),
        row("moved", eager=1.0, smelt=FAILED),
        row("missing", eager=1.0, smelt=0.5),
    )
    new = run(
        row("added", eager=1.0, smelt=0.5),
        row("leaner", eager=1.0, smelt=passed("smelt", 0.5, peak_mb=100.0)),
        row("faster", eager=2.0, smelt=0.5),
        row("fixed", eager=1.0, smelt=0.5),
        row("same", eager=2.0, smelt=1.0),
        row("breaks", eager=1.0, smelt=passed("smelt", 0.5, counts={"graphs": 2, "breaks": 1})),
        row("fatter", eager=1.0, smelt=passed("smelt", 0.5, peak_mb=125.0)),
        row("colder", eager=passed("eager", 1.0, cold_s=1.5), smelt=passed("smelt", 0.5, cold_s=3.0)),
        row("slower", eager=1.0, smelt=0.55),
        row("slowest", eager=1.0, smelt=1.0),
        row("broke", eager=1.0, smelt=FAILED),
        row("moved", eager=1.0, smelt=("timeout", "no end")),
        row("missing", eager=1.0, smelt=("skipped", "pip install x")),
    )
    return old, new


def test_regressions_are_listed_first_and_in_order_of_severity() -> None:
    found = compare(*two_runs())
    assert [(change.kind, change.row.model) for change in found.changes] == [
        ("broke", "broke"),
        ("slower", "slowest"),
        ("slower", "slower"),
        ("cold", "colder"),
        ("memory", "fatter"),
        ("breaks", "breaks"),
        ("fixed", "fixed"),
        ("faster", "faster"),
        ("memory_better", "leaner"),
        ("otherwise", "moved"),
        ("unjudged", "missing"),
        ("new", "added"),
        ("removed", "gone"),
    ]
    assert (found.same, regressions(found.changes), found.contender) == (1, 6, "smelt")


def test_the_texts_give_both_figures_and_what_the_reference_did() -> None:
    texts = {change.row.model: change.text for change in compare(*two_runs()).changes}
    assert texts["slowest"] == "2.00x over eager, now 1.00x (noise 0%)"
    assert texts["colder"] == "2.00 s, now 3.00 s: 1.50x (eager: 1.50x)"
    assert texts["fatter"] == "100 MiB, now 125 MiB: 1.25x"
    assert texts["broke"] == "fail_compile: no rule for it"
    assert texts["moved"] == "timeout: no end; was fail_compile: no rule for it"
    assert texts["missing"] == "pass; now skipped: pip install x"


def test_means_are_over_rows_measured_in_both() -> None:
    old = run(row("a", eager=1.0, smelt=0.5), row("b", eager=1.0, smelt=0.01))
    new = run(row("a", eager=1.0, smelt=1.0), row("b", eager=1.0, smelt=FAILED), row("c", eager=1.0, smelt=0.01))
    found = compare(old, new)
    assert found.before is not None and found.after is not None
    assert (found.before.value, found.after.value, found.after.rows) == (pytest.approx(2.0), pytest.approx(1.0), 1)


@pytest.mark.parametrize(("step", "spread", "changed"), [(0.52, 0.0, 0), (0.53, 0.0, 1), (0.6, 0.1, 0), (0.61, 0.1, 1)])
def test_a_change_must_exceed_the_noise(step: float, spread: float, changed: int) -> None:
    old = run(row("a", eager=passed("eager", 1.0, spread), smelt=passed("smelt", 0.5, spread)))
    new = run(row("a", eager=passed("eager", 1.0, spread), smelt=passed("smelt", step, spread)))
    assert noise(old.rows[0], new.rows[0], "smelt") == pytest.approx(2 * spread)
    assert len(compare(old, new).changes) == changed


def test_seconds_of_another_machine_are_not_compared() -> None:
    old, new = two_runs()
    new.machine = new.machine | {"cpu": "another CPU", "packages": {"torch": "3"}}
    found = compare(old, new)
    assert not found.of("cold", "memory", "memory_better")
    assert len(found.of("slower")) == 2
    assert found.differs == ["cpu: a CPU, now another CPU", "torch: None, now 3"]
    assert "| cpu | a CPU, now another CPU |" in comparison_markdown(found)


def test_a_contender_can_be_chosen_and_must_exist() -> None:
    old = run(row("a", eager=1.0, rival=0.5, smelt=0.5))
    new = run(row("a", eager=1.0, rival=1.0, smelt=0.5))
    assert compare(old, new).changes == []
    assert [change.kind for change in compare(old, new, "torch.compile").changes] == ["slower"]
    with pytest.raises(OptionError, match="did you mean 'smelt'"):
        compare(old, new, "smelter")
    assert compare(old, run(row("a", eager=1.0)), "smelt").changes[0].text == "smelt was not measured now"


def test_empty_runs() -> None:
    assert compare(run(), run()).changes == []
    assert comparison_markdown(compare(run(), run())).startswith("## Compared with the run before")


def test_the_printed_comparison_keeps_the_order() -> None:
    text = comparison_markdown(compare(*two_runs()))
    assert (
        text.index("## Worse: passed before")
        < text.index("## Worse: slower steps")
        < text.index("## Better: passes now")
    )
    assert "6 rows got worse for smelt, 1 did not change; 2.00x over eager before, 1.98x now, in the 8 rows" in text
