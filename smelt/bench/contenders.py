"""The contenders: eager, torch.compile, smelt. Each turns a model into a callable; compilers are imported late.

A contender is named `eager`, `torch.compile`, `smelt`, or `package.module:function` with `function(model, settings)
-> callable` (used to test the bench itself). The name of a compiler may be followed, each after a colon, by a mode
(`torch.compile:reduce-overhead`, which overrides the run's mode), `regions` (only the repeated blocks are compiled;
for torch.compile by Accelerate's `compile_regions`), `step` (`smelt:step`: the whole training step) and another of
smelt's backends (`smelt:aot_eager`).
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from smelt.base.errors import unknown_name
from smelt.base.options import MODES
from smelt.bench.workload import Settings

Prepared = Callable[..., Any]
Prepare = Callable[[nn.Module, Settings], Prepared]

PACKAGE = Path(__file__).parent.parent

DEFAULT = "default"

RIVAL_MODES: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "reduce-overhead": {"triton.cudagraphs": True},
    "max-autotune": {"max_autotune": True, "triton.cudagraphs": True, "coordinate_descent_tuning": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True, "coordinate_descent_tuning": True},
}
"""Options equivalent to the modes of torch.compile, which accepts either a mode or options (see
`torch._inductor.list_mode_options`).
"""


STEP, REGIONS = "step", "regions"
"""Suffixes of a compiler's name that are neither modes nor backends."""


def eager(model: nn.Module, settings: Settings) -> Prepared:
    """Returns the model unchanged."""
    return model


@dataclass(frozen=True)
class TorchCompile:
    """torch.compile, the compiler to compare with. torch loads it at the first `torch.compile`, so its import is part
    of the cold start.

    regions: whether Accelerate compiles only the repeated blocks.
    """

    mode: str | None = None
    regions: bool = False

    def __call__(self, model: nn.Module, settings: Settings) -> Prepared:
        mode = self.mode or settings.mode
        compile: Any = importlib.import_module("accelerate.utils").compile_regions if self.regions else torch.compile
        if not settings.eager_rng:
            return compile(model, mode=mode, dynamic=settings.dynamic)
        options = RIVAL_MODES[mode or DEFAULT] | {"fallback_random": True}
        return compile(model, dynamic=settings.dynamic, options=options)


@dataclass(frozen=True)
class SmeltCompile:
    """The compiler of this project, which is also imported when it is first used.

    whole_step: whether it compiles the whole training step, with the optimizer, if any. regions: whether it compiles
    only the repeated blocks.
    """

    mode: str | None = None
    backend: str = "smelt"
    whole_step: bool = False
    regions: bool = False

    def __call__(self, target: Any, settings: Settings) -> Prepared:
        mode, options = self.mode or settings.mode, None
        if settings.eager_rng:  # a mode is a set of options, and only one of the two is accepted
            mode, options = None, MODES[mode or DEFAULT] | {"eager_rng": True}
        compiler = load_compiler()
        compile = compiler.compile_regions if self.regions else compiler.compile
        return compile(target, backend=self.backend, mode=mode, dynamic=settings.dynamic, options=options)


smelt_compile = SmeltCompile()

EXAMPLES = (
    "eager",
    "torch.compile",
    "torch.compile:reduce-overhead",
    "smelt",
    "smelt:step",
    "smelt:reduce-overhead",
    "smelt:regions",
)
"""Valid names that the error about an unknown name lists."""


def find_contender(name: str) -> Prepare:
    """Returns the function that prepares a model for the contender of that name.

    Raises:
        OptionError: the name is unknown (the message lists valid names and the nearest).
    """
    if name == "eager":
        return eager
    family, *suffixes = name.split(":")
    if family not in ("torch.compile", "smelt"):
        if len(suffixes) == 1:
            return getattr(importlib.import_module(family), suffixes[0])
        raise unknown_name("contender", name, EXAMPLES)
    mode = mode_of(name)
    regions, step = REGIONS in suffixes, STEP in suffixes
    backends = [suffix for suffix in suffixes if suffix not in (mode, REGIONS, STEP)]
    if _are_consistent(suffixes):
        if family == "torch.compile" and not step and not backends:
            return TorchCompile(mode, regions)
        if family == "smelt" and len(backends) < 2 and "" not in suffixes:
            return SmeltCompile(mode, backends[0] if backends else "smelt", step, regions)
    raise unknown_name("contender", name, EXAMPLES)


def _are_consistent(suffixes: Sequence[str]) -> bool:
    """Whether no suffix occurs twice, at most one is a mode, and the suffixes do not ask for both regions and the whole
    step.
    """
    modes = [suffix for suffix in suffixes if suffix in MODES]
    return len(suffixes) == len({*suffixes}) and len(modes) < 2 and not {REGIONS, STEP} <= {*suffixes}


def family_of(name: str) -> str:
    """Returns the compiler of a contender: the contender's name up to the first colon."""
    return name.partition(":")[0]


def mode_of(name: str) -> str | None:
    """Returns the mode that a contender's name asks for, or None."""
    return next((suffix for suffix in name.split(":")[1:] if suffix in MODES), None)


def load_compiler() -> ModuleType:
    """Import and return the real `smelt` package.

    A measuring process starts with an empty `smelt` package (see `processes.process`), whose import is completed here:
    cold starts include the import of each compiler, and eager's memory must not include ours.
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


def use_torch_allocator_only(name: str) -> None:
    """Make torch's allocator allocate all tensors of this contender, because a profiler counts only that memory."""
    if family_of(name) == "smelt":
        load_compiler()
        importlib.import_module("smelt.runtime.memory").recycle(False)


def compiler_counts(name: str) -> dict[str, Any]:
    """Returns the numbers of graphs, breaks and more that the contender's compiler counted in this process; empty for
    eager.
    """
    if family_of(name) == "smelt":
        counts = dict(load_compiler().stats())
        counts["break_reasons"] = {_short(reason): times for reason, times in counts["break_reasons"].items()}
        return counts
    # torch's compiler keeps its counters in this module, if it was loaded.
    dynamo = sys.modules.get("torch._dynamo.utils")
    if family_of(name) == "torch.compile" and dynamo is not None:
        counters = dynamo.counters
        return {
            "graphs": int(counters["stats"]["unique_graphs"]),
            "breaks": int(sum(counters["graph_break"].values())),
            "break_reasons": {_short(str(reason)): times for reason, times in counters["graph_break"].items()},
            "ops": int(counters["stats"]["calls_captured"]),
        }
    return {}


def _short(reason: str) -> str:
    """Shorten a reason to one line of a few hundred characters, with the last two components of each path."""
    return re.sub(r"(?:/[^/\s:()]+)*/([^/\s:()]+/[^/\s:()]+\.py)", r"\1", " ".join(reason.split()))[:300]
