"""Locks that a forked process can take: one that another thread held at the fork would never be given back."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def new_lock() -> threading.Lock:
    """A `threading.Lock` that is free in a process that was just forked."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def new_recursive_lock() -> Any:
    """A `threading.RLock` that is free in a process that was just forked."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _free_all() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()


os.register_at_fork(after_in_child=_free_all)
