"""What a signal's handler raises while something is compiled arrives, whoever swallows it on its way."""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt.base._native import heard_from_handlers
from smelt.base.process_state import preserving
from tests.faults.state import left_behind


class OutOfTime(Exception):
    """An ordinary exception."""


def _raise(*_: Any) -> None:
    raise OutOfTime


class Limit:
    def end(self, number: int, frame: Any) -> None:
        raise OutOfTime

    def __call__(self, number: int, frame: Any) -> None:
        raise OutOfTime

    def beside(self, more: int, number: int, frame: Any) -> None:
        raise OutOfTime


def _interrupted(number: int, frame: Any) -> None:
    """Another handler interrupts this one."""
    signal.raise_signal(signal.SIGUSR2)


HANDLERS: dict[str, Callable[[], Any]] = {
    "a function": lambda: _raise,
    "a method": lambda: Limit().end,
    "an object": Limit,
    "a partial": lambda: functools.partial(Limit().beside, 1),
    "a partial of a partial": lambda: functools.partial(functools.partial(Limit.beside, Limit()), 1),
    "an interrupted handler": lambda: _interrupted,
}


@contextlib.contextmanager
def handled_by(handler: Any) -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, handler), signal.signal(signal.SIGUSR2, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGUSR2, before[1])


def come() -> None:
    signal.raise_signal(signal.SIGUSR1)


def _dropped() -> None:
    with contextlib.suppress(OutOfTime):
        come()


def _bare() -> None:
    try:
        come()
    except:  # noqa: E722
        pass


def _another() -> None:
    try:
        come()
    except OutOfTime:
        raise KeyError("refused") from None


def _closed() -> None:
    def steps() -> Iterator[None]:
        try:
            yield
        finally:
            come()

    generator = steps()
    next(generator)
    del generator  # Python tells of it and goes on


def _asked() -> None:
    class Asked:
        def __getattr__(self, name: str) -> Any:
            come()
            raise AttributeError(name)

    with contextlib.suppress(OutOfTime):
        hasattr(Asked(), "value")


def _inside() -> None:
    with contextlib.suppress(OutOfTime):
        preserving(_dropped)


SWALLOWED = [_dropped, _bare, _another, _closed, _asked, _inside]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("swallowed", SWALLOWED)
@pytest.mark.parametrize("handler", HANDLERS)
def test_it_arrives(handler: str, swallowed: Callable[[], None]) -> None:
    with handled_by(HANDLERS[handler]()):
        with pytest.raises(OutOfTime):
            preserving(swallowed)
        assert heard_from_handlers() is None
        with contextlib.suppress(KeyError):
            swallowed()  # outside it is the program's alone
        assert preserving(lambda: 3) == 3
    assert not left_behind()


def test_what_a_handler_has_handled_does_not_arrive() -> None:
    def handler(*_: Any) -> None:
        with contextlib.suppress(OutOfTime):
            signal.raise_signal(signal.SIGUSR2)

    with handled_by(handler):
        assert preserving(lambda: come() or 3) == 3


def test_a_call_by_the_program_is_no_signal() -> None:
    def run(*given: Any) -> int:
        with contextlib.suppress(OutOfTime):
            _raise(*given)
        return 3

    with handled_by(_raise):
        assert preserving(run) == preserving(run, 1, "text") == 3
        other: list[int] = []
        thread = threading.Thread(target=lambda: other.append(preserving(run, 1, None)))
        thread.start()
        thread.join()
        assert other == [3]


def test_a_handler_that_is_another_one_meanwhile() -> None:
    def run() -> int:
        signal.signal(signal.SIGUSR1, lambda *_: None)
        come()
        return 3

    with handled_by(_raise):
        assert preserving(run) == 3
        signal.signal(signal.SIGUSR1, _raise)
        with pytest.raises(OutOfTime):
            come()


@pytest.mark.parametrize("swallowed", [_dropped, _bare, _another, _inside])
def test_what_was_compiled_without_a_part_is_not_kept(swallowed: Callable[[], None]) -> None:
    graphs: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        if len(graphs) == 1:
            swallowed()
        return gm

    compiled = smelt.compile(lambda x: x + 1, backend=backend)
    with handled_by(_raise):
        with pytest.raises(OutOfTime):
            compiled(torch.ones(2))
        assert compiled(torch.ones(2)).tolist() == compiled(torch.ones(2)).tolist() == [2, 2]
    assert len(graphs) == 2


def test_double_backwards_are_not_compiled_for_numbers_because_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from smelt.autograd.call.double_backward import DoubleBackward

    made: list[Any] = []
    plain = DoubleBackward._as_known

    def interrupted(self: Any, graph: Any) -> Any:
        made.append(self)
        if len(made) == 1:
            come()
        return plain(self, graph)

    monkeypatch.setattr(DoubleBackward, "_as_known", interrupted)

    def handler(*_: Any) -> None:
        raise RuntimeError("out of time")

    compiled = smelt.compile(lambda x: (x**3).sum(), dynamic=True)
    with handled_by(handler):
        x = torch.ones(3, requires_grad=True)
        with pytest.raises(RuntimeError, match="out of time"):
            torch.autograd.grad(compiled(x), x, create_graph=True)
        (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
        assert torch.autograd.grad(first.sum(), x)[0].tolist() == [6, 6, 6]
    assert not any(each._in_numbers for each in made)
