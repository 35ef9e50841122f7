"""smelt/schedule/products.py: which products of float32 tensor cores multiply in parts."""

from __future__ import annotations

import pytest
import torch

from smelt.base.options import Options
from smelt.loops.lower import lower
from smelt.schedule.machine import CPU, GPU
from smelt.schedule.plan import schedule
from tests.loops.graphs import GraphBuilder

CASES = {
    "linear": ((4096, 768), (768, 768), (0, 1), torch.float32, True),
    "gradient of its input": ((4096, 768), (768, 768), (1, 0), torch.float32, True),
    "narrower": ((4096, 768), (768, 768), (0, 1), torch.bfloat16, False),
    "small": ((512, 768), (768, 768), (0, 1), torch.float32, False),
    "few blocks": ((512, 16384), (16384, 512), (1, 0), torch.float32, False),
    "short": ((65536, 768), (768, 16), (1, 0), torch.float32, False),
}


def products(first, second, order, dtype, machine=GPU, options=None, turned=False):
    g = GraphBuilder()
    a = g.input(*first[::-1], dtype=dtype) if turned else g.input(*first, dtype=dtype)
    a = g.permute(a, (1, 0)) if turned else a
    b = g.permute(g.input(*(second[d] for d in order), dtype=dtype), order)
    gm = g.build(g.tanh(g.mm(a, b)))
    return schedule(lower(gm), options or Options(), None, machine, split_products=True).products


@pytest.mark.parametrize("case", CASES)
def test_large_products_of_float32(case: str):
    *given, wanted = CASES[case]
    found = products(*given)
    assert len(found) == wanted
    assert all(product.epilogue is not None for product in found.values())


def test_the_first_factor_is_contiguous_along_the_depth():
    assert not products((4096, 768), (768, 768), (1, 0), torch.float32, turned=True)


def test_a_cpu_has_no_such_kernels():
    assert not products((4096, 768), (768, 768), (1, 0), torch.float32, CPU)


@pytest.mark.parametrize("count", [1, 3])
def test_casts_that_share_a_launch_stay_out_of_products(count: int):
    """Of weights, under autocast: around the library's call each would be a launch of its own."""
    g = GraphBuilder()
    x = g.input(512, 256, dtype=torch.bfloat16)
    for _ in range(count):
        x = g.tanh(g.mm(x, g.convert(g.input(256, 256), torch.bfloat16)))
    gm = g.build(x)
    plan = schedule(lower(gm), Options(max_autotune=True), None, GPU)
    assert len(plan.products) == count and all(p.epilogue is not None for p in plan.products.values())
    assert [len(p.prologues) for p in plan.products.values()] == [int(count == 1)] * count
    assert sum(len(bundle) for bundle in plan.bundles) == (count if count > 1 else 0)
    plan = schedule(lower(gm), Options(gemm="template"), None, GPU)
    assert [len(p.prologues) for p in plan.products.values()] == [1] * count
