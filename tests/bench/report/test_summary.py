"""smelt/bench/report/summary.py"""

from __future__ import annotations

import pytest

from smelt.bench.report.summary import (
    ALL,
    Graphs,
    Mean,
    contenders,
    find_judged,
    group_failures,
    group_skipped,
    merge,
    slowest,
    speedup,
    standings,
    tallies,
)
from smelt.bench.results import Result
from tests.bench.report.made_up import passed, row, run


def test_the_mean_is_geometric_over_rows_that_both_passed() -> None:
    rows = [
        row("a", eager=1.0, rival=1.0, smelt=0.5),
        row("b", eager=1.0, rival=2.0, smelt=0.125),
        row("c", eager=1.0, rival=("timeout", "late"), smelt=2.0),
        row("d", eager=1.0, rival=0.25, smelt=("fail_compile", "no")),
    ]
    rival, smelt = standings(rows)
    assert (rival.contender, smelt.contender) == ("torch.compile", "smelt")
    assert smelt.over_eager == Mean(pytest.approx(2.0), 3, 0.5, 8.0, 1)
    assert smelt.over_rival == Mean(pytest.approx(32**0.5), 2, 2.0, 16.0, 0)
    assert rival.over_eager == Mean(pytest.approx(2 ** (1 / 3)), 3, 0.5, 4.0, 1)
    assert rival.over_rival is None
    assert (smelt.passed, smelt.judged, smelt.statuses["fail_compile"]) == (3, 4, 1)


def test_a_result_that_is_wrong_has_a_step_but_no_speedup() -> None:
    wrong = passed("smelt", 0.1)
    wrong.fail("fail_accuracy", "grad.w")
    assert speedup(row("a", eager=1.0, smelt=wrong), "smelt") is None


@pytest.mark.parametrize("step", [0.0, float("nan"), float("inf")])
def test_figures_that_are_none_are_in_no_ratio(step: float) -> None:
    assert speedup(row("a", eager=1.0, smelt=step), "smelt") is None


def test_skipped_rows_and_rows_on_which_eager_fails_are_not_judged() -> None:
    skipped, fails = ("skipped", "pip install x"), ("eager_fails", "nothing to compare with")
    rows = [
        row("a", eager=1.0, smelt=0.5),
        row("b", eager=skipped, smelt=skipped),
        row("c", eager=("eager_fails", "IndexError"), smelt=fails),
    ]
    (smelt,) = standings(rows)
    assert (smelt.passed, smelt.judged, smelt.rows) == (1, 1, 3)
    assert [(g.contender, g.reason) for g in group_failures(rows)] == [("eager", "IndexError")]
    assert [(g.reason, len(g.rows)) for g in group_skipped(rows)] == [("pip install x", 1)]


def test_suites_are_summed_up_alone_and_in_total() -> None:
    rows = [row("a", "timm", eager=1.0, smelt=0.5), row("b", "huggingface", eager=1.0, smelt=0.125)]
    assert [(s.setting.suite, s.over_eager.value if s.over_eager else None) for s in standings(rows)] == [
        (ALL, pytest.approx(4.0)),
        ("timm", pytest.approx(2.0)),
        ("huggingface", pytest.approx(8.0)),
    ]
    rows[1].precision = "amp"
    assert [s.setting.suite for s in standings(rows)] == ["timm", "huggingface"]


def test_starts_against_the_rival_and_without_it_against_eager() -> None:
    rows = [
        row(name, eager=passed("eager", 1, cold_s=1.0), smelt=passed("smelt", 1, cold_s=cold))
        for name, cold in (("a", 2.0), ("b", 8.0))
    ]
    (smelt,) = standings(rows)
    assert smelt.cold is not None and smelt.warm is None
    assert (smelt.cold.own_s, smelt.cold.other, smelt.cold.ratio.value) == (5.0, "eager", pytest.approx(4.0))
    rows[0].results["torch.compile"] = passed("torch.compile", 1, cold_s=20.0)
    cold = standings(rows)[1].cold
    assert cold is not None
    assert (cold.own_s, cold.other, cold.other_s, cold.ratio.rows) == (2.0, "torch.compile", 20.0, 1)


def test_memory_and_graphs() -> None:
    rows = [
        row("a", eager=passed("eager", 1, peak_mb=100.0), smelt=passed("smelt", 1, peak_mb=200.0)),
        row("b", eager=passed("eager", 1, peak_mb=100.0), smelt=passed("smelt", 1, peak_mb=50.0)),
    ]
    rows[0].results["smelt"].counts = {"graphs": 1, "breaks": 0}
    rows[1].results["smelt"].counts = {"graphs": 3, "breaks": 2, "fallbacks": 1, "recompiles": 4}
    (smelt,) = standings(rows)
    assert smelt.peak == Mean(pytest.approx(1.0), 2, 0.5, 2.0, 1)
    assert smelt.graphs == Graphs(rows=2, whole=1, graphs=4, breaks=2, recompiles=4, fallbacks=1)


def test_reasons_are_counted_from_tables_and_from_lists() -> None:
    rows = [row("a", smelt=1.0, rival=1.0), row("b", smelt=1.0, rival=1.0)]
    rows[0].results["smelt"].counts = {"break_reasons": {"a branch (m.py:4)": 2, "print": 1}}
    rows[1].results["smelt"].counts = {"break_reasons": {"a branch (n.py:9)": 3}}
    rows[0].results["torch.compile"].counts = {"break_reasons": ["print"]}
    assert tallies(rows, "smelt", "break_reasons") == [("a branch", 5, 2), ("print", 1, 1)]
    assert tallies(rows, "torch.compile", "break_reasons") == [("print", 1, 1)]
    assert tallies(rows, "smelt", "extern_ops") == []


def test_failures_that_differ_in_numbers_and_names_are_one_group() -> None:
    rows = [
        row("a", smelt=("fail_compile", "\nno rule for 'aten.a' at 0x1f\nmore")),
        row("b", smelt=("fail_compile", "no rule for 'aten.b' at 0x2")),
        row("c", smelt=("fail_accuracy", "grad.w")),
        row("d", smelt=("fail_accuracy", "loss")),
        row("e", smelt=("timeout", None)),
    ]
    found = [(g.status, g.reason, [r.model for r in g.rows]) for g in group_failures(rows)]
    assert found == [
        ("fail_compile", "no rule for 'aten.a' at 0x1f", ["a", "b"]),
        ("fail_accuracy", "grad.w", ["c", "d"]),
        ("timeout", "no reason was kept", ["e"]),
    ]


def test_the_slowest_rows() -> None:
    rows = [row(name, eager=1.0, smelt=step) for name, step in (("a", 0.5), ("b", 4.0), ("c", 1.0))]
    assert [(r.model, value) for r, value in slowest(rows, "smelt", most=2)] == [("b", 0.25), ("c", 1.0)]


def test_who_is_judged() -> None:
    assert find_judged([row("a", eager=1.0, rival=1.0)]) is None
    assert find_judged([row("a", eager=1.0, **{"my:own": 1.0, "smelt:aot_eager": 1.0})]) == "smelt:aot_eager"
    assert find_judged([row("a", **{"smelt:aot_eager": 1.0, "smelt": 1.0})]) == "smelt"
    assert contenders([row("a", smelt=1.0, rival=1.0, eager=1.0)]) == ["eager", "torch.compile", "smelt"]


def test_a_row_that_was_measured_again_counts_once_and_as_a_whole() -> None:
    first = run(row("a", eager=1.0, rival=1.0, smelt=("timeout", "late")), row("b", eager=1.0))
    again = run(row("a", eager=1.0, smelt=0.5))
    rows, replaced = merge([first, again])
    assert ([r.model for r in rows], replaced) == (["a", "b"], 1)
    assert list(rows[0].results) == ["eager", "smelt"]
    other = row("a", eager=1.0)
    other.train = False
    assert merge([first, run(other)])[1] == 0


def test_nothing_at_all() -> None:
    assert standings([]) == []
    assert merge([]) == ([], 0)
    (alone,) = standings([row("a", eager=Result("eager"))])
    assert (alone.contender, alone.passed, alone.over_eager) == ("eager", 1, None)
