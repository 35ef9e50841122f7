"""Holds Python's cycle collector back while the compiler works, and gives memory back when it has."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from smelt.base.malloc import release_freed
from smelt.base.process_state import switch

_held = 0
"""How many times collection is held back that was on."""

switch("held back", lambda: _held, lambda before: globals().update(_held=before), shared=True)


@contextmanager
def no_collection() -> Iterator[None]:
    """Graphs are many small objects that all live on: looking for garbage among them only costs time.

    Afterwards one look at what was made meanwhile, which Python would take at its next object anyway, finds the graphs
    that were given up: what they took goes back to the system, not only what is freed at once.
    """
    global _held
    enabled = gc.isenabled()
    gc.disable()
    _held += enabled
    try:
        yield
    finally:
        if enabled:
            _held -= 1
            gc.enable()
            gc.collect(1)  # what looks on the way have left is one generation older
            release_freed()


def collect_given_up() -> None:
    """One look at what was made since the last one, when a stage has ended: the graphs that it needed are cycles.

    The next stages use their memory again instead of more. Not for a program that has switched collection off itself.
    """
    if _held:
        gc.collect(0)  # the next generation would be moved out of the reach of the last look
