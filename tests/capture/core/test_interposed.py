"""What Python calls of itself between two steps of a program (hooks, finalizers, handlers) is no part of it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.capture.session import Session


class Ends:
    def __init__(self, seen: list[int]) -> None:
        self.seen = seen

    def __del__(self) -> None:
        noted(self.seen)


class Raises(Ends):
    def __del__(self) -> None:
        raise ValueError("in a finalizer")


class Thing:
    pass


def noted(seen: list[int]) -> None:
    seen.append(len(seen) + 1)


def finalizer(x: Tensor, seen: list[int]) -> Tensor:
    y = x.sin()
    thing = Ends(seen)
    print(end="")
    del thing
    return y * 2


def weak_callback(x: Tensor, seen: list[int]) -> Tensor:
    def ended(reference: Any) -> None:
        noted(seen)

    y, thing = x.sin(), Thing()
    seen.held = weakref.ref(thing, ended)  # type: ignore[attr-defined]
    print(end="")
    del thing
    return y * 2


def weak_finalizer(x: Tensor, seen: list[int]) -> Tensor:
    y, thing = x.sin(), Thing()
    weakref.finalize(thing, noted, seen)
    print(end="")
    del thing
    return y * 2


def collects(x: Tensor, seen: list[int]) -> Tensor:
    y = x.sin()
    gc.collect()
    return y * 2


def is_signalled(x: Tensor, seen: list[int]) -> Tensor:
    y = x.sin()
    os.kill(os.getpid(), signal.SIGUSR1)
    for _ in range(3):
        print(end="")
    return y * 2


def hides_an_error(x: Tensor, seen: list[int]) -> Tensor:
    y = x.sin()
    thing = Raises(seen)
    print(end="")
    del thing
    return y * 2


def is_profiled(x: Tensor, seen: list[int]) -> Tensor:
    y = x.sin()
    print(end="")
    return y * 2


class Seen(list[int]):
    held: Any


@contextmanager
def hooks(seen: list[int], fn: Any) -> Iterator[None]:
    def collected(phase: str, info: dict[str, int]) -> None:
        noted(seen)

    def handler(number: int, frame: Any) -> None:
        noted(seen)

    def hidden(args: Any) -> None:
        noted(seen)

    def profile(frame: Any, event: str, arg: Any) -> None:
        noted(seen)

    before = signal.signal(signal.SIGUSR1, handler), sys.unraisablehook, sys.getprofile()
    gc.callbacks.append(collected)
    sys.unraisablehook = hidden
    sys.setprofile(profile if fn is is_profiled else None)
    try:
        yield
    finally:
        sys.setprofile(before[2])
        sys.unraisablehook = before[1]
        gc.callbacks.remove(collected)
        signal.signal(signal.SIGUSR1, before[0])


PROGRAMS: list[Callable[..., Any]] = [
    finalizer, weak_callback, weak_finalizer, collects, is_signalled, hides_an_error, is_profiled,
]  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS)
def test_it_is_not_captured(fn: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[str] = []
    frame = Session.frame
    monkeypatch.setattr(Session, "frame", lambda self, code, *a: (met.append(code.co_name), frame(self, code, *a))[1])
    run, x, seen = smelt.compile(fn), torch.rand(3), Seen()
    with hooks(seen, fn):
        for _ in range(3):
            torch.testing.assert_close(run(x, seen), x.sin() * 2)
    assert len(seen) >= 3  # it was called
    assert set(met) <= {fn.__name__, "__init__"}


class NotCompared:
    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("last", [{}, {"collected": 1, "a": 2, "b": 3}, weakref.ref(NotCompared), NotCompared()])
def test_arguments_are_not_compared(last: Any) -> None:
    run, x = smelt.compile(lambda x, before, last: x * 2), torch.rand(3)
    torch.testing.assert_close(run(x, NotCompared(), last), x * 2)
    assert smelt.stats()["graphs"] == 1


AUDITED = """
import sys, torch, smelt
from smelt.capture.session import Session
seen, met, frame = [], [], Session.frame
Session.frame = lambda self, code, *a: (met.append(code.co_name), frame(self, code, *a))[1]
def noted(event): seen.append(event)
def audit(event, args): noted(event)
sys.addaudithook(audit)
def f(x):
    y = x.sin()
    open("/dev/null").close()
    return y * 2
run, x = smelt.compile(f), torch.rand(3)
for _ in range(3):
    torch.testing.assert_close(run(x), x.sin() * 2)
assert seen.count("open") >= 3 and smelt.stats()["recompiles"] == 0, smelt.stats()
assert set(met) == {"f"}, met
"""


def test_nor_are_hooks_for_audits() -> None:
    ran = subprocess.run([sys.executable, "-c", AUDITED], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr


def test_a_compiled_call_in_a_profile_function_is_compiled() -> None:
    x, seen = torch.rand(3), Seen()
    run = smelt.compile(lambda x: x.sin() * 2)

    def profile(frame: Any, event: str, arg: Any) -> None:
        sys.setprofile(None)
        torch.testing.assert_close(run(x), x.sin() * 2)
        noted(seen)

    sys.setprofile(profile)
    noted([])
    sys.setprofile(None)
    assert seen and smelt.stats()["graphs"] == 1


def test_nor_is_the_standard_library_after_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[str] = []
    frame = Session.frame
    monkeypatch.setattr(
        Session, "frame", lambda self, code, *a: (met.append(code.co_filename), frame(self, code, *a))[1]
    )

    def writes(x: Tensor) -> Tensor:
        y = x.sin()
        with open(os.devnull, "w+", encoding="utf-8-sig") as file:  # its decoder is written in Python
            file.write("a")
            file.seek(0)
            file.read()
        return y * 2

    run = smelt.compile(writes)
    for _ in range(2):
        run(torch.rand(3))
        smelt.reset()
    assert set(met) == {__file__}
