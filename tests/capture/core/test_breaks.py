"""What a graph break costs: its own operation and nothing else, wherever it stands. Counted in operators and graphs."""

from __future__ import annotations

import collections
import contextlib
import copy
import sys
import traceback
from typing import Any

import pytest
import torch

import smelt
from smelt.base.options import Options
from smelt.capture.compiled import compile_callable
from smelt.capture.explain import describe
from smelt.capture.torch.escapes import graph_break
from tests.capture.harness import same

pytestmark = pytest.mark.usefixtures("branches_end_graphs")

X = torch.arange(6.0).reshape(2, 3)
ROUNDS = 20


def marked(gm: Any, inputs: Any, report: Any, options: Any) -> Any:
    """A backend that runs the graph as it is, inside of a region that the profiler shows."""

    def run(*args: Any) -> Any:
        with torch.profiler.record_function("GRAPH"):
            return gm.forward(*args)

    return run


def operators(fn: Any, *args: Any) -> tuple[int, list[str]]:
    """How many operators run inside graphs, and which ones outside of any."""
    with torch.autograd.profiler.profile() as profile:
        fn(*args)
    inside, outside = 0, []
    for event in profile.function_events:
        above, parent = [], event.cpu_parent
        while parent is not None:
            above.append(parent.name)
            parent = parent.cpu_parent
        if not event.name.startswith("aten::") or any(name.startswith("aten::") for name in above):
            continue
        if "GRAPH" in above:
            inside += 1
        else:
            outside.append(event.name.removeprefix("aten::"))
    return inside, outside


def work(x):
    return (x.sin() + 1).cos() * 2


def callee(x):
    y = work(x)
    graph_break()
    return work(y)


def deeper(x):
    return work(callee(work(x)))


def deepest(x):
    return work(deeper(work(x)))


CASES: dict[str, tuple[Any, int, dict[str, int]]] = {}


def case(graphs, **eager):
    """Register a function with the graphs it is compiled to and the operators left to eager."""

    def register(fn):
        CASES[fn.__name__] = (fn, graphs, eager)
        return fn

    return register


@case(1)
def value_of_a_tensor(x):
    n = work(x).sum().item()
    return work(x) + n


@case(2, is_nonzero=1)
def branch(x):
    y = work(x)
    if y.sum() > 0:
        y = work(y)
    return work(y)


@case(4)
def in_a_callee(x):
    return work(callee(work(x)))


@case(8)
def in_a_callee_of_a_callee_of_a_callee(x):
    return work(deepest(work(x)))


@case(4, is_nonzero=1)
def branch_in_a_callee(x):
    def chosen(y):
        return work(y) if y.sum() > 0 else work(y) + 1

    return work(chosen(work(x)))


@case(3)
def loop(x):
    for _ in range(ROUNDS):
        x = work(x)
        graph_break()
        x = work(x)
    return x


@case(3)
def loop_that_counts(x):
    for _i, _item in enumerate(list(range(ROUNDS))):
        x = work(x)
        graph_break()
        x = work(x)
    return x


@case(5)
def loop_with_the_break_in_a_callee(x):
    for _ in range(ROUNDS):
        x = work(callee(work(x)))
    return x


@case(4, is_nonzero=ROUNDS)
def loop_over_rows(x):
    out = []
    for row in x.repeat(ROUNDS // 2, 1):
        y = work(row)
        if y.sum() > 0:
            y = work(y)
        out.append(y)
    return torch.stack(out)


@case(2)
def in_try(x):
    try:
        x = work(x)
        graph_break()
        x = work(x)
    except ValueError:
        x = x + 1
    return work(x)


@case(2)
def in_finally(x):
    try:
        x = work(x)
    finally:
        x = work(x)
        graph_break()
        x = work(x)
    return work(x)


@case(2)
def in_no_grad(x):
    with torch.no_grad():
        x = work(x)
        graph_break()
        x = work(x)
    return work(x)


@case(1, item=2)
def in_a_comprehension(x):
    return [work(v).sum().item() for v in x], work(x)


@case(4)
def in_an_except_clause(x):
    x = work(x)
    try:
        raise ValueError("a")
    except ValueError as error:
        x = work(x)
        graph_break()
        x = work(x)
        seen = str(error), sys.exc_info()[1] is error, traceback.format_exc().count("in_an_except_clause")
    return work(x), seen, sys.exc_info()


@case(3)
def in_a_finally_clause_that_an_exception_entered(x):
    try:
        try:
            x = work(x)
            raise KeyError
        finally:
            x = work(x)
            graph_break()
            x = work(x)
    except KeyError:
        x = x + 1
    return work(x)


@case(3)
def in_except_clauses_inside_each_other(x):
    log = []
    try:
        raise KeyError("k")
    except KeyError as outer:
        x = work(x)
        try:
            raise ValueError("v")
        except ValueError as inner:
            graph_break()
            x = work(x)
            log.append((str(outer), str(inner), repr(inner.__context__)))
        graph_break()
        log.append(repr(sys.exc_info()[1]))
        x = work(x)
    return x, log, sys.exc_info()


@case(2)
def before_a_bare_raise(x):
    try:
        try:
            raise KeyError("k")
        except KeyError:
            x = work(x)
            graph_break()
            x = work(x)
            raise
    except KeyError as error:
        return work(x), str(error)


@case(2)
def before_raise_from(x):
    try:
        try:
            raise KeyError("k")
        except KeyError as error:
            x = work(x)
            graph_break()
            x = work(x)
            raise ValueError("v") from error
    except ValueError as error:
        return work(x), str(error), repr(error.__cause__), repr(error.__context__)


class Swallow:
    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        graph_break()
        return True


@case(2)
def leaving_a_with_block_by_an_exception(x):
    with Swallow():
        x = work(x)
        raise KeyError
    return work(x)


@case(3)
def loop_with_an_except_clause(x):
    for _ in range(ROUNDS):
        try:
            x = work(x)
            raise KeyError
        except KeyError:
            graph_break()
            x = work(x)
    return x


def handles(x):
    try:
        raise ValueError
    except ValueError:
        x = work(x)
        graph_break()
        x = work(x)
    return x, repr(sys.exc_info()[1])


@case(2)
def in_a_callee_of_an_except_clause(x):
    try:
        raise KeyError("outer")
    except KeyError:
        return handles(x), repr(sys.exc_info()[1])


@contextlib.contextmanager
def logged(log):
    log.append("in")
    try:
        yield len(log)
    finally:
        log.append("out")


@case(3)
def in_a_with_block_of_a_generator(x):
    log = []
    with logged(log) as n:
        x = work(x) + n
        graph_break()
        x = work(x)
    log.append("after")
    return work(x), log


@case(4)
def in_a_loop_in_with_blocks(x):
    log = []
    try:
        with torch.no_grad(), logged(log):
            for _ in range(ROUNDS):
                x = work(x)
                graph_break()
                x = work(x)
    finally:
        x = work(x)
    return work(x), log


@case(4)
def in_the_body_of_a_generator(x):
    def steps():
        for _ in range(3):
            y = work(x)
            graph_break()
            yield work(y)

    x = work(x)
    for v in steps():
        x = x + v
    return work(x)


@case(3, add=2)  # in the body of a generator that is a real one by then
def beside_generators_that_have_begun(x):
    def counting(n):
        try:
            while True:
                n = n + ((yield n) or 1)
        finally:
            left.append(n)

    def outer(n):
        yield "first"
        yield from counting(n)

    left = []
    numbers, fresh, done = outer(3), (work(x) + i for i in range(2)), (i for i in ())
    seen = [next(numbers), next(numbers), numbers.send(5), list(done)]
    y = work(x)
    graph_break()
    seen += [next(numbers), numbers.send(10), list(done), next(done, "end")]
    numbers.close()
    return y, seen, left, [work(v) for v in fresh], numbers.gi_frame is None


@case(3)
def beside_a_map_that_has_begun(x):
    scaled = map(lambda v: work(v) * 2, [x, x + 1])
    first = next(scaled)
    graph_break()
    return first, next(scaled), work(x)


@pytest.mark.parametrize("name", CASES)
def test_costs_its_operation(name):
    fn, graphs, eager = CASES[name]
    run = compile_callable(fn, marked, Options())
    for _ in range(3):
        assert same(fn(copy.deepcopy(X)), run(copy.deepcopy(X)))
    inside, outside = operators(run, X)
    assert collections.Counter(outside) == eager, (inside, outside)
    assert inside + len(outside) == len(operators(fn, X)[1])
    assert describe(run._smelt_session).graph_count == graphs


def test_guards_of_the_dispatcher_do_not_act_on_the_capture() -> None:
    """They last as long as the object; a capture that fails keeps what it made."""
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded

    def fn(x: Any) -> Any:
        with torch.utils._mode_utils.no_dispatch():
            y = x * 2
        if x.shape[0] > 2:
            raise ValueError("large")
        return y

    run = compile_callable(fn, marked, Options())
    assert run(X).equal(X * 2)
    with pytest.raises(ValueError, match="large") as kept:
        run(torch.zeros(3, 3))
    assert kept is not None and not excluded(torch._C.DispatchKey.Python)


def _rounds_in_except(x: Any, n: int) -> Any:
    try:
        raise KeyError(n)
    except KeyError as error:
        for _ in range(n):
            graph_break()
            x = x + len(error.args)
            assert sys.exc_info()[1] is error
    return x


def _rounds_in_try(x: Any, n: int) -> Any:
    for i in range(n):
        try:
            graph_break()
            x = x + 1
            if i % 2:
                raise ValueError(i)
        except ValueError:
            graph_break()
    return x


def _rounds_of_an_iterator(x: Any, n: int) -> Any:
    return x + sum([i for i in iter([1] * n)])


def _rounds_of_a_while(x: Any, n: int) -> Any:
    with contextlib.nullcontext():
        while int(x[0, 0]) < n:
            graph_break()
            x = x + 1
    return x


@pytest.mark.parametrize("fn", [_rounds_in_except, _rounds_in_try, _rounds_of_an_iterator, _rounds_of_a_while])
def test_a_loop_with_breaks_needs_no_deeper_stack(fn: Any) -> None:
    n = 3 * sys.getrecursionlimit()
    compiled = smelt.compile(fn, backend="eager")
    assert torch.equal(compiled(X, n), fn(X, n))


def test_the_traceback_after_many_breaks_has_one_line_of_the_function() -> None:
    def fn(x: Any, n: int) -> Any:
        for _ in range(n):
            graph_break()
            x = x + 1
        raise LookupError(n)

    compiled = smelt.compile(fn, backend="eager")
    with pytest.raises(LookupError) as caught:
        compiled(X, 50)
    lines = [frame for frame in traceback.extract_tb(caught.value.__traceback__) if frame.name == "fn"]
    assert [frame.line for frame in lines] == ["raise LookupError(n)"]
