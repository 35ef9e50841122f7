"""Locks that a forked process can take, and that an interrupted thread gives back.

One that another thread held at a fork would never be given back, nor one whose `with` block an interrupt left between
its end and the release.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_locks: dict[int, weakref.ref[Any]] = {}  # dicts are copied in one step, while other threads make locks
_flags: dict[int, weakref.ref[Any]] = {}


def _known(lock: Any, kind: dict[int, weakref.ref[Any]]) -> Any:
    at = id(lock)
    kind[at] = weakref.ref(lock, lambda _: kind.pop(at, None))
    return lock


def _living(kind: dict[int, weakref.ref[Any]]) -> list[Any]:
    return [lock for lock in [each() for each in list(kind.values())] if lock is not None]


def new_lock() -> Any:
    """A lock that is free in a process that was just forked.

    The thread that holds it may take it again: signal handlers and finalizers that run compiled code come anywhere.
    """
    return _known(threading.RLock(), _locks)


def new_flag() -> threading.Lock:
    """A lock that says whether something is in use: whoever takes it first has it, any thread may give it back."""
    flag: threading.Lock = _known(threading.Lock(), _flags)
    return flag


def held_locks() -> frozenset[int]:
    """The locks that this thread holds."""
    return frozenset([id(lock) for lock in _living(_locks) if lock._is_owned()])


def release_locks(but: frozenset[int]) -> None:
    """Give back what this thread holds, but for some."""
    for lock in _living(_locks):
        while lock._is_owned() and id(lock) not in but:
            lock.release()


def _free_all() -> None:
    for lock in [*_living(_locks), *_living(_flags)]:
        lock._at_fork_reinit()


os.register_at_fork(after_in_child=_free_all)
