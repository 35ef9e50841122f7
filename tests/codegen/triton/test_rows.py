"""Row kernels of large tensors: how much a thread reads at once, by the configurations, and that sm_90 takes them."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from smelt.abi.kernel_source import KernelSource
from smelt.base.options import Options
from smelt.codegen.triton.host import render_triton
from smelt.loops.lower import lower
from smelt.runtime.triton.build import build
from smelt.schedule.machine import GPU, H100
from smelt.schedule.plan import schedule
from tests.codegen.triton.test_kernel import check
from tests.loops import graphs
from tests.loops.graphs import GraphBuilder

pytest.importorskip("triton")

NARROW, WIDE = torch.bfloat16, torch.float32


def rendered(gm: fx.GraphModule) -> list[KernelSource]:
    plan = schedule(lower(gm), Options(target="triton"), None, GPU)
    return list(render_triton(plan, torch.device("cpu"), False, False).kernels)


def softmax(rows: int, columns: int, dtype: torch.dtype) -> fx.GraphModule:
    g = GraphBuilder()
    x = g.input(rows, columns, dtype=dtype)
    return g.build(g.convert(graphs.softmax(g, g.convert(x, WIDE), 1), dtype))


def softmax_backward(rows: int, columns: int, dtype: torch.dtype) -> fx.GraphModule:
    g = GraphBuilder()
    grad, out = (g.convert(g.input(rows, columns, dtype=dtype), WIDE) for _ in range(2))
    return g.build(g.convert(graphs.softmax_backward(g, grad, out, 1), dtype))


def layer_norm_backward(rows: int, columns: int, dtype: torch.dtype) -> fx.GraphModule:
    g = GraphBuilder()
    x, grad = (g.convert(g.input(rows, columns, dtype=dtype), WIDE) for _ in range(2))
    w, mean, rstd = g.input(columns), g.input(rows), g.input(rows)
    into, *sums = graphs.layer_norm_backward(g, grad, x, mean, rstd, w)
    return g.build(g.convert(into, dtype), *sums)


def products(size: int, factors: int) -> fx.GraphModule:
    """A sum of products of several numbers each."""
    g = GraphBuilder()
    whole = g.input(size)
    for _ in range(factors - 1):
        whole = g.mul(whole, g.input(size))
    return g.build(g.sum(whole, (0,)))


@pytest.mark.parametrize(
    ("gm", "elements", "warps"),
    [
        (softmax(32768, 4096, NARROW), 4096, 4),  # 64 bytes of one tensor
        (softmax(32768, 4096, WIDE), 4096, 8),
        (softmax_backward(32768, 4096, NARROW), 4096, 8),  # 32 of each of two
        (softmax_backward(32768, 4096, WIDE), 4096, 16),
        (softmax(264, 4096, NARROW), 4096, 16),  # too few rows to fill the GPU otherwise
        (softmax(8192, 32000, NARROW), 8192, 16),  # walked: 16 bytes a load, two under way
        (softmax(8192, 32000, WIDE), 4096, 16),
        (softmax(300, 32000, NARROW), 2048, 16),
        (products(16384, 5), 4096, 16),  # one program: few turns, which nothing else covers
    ],
)
def test_bytes_that_a_thread_asks_for(gm: fx.GraphModule, elements: int, warps: int) -> None:
    (source,) = rendered(gm)
    (config,) = source.configs
    assert (dict(config.constants)["RBLOCK"], config.num_warps) == (elements, warps)


@pytest.mark.parametrize(
    ("columns", "dtype", "stages"), [(768, NARROW, 3), (4096, NARROW, 3), (8192, NARROW, 2), (8192, WIDE, 1)]
)
def test_the_next_rows_of_a_layer_norms_backward_are_read_ahead(columns: int, dtype: torch.dtype, stages: int) -> None:
    sources = rendered(layer_norm_backward(8192, columns, dtype))
    mixed = [source for source in sources if "IBLOCK" in dict(source.configs[0].constants)]
    (source,) = mixed
    assert dict(source.configs[0].constants)["STAGES"] == stages
    assert "in tl.range(0, 16, RBLOCK, num_stages=STAGES):" in source.source
    assert build(source, source.configs[0], 90).result().shared <= H100.shared_bytes // 2


def test_rows_that_are_read_ahead_give_the_same_sums() -> None:
    check(layer_norm_backward(1030, 48, WIDE), 2e-2)
