"""Accelerate's functions for compiled models (`is_compiled_module`, `unwrap_model` and the like) with models of smelt.

Accelerate recognises compiled models by the class that torch's compiler makes. Where Accelerate is loaded when smelt
compiles a model, its functions are replaced by functions that accept models compiled by smelt, so that they also work
under `smelt run` and after `smelt.install()`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

import smelt


def _is_compiled(module: nn.Module) -> bool:
    return isinstance(module, nn.Module) and smelt.is_compiled(module)


def _is_compiled_module(original: Callable[..., bool], module: nn.Module) -> bool:
    return _is_compiled(module) or original(module)


def _has_compiled_regions(original: Callable[..., bool], module: nn.Module) -> bool:
    return ("_orig_mod" in module.__dict__ and any(map(_is_compiled, module.modules()))) or original(module)


def _compile_regions(original: Callable[..., nn.Module], module: nn.Module, **compile_kwargs: Any) -> nn.Module:
    if compile_kwargs.get("backend") != "smelt":
        return original(module, **compile_kwargs)
    result: nn.Module = smelt.compile_regions(module, **compile_kwargs)
    return result


def _extract_model(
    original: Callable[..., nn.Module],
    model: Any,
    keep_fp32_wrapper: bool = True,
    keep_torch_compile: bool = True,
    recursive: bool = False,
) -> nn.Module:
    regional = not _is_compiled(model) and _has_compiled_regions(lambda module: False, model)
    if not regional and not _is_compiled(model):
        return original(model, keep_fp32_wrapper, keep_torch_compile, recursive)
    outer = model.__dict__["_orig_mod"] if regional else model._orig_mod
    inner = original(outer, keep_fp32_wrapper, keep_torch_compile, recursive)
    if not keep_torch_compile:
        return inner
    if inner is outer:
        return model
    if not regional:
        return model._smelt_remake(inner)
    copies = {id(_original(copy)): copy for copy in model.modules()}  # the wrapped module has its own copy with regions
    return copies.get(id(inner), inner)


def _original(module: Any) -> Any:
    return module._orig_mod if _is_compiled(module) else module.__dict__.get("_orig_mod")


_REPLACED: dict[str, Callable[..., Any]] = {
    "is_compiled_module": _is_compiled_module,
    "has_compiled_regions": _has_compiled_regions,
    "compile_regions": _compile_regions,
    "extract_model_from_parallel": _extract_model,
}


def take_functions() -> None:
    """Replace the functions, if Accelerate is loaded; further calls change nothing."""
    other: Any = sys.modules.get("accelerate.utils.other")
    if not hasattr(other, "extract_model_from_parallel"):  # absent, or just being imported
        return
    for name, ours in _REPLACED.items():
        own = getattr(other, name, None)
        if own is not None and not hasattr(own, "_smelt_original"):
            _replace(name, own, ours)


def _replace(name: str, own: Callable[..., Any], ours: Callable[..., Any]) -> None:
    replacement: Any = functools.wraps(own)(functools.partial(ours, own))
    replacement._smelt_original = own
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is own:  # programs import these functions by name
            setattr(module, name, replacement)
