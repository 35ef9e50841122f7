"""A variable is live where some path reads it before writing it."""

from __future__ import annotations

from smelt.capture.core.frames import slot_names
from smelt.capture.core.liveness import live_slots
from smelt.capture.opcodes.decoding import decode


def live_after(fn, name):
    """Names that are live right after the call of the global `name`."""
    decoded = decode(fn.__code__)
    calls = [i for i, n in enumerate(decoded.names) if n in ("CALL", "CALL_KW")]
    names = slot_names(fn.__code__)
    return {names[slot] for slot in live_slots(decoded, calls[0] + 1)}


def mark():
    """Where the functions below are looked at."""


def test_straight_line():
    def fn(a, b, c):
        mark()
        b = 2
        return a + b

    assert live_after(fn, "mark") == {"a"}


def test_branches_and_loops():
    def fn(a, b, c, d):
        mark()
        while a:
            if b:
                c = 1
            a = c
        return 5

    assert live_after(fn, "mark") == {"a", "b", "c"}


def test_handlers_keep_what_they_read():
    def fn(a, b):
        try:
            mark()
            b = 1
        except ValueError:
            return a
        return b

    assert live_after(fn, "mark") == {"a"}


def test_closures_are_live():
    def fn(a, b):
        mark()
        return lambda: b

    assert "b" in live_after(fn, "mark") and "a" not in live_after(fn, "mark")
