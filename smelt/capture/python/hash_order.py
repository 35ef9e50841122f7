"""Notes that a program depends on the order of a set, which differs between processes for items such as strings.

Python salts the hashes of strings anew in each process, and hashes of other objects derive from their addresses. Within
one process the order of equal sets made in equal steps stays the same, so only artefacts need a guard for it.
"""

from __future__ import annotations

import types
from collections.abc import Callable

from smelt.base.class_tables import isinstance
from smelt.capture.core.interface import Args, Interpreter

_FIXED = (bool, int, float, complex)
"""Classes whose hashes are the same in every process."""

_WITHOUT_ORDER = frozenset(map(id, (set, frozenset, len, bool, id, type, any, all)))
"""Ids of C functions whose result does not show the order of a set."""


def note_order(vm: Interpreter, value: object) -> None:
    """Note that the items of a value are read in order, if it is a set whose order differs between processes."""
    # the methods of the base: a subclass of the program may count calls of its own
    if isinstance(value, set):
        count, items = set.__len__(value), set.__iter__(value)
    elif isinstance(value, frozenset):
        count, items = frozenset.__len__(value), frozenset.__iter__(value)
    else:
        return
    if count > 1 and any(type(item) not in _FIXED for item in items):
        vm.guards.hash_order = True


def note_call(vm: Interpreter, fn: Callable[..., object], args: Args, sorts: bool) -> None:
    """Note that a C function reads the items of its arguments in order.

    Args:
        sorts: whether the call is one of `sorted` without a key, which reads them in any order.
    """
    if sorts or id(fn) in _WITHOUT_ORDER:
        return
    is_method = type(fn) is types.MethodDescriptorType and fn.__objclass__ in (set, frozenset)
    if is_method and fn.__name__ != "pop":
        return
    for value in args:
        note_order(vm, value)
