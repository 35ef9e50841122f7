"""Complex values as pairs: every rule against eager, and nothing complex between two rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

import smelt
from smelt.graph.ir.meta import meta_of
from smelt.prims.decompose import decompose, fallbacks
from smelt.prims.registry import COMPLEX
from tests.prims.aten_check import aten_graph, hold
from tests.prims.rules.cases import Table, b, call, f, i, u

aten = torch.ops.aten


def z(*shape: int) -> torch.Tensor:
    return torch.complex(f(*shape), f(*shape))


def calls() -> Table:
    x, y, real = z(3, 4), z(3, 4), f(3, 4)
    table: Table = {f"{name}.default": [call(x)] for name in "clone alias detach neg tril triu t".split()}
    for name in ("_conj_physical", "conj_physical", "_conj", "abs", "angle", "sgn", "exp"):
        table[f"{name}.default"] = [call(x), call(torch.zeros(2, dtype=torch.complex64))]
    for name in "view _unsafe_view reshape _reshape_alias view_copy".split():
        table[f"{name}.default"] = [call(x, [2, 6], *([[6, 1]] if name == "_reshape_alias" else []))]
    table |= {
        "squeeze.default": [call(z(3, 1))],
        "squeeze.dim": [call(z(3, 1), 1)],
        "squeeze.dims": [call(z(1, 3), [0])],
    }
    table |= {"unsqueeze.default": [call(x, 1)], "expand.default": [call(z(3, 1), [3, 4])]}
    table |= {"permute.default": [call(x, [1, 0])], "transpose.int": [call(x, 0, 1)], "select.int": [call(x, 0, 1)]}
    table |= {"slice.Tensor": [call(x, 1, 1, 4, 2)], "narrow.default": [call(x, 1, 1, 2)], "unbind.int": [call(x, 0)]}
    table |= {"split.Tensor": [call(x, 2, 1)], "split_with_sizes.default": [call(x, [1, 2])]}
    table |= {"diagonal.default": [call(x)], "flip.default": [call(x, [1])], "roll.default": [call(x, [1], [0])]}
    table |= {"repeat.default": [call(x, [2, 1])], "slice_backward.default": [call(x, [3, 9], 1, 1, 9, 2)]}
    table |= {
        "select_backward.default": [call(z(3), [3, 4], 1, 2)],
        "diagonal_backward.default": [call(z(3), [3, 4], 0, 0, 1)],
    }
    table |= {"index_select.default": [call(x, 0, i(5))], "gather.default": [call(x, 0, i(2, 4))]}
    table |= {"index.Tensor": [call(x, [i(2), None])], "unfold.default": [call(x, 1, 2, 1)]}
    table |= {"sum.default": [call(x)], "sum.dim_IntList": [call(x, [0], True)], "mean.default": [call(x)]}
    table |= {"mean.dim": [call(x, [1])], "where.self": [call(b(3, 4), x, real), call(b(3, 4), x, y)]}
    table |= {
        "add.Tensor": [call(x, y), call(x, real), call(real, x, alpha=2), call(x, 1.5)],
        "sub.Tensor": [call(real, x)],
    }
    table |= {"slice_scatter.default": [call(x, z(3, 2), 1, 1, 3)], "select_scatter.default": [call(x, z(4), 0, 1)]}
    table |= {"masked_fill.Scalar": [call(x, b(3, 4), 2.0)], "constant_pad_nd.default": [call(x, [1, 2])]}
    table |= {
        "copy.default": [call(x, y), call(x, real)],
        "cat.default": [call([x, real])],
        "stack.default": [call([x, y], 1)],
    }
    for name in ("view_as_real", "view_as_real_copy"):
        table[f"{name}.default"] = [call(x)]
    for name in ("view_as_complex", "view_as_complex_copy"):
        table[f"{name}.default"] = [call(f(3, 2))]
    table |= {"complex.default": [call(real, f(4))], "polar.default": [call(u(3, 4), f(4))]}
    table |= {"_to_copy.default": [call(real, dtype=torch.complex64), call(x, dtype=torch.complex128)]}
    table |= {
        "full.default": [call([2, 3], 1 + 2j)],
        "full_like.default": [call(x, 3.0)],
        "new_full.default": [call(x, [2], 1j)],
    }
    table |= {"zeros.default": [call([2], dtype=torch.complex64)], "ones.default": [call([2], dtype=torch.complex64)]}
    table |= {f"{name}.default": [call(x)] for name in ("zeros_like", "ones_like")} | {
        "new_zeros.default": [call(x, [2])]
    }
    table |= {"mul.Tensor": [call(x, y), call(real, x), call(x, 2.0)], "mul.Scalar": [call(x, 2j)]}
    table |= {"div.Tensor": [call(x, y), call(x, u(4)), call(real, x)], "div.Scalar": [call(x, 2.0)]}
    table |= {
        "reciprocal.default": [call(x)],
        "eq.Tensor": [call(x, x.flip(0)), call(real, torch.complex(real, real.trunc()))],
        "eq.Scalar": [call(i(5), 2j), call(real.trunc(), 1 + 0j), call(x, 1.0)],
        "ne.Tensor": [call(x, real)],
        "ne.Scalar": [call(torch.tensor([2j, 1.0]), 2j)],
    }
    table["_to_copy.default"].append(call(torch.tensor([0j, 2j, 1.0]), dtype=torch.bool))
    nothing = torch.zeros(4, dtype=torch.complex64)
    table["div.Tensor"] += [call(1e30 * x, 1e30 * y), call(x, 1e30 * y), call(x, nothing)]
    table |= {"mm.default": [call(x, z(4, 2))], "bmm.default": [call(z(2, 3, 4), z(2, 4, 2))]}
    return table


VALUELESS = {"empty_like.default", "empty.memory_format"}
CALLS = calls()
TARGETS = {str(target).removeprefix("aten."): target for target in COMPLEX}


def test_values_that_wait_to_be_conjugated():
    """A conjugate that torch has not computed yet is an input like any other, and so are columns for rows."""
    x = z(3, 4)
    for given in (x.conj(), x.t().conj(), x.t()):
        gm, inputs = aten_graph(aten.exp.default, (given,), {}, given.exp())
        torch.testing.assert_close(decompose(gm)(*inputs)[0], given.exp())


def test_real_results_of_complex_operands():
    x = z(3)
    gm, inputs = aten_graph(aten.zeros_like.default, (x,), {"dtype": torch.float64}, aten.zeros_like(x.real.double()))
    assert decompose(gm)(*inputs)[0].equal(torch.zeros(3, dtype=torch.float64))


def test_every_rule_has_a_case():
    assert set(TARGETS) == set(CALLS) | VALUELESS


@pytest.mark.parametrize("name", sorted(CALLS))
def test_rule(name: str):
    for args, kwargs in CALLS[name]:
        result: Any = TARGETS[name](*args, **kwargs)
        gm, inputs = aten_graph(TARGETS[name], args, kwargs, result)
        prims = decompose(gm)
        assert not fallbacks(prims), name
        hold(TARGETS[name], prims, inputs, result, 1.0)


def test_between_two_rules_nothing_is_complex():
    """|x * conj(x) + 1| of a complex input: its parts are taken once, and nothing is put together."""
    graph = fx.Graph()
    node = graph.placeholder("x")
    x = want = z(5)
    node.meta["val"] = meta_of(x)

    def step(op: Callable[..., Any], value: torch.Tensor, *nodes: Any) -> fx.Node:
        made = graph.call_function(op, nodes)
        made.meta["val"] = meta_of(value)
        return made

    other = step(aten._conj_physical.default, x, node)
    product = step(aten.mul.Tensor, x, node, other)
    want = (x * x.conj()).abs()
    graph.output((step(aten.abs.default, want, product),))
    prims = decompose(fx.GraphModule(torch.nn.Module(), graph))
    assert [n.target.__name__ for n in prims.graph.nodes if "complex" in n.name] == []
    torch.testing.assert_close(prims(x)[0], want)


def test_a_matrix_times_its_adjoint_is_hermitian_to_the_bit() -> None:
    """Factorizations count on it: what should cancel is else amplified by their condition."""
    x = z(6, 5)
    product = smelt.compile(lambda x: x.mH @ x, fullgraph=True)(x)
    assert product.diagonal().imag.equal(torch.zeros(5)) and product.equal(product.mH)


def test_neighbours_of_low_precision_numbers() -> None:
    x, y = torch.tensor([0.0, 1.0, -2.0]).half(), torch.tensor([1.0, -1.0, 8.0]).half()
    assert smelt.compile(torch.nextafter, fullgraph=True)(x, y).equal(torch.nextafter(x, y))


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.float32, torch.complex64])
@pytest.mark.parametrize("number", [1 + 0j, 0j, 2j, 1.5 - 2j])
def test_products_with_complex_numbers(dtype: torch.dtype, number: complex) -> None:
    x = torch.tensor([1, 0, 1]).to(dtype)
    assert torch.equal(smelt.compile(lambda x: x * number)(x), x * number)
