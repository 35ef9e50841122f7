"""Pauses Python's cycle collector while the compiler works, and gives memory back when it has."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from smelt.base.malloc import release_freed
from smelt.base.process_state import switch

_num_paused = 0
"""Number of blocks that now keep the garbage collector paused, which was on before."""

switch("held back", lambda: _num_paused, lambda before: globals().update(_num_paused=before), shared=True)


@contextmanager
def no_collection(collect: bool = True) -> Iterator[None]:
    """Pauses the collector: graphs and modules are many small objects that stay alive, so a search for garbage only
    costs time.

    With `collect`, the young objects, which Python would collect soon anyway, are collected once at the end, so that
    the memory of discarded graphs returns to the system. An import discards nothing.
    """
    global _num_paused
    enabled = gc.isenabled()
    gc.disable()
    _num_paused += enabled
    try:
        yield
    finally:
        if enabled:
            _num_paused -= 1
            gc.enable()
            if collect:
                gc.collect(1)  # what looks on the way have left is one generation older
                release_freed()


def collect_given_up() -> None:
    """Collect young objects after a stage, whose graphs are reference cycles, so that later stages reuse their memory.

    Not for a program that has switched collection off itself.
    """
    if _num_paused:
        gc.collect(0)  # the next generation would be moved out of the reach of the last look
