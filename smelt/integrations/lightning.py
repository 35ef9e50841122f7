"""Lightning: `Trainer.fit(smelt.compile(model))`, and Lightning's functions `from_compiled` and `to_uncompiled`.

Lightning compiles the steps of a LightningModule (`training_step` and the like), since the Trainer calls these,
and recognises compiled models by the class that torch's compiler makes. A model that smelt compiled is a
LightningModule itself, so that the rest of Lightning works with it. The two functions above are replaced by functions
that accept models compiled by smelt, when the first class of Lightning is compiled.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import smelt

PACKAGES = ("lightning.pytorch", "pytorch_lightning")

BOOKKEEPING = ("log", "log_dict")
"""Methods that read much of the Trainer's changing state and compute little."""

STEPS = ("forward", "training_step", "validation_step", "test_step", "predict_step")
"""The methods that Lightning compiles."""


def _from_compiled(original: Callable[..., Any], model: Any) -> Any:
    if not smelt.is_compiled(model):
        return original(model)
    module = model._orig_mod
    if module._compiler_ctx is None:
        module._compiler_ctx = {
            "compiler": "smelt",
            **{f"original_{name}": getattr(module, name) for name in STEPS},
        }
        for name in STEPS:
            setattr(module, name, smelt.compile(getattr(module, name), **model._smelt_remake.kwargs))
    return module


def _to_uncompiled(original: Callable[..., Any], model: Any) -> Any:
    if not smelt.is_compiled(model):
        return original(model)
    module = model._orig_mod
    return original(module) if module._compiler_ctx is not None else module


_REPLACED: dict[str, Callable[..., Any]] = {
    "from_compiled": _from_compiled,
    "to_uncompiled": _to_uncompiled,
    "_maybe_unwrap_optimized": _from_compiled,  # the model that the Trainer trains
}


def take_functions(cls: type) -> None:
    """Replace both functions in the Lightning package of a class, once for each package; other classes are ignored."""
    for package in PACKAGES:
        module = next((base for base in cls.__mro__ if base.__module__ == f"{package}.core.module"), None)
        if module is not None:
            _take(package, module)


@functools.cache
def _take(package: str, module_class: Any) -> None:
    for name in BOOKKEEPING:
        setattr(module_class, name, smelt.disable(getattr(module_class, name), reason="it keeps Lightning's books"))
    compiles = sys.modules.get(f"{package}.utilities.compile")
    for name, ours in _REPLACED.items():
        own = getattr(compiles, name, None)
        if own is None:
            continue
        replacement = functools.wraps(own)(functools.partial(ours, own))
        for key, module in list(sys.modules.items()):
            if key.startswith(f"{package}.") and getattr(module, name, None) is own:
                setattr(module, name, replacement)
