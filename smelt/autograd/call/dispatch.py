"""Runs programs below autograd and outside of autocast, by setting torch's excluded dispatch keys from C.

The address of the thread-local set of dispatch keys is found by a search. Then the effect of writing there is compared
with that of torch's guards in several modes. If the effects differ, the guards themselves are entered, which takes half
a microsecond each.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from smelt.autograd import _native
from smelt.base.torch_c import below_autograd, disable_autocast, inference_mode, local_dispatch_keys

Program = Callable[[list[Any]], list[Any]]
Guards = tuple[Callable[[], Any], ...]

_MODES: tuple[Callable[[], Any], ...] = (
    torch.enable_grad,
    torch.no_grad,
    torch.inference_mode,
    lambda: torch.autocast("cpu", dtype=torch.bfloat16),
)
"""The modes in which guards and writes from C are compared."""

_found: dict[Callable[[], Any], int] | None = None
"""For each guard, the dispatch keys that it excludes; empty if they cannot be set from C, None if the search has not
run yet.
"""


def called_plainly(program: Program) -> Callable[..., tuple[Any, ...]]:
    """Returns the program as a function `(*inputs) -> tuple` that runs below autograd."""
    keys = _keys((below_autograd,))
    if keys:
        return _native.Excluding(program, keys, False)

    def call(*inputs: Any) -> tuple[Any, ...]:
        with below_autograd():
            return tuple(program([*inputs]))

    return call


def excluding(program: Program, *guards: Callable[[], Any]) -> Program:
    """Returns the boxed program, wrapped to run inside these guards (`below_autograd`, `disable_autocast`)."""
    keys = _keys(guards)
    if keys:
        return _native.Excluding(program, keys, True)
    for guard in guards:
        program = _inside(program, guard)
    return program


def _inside(program: Program, guard: Callable[[], Any]) -> Program:
    def run(inputs: list[Any]) -> list[Any]:
        with guard():
            return program(inputs)

    return run


def _keys(guards: Guards) -> int:
    """Returns the union of the dispatch keys that the guards exclude; 0 if the guards have to be entered."""
    global _found
    if _found is None:
        _found = _search()
    keys = 0
    for guard in guards:
        if not (_found or {}).get(guard):
            return 0
        keys |= (_found or {})[guard]
    return keys


def _search() -> dict[Callable[[], Any], int] | None:
    """Returns for each guard the keys that it excludes; empty if keys cannot be set from C, None if active modes
    prevent the search.
    """
    path = Path(torch.__file__).parent / "lib" / "libc10.so"
    with inference_mode(False):
        if not path.exists() or not _native.set_dispatch_words(str(path), 0):
            return {}
        if _native.dispatch_words() != (0, 0):
            return None
        usual = local_dispatch_keys()[1]
        _native.set_dispatch_words(str(path), usual)
        with below_autograd():
            below = local_dispatch_keys()[1] & ~usual
        # autocast keys are excluded by default; an autocast region includes them
        found: dict[Callable[[], Any], int] = {below_autograd: below, disable_autocast: usual}
    return found if below and all(_agrees(mode, found) for mode in _MODES) else {}


def _agrees(mode: Callable[[], Any], found: dict[Callable[[], Any], int]) -> bool:
    """Whether, in a mode, calls exclude the same keys as the guards and restore them afterwards."""
    with mode():
        before = _native.dispatch_words(), local_dispatch_keys()
        for guard, keys in found.items():
            with guard():
                wanted = local_dispatch_keys()
            if _native.Excluding(_read, keys, True)([]) != [wanted]:
                return False
            if before != (_native.dispatch_words(), local_dispatch_keys()):
                return False
    return True


def _read(_: list[Any]) -> list[Any]:
    return [local_dispatch_keys()]
