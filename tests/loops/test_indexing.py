"""smelt/loops/indexing.py: reads and writes at places that values name, against numpy and torch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from smelt.loops.indexing import Picked
from smelt.loops.ir import Pointwise, Scatter
from smelt.loops.lower import lower
from smelt.loops.registry import Operand
from tests.loops.graphs import GraphBuilder, interpreted

SHAPE = (3, 4, 2, 5)
CHOICES = [c for n in (1, 2, 3, 4) for c in itertools.combinations(range(4), n)]


def indices_at(dims: tuple[int, ...], shape: tuple[int, ...], low: int = 0) -> list[np.ndarray | None]:
    """For each dimension random places, of which the first may count from the end, or None for all of it."""
    return [np.random.randint(-n if low else 0, n, shape) if d in dims else None for d, n in enumerate(SHAPE)]


def arguments(given: list[np.ndarray | None], nodes: tuple[Any, ...]) -> tuple[Any, ...]:
    left = iter(nodes)
    return tuple(None if i is None else next(left) for i in given)


@pytest.mark.parametrize("shape", [(), (3,), (2, 1), (0,)])
def test_index_equals_numpys_for_any_index_positions(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(SHAPE)).reshape(SHAPE)
    for dims in CHOICES:
        given = indices_at(dims, shape, -1)
        places = [torch.from_numpy(np.asarray(i)) for i in given if i is not None]
        (got,) = interpreted(lambda g, x, *i: g.index(x, arguments(given, i), True), torch.from_numpy(x), *places)  # noqa: B023
        np.testing.assert_array_equal(got.numpy(), x[tuple(slice(None) if i is None else i for i in given)])


@pytest.mark.parametrize("accumulate", [False, True])
def test_writes_are_numpys(accumulate: bool) -> None:
    """Of writes that meet all are added up; others are made where no two meet."""
    for dims, shape in itertools.product(CHOICES, ((2, 3), (1,), (0,))):
        given = indices_at(dims, shape, -1)
        if not accumulate:
            given = [None if i is None else np.zeros((1,), dtype=np.int64) - 1 for i in given]
        where = tuple(slice(None) if i is None else i for i in given)
        want = np.arange(np.prod(SHAPE)).reshape(SHAPE)
        x, values = torch.from_numpy(want.copy()), np.random.randint(0, 99, want[where].shape)
        np.add.at(want, where, values) if accumulate else want.__setitem__(where, values)
        places = [torch.from_numpy(i) for i in given if i is not None]

        def build(g: GraphBuilder, x: Any, v: Any, *i: Any, given: Any = given) -> Any:
            return g.index_put(x, arguments(given, i), v, accumulate, True)

        (got,) = interpreted(build, x, torch.from_numpy(values), *places)
        np.testing.assert_array_equal(got.numpy(), want)


def test_which_dimensions_of_a_write_are_disjoint() -> None:
    place = Operand("i", GraphBuilder().input(7, 2, dtype=torch.int64).meta["val"])
    for indices, kept in (
        ((None, place, place, None), [0, 3]),  # (3, 7, 2, 5)
        ((place, None, place, None), [2, 3]),  # (7, 2, 4, 5): not adjacent, the places come first
        ((None, None, None, place), [0, 1, 2]),
        ((place, place, place, place), []),
    ):
        picked = Picked(SHAPE, indices, False)
        rank = 2 + sum(i is None for i in indices)
        assert picked.kept_dims(rank) == kept


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_gathers_selects_and_scatters(dim: int, dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 2)
    for count in (5, 1, 0):
        size = x.shape[dim]
        shape = tuple(count if d == dim else n for d, n in enumerate(x.shape))
        place, row = torch.randint(size, shape).to(dtype), torch.randint(size, (count,)).to(dtype)
        src = torch.randn(shape)
        got = interpreted(
            lambda g, x, i, r, s: (g.gather(x, dim, i), g.index_select(x, dim, r), g.scatter_add(x, dim, i, s)),
            x,
            place,
            row,
            src,
        )
        wide = place.long()
        want = x.gather(dim, wide), x.index_select(dim, row), x.scatter_add(dim, wide, src)
        for one, other in zip(got, want, strict=True):
            assert one.shape == other.shape
            torch.testing.assert_close(one, other)


def test_a_scatter_leaves_the_rest_of_its_base() -> None:
    x, src = torch.randn(4, 3), torch.randn(2, 3)
    place = torch.tensor([[3, 0, 1], [1, 3, 0]])
    (got,) = interpreted(lambda g, x, i, s: g.scatter(x, 0, i, s), x, place, src)
    assert torch.equal(got, x.scatter(0, place, src)) and not torch.equal(got, x)


def test_scatter_records_its_ranges_inputs_and_parallel_dimensions() -> None:
    g = GraphBuilder()
    x, place, src = g.input(3, 4, 2), g.input(3, 5, 2, dtype=torch.int64), g.input(3, 5, 2)
    added, kept = g.scatter_add(x, 1, place, src), g.scatter(x, 1, place, src)
    none = g.scatter_add(x, 1, g.input(3, 0, 2, dtype=torch.int64), g.input(3, 0, 2))
    program = lower(g.build(added, kept, none))
    one, other, empty = (program.nodes[o.name] for o in program.outputs)
    assert isinstance(one, Scatter) and isinstance(other, Scatter)
    assert (one.accumulate, other.accumulate) == (True, False) and one.parallel == other.parallel == (0, 2)
    assert one.ranges == (3, 5, 2) and one.inputs == ("x0", "x2", "x1")
    assert isinstance(empty, Pointwise) and empty.view and empty.inputs == ("x0",)


class Places:
    """A handler that keeps which places of which dimension's size are looked up, and whether they wrap."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, bool]] = []

    def load(self, name: str, index: Any) -> str:
        return name

    def indirect(self, value: Any, size: Any, wrap: bool) -> Any:
        self.found.append((size, wrap))
        return value


def test_only_indices_of_index_and_index_put_may_count_from_the_end() -> None:
    g = GraphBuilder()
    x, place, row, src = g.input(3, 4), g.input(3, 4, dtype=torch.int64), g.input(3, dtype=torch.int64), g.input(3, 4)
    made = [
        g.gather(x, 1, place),
        g.index_select(x, 0, row),
        g.scatter(x, 1, place, src),
        g.scatter_add(x, 1, place, src),
    ]
    made += [g.index(x, (None, place), wrap) for wrap in (True, False)]
    made += [g.index_put(x, (row, None), src, False, wrap) for wrap in (True, False)]
    program = lower(g.build(*made))
    ops = Places()
    for output in program.outputs:
        node = program.nodes[output.name]
        node.target(ops, (0, 0)) if isinstance(node, Scatter) else node.body(ops, (0, 0, 0))
    assert ops.found == [(n, False) for n in (4, 3, 4, 4)] + [(4, True), (4, False), (3, True), (3, False)]
