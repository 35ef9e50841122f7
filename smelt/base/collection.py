"""Holds Python's cycle collector back while the compiler works, and gives memory back when it has."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from smelt.base.malloc import release_freed


@contextmanager
def no_collection() -> Iterator[None]:
    """Graphs are many small objects that all live on: looking for garbage among them only costs time.

    Afterwards one look at what was made meanwhile, which Python would take at its next object anyway, finds the graphs
    that were given up: what they took goes back to the system, not only what is freed at once.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
            gc.collect(0)
            release_freed()
