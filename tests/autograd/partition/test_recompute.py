"""The cost model: what is free, what is stored anyway, what is dear to compute again."""

from __future__ import annotations

import math

import pytest
import torch
from torch import fx

from smelt.autograd.partition.recompute import Costs, is_barrier, is_heavy, never_twice, saved_bytes
from smelt.graph.ir.meta import meta_of
from smelt.prims.builder import Builder


def build() -> tuple[Builder, fx.Node, fx.Node]:
    graph = fx.Graph()
    nodes = []
    for name, shape in (("x", (64, 32)), ("w", (32, 32))):
        nodes.append(graph.placeholder(name))
        nodes[-1].meta["val"] = meta_of(torch.empty(shape))
    return Builder(graph), *nodes


def costs(p: Builder, *outputs: fx.Node) -> Costs:
    nodes = list(p.graph.nodes)
    return Costs(nodes, set(nodes), outputs)


def test_values_in_memory_are_cheaper_to_keep():
    p, x, w = build()
    product = p.mm(x, w)
    between = p.exp(product)
    operand = p.tanh(between)
    second = p.mm(operand, w)
    c = costs(p, second)
    assert c.keep(x) < c.keep(second) < c.keep(product) == c.keep(operand) < c.keep(between)


def test_views_and_tuples_are_never_kept_but_small_slices_are():
    p, x, w = build()
    product = p.mm(x, w)
    turned = p.permute(product, (1, 0))
    row = p.slice(product, (0, 0), (1, 32), (1, 1))
    most = p.slice(product, (0, 0), (60, 32), (1, 1))
    values, _ = p.sort(product, 0, False, True)
    c = costs(p, turned, row, most, values)
    assert c.keep(turned) == c.keep(most) == c.keep(values.args[0]) == math.inf
    assert c.keep(row) < c.keep(values) < math.inf
    assert c.recompute_cost(turned) == 0.0


def test_work_grows_with_the_function():
    p, x, w = build()
    product = p.mm(x, w)
    cheap, slow, total = p.add(product, 1.0), p.erf(product), p.sum(product, (1,))
    c = costs(p, cheap, slow, total)
    assert 0 < c.recompute_cost(cheap) < c.recompute_cost(slow) < c.recompute_cost(product)
    assert c.recompute_cost(total) >= product.meta["val"].nbytes


def test_work_is_as_recorded():
    p, x, w = build()
    product = p.mm(x, w)
    functions = (p.neg, p.sqrt, p.exp, p.tan, p.lgamma)
    made = [function(product) for function in functions]
    c = costs(p, *made)
    work = [c.recompute_cost(node) / node.target.facts.cost for node in made]
    assert work == pytest.approx([work[0]] * len(work))
    assert [node.target.facts.cost for node in made] == [1, 4, 12, 25, 60]


def test_joining_an_older_value_is_dear():
    p, x, w = build()
    first = p.exp(p.mm(x, w))
    block = p.mm(first, w)
    joined, alone = p.add(first, block), p.add(block, 1.0)
    c = costs(p, joined, alone)
    assert c.recompute_cost(joined) > joined.meta["val"].nbytes > c.recompute_cost(alone)


def test_barriers_and_heavy_values():
    p, x, w = build()
    product, looked_up = p.mm(x, w), p.index(x, (p.iota(3, 0, 1, torch.int64, torch.device("cpu")), None))
    assert is_barrier(product) and is_heavy(product) and is_barrier(looked_up) and not is_heavy(looked_up)
    assert not is_barrier(p.exp(x)) and not is_barrier(x)


def test_random_aten_operators_are_never_run_twice():
    p, x, _ = build()
    drawn = p.call(torch.ops.aten.rand_like.default, (x,), {}, x.meta["val"])
    same = p.call(torch.ops.aten.linalg_inv.default, (x,), {}, x.meta["val"])
    assert never_twice(drawn) and not never_twice(same) and is_heavy(same)


def test_saved_bytes_leave_inputs_out():
    p, x, w = build()
    assert saved_bytes([x, p.mm(x, w)]) == 64 * 32 * 4


def test_a_product_of_a_value_with_itself_has_a_cost():
    p, _, w = build()
    square = p.mm(w, w)
    assert costs(p, square).recompute_cost(square) > 2.0 * 32**3 * 0.1
