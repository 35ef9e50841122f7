"""Static search for the `except`, `finally` and `with` around an instruction that handle an error."""

from __future__ import annotations

import builtins

from smelt.base.class_tables import isinstance
from smelt.capture.core.frames import Frame

Errors = tuple[type[BaseException], ...]


def acts_on(frame: Frame, index: int, errors: Errors, excepts: bool = False, but: Errors = ()) -> bool:
    """Whether one of these errors, raised at an instruction, would run an exception handler of the program in this
    frame.

    Args:
        excepts: consider only clauses that catch the error, not `finally` and `with`, which pass it on.
        but: ignore clauses that also catch one of these errors.
    """
    decoded = frame.decoded
    row = decoded.handler_at(index)
    if row is None:
        return False
    names, at = decoded.names, row.target
    if names[at] == "CLEANUP_THROW":  # in `yield from`: not a handler of the program
        return acts_on(frame, at, errors, excepts, but)
    if names[at] != "PUSH_EXC_INFO":  # the end of a clause, a comprehension or a generator's body
        return acts_on(frame, names.index("RERAISE", at), errors, excepts, but)
    at += 1
    while True:
        begin = at
        while names[at] in _NAMING:
            at += 1
        if names[at] == "RERAISE":
            return acts_on(frame, at, errors, excepts, but)
        if names[at] != "CHECK_EXC_MATCH":
            break
        if any(_may_be(frame, each, errors, but) for each in range(begin, at)):
            return True
        at = decoded.targets[at + 1]
    return acts_on(frame, begin, errors, excepts, but) if excepts and names[begin] != "POP_TOP" else not but


_NAMING = frozenset({"LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF", "LOAD_ATTR", "BUILD_TUPLE"})


def _may_be(frame: Frame, index: int, errors: Errors, but: Errors) -> bool:
    """Whether an instruction of an `except` clause loads an object that may be the class, or a base, of one of the
    errors."""
    decoded = frame.decoded
    if decoded.names[index] == "BUILD_TUPLE":
        return False
    if decoded.names[index] != "LOAD_GLOBAL":
        return not but
    name = decoded.attributes[decoded.raw[index] >> 1]
    found = frame.globals.get(name, getattr(builtins, name, None))
    if not isinstance(found, type):
        return not but
    return any(issubclass(error, found) for error in errors) and not any(issubclass(error, found) for error in but)


def catches(error: BaseException, kinds: object) -> bool:
    """Whether `except kinds` catches an exception. Classes are compared by identity, so that no metaclass runs.

    Raises:
        TypeError: `kinds` is not made of exception classes.
    """
    each = kinds if isinstance(kinds, tuple) else (kinds,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in each):
        raise TypeError("catching classes that do not inherit from BaseException is not allowed")
    return any(base is kind for base in type(error).__mro__ for kind in each)
