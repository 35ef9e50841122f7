"""The driver: outputs, constants, streams, fallbacks, speed of a large graph."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx

from smelt.base.errors import CompileError
from smelt.base.options import Options
from smelt.base.stats import reset_stats, stats
from smelt.graph.ir.meta import meta_of
from smelt.prims import ops
from smelt.prims.decompose import decompose, fallbacks
from smelt.prims.random_bits import uniform
from smelt.prims.registry import DECOMPOSITIONS, decomposition
from tests.prims.prim_check import names

aten = torch.ops.aten


class Joint:
    """Builds an ATen graph with metas taken from real results."""

    def __init__(self) -> None:
        self.graph, self.root, self.real = fx.Graph(), torch.nn.Module(), {}

    def input(self, value: torch.Tensor, name: str = "x") -> fx.Node:
        return self._keep(self.graph.placeholder(name), value)

    def constant(self, value: torch.Tensor) -> fx.Node:
        name = f"c{len(self.real)}"
        setattr(self.root, name, value)
        return self._keep(self.graph.get_attr(name), value)

    def call(self, op: Any, *args: Any, **kwargs: Any) -> fx.Node:
        value = op(*fx.map_arg(args, self.real.__getitem__), **fx.map_arg(kwargs, self.real.__getitem__))
        return self._keep(self.graph.call_function(op, args, kwargs), value)

    def _keep(self, node: fx.Node, value: Any) -> fx.Node:
        self.real[node] = value
        node.meta["val"] = tuple(map(meta_of, value)) if isinstance(value, (tuple, list)) else meta_of(value)
        return node

    def done(self, *outputs: Any) -> fx.GraphModule:
        self.graph.output(outputs)
        return fx.GraphModule(self.root, self.graph)


X = torch.randn(3, 4)


def test_outputs_have_the_strides_that_the_caller_expects():
    g = Joint()
    x = g.input(torch.randn(3, 4))
    gm = g.done(g.call(aten.add.Tensor, x, x), g.call(operator.getitem, g.call(aten.sort.default, x), 1))
    metas = [replace(n.meta["val"], stride=(1, 3)) for n in gm.graph.output_node().args[0]]
    gm.graph.output_node().meta["val"] = tuple(metas)
    prims = decompose(gm)
    output = prims.graph.output_node()
    assert list(output.meta["val"]) == [n.meta["val"] for n in output.args[0]] == metas
    assert output.args[0][1].args[0].meta["val"][1].stride == (1, 3)


def test_metas_names_and_output_metas_are_kept():
    g = Joint()
    x = g.input(X.t())
    prims = decompose(g.done(g.call(aten.exp.default, x), None))
    nodes = list(prims.graph.nodes)
    assert nodes[0].name == "x" and nodes[0].meta["val"].stride == (1, 4)
    assert nodes[-1].meta["val"] == (meta_of(X.t().exp()), None)
    assert all("val" in n.meta for n in nodes)
    assert torch.equal(prims(X)[0], X.exp())
    assert "smelt_prims_ops_exp" in prims.code


def test_copies_that_become_inputs_stay_copies():
    g = Joint()
    x = g.input(X)
    y = g.call(aten.exp.default, x)
    prims = decompose(g.done(x, g.call(aten.clone.default, x), y, g.call(aten.clone.default, y), y))
    assert sorted(names(prims)) == ["clone", "clone", "exp"]
    first, copy, exp, other, again = prims(X)
    assert first is X and copy is not X and exp is again and other is not exp
    assert torch.equal(copy, X) and torch.equal(other, exp)


def test_small_constants_become_numbers():
    g = Joint()
    x = g.input(X)
    total = g.call(aten.add.Tensor, g.call(aten.mul.Tensor, x, g.constant(torch.tensor(2.0))), g.constant(X[0]))
    prims = decompose(g.done(total))
    assert [n.op for n in prims.graph.nodes].count("get_attr") == 1
    assert set(names(prims)) == {"mul", "broadcast_in_dim", "add"}
    assert torch.equal(prims(X)[0], X * 2 + X[0])


def test_several_results():
    g = Joint()
    parts = g.call(aten.split.Tensor, g.input(X), 2)
    second = g.graph.call_function(operator.getitem, (parts, 1))
    second.meta["val"] = meta_of(X[2:])
    prims = decompose(g.done(second))
    assert names(prims) == ["slice"] and torch.equal(prims(X)[0], X[2:])


def test_unknown_operators_stay_and_are_counted():
    reset_stats()
    g = Joint()
    x = g.input(X)
    twice = g.call(aten.mul.Tensor, x, 2.0)
    least = g.call(aten.linalg_lstsq.default, twice, twice)
    item = g.graph.call_function(operator.getitem, (least, 0))
    item.meta["val"] = least.meta["val"][0]
    prims = decompose(g.done(item))
    assert fallbacks(prims) == {"aten.linalg_lstsq.default": 1} and stats()["fallback_ops"] == 1
    torch.testing.assert_close(prims(X)[0], torch.linalg.lstsq(X * 2, X * 2)[0])


def test_dtypes_outside_the_prims_stay():
    z = torch.randn(3, dtype=torch.complex64)
    g = Joint()
    prims = decompose(g.done(g.call(aten.sin.default, g.input(z))))
    assert fallbacks(prims) == {"aten.sin.default": 1} and torch.equal(prims(z)[0], z.sin())


def random_graph() -> fx.GraphModule:
    g = Joint()
    x = g.input(X)
    g.input(torch.tensor(5), "seed")
    a, b = g.call(aten.bernoulli.p, x, 0.25), g.call(aten.bernoulli.p, x, 0.25)
    return g.done(a, b)


def test_random_operators_draw_from_streams_of_their_own():
    a, b = decompose(random_graph())(X, torch.tensor(9))
    for stream, drawn in enumerate((a, b)):
        assert torch.equal(drawn, (uniform(torch.tensor(9), stream, (3, 4)) < 0.25).float())
    assert not torch.equal(a, b)


def test_eager_rng_keeps_random_operators():
    prims = decompose(random_graph(), Options(eager_rng=True))
    assert fallbacks(prims) == {"aten.bernoulli.p": 2}


def test_randomness_without_a_seed_stays_eager():
    g = Joint()
    prims = decompose(g.done(g.call(aten.rand_like.default, g.input(X))))
    assert fallbacks(prims) == {"aten.rand_like.default": 1}


def test_dead_code_and_repetition_vanish():
    g = Joint()
    x = g.input(X)
    g.call(aten.sin.default, x)
    one, two = g.call(aten.exp.default, x), g.call(aten.exp.default, x)
    prims = decompose(g.done(g.call(aten.add.Tensor, one, two)))
    assert names(prims) == ["exp", "add"]


def test_prims_pass_through():
    g = Joint()
    x = g.input(X)
    again = decompose(decompose(g.done(g.call(aten.gelu.default, x))))
    torch.testing.assert_close(again(X)[0], torch.nn.functional.gelu(X))


def test_a_wrong_decomposition_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(DECOMPOSITIONS, aten.exp.default, lambda p, x: p.convert(x, torch.float64))
    g = Joint()
    with pytest.raises(CompileError, match="aten.exp.default gave float64"):
        decompose(g.done(g.call(aten.exp.default, g.input(X))))


def test_an_operator_has_one_decomposition():
    with pytest.raises(ValueError, match="two decompositions"):
        decomposition(aten.exp.default)(lambda p, x: x)


def test_layer_norm_takes_two_reductions_and_one_that_corrects_them():
    g = Joint()
    out = g.call(aten.native_layer_norm.default, g.input(X), [4], None, None, 1e-5)
    item = g.graph.call_function(operator.getitem, (out, 0))
    item.meta["val"] = out.meta["val"][0]
    prims = decompose(g.done(item))
    assert names(prims).count("sum") == 3 and ops.rsqrt in {n.target for n in prims.graph.nodes}


def test_nll_backward_has_no_scatter():
    g = Joint()
    target = torch.tensor([1, 0, 3])
    args = (g.input(torch.tensor(1.0), "g"), g.input(X), g.input(target, "t"), None, 1, -100)
    prims = decompose(g.done(g.call(aten.nll_loss_backward.default, *args, g.input(torch.tensor(3.0), "n"))))
    assert not {"scatter", "scatter_add", "index_put"} & set(names(prims))


def test_operands_that_are_all_numbers_become_a_tensor():
    g = Joint()
    calls = [(aten.div.Tensor_mode, {"rounding_mode": "trunc"}), (aten.mul.Tensor, {}), (aten.div.Tensor, {})]
    out = [g.call(op, 17, 4, **kwargs) for op, kwargs in calls]
    for ours, eager in zip(decompose(g.done(*out))(), (g.real[node] for node in out), strict=True):
        assert ours.dtype == eager.dtype and torch.equal(ours, eager)
