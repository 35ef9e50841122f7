"""Scatter for GPUs: one kernel copies the base, another writes or adds elements, atomically if indices may be equal."""

from __future__ import annotations

from dataclasses import replace

import torch

from smelt.base.errors import CompileError
from smelt.codegen.triton.kernel import TileKernel, TritonKernel
from smelt.codegen.triton.tiles import Axis, flat_configs
from smelt.loops.ir import Index, Scatter
from smelt.schedule.dependencies import Names
from smelt.schedule.group import Group, fresh_index
from smelt.schedule.plan import Schedule
from smelt.shapes.expr import flat_index
from smelt.shapes.size import same

ATOMIC = frozenset({torch.float32, torch.float64, torch.int32, torch.int64})
"""Element types that the GPU adds atomically (sums of narrower floats run in float32)."""


def render_scatter(group: Group, plan: Schedule, autotune: bool = False) -> list[TritonKernel]:
    """Render the kernels of a group that is one scatter; only the second kernel if the scatter writes into its base."""
    (member,) = group.members.values()
    node = member.node
    assert isinstance(node, Scatter)
    update = _update(node, plan, autotune)
    return [update] if plan.starts_in_place(node) else [_copy(node, plan, autotune), update]


def _opened(node: Scatter, plan: Schedule, shape: object, autotune: bool) -> tuple[TileKernel, Index]:
    names = Names()
    index, order = fresh_index(shape, names)  # type: ignore[arg-type]
    axis = Axis("x", order)
    kernel = TileKernel(
        plan, [axis], flat_configs(axis.size, plan.machine.tiles, autotune=autotune), ((axis.size, "XBLOCK"),)
    )
    kernel.arguments.written.add(node.name)
    kernel.running.append(node.name)
    kernel.decide_width([flat_index(fresh_index(node.meta.shape, names)[0], plan.strides[node.name]).range()])
    kernel.open_axis(axis, kernel.program_start(axis, 0))
    return kernel, index


def _copy(node: Scatter, plan: Schedule, autotune: bool) -> TritonKernel:
    kernel, index = _opened(node, plan, node.meta.shape, autotune)
    kernel.store(node.name, index, node.base(kernel, index))
    return replace(kernel.finish(f"{node.name} base"), computes=(node.name,), scatter_step="base")


def _update(node: Scatter, plan: Schedule, autotune: bool) -> TritonKernel:
    kernel, index = _opened(node, plan, node.ranges, autotune)
    value = node.body(kernel, index)
    target = node.target(kernel, index)
    meets = any(not same(n, 1) and d not in node.parallel for d, n in enumerate(node.ranges))
    if not node.accumulate:
        kernel.store(node.name, target, value)
    elif meets:
        if node.meta.dtype not in ATOMIC:
            raise CompileError(f"triton adds no {node.meta.dtype} atomically")
        kernel.store(node.name, target, value, atomic=True)
    else:
        old = kernel.from_memory(node.name, target)
        kernel.store(node.name, target, kernel.apply("add", node.meta.dtype, old, value))
    return replace(kernel.finish(f"{node.name} updates"), computes=(node.name,), scatter_step="elements")
