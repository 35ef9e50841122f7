"""What the program does when its objects die happens when it would in eager: in order with its prints, once."""

from __future__ import annotations

import functools
import gc
import io
import traceback
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import smelt
from smelt.capture._native import call_moving, finalizers
from tests.capture.harness import compiled


@pytest.fixture(autouse=True)
def without_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def steps(x: Any, name: str) -> Iterator[Any]:
    try:
        while True:
            yield x
    finally:
        print("closed", name)


def holder(x: Any, name: str) -> Iterator[Any]:
    inner = steps(x, name)
    yield next(inner)
    yield x


def harmless(x: Any) -> Iterator[Any]:
    yield x
    yield x


def started(x: Any, name: str, make: Callable[..., Any] = steps) -> Any:
    g = make(x, name)
    next(g)
    return g


class Ends:
    def __init__(self, name: str) -> None:
        self.name = name

    def __del__(self) -> None:
        print("dies", self.name)


def drops(x: torch.Tensor, g: Any) -> torch.Tensor:
    print("in")
    del g
    print("out")
    return x + 1


def fails(x: torch.Tensor, name: str) -> torch.Tensor:
    g = started(x, name)  # noqa: F841
    raise ValueError(name)


SAVED: list[Any] = []
KEPT: Any = None
BOX = SimpleNamespace(held=None)


def failing(x: torch.Tensor, name: str) -> Any:
    smelt.graph_break()
    raise AttributeError(name)


def rebound(x: torch.Tensor) -> Any:
    a, b = started(x, "a"), Ends("b")
    print("made")
    a = None
    print("a is gone")
    b = 1
    print("b is gone")
    return x * 2 + b, a


def deleted(x: torch.Tensor) -> Any:
    a, b = started(x, "a"), started(x, "b", holder)
    del a
    print("a is gone")
    del b
    print("b is gone")
    return x * 2


def in_containers(x: torch.Tensor) -> Any:
    held = [started(x, "0"), started(x, "1")]
    found = {"k": Ends("k")}
    held.pop()
    print("one is gone")
    found.clear()
    print("the dict is empty")
    held[0] = x
    print("both are gone")
    return held


def left_loop(x: torch.Tensor) -> Any:
    for i, y in enumerate(started(x, "loop", holder)):
        x = x + y * i
        break
    print("left")
    try:
        for _ in steps(x, "inner"):
            raise KeyError(1)
    except KeyError:
        print("caught")
    return x


def given_away(x: torch.Tensor) -> Any:
    return drops(x, started(x, "given"))


def at_the_end(x: torch.Tensor) -> Any:
    c = Ends("c")  # noqa: F841
    a = [started(x, "a"), started(x, "b")]  # noqa: F841
    return x + 1


def handled(x: torch.Tensor) -> Any:
    try:
        fails(x, "one")
    except ValueError as error:
        print("handling", error)
    print("handled")
    try:
        fails(x, "two")
    except ValueError:
        x = x + 1
        smelt.graph_break()
        print("broken")
    print("handled")
    return x * 2


def saved(x: torch.Tensor) -> Any:
    g = started(x, "saved")  # noqa: F841
    try:
        KEPT.missing  # noqa: B018
    except AttributeError as error:
        SAVED.append(error)
    print("saved")
    return x + 1


def raised(x: torch.Tensor) -> Any:
    g = started(x, "raised")  # noqa: F841
    try:
        smelt.graph_break()
        return KEPT.missing
    finally:
        print("finally")


def in_globals(x: torch.Tensor) -> Any:
    global KEPT
    KEPT = started(x, "global")
    smelt.graph_break()
    KEPT = None
    print("gone")
    return x + 1


def in_cells(x: torch.Tensor) -> Any:
    a = started(x, "cell")
    use = lambda: a  # noqa: E731
    smelt.graph_break()
    b = use() is not None
    a = None
    print("gone")
    return x + b, use()


def in_a_loop(x: torch.Tensor) -> Any:
    for i in range(3):
        g = started(x, f"round {i}")
        h, h = harmless(x), Ends(f"last {i}")
        print("round", i, h.name, next(g).shape)
    return x + 1


def given_in_a_container(x: torch.Tensor) -> Any:
    x = drops(x, iter([started(x, "given")]))
    return x * 2


def in_defaults(x: torch.Tensor) -> Any:
    f = lambda g=started(x, "default"): g  # noqa: B008, E731
    BOX.held = f
    smelt.graph_break()
    BOX.held = None
    print("cleared")
    return KEPT.missing


def handled_and_raised(x: torch.Tensor) -> Any:
    try:
        KEPT.missing  # noqa: B018
    except AttributeError:
        held = dict(k=Ends("k"))  # noqa: F841
        raise


def replaced(x: torch.Tensor) -> Any:
    for i in range(3):
        BOX.held = Ends(f"held {i}")
        print("replaced", i)
    BOX.held = None
    print("the last one is gone")
    return x + 1


def inner_first(x: torch.Tensor) -> Any:
    held = [started(x, "inner"), Ends("inner")]
    smelt.graph_break()
    held = [started(x, "outer", holder), held]
    del held
    return x + 1


def raised_past(x: torch.Tensor) -> Any:
    held = {1: started(x, "held")}  # noqa: F841
    drops(x, started(x, "given"))
    smelt.graph_break()
    other = [started(x, "other")]  # noqa: F841
    return failing(x, name="raised")


PROGRAMS = [
    given_in_a_container,
    in_defaults,
    handled_and_raised,
    replaced,
    inner_first,
    raised_past,
    rebound,
    deleted,
    in_containers,
    left_loop,
    given_away,
    at_the_end,
    handled,
    saved,
    raised,
    in_globals,
    in_cells,
    in_a_loop,
]


def run(program: Any, capsys: Any) -> list[str]:
    """What a call prints, and what dies with the exception that it raises or has saved."""
    try:
        program(torch.ones(2))
    except AttributeError as error:
        print(type(error).__name__)
    print("returned")
    SAVED.clear()
    print("end")
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_finalizers_run_when_they_would(program: Any, capsys: Any) -> None:
    want = run(program, capsys)
    assert any(line.startswith(("closed", "dies")) for line in want)
    fast = compiled(program)
    for _ in range(3):
        assert run(fast, capsys) == want


def test_a_version_is_for_what_has_no_finalizer(capsys: Any) -> None:
    """What a variable held when it was overwritten had none while the frame was captured."""
    make = smelt.disable(lambda x, i: started(x, "late") if i == 2 else harmless(x))

    def program(x: torch.Tensor) -> torch.Tensor:
        for i in range(4):
            g = make(x, i)
            print("made", i)
            x = x + next(g)
        return x

    want = run(program, capsys)
    assert want.index("closed late") < want.index("made 3")
    fast = compiled(program)
    for _ in range(2):
        assert run(fast, capsys) == want


def test_finalizer_of_a_value_replaced_by_a_later_call_runs_in_order(capsys: Any) -> None:
    """What a place held had no finalizer while the frame was captured; the print comes after the store all the same."""

    def program(x: torch.Tensor, held: Any) -> torch.Tensor:
        BOX.held = held
        print("replaced")
        return x + 1

    for fn in (program, compiled(program)):
        for name in ("", "one", "two", ""):
            fn(torch.ones(2), name and Ends(name))
    lines = capsys.readouterr().out.splitlines()
    half = len(lines) // 2
    assert lines[:half] == lines[half:]
    assert lines[:half] == ["replaced", "replaced", "dies one", "replaced", "dies two", "replaced"]


class Log(io.TextIOBase):
    """A file: the C code of its base closes it when it dies."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, text: str) -> int:
        self.lines.append(text)
        return len(text)

    def flush(self) -> None:
        self.lines.append("flush")


class Bytes(io.BytesIO):
    def close(self) -> None:
        print("closed", self.getvalue())
        super().close()


class Last:
    """What C code calls when it dies is no function."""

    __del__ = functools.partialmethod(lambda self, word: print(word), "called last")


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("make", [Log, Bytes, Last])
def test_finalizers_of_c_code(make: Callable[[], Any], breaks: bool, capsys: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        made = make()
        lines = getattr(made, "lines", None)
        y = x * 2
        if breaks:
            smelt.graph_break()
        print("end")
        del made
        return y + 1, lines

    x = torch.ones(2)
    want = program(x), capsys.readouterr().out
    fast = smelt.compile(program)
    for _ in range(2):
        got = fast(x), capsys.readouterr().out
        assert torch.equal(got[0][0], want[0][0]) and (got[0][1], got[1]) == (want[0][1], want[1])


def test_one_graph_stays_one() -> None:
    """With `fullgraph` nothing is done between two graphs: the caller's generator lives on as long as the call."""

    def program(x: torch.Tensor, g: Any) -> torch.Tensor:
        g = len(x.shape)
        return x + g

    fast = smelt.compile(program, backend="eager", fullgraph=True)
    x = torch.ones(2)
    assert torch.equal(fast(x, started(x, "given")), x + 1)


def test_tracebacks_have_the_users_lines_and_variables() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        count = len(x.shape)
        try:
            smelt.graph_break()
            x = x + KEPT.missing
        finally:
            smelt.graph_break()
            count += 1
        return x

    shown = []
    for fn in (program, compiled(program)):
        with pytest.raises(AttributeError) as caught:
            fn(torch.ones(2))
        last = list(traceback.walk_tb(caught.value.__traceback__))[-1]
        shown.append((last[0].f_code, last[1], {**last[0].f_locals}["count"]))
        assert traceback.format_exception(caught.value)
    assert shown[0] == shown[1]


def test_a_caught_exception_leaves_nothing_alive() -> None:
    """The frame that handles an exception is in its traceback, and does not hold it."""

    class Held:
        pass

    def program(x: torch.Tensor, held: Any) -> torch.Tensor:
        try:
            smelt.graph_break()
            held.missing  # noqa: B018
        except AttributeError:
            x = x + 1
            smelt.graph_break()
            x = x + 1
        return x

    fast = compiled(program)
    for _ in range(3):
        held = Held()
        seen = weakref.ref(held)
        assert torch.equal(fast(torch.ones(2), held), torch.full((2,), 3.0))
        del held
        assert seen() is None


def test_an_unanswered_question_leaves_nothing_alive() -> None:
    """A number that only values tell, which tracing for autograd asks for: the answer "nobody knows" holds no frame."""

    class Held:
        pass

    def program(x: torch.Tensor, held: Any) -> None:
        x[x > 1] = float(x.mean())

    held = Held()
    smelt.compile(program, backend="aot_eager")(torch.arange(4.0), held)  # torch imports much, and that holds frames
    fast = smelt.compile(lambda *args: program(*args), backend="aot_eager")
    held = Held()
    seen = weakref.ref(held)
    gc.disable()
    try:
        fast(torch.arange(4.0), held)
    finally:
        gc.enable()
    del held
    assert seen() is None


def test_objects_with_finalizers_are_found() -> None:
    x = 1
    suspended, ended = started(x, "of a list"), started(x, "closed")
    ended.close()
    thing = Ends("thing")
    assert {*finalizers([suspended, thing, ended, harmless(x), steps(x, "not started")])} == {suspended, thing}
    assert finalizers({"k": lambda: thing}) == [thing]
    assert finalizers(iter([thing])) == [thing] and finalizers(enumerate([thing])) == [thing]

    class Module:
        """An object that torch.compile's table of modules watches."""

    watched = Module()

    def forget(reference: object) -> None:
        """A callback of such a table."""

    references = [weakref.ref(watched, forget)]
    assert finalizers([watched]) == [watched]
    forget.__module__ = "torch._dynamo.utils"
    assert finalizers([watched]) == [] and references
    assert len(finalizers(started(x, "inner", holder))) == 1
    assert finalizers(torch.ones(2)) == finalizers(Ends) == finalizers(torch) == finalizers(3) == []
    try:
        fails(torch.ones(2), "with the error")
    except ValueError as error:
        assert len(finalizers(error)) == 1


def test_a_function_gets_its_arguments_for_itself() -> None:
    seen: list[Any] = []

    def take(thing: Any, *, name: str) -> Any:
        seen.append(weakref.ref(thing))
        del thing
        return name, seen[-1]()

    class Thing:
        def method(self, other: Any) -> Any:
            return take(other, name="method")

    assert call_moving(take, [Thing(), "name"], ("name",)) == ("name", None)
    given = [Thing()]
    assert call_moving(isinstance, [given.pop(), Thing], ()) is True
    with pytest.raises(TypeError):
        call_moving(take, [1, 2, 3], ())
    assert call_moving(lambda: 1, [], ()) == 1


def test_a_branch_that_could_not_be_taken_leaves_nothing_alive() -> None:
    """Both ways of a branch are tried, one of them cannot be undone: what was caught on the way holds no frame."""

    class Held:
        pass

    seen_by = {"a": 1, "b": 2}

    def program(x: torch.Tensor, held: Any) -> None:
        for _ in range(7):
            if int((x > 1).sum()):
                seen_by.popitem()

    fast = smelt.compile(program, backend="eager")
    held = Held()
    seen = weakref.ref(held)
    gc.disable()
    try:
        with pytest.raises(KeyError):
            fast(torch.arange(4.0), held)
    finally:
        gc.enable()
    del held
    assert seen() is None
