"""Loop programs with symbolic sizes: interpreted at many sizes, against the prims' eager references."""

import pytest

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
