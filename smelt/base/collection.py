"""Pauses Python's cycle collector while the compiler works, and returns freed memory to the system afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from smelt.base.malloc import release_freed
from smelt.base.process_state import switch

_num_paused = 0
"""Number of active `no_collection` blocks that have switched the garbage collector off."""

switch("held back", lambda: _num_paused, lambda before: globals().update(_num_paused=before), shared=True)


@contextmanager
def no_collection(collect: bool = True) -> Iterator[None]:
    """Context in which the garbage collector is off: graphs and modules are many small objects that stay alive, so a
    search for garbage costs time and finds little.

    With `collect`, the two young generations, which Python would collect soon anyway, are collected once at the end, so
    that the memory of discarded graphs returns to the system. Imports pass False, since they discard nothing: what they
    made becomes old without a search.
    """
    global _num_paused
    enabled = gc.isenabled()
    if enabled and not collect:
        gc.collect(1)  # the program's own garbage does not become old
    gc.disable()
    _num_paused += enabled
    try:
        yield
    finally:
        if enabled:
            _num_paused -= 1
            gc.enable()
            if collect:
                gc.collect(1)
                release_freed()
            else:
                _age()


def _age() -> None:
    """Move all young objects to the oldest generation, without a search and without hastening the next full one.

    Objects that the program has frozen itself would be unfrozen; then everything stays as it is.
    """
    if gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()


def collect_young_objects() -> None:
    """Collect young objects while compilers of other processes run; what remains is not looked at again.

    Nothing is collected if the program itself has switched the garbage collector off.
    """
    if _num_paused:
        gc.collect(1)
