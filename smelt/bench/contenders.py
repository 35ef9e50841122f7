"""Who takes part: eager, torch.compile, smelt. Each turns a model into a callable; compilers are imported late.

A contender is named `eager`, `torch.compile`, `smelt`, `smelt:step` (the whole training step), `smelt:BACKEND`
(another of smelt's backends), or
`package.module:function` with `function(model, settings) -> callable` (used to test the bench itself).
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from smelt.base.errors import unknown_name
from smelt.bench.workload import Settings

Prepared = Callable[..., Any]
Prepare = Callable[[nn.Module, Settings], Prepared]

PACKAGE = Path(__file__).parent.parent


def eager(model: nn.Module, settings: Settings) -> Prepared:
    """The model as it is."""
    return model


def torch_compile(model: nn.Module, settings: Settings) -> Prepared:
    """The rival. torch loads its compiler at this call, so that its import counts as cold start."""
    # It takes a mode or options, not both.
    options: dict[str, Any] | None = {"fallback_random": True} if settings.eager_rng and settings.mode is None else None
    return torch.compile(model, mode=settings.mode, dynamic=settings.dynamic, options=options)


def smelt_compile(model: nn.Module, settings: Settings, backend: str = "smelt") -> Prepared:
    """The compiler of this project, imported at this call for the same reason."""
    smelt = load_compiler()
    options = {"eager_rng": True} if settings.eager_rng else None
    return smelt.compile(model, backend=backend, mode=settings.mode, dynamic=settings.dynamic, options=options)


def smelt_step(target: Any, settings: Settings) -> Prepared:
    """The whole training step, with the optimizer, as one graph; asked for a model only, the model."""
    return smelt_compile(target, settings)


smelt_step.whole_step = True  # type: ignore[attr-defined]

CONTENDERS: dict[str, Prepare] = {
    "eager": eager,
    "torch.compile": torch_compile,
    "smelt": smelt_compile,
    "smelt:step": smelt_step,
}


def find_contender(name: str) -> Prepare:
    """The function that prepares a model for the contender of that name.

    Raises:
        OptionError: an unknown name (lists the valid ones and the nearest).
    """
    if name in CONTENDERS:
        return CONTENDERS[name]
    prefix, _, rest = name.partition(":")
    if not rest:
        raise unknown_name("contender", name, CONTENDERS)
    if prefix == "smelt":
        return lambda model, settings: smelt_compile(model, settings, backend=rest)
    return getattr(importlib.import_module(prefix), rest)


def load_compiler() -> ModuleType:
    """The real `smelt` package.

    A measuring process starts with a bare one (see `smelt.bench.process`), whose import is completed here: cold starts
    include the import of each compiler, and eager's memory must not include ours.
    """
    package = sys.modules.get("smelt")
    if package is None:
        return importlib.import_module("smelt")
    if getattr(package, "__file__", None) is None:
        spec = importlib.util.spec_from_file_location(
            "smelt", PACKAGE / "__init__.py", submodule_search_locations=[str(PACKAGE)]
        )
        assert spec is not None and spec.loader is not None
        package.__spec__, package.__file__ = spec, spec.origin
        spec.loader.exec_module(package)
    return package


def compiler_counts(name: str) -> dict[str, Any]:
    """Graphs, breaks and more that the contender's compiler counted in this process; empty for eager."""
    if name.partition(":")[0] == "smelt":
        counts = dict(load_compiler().stats())
        counts["break_reasons"] = {_short(reason): times for reason, times in counts["break_reasons"].items()}
        return counts
    # Read where torch's compiler keeps its counts, if it was ever loaded.
    dynamo = sys.modules.get("torch._dynamo.utils")
    if name == "torch.compile" and dynamo is not None:
        counters = dynamo.counters
        return {
            "graphs": int(counters["stats"]["unique_graphs"]),
            "breaks": int(sum(counters["graph_break"].values())),
            "break_reasons": {_short(str(reason)): times for reason, times in counters["graph_break"].items()},
            "ops": int(counters["stats"]["calls_captured"]),
        }
    return {}


def _short(reason: str) -> str:
    """A reason in one line of a few hundred letters, with the last two parts of each path."""
    return re.sub(r"(?:/[^/\s:()]+)*/([^/\s:()]+/[^/\s:()]+\.py)", r"\1", " ".join(reason.split()))[:300]
