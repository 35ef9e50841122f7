"""No form of kernel moves more than an element at once through pointers that nobody has declared, on sm_90."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import fx

from smelt.abi.kernel_source import KernelSource
from smelt.base.options import Options
from smelt.codegen.triton.host import render_triton
from smelt.loops.lower import lower
from smelt.schedule.machine import GPU
from smelt.schedule.plan import schedule
from tests.loops import graphs
from tests.loops.graphs import GraphBuilder

pytest.importorskip("triton")

from tests.codegen.triton.machine_code import instructions, widths
from tests.codegen.triton.test_products_built import smallest, template


def softmax(g: GraphBuilder, dtype: torch.dtype) -> fx.GraphModule:
    x = g.convert(g.input(512, 1024, dtype=dtype), torch.float32)
    return g.build(g.convert(graphs.softmax(g, x, 1), dtype))


def norm_and_columns(g: GraphBuilder, dtype: torch.dtype) -> fx.GraphModule:
    """Rows are folded and columns summed in one kernel."""
    x, w, grad = (
        g.convert(g.input(*shape, dtype=dtype), torch.float32) for shape in ((4096, 512), (512,), (4096, 512))
    )
    y, *rest = graphs.layer_norm(g, x, w, w)
    return g.build(g.convert(g.sum(g.mul(grad, y), (0,)), dtype), g.convert(y, dtype), *(r for r in rest))


def columns(g: GraphBuilder, dtype: torch.dtype) -> fx.GraphModule:
    return g.build(g.convert(g.sum(g.convert(g.input(2048, 2048, dtype=dtype), torch.float32), (0,)), dtype))


def transposed(g: GraphBuilder, dtype: torch.dtype) -> fx.GraphModule:
    return g.build(g.add(g.permute(g.input(512, 768, dtype=dtype), (1, 0)), g.input(768, 512, dtype=dtype)))


def bundle(g: GraphBuilder, dtype: torch.dtype) -> fx.GraphModule:
    return g.build(*(g.add(g.input(1 << 12 + n % 3, dtype=dtype), 1.0) for n in range(12)))


PROGRAMS: list[Callable[[GraphBuilder, torch.dtype], fx.GraphModule]] = [
    softmax, norm_and_columns, columns, transposed, bundle,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS)
def test_kernels(program: Callable[..., fx.GraphModule], tmp_path: Path) -> None:
    plan = schedule(lower(program(GraphBuilder(), torch.bfloat16)), Options(target="triton"), None, GPU)
    sources = render_triton(plan, torch.device("cpu"), False, False).kernels
    wide = set()
    for source in sources:
        plain = instructions(source, tmp_path)
        wide |= widths(plain, "LDG") | widths(plain, "STG")
        moved = instructions(source.undeclared(source.divisible), tmp_path)
        assert widths(moved, "LDG") | widths(moved, "STG") <= {"32", "U16"}
    assert wide & {"64", "128"}


def test_templates_of_products(tmp_path: Path) -> None:
    source = template(torch.bfloat16, (512, 768, 384), False, torch.bfloat16)
    source = KernelSource(source.source, source.signature, source.divisible, (smallest(source),), source.name)
    plain = instructions(source, tmp_path)
    assert any(name.startswith("LDGSTS") and name.endswith("128") for name in plain)
    moved = instructions(source.undeclared(source.divisible), tmp_path)
    assert not any("128" in name or ".64" in name for name in moved if name.startswith(("LDG", "STG")))
