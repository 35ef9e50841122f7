"""Errors that come out after the graph, where the program reads a number: its clauses get them.

On a GPU a kernel that fails is noticed at the next wait. Here a backend on the CPU gives tensors that fail so when they
are read, and the CPU is taken for a GPU.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import smelt
from smelt.capture.tensors import fallible_ops

LOST = "CUDA error: unspecified launch failure"
x = torch.arange(1.0, 5.0)
good, bad = torch.tensor([0, 3]), torch.tensor([0, 7])


class Failed(torch.Tensor):
    """The result of a kernel that failed."""

    def item(self) -> Any:
        raise RuntimeError(LOST)


class Device:
    """A backend whose kernels fail quietly, and those after them."""

    def __init__(self) -> None:
        self.lost, self.graphs = False, 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.graphs += 1

        def run(*args: Any) -> Any:
            try:
                return gm(*args)
            except (RuntimeError, IndexError):
                self.lost = True
                return tuple(torch.zeros(()).as_subclass(Failed) for _ in range(len(self.outputs(gm))))

        return run

    @staticmethod
    def outputs(gm: torch.fx.GraphModule) -> Any:
        return next(iter(reversed(gm.graph.nodes))).args[0]


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(fallible_ops, "on_gpu", lambda device: True)
    monkeypatch.setattr("smelt.capture.residual.residual.on_gpu", lambda device: True)
    return Device()


@contextmanager
def swallowing(log: list[Any]) -> Iterator[None]:
    try:
        yield
    except RuntimeError:
        log.append("swallowed")


def item(i: torch.Tensor, log: list[Any]) -> Any:
    try:
        return torch.gather(x, 0, i).sum().item()
    except IndexError:
        return "INDEX ERROR"
    except RuntimeError:
        return "RUNTIME ERROR"


def conversions(i: torch.Tensor, log: list[Any]) -> Any:
    try:
        y = torch.gather(x, 0, i)
        return float(y[0]), int(y[1]), y.tolist()
    except Exception:
        return "ERROR"


def effects_before(i: torch.Tensor, log: list[Any]) -> Any:
    log.append("begin")
    try:
        n = torch.gather(x, 0, i).sum().item()
        log.append(n)
    except RuntimeError:
        log.append("failed")
    finally:
        log.append("end")
    return x * 2


def nested(i: torch.Tensor, log: list[Any]) -> Any:
    try:
        try:
            return torch.gather(x, 0, i).sum().item()
        except KeyError:
            return "KEY ERROR"
        finally:
            log.append("inner")
    except RuntimeError:
        return "OUTER"


def read(y: torch.Tensor) -> Any:
    return y.sum().item() + 1


def inlined(i: torch.Tensor, log: list[Any]) -> Any:
    try:
        return read(torch.gather(x, 0, i))
    except RuntimeError:
        return "RUNTIME ERROR"


def caught_within(i: torch.Tensor, log: list[Any]) -> Any:
    return item(i, log), (x + 1).sum()


def loop(i: torch.Tensor, log: list[Any]) -> Any:
    found = []
    for k in range(3):
        try:
            found.append(torch.gather(x + k, 0, i).sum().item())
        except RuntimeError:
            found.append("RUNTIME ERROR")
    return found


def generator(i: torch.Tensor, log: list[Any]) -> Any:
    def numbers() -> Iterator[Any]:
        try:
            yield torch.gather(x, 0, i).sum().item()
        except RuntimeError:
            yield "RUNTIME ERROR"

    return list(numbers())


def comprehension(i: torch.Tensor, log: list[Any]) -> Any:
    try:
        return [torch.gather(x, 0, i)[k].item() for k in range(2)]
    except RuntimeError:
        return "RUNTIME ERROR"


def manager(i: torch.Tensor, log: list[Any]) -> Any:
    with swallowing(log):
        return torch.gather(x, 0, i).sum().item()
    return "left"


def drawn(i: torch.Tensor, log: list[Any]) -> Any:
    try:
        return (torch.gather(x, 0, i) * torch.rand(2)).sum().item()
    except RuntimeError:
        return "RUNTIME ERROR"


def input_written(i: torch.Tensor, log: list[Any]) -> Any:
    i.add_(0)
    try:
        return torch.gather(x, 0, i).sum().item()
    except RuntimeError:
        return "RUNTIME ERROR"


def in_a_clause(i: torch.Tensor, log: list[Any]) -> Any:
    """The frame that goes on there cannot begin again."""
    try:
        raise_again(i)
    except KeyError:
        try:
            return torch.gather(x, 0, i).sum().item()
        except RuntimeError:
            return "RUNTIME ERROR"


@smelt.disable
def raise_again(i: torch.Tensor) -> None:
    raise KeyError


FORMS = [
    item, conversions, effects_before, nested, inlined, caught_within, loop, generator, comprehension, manager, drawn,
    input_written, in_a_clause,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_clauses_get_them(device: Device, form: Callable[..., Any]) -> None:
    run = smelt.compile(form, backend=device)
    for i in (good, good.flip(0), bad, good, bad):
        device.lost = False
        wanted_log, log = [], []
        torch.manual_seed(3)
        wanted = form(i.clone(), wanted_log)
        torch.manual_seed(3)
        got = run(i.clone(), log)
        torch.testing.assert_close(got, wanted) if isinstance(wanted, torch.Tensor) else None
        assert repr(got) == repr(wanted) and log == wanted_log
        assert device.lost == (i is bad)
    assert device.graphs


def test_where_the_frame_cannot_begin_again(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of the processor was written: the number is read where it stands."""
    monkeypatch.setattr("smelt.capture.residual.residual.on_gpu", lambda device: False)

    def form(i: torch.Tensor, n: torch.Tensor) -> Any:
        try:
            n.add_(1)
            return torch.gather(x, 0, i).sum().item()
        except RuntimeError:
            return "RUNTIME ERROR"

    run, n = smelt.compile(form, backend=device), torch.zeros(())
    assert [run(i, n) for i in (good, bad, good)] == [5.0, "RUNTIME ERROR", 5.0]
    assert n.item() == 3
    (stop,) = smelt.explain(form, backend=device)(good, n).break_reasons
    assert "read from a GPU" in stop.title


def test_numbers_outside_of_a_try_end_no_graph(device: Device) -> None:
    def form(i: torch.Tensor, n: torch.Tensor) -> Any:
        n.add_(1)
        return torch.gather(x, 0, i).sum().item(), x * 2

    assert smelt.compile(form, backend=device, fullgraph=True)(good, torch.zeros(()))[0] == 5.0
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        smelt.compile(form, backend=device, fullgraph=True)(bad, torch.zeros(()))


def refuse(*args: Any) -> None:
    raise ValueError("refused")


class Stream(io.StringIO):
    """A file of the program, which may be full."""

    full = False

    def write(self, text: str) -> int:
        return refuse() if self.full else super().write(text)


class Handler(logging.Handler):
    """One whose errors are the program's."""

    full = False

    def emit(self, record: logging.LogRecord) -> None:
        refuse() if self.full else None


stream, handler, logger = Stream(), Handler(), logging.getLogger("late_errors")
logger.addHandler(handler)

LATER: dict[str, Callable[[], None]] = {
    "print": lambda: print("x", file=stream),
    "log": lambda: logger.warning("x"),
    "warning": lambda: warnings.warn("x", stacklevel=2),
}


@pytest.mark.parametrize("name", LATER)
@pytest.mark.parametrize("frames", [1, 2])
def test_calls_that_are_put_off(name: str, frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs, warnings and prints whose streams, handlers or filters raise at a later call."""
    call = LATER[name]

    def form(a: torch.Tensor, log: list[Any]) -> torch.Tensor:
        b = a * 2
        try:
            call()
            log.append("called")
        except (ValueError, UserWarning):
            log.append("failed")
            return b + 1
        return b

    def outer(a: torch.Tensor, log: list[Any]) -> torch.Tensor:
        return form(a, log) * 3

    run, plain = (smelt.compile(form), form) if frames == 1 else (smelt.compile(outer), outer)
    for full in (False, True, False):
        monkeypatch.setattr(Stream, "full", full)
        monkeypatch.setattr(handler, "full", full)
        log: list[Any] = []
        with warnings.catch_warnings():
            warnings.simplefilter("error" if full else "ignore")
            got, wanted = run(x, log), plain(x, [])
        assert torch.equal(got, wanted) and log == ["failed" if full else "called"]


def test_draws_are_taken_back(compiled: Any) -> None:
    """A graph that draws and then fails, in a statement whose clause takes all errors."""

    def form(i: torch.Tensor) -> Any:
        try:
            return torch.rand(2) * torch.gather(x, 0, i)
        except RuntimeError:
            return torch.rand(3)

    run = compiled(form)
    for i in (good, bad, good):
        torch.manual_seed(7)
        wanted = form(i)
        torch.manual_seed(7)
        got = run(i)
        assert got.shape == wanted.shape
        if i is bad:  # in eager, from its start
            assert torch.equal(got, wanted)


def first(i: torch.Tensor, n: torch.Tensor) -> Any:
    try:
        n.add_(1)
        return x[i]
    except RuntimeError:
        return "RUNTIME ERROR"
    except IndexError:
        return "INDEX ERROR"


def listed(i: torch.Tensor, n: torch.Tensor) -> Any:
    try:
        n.add_(1)
        return torch.nn.functional.embedding(i, x[:, None])
    except (RuntimeError, LookupError):
        return "ONE OF THEM"


@pytest.mark.parametrize("form", [first, listed])
def test_clauses_that_name_an_index(compiled: Any, form: Callable[..., Any]) -> None:
    """A clause for IndexError waits for one, also beside another for RuntimeError; what was written stays written."""
    run, n, m = compiled(form), torch.zeros(()), torch.zeros(())
    for i in (good, bad, good):
        assert repr(run(i, n)) == repr(form(i, m)) and n == m
