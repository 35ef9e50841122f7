"""`explain` tells graphs, breaks with reasons, guards and residual code, in words for people."""

from __future__ import annotations

import pytest
import torch

import smelt
from smelt.capture.explain import explain
from tests.capture.harness import eager_graph

pytestmark = pytest.mark.usefixtures("branches_end_graphs")

X = torch.ones(2, 3)


def test_one_graph():
    found = explain(lambda x, k: x * k + 1, eager_graph)(X, 3)
    assert (found.graph_count, found.graph_break_count, found.op_count) == (1, 0, 2)
    assert torch.equal(found.result, X * 3 + 1)
    (guards,) = found.guards
    assert any(line.startswith("tensor x: float32[2, 3]") for line in guards)
    assert any(line.startswith("k == 3") and "test_explain.py:" in line for line in guards)
    assert "_c.graph" in found.residuals[0] and "def residual(x, k, _c, _f):" in found.residuals[0]
    assert found.graphs[0].graph.nodes


def test_a_break_has_title_location_reason_and_hint():
    def fn(x):
        if x.sum() > 0:
            x = x + 1
        return x * 2

    found = explain(fn, eager_graph)(X)
    assert found.graph_count == 2 and found.graph_break_count == 1
    (reason,) = found.break_reasons
    assert reason.title == "a branch on a tensor's value" and "test_explain.py:" in reason.at
    assert reason.why and "torch.where" in reason.hint
    text = str(found)
    assert "graphs: 2" in text and "graph breaks: 1" in text and reason.at in text and "resume" in text


def test_the_same_break_counts_once():
    def fn(x):
        for _ in range(4):
            x = x + (1 if x.sum().item() > 0 else 2)
        return x

    assert explain(fn, eager_graph)(X).graph_break_count == 1


def test_operators_that_run_in_eager_are_listed():
    with torch.library._scoped_library("smelt_test_explain", "DEF") as lib:
        lib.define("twice(Tensor x) -> Tensor")
        lib.impl("twice", lambda x: x * 2, "CPU")
        lib.impl("twice", torch.empty_like, "Meta")
        found = smelt.explain(lambda x: torch.ops.smelt_test_explain.twice(x) + 1)(torch.randn(3, 3))
    assert found.fallback_ops == {"smelt_test_explain.twice.default": 1}
    assert "1 x smelt_test_explain.twice.default" in str(found)
    assert smelt.stats()["fallback_ops"] == 1


def test_cuts_are_reported_with_their_line():
    def fn(x):
        h = x * 2
        h.register_hook(lambda grad: grad)
        return h.sin()

    found = explain(fn, eager_graph)(X.clone().requires_grad_())
    (cut,) = found.cuts
    assert found.graph_break_count == 0 and "a hook" in cut and "test_explain.py:" in cut and cut in str(found)
