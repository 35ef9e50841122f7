"""smelt/loops/movement.py: views and copies in every shape that has edges, against torch."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch

from smelt.loops.interpret import interpret
from smelt.loops.ir import Extern, Pointwise, Scatter
from smelt.loops.lower import lower
from smelt.loops.movement import MAX_LOOP_OPERANDS, write_slice
from smelt.loops.registry import Operand
from tests.loops.graphs import GraphBuilder, interpreted
from tests.loops.symbolic import SymbolicBuilder

CPU = torch.device("cpu")


def counted(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel()).reshape(shape)


def same(got: list[torch.Tensor], *want: torch.Tensor) -> None:
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape and torch.equal(one, other)


SHAPES = {12: [(12,), (3, 4), (4, 3), (2, 6), (2, 1, 3, 2), (1, 12, 1), (2, 2, 3)], 1: [(), (1,), (1, 1)],
          0: [(0,), (3, 0), (0, 2, 5)]}  # fmt: skip


@pytest.mark.parametrize("count", SHAPES)
def test_reshapes_between_all_shapes_of_a_count(count: int) -> None:
    for old, new in itertools.product(SHAPES[count], repeat=2):
        x = counted(*old)
        same(interpreted(lambda g, x: g.reshape(x, new), x), x.reshape(new))  # noqa: B023


def test_permutations_of_four_dimensions() -> None:
    x = counted(2, 3, 1, 4)
    orders = list(itertools.permutations(range(4)))
    same(interpreted(lambda g, x: tuple(g.permute(x, o) for o in orders), x), *(x.permute(o) for o in orders))


def test_sizes_of_one_are_repeated_and_new_dimensions_added() -> None:
    x, number = counted(3, 1), torch.tensor(7)
    got = interpreted(
        lambda g, x, n: (
            g.broadcast_in_dim(x, (3, 1), (0, 1)), g.broadcast_in_dim(x, (2, 3, 4), (1, 2)),
            g.broadcast_in_dim(n, (2, 0), ()), g.broadcast_in_dim(x, (3, 2, 5), (0, 2)),
            g.broadcast_in_dim(n, (2,), ()),
        ), x, number,
    )  # fmt: skip
    same(got, x, x.expand(2, 3, 4), number.expand(2, 0), x.reshape(3, 1, 1).expand(3, 2, 5), number.expand(2))


def test_slices_and_what_they_are_written_over() -> None:
    """The slice of a tensor, and the tensor with that slice replaced, in both forms in which it is lowered."""
    draw = random.Random(1)
    for shape in ((5,), (4, 7), (3, 1, 6), (2, 0)):
        for _ in range(6):
            ends = [sorted(draw.choices(range(n + 1), k=2)) for n in shape]
            starts, stops, steps = (
                tuple(e[0] for e in ends),
                tuple(e[1] for e in ends),
                tuple(draw.choices((1, 2, 3), k=len(shape))),
            )
            place = tuple(map(slice, starts, stops, steps))
            x = counted(*shape)
            part = -x[place] - 1
            want = x.clone()
            want[place] = part

            def build(g: GraphBuilder, x: Any, part: Any, how: Any = (starts, stops, steps)) -> Any:
                return g.slice(x, *how), g.slice_scatter(x, part, *how)

            same(interpreted(build, x, part), x[place], want)
            g = GraphBuilder()
            program = lower(
                g.build(
                    g.slice_scatter(
                        g.input(*shape, dtype=x.dtype), g.input(*part.shape, dtype=x.dtype), starts, stops, steps
                    )
                )
            )
            old = program.nodes["slice_scatter"]
            operands = (Operand(name, program.nodes[name].meta) for name in program.inputs)
            written = write_slice("slice_scatter", old.meta, *operands, starts, stops, steps)
            assert isinstance(written, Scatter if part.numel() else Pointwise)
            program.nodes["slice_scatter"] = written
            same(interpret(program, [x, part]), want)


def test_a_write_to_a_slice_has_distinct_indices() -> None:
    g = GraphBuilder()
    x, part = g.input(4, 6), g.input(2, 3)
    operands = (Operand(n.name, n.meta["val"]) for n in (x, part))
    written = write_slice("w", x.meta["val"], *operands, (0, 1), (4, 6), (2, 2))
    assert isinstance(written, Scatter)
    assert (written.parallel, written.accumulate, written.ranges) == ((0, 1), False, (2, 3))


def test_flips() -> None:
    x = counted(2, 3, 1)
    choices = [c for n in range(4) for c in itertools.combinations(range(3), n)]
    same(interpreted(lambda g, x: tuple(g.flip(x, c) for c in choices), x), *(x.flip(c) for c in choices))
    same(interpreted(lambda g, x: g.flip(x, (0,)), counted(0, 2)), counted(0, 2))


def test_padding_on_every_side() -> None:
    for shape, low, high in (
        ((2, 3), (1, 0), (0, 2)),
        ((3,), (0,), (0,)),
        ((0, 2), (2, 1), (1, 0)),
        ((1, 1), (0, 3), (2, 0)),
    ):
        x = counted(*shape).float()
        amounts = (low[-1], high[-1], *((low[0], high[0]) if len(low) > 1 else ()))
        want = torch.nn.functional.pad(x, amounts, value=-2.5)
        same(interpreted(lambda g, x: g.pad(x, low, high, -2.5), x), want)  # noqa: B023


def test_slices_of_any_size_one_after_the_other() -> None:
    for dim, sizes in itertools.product((0, 1), ((2, 3), (1,), (0, 2, 0, 1), (0,), (0, 0), (4, 1, 4))):
        parts = [counted(n, 2) + 10 * i if dim == 0 else counted(2, n) + 10 * i for i, n in enumerate(sizes)]
        same(interpreted(lambda g, *x: g.cat(x, dim), *parts), torch.cat(parts, dim))  # noqa: B023
    x = counted(2, 3)
    same(interpreted(lambda g, x: g.cat((x, x, x), 1), x), torch.cat([x, x, x], 1))


def lowered(count: int, *shape: int, stride: tuple[int, ...] | None = None, dim: int = 0) -> Any:
    g = GraphBuilder()
    x, none = g.input(*shape, stride=stride), g.input(*(0 if d == dim else n for d, n in enumerate(shape)))
    return lower(g.build(g.cat((none, *[x] * count), dim))).nodes["cat"]


def test_many_slices_are_concatenated_by_a_library() -> None:
    assert isinstance(lowered(MAX_LOOP_OPERANDS, 2, 3), Pointwise), "parts without elements count for nothing"
    many = lowered(MAX_LOOP_OPERANDS + 1, 2, 3)
    assert isinstance(many, Extern) and many.target is torch.ops.aten.cat.default and many.inputs == ("x0",)
    assert len(many.args[0]) == MAX_LOOP_OPERANDS + 1 and many.args[1] == 0
    last = (12, 1, 4, 2)
    assert isinstance(lowered(MAX_LOOP_OPERANDS + 1, 1, 2, 3, 2, stride=last), Pointwise), (
        "images with channels last stay a loop"
    )
    assert isinstance(lowered(MAX_LOOP_OPERANDS + 1, 1, 2, 3, 2), Extern) and isinstance(
        lowered(MAX_LOOP_OPERANDS + 1, 3, 2, stride=(1, 3)), Extern
    )
    g = GraphBuilder()
    rows, columns = g.input(3, 2, 1, 2), g.input(3, 2, 1, 2, stride=(4, 1, 4, 2))
    mixed = lower(g.build(g.cat((rows, *[columns] * MAX_LOOP_OPERANDS), 0))).nodes["cat"]
    assert isinstance(mixed, Pointwise), "one that is not in rows is enough"


def test_symbolic_sizes() -> None:
    g = SymbolicBuilder(5, 3)
    n, m = g.symbols
    x = g.input(n, m, dtype=torch.int64)
    program = lower(
        g.build(
            g.reshape(x, (n * m,)), g.cat((x, x), 0), g.pad(x, (1, 0), (n, 2), 9), g.flip(x, (0,)),
            g.slice(x, (1, 0), (n, m), (1, 1)),
            g.slice_scatter(x, g.slice(x, (0, 0), (n - 1, m), (1, 1)), (1, 0), (n, m), (1, 1)),
        )
    )  # fmt: skip
    for sizes in ((5, 3), (2, 1), (4, 7)):
        v = counted(*sizes)
        padded = torch.nn.functional.pad(v, (0, 2, 1, sizes[0]), value=9)
        shifted = torch.cat([v[:1], v[:-1]])
        same(interpret(program, [v, *sizes]), v.reshape(-1), torch.cat([v, v]), padded, v.flip(0), v[1:], shifted)
