"""Locks that work after a fork, and that can be released after an interrupt.

An ordinary lock that another thread has locked at a fork is never released in the child process. An ordinary lock is
also never released if an interrupt ends its `with` block just before the release.
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
    """A reentrant lock that is unlocked in a process that was just forked.

    It is reentrant because signal handlers and finalizers may run compiled code at any point.
    """
    return _known(threading.RLock(), _locks)


def new_flag() -> threading.Lock:
    """A lock that serves as a flag "in use": any thread may release it."""
    flag: threading.Lock = _known(threading.Lock(), _flags)
    return flag


def held_locks() -> frozenset[int]:
    """The ids of the locks of `new_lock` that this thread has locked."""
    return frozenset([id(lock) for lock in _living(_locks) if lock._is_owned()])


def release_locks(but: frozenset[int]) -> None:
    """Release all locks of `new_lock` that this thread has locked, except those whose ids are in `but`."""
    for lock in _living(_locks):
        while lock._is_owned() and id(lock) not in but:
            lock.release()


def _free_all() -> None:
    for lock in [*_living(_locks), *_living(_flags)]:
        lock._at_fork_reinit()


os.register_at_fork(after_in_child=_free_all)
