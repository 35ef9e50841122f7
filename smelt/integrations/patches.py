"""`smelt.install()`: replaces `torch.compile`, so that programs and libraries that call it are compiled by smelt.

Libraries reach torch's compiler through `torch.compile` and `Module.compile`, which calls `torch.compile`: replacing
that one name is enough.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

import smelt

_ours: set[str] = set()
"""Names of the backends of `torch.compile` whose calls smelt handles."""

_original: Callable[..., Any] | None = None


def install() -> None:
    """Make `torch.compile` and `Module.compile` compile with smelt.

    Calls that name a backend other than torch's own still go to torch. Options that only torch's backend has are
    ignored, with one warning for each. Models that were compiled before stay as they are.
    """
    _take({"inductor", "smelt"})


def uninstall() -> None:
    """Restore torch's own `torch.compile`. Models that smelt has compiled stay compiled."""
    global _original
    _ours.clear()
    if _original is not None:
        torch.compile = _original
        _original = None


def take_named() -> None:
    """Make `torch.compile(backend="smelt")` call `smelt.compile` with smelt's capture; other calls go to torch."""
    _take({"smelt"})


def _take(backends: set[str]) -> None:
    global _original
    _ours.update(backends)
    if _original is None:
        _original = torch.compile
        torch.compile = functools.wraps(_original)(_compile)


def _compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
    **more: Any,
) -> Any:
    chosen = _default_backend() if backend is None else backend
    if (
        not isinstance(chosen, str)
        or chosen not in _ours
        or any(value is not None for name, value in more.items() if name != "name")
    ):
        extra = more if backend is None else {"backend": backend, **more}
        own = _original or torch.compile  # `uninstall` leaves references to this function
        return own(model, fullgraph=fullgraph, dynamic=dynamic, mode=mode, options=options, disable=disable, **extra)
    kwargs: dict[str, Any] = {
        "fullgraph": fullgraph,
        "dynamic": dynamic,
        "mode": mode,
        "options": _known_options(options) if chosen == "inductor" and mode is None else options,
        "disable": disable,
    }
    return smelt.compile(**kwargs) if model is None else smelt.compile(model, **kwargs)


def _default_backend() -> Any:
    """The backend of a call that names none: torch's own, unless the program has set another default."""
    registry = sys.modules.get("torch._dynamo.backends.registry")  # not imported: the program has set no default
    return getattr(registry, "_default_backend", "inductor")


def _known_options(options: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The given options without those that smelt does not have, with a warning for each; None if no option is left."""
    if not options:
        return None
    ours = smelt.list_options()
    for name in options.keys() - ours:
        _warn_unknown(name)
    return {name: value for name, value in options.items() if name in ours} or None


@functools.cache
def _warn_unknown(name: str) -> None:
    text = f"option {name!r} of torch.compile is left out: smelt has none of this name"
    warnings.warn(smelt.SmeltWarning(f"{text}\n  try: smelt.list_options() lists what there is"), stacklevel=4)
