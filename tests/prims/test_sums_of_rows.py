"""Two gradients of one table: rows are added into the product, and nothing else is touched."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smelt
from smelt.prims.sums_of_rows import add_rows_into_sums
from smelt.prims.table import Prim
from tests.loops.graphs import GraphBuilder, real_inputs, run_eager


def names(gm: torch.fx.GraphModule) -> list[str]:
    return [node.target.name for node in gm.graph.nodes if isinstance(node.target, Prim)]


def graph(dtype: torch.dtype = torch.float32, fill: float = 0.0, accumulate: bool = True, turned: bool = False):
    """(x @ y) + rows that are put into a constant."""
    g = GraphBuilder()
    x, y = g.input(8, 4, dtype=dtype), g.input(4, 6, dtype=dtype)
    places, values = g.input(5, dtype=torch.int64), g.input(5, 6, dtype=dtype)
    rows = g.index_put(g.full((8, 6), fill, dtype, torch.device("cpu")), (places, None), values, accumulate)
    product = g.mm(x, y)
    return g, rows, g.add(rows, product) if turned else g.add(product, rows)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_added_into_the_other_term(dtype: torch.dtype, turned: bool) -> None:
    g, _, total = graph(dtype, turned=turned)
    gm = g.build(total)
    inputs = real_inputs(gm)
    (want,) = run_eager(gm, inputs)
    found = add_rows_into_sums(gm)
    assert names(found) == ["mm", "index_put"]
    found.graph.lint()
    (got,) = run_eager(found, inputs)
    torch.testing.assert_close(got, want)


def test_two_tables_of_rows_share_their_zeros() -> None:
    g = GraphBuilder()
    places, values, more = g.input(5, dtype=torch.int64), g.input(5, 6), g.input(7, dtype=torch.int64)
    zeros = g.full((8, 6), 0.0, torch.float32, torch.device("cpu"))
    first = g.index_put(zeros, (places, None), values, True)
    gm = g.build(g.add(first, g.index_put(zeros, (more, None), g.input(7, 6), True)))
    inputs = real_inputs(gm)
    (want,) = run_eager(gm, inputs)
    found = add_rows_into_sums(gm)
    assert [name for name in names(found) if name in ("add", "index_put")] == ["index_put", "index_put"]
    torch.testing.assert_close(run_eager(found, inputs)[0], want)


@pytest.mark.parametrize("case", [{"dtype": torch.bfloat16}, {"fill": 1.0}, {"accumulate": False}])
def test_other_sums_stay(case: dict[str, object]) -> None:
    g, _, total = graph(**case)  # type: ignore[arg-type]
    assert names(add_rows_into_sums(g.build(total))).count("add") == 1


def test_rows_that_somebody_else_reads_stay() -> None:
    g, rows, total = graph()
    assert "add" in names(add_rows_into_sums(g.build(total, rows)))


class Tied(nn.Module):
    """A table that looks words up and scores them."""

    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.table = nn.Embedding(3000, 128, padding_idx=padding)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.table(words)) @ self.table.weight.t()


@pytest.mark.parametrize("padding", [None, 0])
def test_gradient_of_a_tied_table(padding: int | None) -> None:
    torch.manual_seed(0)
    model, words = Tied(padding), torch.randint(0, 40, (4, 32))
    compiled = smelt.compile(model)

    def gradient(run: nn.Module, module: nn.Module) -> torch.Tensor:
        module.zero_grad()
        run(words).square().mean().backward()
        weight = module.table.weight  # type: ignore[union-attr]
        return weight.grad.clone()  # type: ignore[union-attr, operator]

    exact = Tied(padding).double()
    exact.load_state_dict(model.state_dict())
    want = gradient(exact, exact)
    error = (gradient(model, model) - want).abs().max()
    for _ in range(3):
        assert (gradient(compiled, model) - want).abs().max() <= 4 * error
