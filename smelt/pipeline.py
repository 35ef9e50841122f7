"""The passes of the compiler in order; each takes one value (a graph, loops, a schedule) and returns the next one.

torch-level graph -> joint ATen graph -> joint prim graph -> forward and backward -> loops -> schedule -> programs

`run` calls a pass, counts its time under the name of its stage, prints its result under SMELT_TRACE and verifies it
under SMELT_STRICT (`passes.py`). A pass does not change its argument. `driver.py` calls the functions below and handles
threads, reports, fallbacks to eager, and backwards that are compiled on demand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx

from smelt.abi.rendered import Rendered
from smelt.autograd.call.absent_tangents import likely_backward
from smelt.autograd.partition.partition import partition
from smelt.autograd.repeated.expand import expand
from smelt.autograd.repeated.shorten import with_few_blocks
from smelt.autograd.trace.joint import Joint, trace_joint
from smelt.base.imports import late
from smelt.base.options import Options, environment
from smelt.base.precision import products_round_to_tf32
from smelt.codegen.cpp.host import render_cpp
from smelt.loops.emptied import emptied
from smelt.loops.lower import lower
from smelt.loops.split_by_device import PartSequence, split_at_reads
from smelt.passes import PassRunner
from smelt.prims.decompose import decompose
from smelt.prims.passes.channels_last import with_channels_last
from smelt.prims.passes.sums_of_rows import add_rows_into_sums
from smelt.schedule.plan import schedule, watch
from smelt.shapes.size import Symbol
from smelt.target import Target

if TYPE_CHECKING:
    from smelt.codegen.triton.host import locate_checks, render_triton
else:  # programs of the CPU need none of its modules
    locate_checks = late("smelt.codegen.triton.host", "locate_checks")
    render_triton = late("smelt.codegen.triton.host", "render_triton")

PRIM_PASSES = (add_rows_into_sums, with_channels_last)
"""The passes over the joint prim graph, in order."""


def to_prims(
    gm: fx.GraphModule, inputs: Sequence[torch.Tensor], options: Options, run: PassRunner
) -> tuple[Joint, fx.GraphModule]:
    """Trace the joint graph and rewrite it from ATen operators to primitives; of equal blocks, only a few."""

    def traced(gm: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> tuple[Joint, fx.GraphModule]:
        joint = run("joint", trace_joint, gm, inputs, options)
        return joint, run("prims", decompose, joint.module, options, apart=True)

    short = run("joint", with_few_blocks, gm, inputs)
    whole = short and run("prims", expand, *traced(short.module, short.examples), short)
    joint, prims = whole or traced(gm, inputs)
    for rewrite in PRIM_PASSES:
        prims = run("prims", rewrite, prims)
    return joint, prims


def to_halves(
    prims: fx.GraphModule, joint: Joint, at_once: bool, options: Options, run: PassRunner
) -> tuple[fx.GraphModule, fx.GraphModule | None, fx.GraphModule | None, tuple[int, ...]]:
    """Split the joint graph; returns the forward graph, the backward graph (None without gradients), the backward graph
    for the results that probably get gradients (or None), and the positions of the tangents that it does not take.
    """
    forward, backward = run("partition", partition, prims, joint, options)
    if backward is None:
        return forward, None, None, ()
    metas = [joint.tangent_meta(i) for i in joint.differentiable]
    return forward, backward, *run("partition", likely_backward, backward, metas, at_once)


def to_parts(half: fx.GraphModule, run: PassRunner) -> PartSequence | None:
    """The parts of a forward or backward that reads numbers from tensors or changes device; None if it is one part."""
    return run("loops", split_at_reads, half)


def to_emptied(part: fx.GraphModule, zeros: Sequence[Symbol], run: PassRunner) -> fx.GraphModule:
    """The part, specialized to calls in which these unbacked sizes are 0."""
    return run("loops", emptied, part, zeros)


def to_program(part: fx.GraphModule, target: Target, options: Options, run: PassRunner) -> Rendered:
    """The kernels and the host program of a part."""
    loops = run("loops", lower, part, atomic_words=target.device is not None)
    plan = run("schedule", schedule, loops, options, *target.for_schedule())
    if environment().debug_memory:
        lines = {n.name: str(n.meta["line"]) for n in part.graph.nodes if n.meta.get("line") is not None}
        plan = run("schedule", watch, plan, lines)
    if target.device is None:
        return run("codegen", render_cpp, plan)
    how = options.max_autotune, products_round_to_tf32(), options.contract
    return run("codegen", locate_checks, run("codegen", render_triton, plan, target.device, *how), part.graph)
