"""One task of the sweep: a program, a kind of fault, and some places where it strikes.

After each the state is looked at, and the same compiled function is called again.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

import smelt
from smelt.base.errors import SmeltError

from . import inject
from .programs import PROGRAMS, Program, compiled_by
from .state import changes, left_behind, look


class Injected(KeyboardInterrupt):
    """Ctrl-C as we raise it."""


class InjectedOutOfTime(TimeoutError):
    """What a signal's handler raises: an ordinary error."""


INTERRUPTS = ("opcode", "call", "signal", "alarm", "thread", "memory", "stack")
FAILURES = ("OSError", "MemoryError", "RuntimeError")
KINDS = (*INTERRUPTS, *FAILURES)
_CLASSES: dict[str, type[Exception]] = {"OSError": OSError, "MemoryError": MemoryError, "RuntimeError": RuntimeError}


class Target:
    """A program ready to be struck, with what eager computes."""

    def __init__(self, program: Program, backend: str) -> None:
        self.program, self.backend = program, backend
        self.want = program.make(lambda fn: fn)()
        self.begin()
        self.run()
        self.run()  # what is built lies in the store from now on, caches are filled
        self.begin()

    def begin(self) -> None:
        """Nothing is compiled."""
        smelt.reset()
        self.run = self.program.make(compiled_by(self.backend))

    def differs(self) -> str:
        """How the results of a call differ from eager's; empty if they do not."""
        try:
            found = self.run()
        except Exception as error:
            return f"the next call raises {type(error).__name__}: {str(error)[:200]}"
        for got, want in zip(found, self.want, strict=True):
            try:
                torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)
            except AssertionError as error:
                return f"the next call differs: {str(error).splitlines()[0]}"
        return ""


Strike = Callable[[], bool]
"""Runs a target with one fault; whether the fault was raised at all."""


def strikes(target: Target, kind: str, rng: random.Random, count: int) -> list[tuple[str, Strike, type[BaseException]]]:
    """Faults of one kind at random places: what to call each, how to run it, and what it raises."""
    if kind == "opcode":
        return _opcodes(target, rng, count)
    if kind == "call" or kind in FAILURES:
        return _calls(target, kind, rng, count)
    seconds = inject.timed(target.run)
    target.begin()
    out: list[tuple[str, Strike, type[BaseException]]] = []
    for _ in range(count):
        at = inject.moment(rng, seconds)
        if kind == "signal":
            out.append((f"{at:.5f} s", _within(target, lambda at=at: inject.signalled(Injected(), at)), Injected))
        elif kind == "alarm":
            signalled = _within(target, lambda at=at: inject.signalled(InjectedOutOfTime(), at))
            out.append((f"{at:.5f} s", signalled, InjectedOutOfTime))
        elif kind == "thread":
            out.append((f"{at:.5f} s", _within(target, lambda at=at: inject.thrown(Injected, at)), Injected))
        elif kind == "memory":
            after, fails = int(10 ** rng.uniform(0, 6)), rng.choice((1, 1, 2, 10))
            failing = _within(target, lambda a=after, f=fails: inject.out_of_memory(a, f))
            out.append((f"allocation {after} and {fails - 1} more", failing, MemoryError))
        else:
            levels = sys.getrecursionlimit() - rng.randrange(20, 400)
            out.append((f"{levels} frames", functools.partial(_deep, target, levels), RecursionError))
    return out


def _within(target: Target, fault: Callable[[], Any]) -> Strike:
    def strike() -> bool:
        with fault() as came:
            target.run()
        return bool(came())

    return strike


def _deep(target: Target, levels: int) -> bool:
    inject.at_depth(levels, target.run)
    return False


def _calls(target: Target, kind: str, rng: random.Random, count: int) -> list[tuple[str, Strike, type[BaseException]]]:
    events = inject.INTERRUPTS if kind == "call" else inject.FAILURES
    error: type[BaseException] = Injected if kind == "call" else _CLASSES[kind]
    target.begin()
    with inject.Calls(error(), events) as counting:
        target.run()

    def strike(at: int) -> bool:
        with inject.Calls(error("injected"), events, at) as raising:
            target.run()
        return raising.raised

    places = [1 + rng.randrange(counting.count()) for _ in range(count)]
    return [(f"event {at} of {counting.count()}", functools.partial(strike, at), error) for at in places]


@functools.cache
def _instructions(name: str, backend: str) -> tuple[tuple[Any, int], ...]:
    target = Target(PROGRAMS[name], backend)
    with inject.Opcodes(Injected()) as listing:
        target.run()
    return tuple(listing.found.items())


def _opcodes(target: Target, rng: random.Random, count: int) -> list[tuple[str, Strike, type[BaseException]]]:
    """Each instruction that a capture runs through counts once, however often it does."""
    found = _instructions(target.program.name, target.backend)

    def strike(place: Any, turn: int) -> bool:
        with inject.Opcodes(Injected(), place, turn) as raising:
            target.run()
        return raising.raised

    out: list[tuple[str, Strike, type[BaseException]]] = []
    for place, times in rng.sample(found, min(count, len(found))):
        code, offset = place
        turn = 1 + rng.randrange(times)
        name = f"{os.path.basename(code.co_filename)}:{code.co_qualname}+{offset}, {turn} of {times}"
        out.append((name, functools.partial(strike, place, turn), Injected))
    return out


def _where(error: BaseException) -> str:
    """Where it was raised: the last lines of its traceback."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/tests/faults/" not in f.filename]
    return " < ".join(f"{os.path.basename(f.filename)}:{f.lineno} {f.name}" for f in reversed(frames[-3:]))


def attack(target: Target, place: str, strike: Strike, error: type[BaseException]) -> tuple[str, list[str]]:
    """What became of the fault (arrived, lost, missed), and what is wrong after it."""
    target.begin()
    before, wrong, fate = look(target.program.draws), [], "lost"
    try:
        if not strike():
            fate = "missed"
    except error as raised:
        fate = "arrived"
        place = f"{place} ({_where(raised)})"
    except SmeltError as raised:
        fate = "told"
        del raised
    except (Exception, KeyboardInterrupt) as raised:
        fate = f"as {type(raised).__name__}"
        del raised
    finally:
        sys.setprofile(None)
        sys.settrace(None)
    wrong += changes(before, look(target.program.draws))
    wrong += left_behind()
    gc.collect()  # what the fault has left may switch something as it dies
    wrong += [f"later: {text}" for text in changes(before, look(target.program.draws))]
    for _ in range(2):
        different = target.differs()
        if different:
            wrong.append(different)
            break
    return fate, [f"{place}: {text}" for text in wrong]


def campaign(task: str) -> dict[str, Any]:
    """`program/backend/kind/seed/count`."""
    name, backend, kind, seed, count = task.split("/")
    rng = random.Random(task)
    os.environ["SMELT_STRICT"] = "0"  # what fails runs in eager
    torch.set_num_threads(1)
    fates: dict[str, int] = {}
    wrong: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target = Target(PROGRAMS[name], backend)
        faults = strikes(target, kind, rng, int(count))
        for place, strike, error in faults:
            fate, found = attack(target, place, strike, error)
            fates[fate] = fates.get(fate, 0) + 1
            wrong += found
    return {"row": task, "status": "wrong" if wrong else "ok", "detail": wrong, "fates": fates, "faults": len(faults)}
