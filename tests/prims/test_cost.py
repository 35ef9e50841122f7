"""Arithmetic in bytes: proportional to what the records state, for every size and dtype."""

from __future__ import annotations

import pytest
import torch

from smelt.graph.ir.meta import meta_of
from smelt.prims.cost import OPERATIONS_PER_BYTE, arithmetic_bytes
from smelt.prims.table import PRIMS, Kind


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cost_of_every_pointwise_primitive_is_as_recorded(shape, dtype):
    meta = meta_of(torch.empty(shape, dtype=dtype))
    count = meta.numel
    for prim in PRIMS.values():
        if prim.kind in (Kind.POINTWISE, Kind.RANDOM):
            assert arithmetic_bytes(prim, [meta], [meta]) == count * prim.facts.cost / OPERATIONS_PER_BYTE, prim.name


@pytest.mark.parametrize(("n", "k", "m"), [(1, 1, 1), (4, 64, 8), (128, 3, 5)])
def test_products_cost_their_multiplications_and_additions(n, k, m):
    a, b, made = (meta_of(torch.empty(*shape)) for shape in ((n, k), (k, m), (n, m)))
    assert arithmetic_bytes(PRIMS["mm"], [made], [a, b]) == 2 * n * k * m / OPERATIONS_PER_BYTE


def test_every_product_has_a_count():
    assert all(prim.facts.flops is not None for prim in PRIMS.values() if prim.kind is Kind.PRODUCT)


def test_other_kinds_are_memory_traffic_alone():
    meta = meta_of(torch.empty(8, 8))
    for name in ("permute", "sum", "cat", "index", "sort"):
        assert arithmetic_bytes(PRIMS[name], [meta], [meta]) == 0.0, name
