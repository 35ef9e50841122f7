"""Two gradients of one table: rows are added into the product, and nothing else is touched."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smelt
from smelt.prims.passes.sums_of_rows import add_rows_into_sums
from smelt.prims.table import Prim
from tests.loops.graphs import GraphBuilder, real_inputs, run_eager


def names(gm: torch.fx.GraphModule) -> list[str]:
    return [node.target.name for node in gm.graph.nodes if isinstance(node.target, Prim)]


def graph(
    dtype: torch.dtype = torch.float32,
    fill: float = 0.0,
    accumulate: bool = True,
    turned: bool = False,
    places: tuple[int, ...] = (5,),
    table: tuple[int, int] = (40, 16),
):
    """(x @ y) + rows that are put into a constant."""
    g = GraphBuilder()
    x, y = g.input(table[0], 4, dtype=dtype), g.input(4, table[1], dtype=dtype)
    where, values = g.input(*places, dtype=torch.int64), g.input(*places, table[1], dtype=dtype)
    rows = g.index_put(g.full(table, fill, dtype, torch.device("cpu")), (where, None), values, accumulate)
    product = g.mm(x, y)
    return g, rows, g.add(rows, product) if turned else g.add(product, rows)


@pytest.mark.parametrize("places", [(5,), (2, 7), (1,)])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_are_added_into_the_other_term(dtype: torch.dtype, turned: bool, places: tuple[int, ...]) -> None:
    g, _, total = graph(dtype, turned=turned, places=places)
    gm = g.build(total)
    inputs = real_inputs(gm)
    (want,) = run_eager(gm, inputs)
    found = add_rows_into_sums(gm)
    kept = [name for name in names(found) if name in ("mm", "index_put", "add")]
    assert kept == ["mm", *["index_put"] * 3]  # one row of each place, the sums of rows, these into the product
    found.graph.lint()
    (got,) = run_eager(found, inputs)
    torch.testing.assert_close(got, want)


def test_two_tables_of_rows_share_their_zeros() -> None:
    g = GraphBuilder()
    places, values, more = g.input(5, dtype=torch.int64), g.input(5, 16), g.input(7, dtype=torch.int64)
    zeros = g.full((40, 16), 0.0, torch.float32, torch.device("cpu"))
    first = g.index_put(zeros, (places, None), values, True)
    gm = g.build(g.add(first, g.index_put(zeros, (more, None), g.input(7, 16), True)))
    inputs = real_inputs(gm)
    (want,) = run_eager(gm, inputs)
    found = add_rows_into_sums(gm)
    assert [name for name in names(found) if name in ("add", "index_put")] == ["index_put"] * 4
    torch.testing.assert_close(run_eager(found, inputs)[0], want)


@pytest.mark.parametrize(
    "case",
    [
        {"dtype": torch.bfloat16},
        {"fill": 1.0},
        {"accumulate": False},
        {"table": (40, 15)},  # the index would be large beside the table
        {"places": (3, 7)},  # and so would the sums of rows
    ],
)
def test_other_sums_stay(case: dict[str, object]) -> None:
    g, _, total = graph(**case)  # type: ignore[arg-type]
    assert names(add_rows_into_sums(g.build(total))).count("add") == 1


def test_rows_that_another_value_reads_stay() -> None:
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


@pytest.mark.parametrize("shape", [(1000,), (10, 100), (999,)])
def test_many_small_rows_of_one_index_are_not_lost_in_a_large_element(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    table = torch.rand(3000, 32)
    places = torch.zeros(shape, dtype=torch.int64)
    places.view(-1)[::3] = torch.randint(-3000, 3000, places.view(-1)[::3].shape)
    rows = torch.rand(*shape, 32) * 1e-4

    def total(x: torch.Tensor, places: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x * 1e3 + torch.zeros_like(x).index_put((places,), rows, accumulate=True)

    exact = total(table.double(), places, rows.double())
    error = (total(table, places, rows) - exact).abs().max()
    assert (smelt.compile(total)(table, places, rows) - exact).abs().max() <= error
