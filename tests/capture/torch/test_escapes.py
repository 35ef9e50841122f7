"""disable, graph_break, is_compiling, allow_in_graph, assume_constant_result."""

from __future__ import annotations

import torch

from smelt.capture import _native as native
from smelt.capture.explain import describe
from smelt.capture.torch.escapes import allow_in_graph, assume_constant_result, disable, graph_break, is_compiling
from tests.capture.harness import check, compiled

X = torch.ones(2, 3)


def test_disabled_functions_run_outside_with_the_hook_off():
    active = []

    @disable(reason="it talks to a server")
    def outside(x):
        active.append(native.is_active())
        return x + 1

    def fn(x):
        return outside(x * 2) * 3

    run = compiled(fn)
    assert torch.equal(run(X), fn(X)) and active == [False, False]
    (reason,) = run._smelt_session.breaks
    assert reason.why == "it talks to a server" and outside.__name__ == "outside"


def test_disable_without_recursion_leaves_callees_to_capture():
    def callee(x):
        return x.sin() + 1

    @disable(recursive=False)
    def outside(x):
        return callee(x)

    run = compiled(lambda x: outside(x) * 2)
    assert torch.equal(run(X), (X.sin() + 1) * 2)
    assert any("callee" in site.name for site in run._smelt_session.sites.values())


def test_disabled_method():
    class Net(torch.nn.Module):
        @disable
        def helper(self, x):
            return x + 1

        def forward(self, x):
            return self.helper(x * 2)

    check(Net(), X, breaks=1)


def test_graph_break_is_nothing_outside():
    def fn(x):
        x = x + 1
        graph_break()
        return x * 2

    assert torch.equal(fn(X), X * 2 + 2)
    check(fn, X, breaks=1, graphs=2)


def test_is_compiling():
    def fn(x):
        return x * 1, is_compiling()

    assert fn(X)[1] is False and compiled(fn, fullgraph=True)(X)[1] is True


def test_allowed_functions_are_one_node():
    @allow_in_graph
    def whole(x):
        return x.sin() + x.cos()

    run = compiled(lambda x: whole(x) * 2, fullgraph=True)
    assert torch.equal(run(X), (X.sin() + X.cos()) * 2)
    assert describe(run._smelt_session).op_count == 2


def test_assumed_constants_run_once():
    calls = []

    @assume_constant_result
    def number():
        calls.append(1)
        return 7

    run = compiled(lambda x: x * number(), fullgraph=True)
    assert torch.equal(run(X), X * 7) and torch.equal(run(X), X * 7) and len(calls) == 1


def test_a_function_made_inside_is_disabled_anew_at_each_call():
    def fn(x, seen):
        @disable
        def note(value):
            seen.append(value)

        @disable(reason="it writes")
        def other(value):
            seen.append(value)

        note(1)
        other(2)
        return x + 1

    run = compiled(fn)
    for _ in range(3):
        seen = []
        run(torch.ones(2), seen)
        assert seen == [1, 2]
