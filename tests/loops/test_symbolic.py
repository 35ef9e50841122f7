"""Loop programs with symbolic sizes: interpreted at many sizes, against the prims' eager references."""

import pytest
import torch

from smelt.loops.describe import describe
from smelt.loops.interpret import interpret
from smelt.loops.lower import lower
from tests.loops.graphs import real_inputs, run_eager
from tests.loops.symbolic import SymbolicBuilder, assert_close, at_sizes
from tests.loops.symbolic_programs import PROGRAMS

SIZES = [(4, 6), (2, 2), (3, 5), (7, 4)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str):
    build, high = PROGRAMS[name]
    g = SymbolicBuilder(4, 6)
    gm = build(g, *g.symbols)
    assumed = list(g.known.assumed)
    program = lower(gm)
    assert describe(program)
    for sizes in SIZES:
        static = at_sizes(gm, sizes)
        inputs = real_inputs(static, high)
        assert_close(interpret(program, [*inputs, *sizes]), run_eager(static, inputs))
    assert g.known.assumed == assumed


def test_of_two_equal_symbols_one_is_used():
    g = SymbolicBuilder(6, 6)
    b, t = g.symbols
    x, y = g.input(b, 4), g.input(t, 4)
    assert b == t
    program = lower(g.build(g.add(x, g.reshape(y, (t, 4)))))
    assert [str(s) for s in program.symbols] == ["s0", "s1"]
    values = torch.randn(3, 4), torch.randn(3, 4)
    assert_close(interpret(program, [*values, 3, 3]), [values[0] + values[1]])
    g = SymbolicBuilder()
    g.symbols = [t]
    assert [str(s) for s in lower(g.build(g.neg(g.input(t, 4)))).symbols] == ["s0"]
