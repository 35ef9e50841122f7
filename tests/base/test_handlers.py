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
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

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
    class VersionGuards:
        def __getattr__(self, name: str) -> Any:
            come()
            raise AttributeError(name)

    with contextlib.suppress(OutOfTime):
        hasattr(VersionGuards(), "value")


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


class Refuses(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} is traced")


@pytest.mark.parametrize("raises", [False, True])
def test_a_handler_computes_with_the_state_of_the_program(raises: bool) -> None:
    """One that saves a model when a job is about to end, for example."""
    weight, made = torch.ones(3, requires_grad=True), []

    def handler(*_: Any) -> None:
        made.append((weight * 2, torch.is_inference_mode_enabled()))
        if raises:
            raise OutOfTime

    def compiles() -> Any:
        with Refuses() as mode, torch.no_grad():
            with contextlib.suppress(OutOfTime):
                come()
            assert _get_current_dispatch_mode() is mode and not torch.is_grad_enabled()
            with contextlib.suppress(AssertionError):
                return weight + 1

    with handled_by(handler), pytest.raises(OutOfTime) if raises else contextlib.nullcontext():
        assert preserving(compiles) is None
    ((result, inference),) = made
    assert result.tolist() == [2.0] * 3 and result.requires_grad and not inference and torch.is_grad_enabled()


def test_nothing_is_compiled_in_a_handler_that_interrupts_a_compilation() -> None:
    """The interrupted one may hold the lock of an executor, for example."""
    run, made, lock = smelt.compile(lambda x: x * 3), [], threading.Lock()

    def backend(gm: Any, inputs: Any) -> Any:
        with lock:
            come()
        return gm

    def handler(*_: Any) -> None:
        made.append((run(torch.ones(2)), smelt.stats()["graphs"]))

    smelt.reset()
    with handled_by(handler):
        assert smelt.compile(lambda x: x + 1, backend=backend)(torch.ones(2)).tolist() == [2.0, 2.0]
    ((result, graphs),) = made
    assert result.tolist() == [3.0, 3.0] and graphs == 0 and smelt.stats()["graphs"] == 1
    assert run(torch.ones(2)).tolist() == [3.0, 3.0] and smelt.stats()["graphs"] == 2


def test_error_caught_inside_a_signal_handler_does_not_propagate() -> None:
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
def test_interrupted_compilations_are_not_stored(swallowed: Callable[[], None]) -> None:
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
