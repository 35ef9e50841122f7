"""Makes the controls of `torch.compiler` (stance, substitutes, reset) act on smelt as well.

Controls that mark tensors and functions (`mark_dynamic`, `disable`, `allow_in_graph`) need no change: capture reads
the marks. Stances, substitutes and resets change the state of torch's compiler: their functions are replaced by
functions that change the state of both compilers.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

import smelt

STANCES = ("default", "force_eager", "fail_on_recompile", "eager_on_recompile")
"""The stances that both smelt and torch.compile have."""


class _Both:
    """Sets a stance of torch's compiler and of smelt: permanently, for a `with` block, or around a function."""

    _dynamo_forbidden = True

    def __init__(self, of_torch: Any, of_smelt: Any) -> None:
        self.both = (of_torch, of_smelt)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        for each in self.both:
            fn = each(fn)
        return fn

    def __enter__(self) -> None:
        for each in self.both:
            each.__enter__()

    def __exit__(self, *error: Any) -> None:
        for each in reversed(self.both):
            each.__exit__(*error)


def _set_stance(original: Callable[..., Any], stance: str = "default", **more: Any) -> _Both:
    of_torch = original(stance, **more)  # raises for wrong arguments
    unknown = [f"{name}={value!r}" for name, value in more.items() if value]
    if stance not in STANCES:
        unknown.append(repr(stance))
    if unknown:
        _warn(f"torch.compiler.set_stance: smelt has no {', '.join(unknown)}, and compiles as by default")
    return _Both(of_torch, smelt.stance(stance if stance in STANCES else "default"))


def _reset(original: Callable[..., None]) -> None:
    original()
    smelt.reset()


def _substitute_in_graph(original: Callable[..., Any], original_fn: Any, *args: Any, **kwargs: Any) -> Any:
    of_torch = original(original_fn, *args, **kwargs)

    def substitute(fn: Callable[..., Any]) -> Any:
        wrapped = of_torch(fn)
        smelt.substitute_in_graph(original_fn)(fn)
        return wrapped

    return substitute


@functools.cache
def _warn(text: str) -> None:
    warnings.warn(smelt.SmeltWarning(text), stacklevel=4)


_BOTH: dict[str, Callable[..., Any]] = {
    "set_stance": _set_stance,
    "reset": _reset,
    "substitute_in_graph": _substitute_in_graph,
}


def take_controls() -> None:
    """Replace the functions in `torch.compiler`; further calls change nothing."""
    for name, both in _BOTH.items():
        own = getattr(torch.compiler, name)
        if not hasattr(own, "_smelt_original"):
            replacement = functools.wraps(own)(functools.partial(both, own))
            replacement._smelt_original = own  # type: ignore[attr-defined]
            setattr(torch.compiler, name, replacement)
