"""Plans of capture attempts: weaker ones have an end, and what fails gives a weaker one."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smelt.base.options import Options
from smelt.capture.compiled import compile_callable
from smelt.capture.core.breaks import Break, Restart
from smelt.capture.core.plan import TO_THE_END, CapturePlan
from smelt.capture.explain import describe, explain
from smelt.graph.ir.meta import TensorMeta

from ..harness import compiled, eager_graph

SITES = st.frozensets(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=4)
PLANS = st.builds(
    CapturePlan,
    symbols=st.booleans(),
    checks=st.booleans(),
    repeats=st.booleans(),
    refused=SITES,
    pinned=SITES,
    functions=st.frozensets(st.integers(0, 3)),
    reads_first=st.booleans(),
    stop_at=st.integers(TO_THE_END, 6),
)
X = torch.randn(4)


@given(PLANS, PLANS, PLANS)
def test_weaker_is_a_strict_order(a: CapturePlan, b: CapturePlan, c: CapturePlan) -> None:
    assert not a.is_weaker_than(a)
    assert not (a.is_weaker_than(b) and b.is_weaker_than(a))
    if a.is_weaker_than(b) and b.is_weaker_than(c):
        assert a.is_weaker_than(c)


@given(PLANS)
def test_plan_of_a_failed_attempt_is_weaker(plan: CapturePlan) -> None:
    for permission in ("symbols", "checks", "repeats"):
        assert plan.without(permission, "").is_weaker_than(plan) or not getattr(plan, permission)
    assert plan.assuming("").is_weaker_than(plan) == plan.reads_first
    for site in itertools.product(range(3), range(3)):
        assert plan.avoiding([site], []).is_weaker_than(plan) == (site not in plan.refused)
        assert plan.avoiding([], [site]).is_weaker_than(plan) == (site not in plan.pinned)
    assert plan.without_functions(frozenset({9}), "").is_weaker_than(plan)
    for step in range(7):
        earlier = plan.stop_at == TO_THE_END or step < plan.stop_at
        assert plan.stopping(step, None).is_weaker_than(plan) == earlier


@given(st.lists(PLANS, max_size=40))
def test_a_chain_of_weaker_plans_ends(plans: list[CapturePlan]) -> None:
    """Each has a rank below that of the one before: a number of permissions left, then what it asks for and its end."""
    chain = [CapturePlan()]
    for plan in plans:
        if plan.is_weaker_than(chain[-1]):
            chain.append(plan)
    ranks = [_rank(plan) for plan in chain]
    assert all(a > b for a, b in itertools.pairwise(ranks))


def _rank(plan: CapturePlan) -> tuple[int, bool, int]:
    left = plan.symbols + plan.checks + plan.repeats + 22 - len(plan.refused) - len(plan.pinned) - len(plan.functions)
    return left, plan.reads_first, 99 if plan.stop_at == TO_THE_END else plan.stop_at


def test_an_attempt_that_gives_no_weaker_plan_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the order capture would begin again for ever."""
    calls = []

    def restarts(vm: object, *_: object) -> None:
        calls.append(vm)
        assert len(calls) < 20, "endless"
        raise Restart(3, Break("too late"))

    monkeypatch.setattr("smelt.capture.interpreter.Interpreter.run_root", restarts)
    with pytest.raises(Exception, match="an attempt that may do"):
        compiled(lambda x: x + 1)(X)
    assert len(calls) == 2


def inner(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    sys._getframe()
    return y + 1


def test_explain_and_the_log_report_a_late_break(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("SMELT_LOG", "attempts")
    told = explain(lambda x: inner(x) * 3, eager_graph, Options())(X)
    assert told.attempts and ", attempt 2: up to instruction " in told.attempts[0] and ", because " in told.attempts[0]
    assert told.attempts[0] in str(told) and f"smelt attempts: {told.attempts[0]}" in capsys.readouterr().err


def test_a_backend_without_symbols_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_STRICT", "0")

    def refuses(gm: Any, inputs: Any, report: Any, options: Any) -> Any:
        if any(not isinstance(n.meta["val"], TensorMeta) for n in gm.graph.nodes if n.op == "placeholder"):
            raise RuntimeError("no symbols here")
        return gm.forward

    run = compile_callable(lambda x, n: x * n, refuses, Options())
    for n in (2, 3, 4):
        assert torch.equal(run(X, n), X * n)
    attempts = describe(run._smelt_session).attempts
    assert len(attempts) == 1 and attempts[0].endswith(
        "attempt 2: without symbols, because RuntimeError: no symbols here"
    )
