"""Compiled functions among everything else Python does: threads, recursion, generators, coroutines, signals, tools."""

from __future__ import annotations

import asyncio
import cProfile
import inspect
import pstats
import sys
import threading
import warnings

import pytest
import torch

import smelt
from smelt.base.errors import SmeltWarning
from smelt.capture import compiled as entry
from smelt.capture import explain
from tests.capture.harness import compiled

X = torch.arange(16.0).reshape(4, 4) / 8


def in_threads(count, work):
    """Run `work(index)` in threads that start together; raises what one of them raised."""
    errors, barrier = [], threading.Barrier(count)

    def body(index):
        try:
            barrier.wait()
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_first_calls_from_several_threads():
    def fn(x, k):
        return (x * k).sin().sum(dim=0)

    run = smelt.compile(fn, dynamic=False)

    def work(index):
        for _ in range(10):
            x = torch.randn(3 + index % 3, 4)
            assert torch.allclose(run(x, index % 2), fn(x, index % 2), atol=1e-5)

    in_threads(6, work)
    sites = run._smelt_session.sites.values()
    assert sum(len(site.versions) for site in sites) == 6


def test_breaks_and_gradients_in_threads():
    layer = torch.nn.Linear(4, 4)

    def fn(x):
        y = layer(x)
        if y.sum() > 0:
            y = y * 2
        return y.square().sum()

    run = smelt.compile(fn)

    def work(index):
        for _ in range(8):
            x = torch.randn(3, 4, requires_grad=True)
            same = x.detach().clone().requires_grad_()
            (got,) = torch.autograd.grad(run(x), x)
            (want,) = torch.autograd.grad(fn(same), same)
            assert torch.allclose(got, want, atol=1e-5)

    in_threads(4, work)


def test_recursion():
    def fn(x, n):
        return x if n == 0 else run(x * 2, n - 1) + 1

    run = compiled(fn, fullgraph=True)
    for n in (0, 3, 20):
        assert torch.equal(run(X, n), X * 2**n + n)


def test_recursion_with_breaks():
    def plain(x, n):
        if n == 0 or x.sum() > 1e9:
            return x
        return plain(x + n, n - 1) * 2

    def fn(x, n):
        if n == 0 or x.sum() > 1e9:
            return x
        return run(x + n, n - 1) * 2

    run = compiled(fn)
    for n in (0, 3, 6):
        assert torch.equal(run(X, n), plain(X, n))


def test_recursion_without_end():
    def fn(x, n):
        return x + 1 if n == 0 else run(x, n - 1) + 1

    run = compiled(fn)
    with pytest.raises(RecursionError):
        run(X, 100_000)
    assert torch.equal(run(X, 200), X + 201)


def test_compiled_functions_that_call_each_other():
    def ping(x, n):
        return x if n == 0 else second(x + 1, n - 1)

    def pong(x, n):
        return x if n == 0 else first(x * 2, n - 1)

    first, second = compiled(ping), compiled(pong)
    assert torch.equal(first(X, 4), ((X + 1) * 2 + 1) * 2)


def helper(x, k):
    return (x.sin() + k) * 2


def test_coroutines():
    log = []

    async def fn(x, k):
        for _ in range(3):
            x = helper(x, k)
            log.append(k)
            await asyncio.sleep(0)
        return x

    run = compiled(fn)
    assert inspect.iscoroutinefunction(run)

    async def both(call):
        return await asyncio.gather(call(X, 1), call(X, 2))

    want, got = asyncio.run(both(fn)), asyncio.run(both(run))
    assert all(map(torch.equal, want, got)) and log == [1, 2] * 6
    assert explain.describe(run._smelt_session).graph_count >= 1


def test_errors_pass_through_coroutines():
    async def fn(x, event):
        try:
            await event.wait()
        except asyncio.CancelledError:
            return helper(x, 1)

    async def main():
        task = asyncio.ensure_future(compiled(fn)(X, asyncio.Event()))
        await asyncio.sleep(0)
        task.cancel()
        return await task

    assert torch.equal(asyncio.run(main()), helper(X, 1))


def test_generators():
    log = []

    def fn(x):
        try:
            for i in range(3):
                k = yield helper(x, i)
                x = x if k is None else x * k
        except KeyError as error:
            yield str(error)
        finally:
            log.append("closed")
        return "end"

    def use(make):
        steps = make(X)
        seen = [next(steps), steps.send(2.0), steps.throw(KeyError("k"))]
        with pytest.raises(StopIteration, match="end"):
            next(steps)
        early = make(X)
        next(early)
        early.close()
        return seen

    run = compiled(fn)
    want, got = use(fn), use(run)
    assert torch.equal(want[0], got[0]) and torch.equal(want[1], got[1]) and want[2] == got[2]
    assert log == ["closed"] * 4 and explain.describe(run._smelt_session).graph_count >= 1


def test_an_interrupt_in_eager_code_leaves_the_function_working():
    calls = []

    @smelt.disable
    def interrupted():
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    def fn(x):
        with torch.no_grad():
            y = x * 2
            interrupted()
        return y

    run = compiled(fn)
    run(X)
    with pytest.raises(KeyboardInterrupt):
        run(X)
    assert torch.is_grad_enabled() and torch.equal(run(X), X * 2)


def traced(x):
    y = x * 2
    z = y + 1
    return z


@pytest.fixture
def watching(monkeypatch):
    """The warning about watched lines comes once in a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        entry.start()
        yield


def test_a_trace_function_sees_every_line(watching):
    lines = []

    def tracer(frame, event, arg):
        if frame.f_code is traced.__code__ and event == "line":
            lines.append(frame.f_lineno - traced.__code__.co_firstlineno)
        return tracer

    run, before = compiled(traced), sys.gettrace()
    run(X)
    sys.settrace(tracer)
    try:
        assert torch.equal(run(X), traced(X))
    finally:
        sys.settrace(before)
    assert lines == [1, 2, 3] * 2


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="Python 3.12 and later")
def test_coverage_sees_every_line(watching):
    monitoring, lines = sys.monitoring, set()
    run = compiled(traced)
    run(X)
    tool = next((i for i in (monitoring.COVERAGE_ID, monitoring.DEBUGGER_ID) if monitoring.get_tool(i) is None), None)
    assert tool is not None
    monitoring.use_tool_id(tool, "lines")
    monitoring.register_callback(tool, monitoring.events.LINE, lambda code, line: lines.add((code, line)))
    monitoring.set_events(tool, monitoring.events.LINE)
    try:
        run(X)
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    first = traced.__code__.co_firstlineno
    assert {line - first for code, line in lines if code is traced.__code__} == {1, 2, 3}


def test_profilers_name_the_function():
    run = smelt.compile(traced)
    run(X)
    profile = cProfile.Profile()
    assert torch.equal(profile.runcall(run, X), traced(X))
    assert "traced" in {name for _, _, name in pstats.Stats(profile).stats}
    with torch.profiler.profile() as regions:
        run(X)
    assert "smelt: traced" in {event.key for event in regions.key_averages()}


def test_profilers_show_the_regions_of_the_program_around_the_graph():
    def named(x):
        with torch.profiler.record_function("outer"):
            y = x.sin()
            for name in ("a", "b", "a"):
                with torch.autograd.profiler.record_function(name=name):
                    y = y + 1
        smelt.graph_break()
        with torch.profiler.record_function("later"):
            return y.cos()

    run = smelt.compile(named)
    run(X)
    with torch.profiler.profile() as profile:
        run(X)
    graph = f"smelt: {named.__qualname__}"
    own = [each for each in profile.events() if each.name in (graph, "outer", "a", "b", "later")]
    parents = [(each.name, each.cpu_parent and each.cpu_parent.name) for each in own]
    around = [(graph, None), ("outer", graph), ("a", "outer"), ("b", "a")]
    assert sorted(parents, key=str) == sorted([*around, (graph, None), ("later", graph)], key=str)


REGIONS = [
    ((), {}), ((), {"name": "a"}), (("a",), {"args": "b"}), (("a", "b", "c"), {}), (("a",), {"name": "b"}),
    (("a",), {"z": 3}), (("a", "b"), {"args": "c"}), (("a", ""), {}), ((3,), {}), ((None,), {}), ((b"a",), {}),
    (("\ud800",), {}), (("a", "\udfff"), {}), (("a", 3), {}), (("a\0b",), {}),
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(REGIONS)))
def test_regions_are_refused_as_in_eager(at):
    args, kwargs = REGIONS[at]

    def named(x):
        with torch.profiler.record_function(*args, **kwargs):
            y = x.sin()
        return y + 1

    def outcome(fn):
        try:
            return fn(X).tolist()
        except (TypeError, RuntimeError) as error:
            return type(error), str(error)

    run = smelt.compile(named)
    assert outcome(run) == outcome(run) == outcome(named)


def test_a_function_whose_name_has_no_encoding_is_a_region():
    code = traced.__code__.replace(co_name="\ud800", co_qualname="\ud800")
    run = smelt.compile(type(traced)(code, globals()))
    with torch.profiler.profile() as profile:
        assert torch.equal(run(X), traced(X))
    assert "smelt: \\ud800" in {event.key for event in profile.key_averages()}
