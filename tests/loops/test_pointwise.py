"""smelt/loops/pointwise.py: bodies of operators, constants, counts and random numbers, against torch and numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import fx

from smelt.abi.faults import NOT_IN_UNIT
from smelt.loops.interpret import interpret
from smelt.loops.ir import Pointwise
from smelt.loops.lower import lower
from smelt.loops.pointwise import PLAIN
from smelt.prims.random_bits import uniform
from tests.loops.graphs import GraphBuilder, interpreted
from tests.loops.symbolic import SymbolicBuilder

CPU = torch.device("cpu")


class Told:
    """A handler that writes an element as text."""

    def load(self, name: str, index: tuple[object, ...]) -> str:
        return f"{name}{list(index)}"

    def constant(self, value: object, dtype: torch.dtype) -> str:
        return f"{value}:{dtype}".replace("torch.", "")

    def apply(self, op: str, dtype: torch.dtype, *args: str) -> str:
        return f"{op}:{dtype}({', '.join(args)})".replace("torch.", "")


def text(build: object) -> str:
    g = GraphBuilder()
    program = lower(g.build(build(g)))
    node = program.nodes[program.outputs[0].name]
    assert isinstance(node, Pointwise)
    return node.body(Told(), ())


def test_numbers_take_the_dtype_of_the_tensor_beside_them() -> None:
    """Of a comparison the operands', of a choice the branches', not the result's or the condition's."""
    half, mask = torch.float16, torch.bool
    assert text(lambda g: g.lt(g.input(dtype=half), 2)) == "lt:float16(x0[], 2:float16)"
    assert text(lambda g: g.sub(1, g.input(dtype=torch.int32))) == "sub:int32(1:int32, x0[])"
    assert text(lambda g: g.where(g.input(dtype=mask), g.input(dtype=half), 3.0)) == (
        "where:float16(x0[], x1[], 3.0:float16)"
    )
    assert text(lambda g: g.refuse(g.input(dtype=half), g.input(dtype=mask), 3)) == "refuse_3:float16(x0[], x1[])"


def test_plain_operators_have_no_body_of_their_own() -> None:
    assert {"add", "erf", "lt", "neg"} <= set(PLAIN) and not {"where", "convert", "refuse", "clone"} & set(PLAIN)


def test_operators_and_choices() -> None:
    x, y, m = torch.randn(3, 1, 2), torch.randn(3, 1, 2), torch.rand(3, 1, 2) < 0.5
    got = interpreted(
        lambda g, x, y, m: (g.atan2(x, y), g.sub(1.5, x), g.where(m, x, 7.0), g.where(m, -1.0, y), g.clone(x)), x, y, m
    )
    for one, other in zip(got, (x.atan2(y), 1.5 - x, x.where(m, 7), y.where(~m, -1), x), strict=True):
        assert torch.equal(one, other)
    square, shown = interpreted(lambda g, x: (g.mul(x, x), g.clone(x)), x.reshape(6)[:0])
    assert square.shape == shown.shape == (0,)


def test_conversions() -> None:
    x = torch.tensor([0.0, -1.75, 3.0, 250.0])
    got = interpreted(lambda g, x: tuple(g.convert(x, d) for d in (torch.int64, torch.bool, torch.bfloat16)), x)
    assert [t.tolist() for t in got] == [[0, -1, 3, 250], [False, True, True, True], [0.0, -1.75, 3.0, 250.0]]
    g = GraphBuilder()
    program = lower(g.build(g.convert(g.input(3), torch.float32)))
    assert program.nodes["convert"].view, "to its own dtype it is the value itself"


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float64, torch.float32, torch.bfloat16])
def test_counts_are_rounded_once_at_the_end(dtype: torch.dtype) -> None:
    for start, step in ((0, 1), (5, 3), (100, -7), (0.1, 0.3)):
        nine, one, none = interpreted(lambda g: tuple(g.iota(n, start, step, dtype, CPU) for n in (9, 1, 0)))  # noqa: B023
        wide = np.float64 if dtype.is_floating_point else np.int64
        want = np.arange(9, dtype=wide) * wide(step) + wide(start)
        assert nine.dtype is dtype and torch.equal(nine, torch.from_numpy(want).to(dtype))
        assert torch.equal(one, nine[:1]) and none.shape == (0,)


def test_filled_tensors() -> None:
    def build(g: GraphBuilder) -> object:
        return (
            g.full((2, 3), -2.5, torch.float16, CPU), g.full((), True, torch.bool, CPU),
            g.full((0,), 1, torch.int8, CPU),
        )  # fmt: skip

    halves, true, none = interpreted(build)
    assert torch.equal(halves, torch.full((2, 3), -2.5, dtype=torch.float16))
    assert true.item() is True and none.shape == (0,) and none.dtype is torch.int8


def test_symbolic_counts_and_fills() -> None:
    g = SymbolicBuilder(4)
    (n,) = g.symbols
    program = lower(
        g.build(g.iota(n, n, n, torch.int64, CPU), g.full((n,), n, torch.float32, CPU), g.add(g.input(), n))
    )
    count, filled, more = interpret(program, [torch.tensor(0.5), 3])
    assert (count.tolist(), filled.tolist(), more.item()) == ([3, 6, 9], [3.0] * 3, 3.5)


def test_random_numbers_follow_the_row_major_index() -> None:
    seed = torch.tensor(1234)
    one, other, flat, none = interpreted(
        lambda g, s: (g.random(s, 0, (3, 4)), g.random(s, 1, (3, 4)), g.random(s, 0, (12,)), g.random(s, 0, (0, 2))),
        seed,
    )
    assert torch.equal(one, uniform(seed, 0, (12,)).reshape(3, 4)) and torch.equal(one.reshape(12), flat)
    assert not torch.equal(one, other) and one.unique().numel() == 12 and 0 <= one.min() and one.max() < 1
    assert none.shape == (0, 2)


def test_a_refusal_raises_where_its_condition_holds() -> None:
    def check(g: GraphBuilder, x: fx.Node, wrong: fx.Node) -> fx.Node:
        return g.refuse(x, wrong, NOT_IN_UNIT)

    x = torch.randn(3)
    assert torch.equal(interpreted(check, x, torch.zeros(3, dtype=torch.bool))[0], x)
    with pytest.raises(RuntimeError, match="input should be between 0 and 1"):
        interpreted(check, x, torch.tensor([False, True, False]))
