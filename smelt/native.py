"""Prim graph in, program out: loops, schedule, kernels, build, host program. The CPU back half of the pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from smelt.base.options import Options
from smelt.base.report import Report
from smelt.base.stats import spend
from smelt.codegen.host import Rendered, render_cpp
from smelt.loops.describe import describe as describe_loops
from smelt.loops.lower import lower
from smelt.prims.table import PRIMS
from smelt.runtime.build import build
from smelt.runtime.externs import EXTERNS, ExternKernel, extern
from smelt.runtime.fallback import Slot
from smelt.runtime.launch import launch, launch_short
from smelt.runtime.memory import empty_strided
from smelt.runtime.workspace import Workspaces
from smelt.schedule.describe import describe as describe_schedule
from smelt.schedule.plan import schedule

Program = Callable[[list[torch.Tensor]], list[torch.Tensor]]


def compile_program(gm: fx.GraphModule, options: Options, report: Report, name: str = "") -> Program:
    """The program of a prim graph: boxed, list of tensors in, list of results out, in exactly the graph's strides.

    Args:
        gm: a prim graph; every node has `meta["val"]`.
        name: put before the names of the artefacts, such as "forward_".
    """
    started = time.perf_counter()
    loops = lower(gm)
    spend("loops", time.perf_counter() - started)
    report.add(f"4_{name}loops.txt", lambda: describe_loops(loops))
    started = time.perf_counter()
    plan = schedule(loops, options)
    spend("schedule", time.perf_counter() - started)
    report.add(f"5_{name}schedule.txt", lambda: describe_schedule(plan))
    started = time.perf_counter()
    rendered = render_cpp(plan)
    spend("codegen", time.perf_counter() - started)
    report.add(f"6_{name}kernels.cpp", lambda: "\n".join(rendered.cpp_sources))
    report.add(f"7_{name}host.py", lambda: rendered.host_source)
    return load(rendered, options)


def load(rendered: Rendered, options: Options) -> Program:
    """Build the kernels and execute the host text."""
    addresses: dict[str, int] = {}
    if rendered.cpp_sources:
        libraries = build(rendered.cpp_sources)
        for library, names in zip(libraries, rendered.exports, strict=True):
            addresses |= {name: library.address(name) for name in names}

    def bound(name: str, params: dict[str, Any], inputs: list[Any], outputs: list[Any]) -> ExternKernel:
        if name in EXTERNS or name.count(".") == 2:
            return extern(name, params, inputs, outputs, only=options.gemm)
        return _reference(name, params)

    scope: dict[str, Any] = {
        "extern": bound,
        "Slot": Slot,
        "Workspaces": Workspaces,
        "launch": launch,
        "launch_short": launch_short,
        "empty_strided": empty_strided,
        "torch": torch,
        "address": addresses.__getitem__,
        "constants": rendered.constants,
    }
    exec(compile(rendered.host_source, "<smelt host program>", "exec"), scope)
    return scope["call"]


def _reference(name: str, params: dict[str, Any]) -> Any:
    """A prim without an external kernel of its own runs its eager reference."""
    prim = PRIMS[name]

    class Reference:
        @staticmethod
        def call(*tensors: torch.Tensor) -> Any:
            rest = iter(tensors)
            return prim.reference(*(params[p] if p in params else next(rest) for p in prim.parameters))

    return Reference
