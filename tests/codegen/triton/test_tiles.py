"""Tiles of large kernels without row reductions: how many elements a thread has, and that sm_90 takes them."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from smelt.runtime.triton.build import build
from tests.codegen.triton.test_rows import rendered
from tests.loops.graphs import GraphBuilder

pytest.importorskip("triton")


def chain(*steps: str) -> fx.GraphModule:
    g = GraphBuilder()
    value = g.convert(g.input(8192, 3072, dtype=torch.bfloat16), torch.float32)
    for step in steps:
        value = getattr(g, step)(value)
    return g.build(g.convert(value, torch.bfloat16))


def column_sums(columns: int, *steps: str) -> fx.GraphModule:
    g = GraphBuilder()
    value = x = g.convert(g.input(8192, columns, dtype=torch.bfloat16), torch.float32)
    for step in steps:
        value = getattr(g, step)(value)
    return g.build(g.convert(value, torch.bfloat16), g.sum(g.mul(value, x), (0,)))


@pytest.mark.parametrize(("steps", "warps"), [(("neg",), 2), (("erf", "exp"), 4)])
def test_threads_that_compute_much_have_fewer_elements(steps: tuple[str, ...], warps: int) -> None:
    (source,) = rendered(chain(*steps))
    (config,) = source.configs
    assert (config.constants, config.num_warps) == ((("XBLOCK", 1024),), warps)


@pytest.mark.parametrize(
    ("columns", "steps", "block", "rows", "warps"),
    [
        (3072, ("neg",), 128, 16, 2),
        (3072, ("erf", "exp"), 128, 8, 2),
        (768, ("erf", "exp"), 64, 16, 4),  # wide blocks would be too few programs
        (3136, ("neg",), 64, 16, 2),  # rows end where narrow blocks do
    ],
)
def test_blocks_of_columns(columns: int, steps: tuple[str, ...], block: int, rows: int, warps: int) -> None:
    source = rendered(column_sums(columns, *steps))[0]
    (config,) = source.configs
    constants = dict(config.constants)
    assert (constants["XBLOCK"], constants["RBLOCK"], config.num_warps) == (block, rows, warps)
    built = build(source, config, 90).result()
    assert built.threads == 32 * warps
