"""smelt/abi/ceilings.py: the least time of kernels and programs, computed by hand beside."""

from __future__ import annotations

import dataclasses

import pytest

from smelt.abi.ceilings import Bound, Ceilings, bound_of_program
from smelt.abi.program_facts import ProgramFacts, Unit
from smelt.abi.steps import Step, Timing

MACHINE = Ceilings("a machine", ((1 << 10, 8e9), (1 << 20, 2e9)), {"float32": 1e11, "bfloat16": 4e11}, 5e10)


def unit(moved: int, flops: int = 0, dtype: str = "", ns: int = 0) -> Unit:
    timing = Timing(1, ns, ns) if ns else None
    return Unit("kernel", "k", Step((), timing=timing), "", "", (), (), moved, 0, flops, dtype)


@pytest.mark.parametrize(
    "moved, speed", [(0, 8e9), (1, 8e9), (1 << 10, 8e9), ((1 << 20) - 1, 8e9), (1 << 20, 2e9), (1 << 40, 2e9)]
)
def test_the_speed_is_that_of_the_next_smaller_size(moved: int, speed: float) -> None:
    assert MACHINE.bandwidth(moved) == speed


@pytest.mark.parametrize("dtype, seconds", [("float32", 1.0), ("bfloat16", 0.25), ("", 2.0), ("int8", 0.25)], ids=str)
def test_operations_are_divided_by_the_rate_of_their_dtype(dtype: str, seconds: float) -> None:
    assert MACHINE.bound(unit(8, 10**11, dtype)) == Bound(seconds, "arithmetic")


def test_a_kernel_is_bound_by_the_slower_resource() -> None:
    assert MACHINE.bound(unit(2 << 20, 10)).resource == "memory"
    assert MACHINE.bound(unit(0)) == Bound(0.0, "memory")


def test_a_program_takes_the_sum_of_its_units() -> None:
    program = ProgramFacts("forward", "C++", [unit(2 << 20, 10, ns=3_000_000), unit(8, 10**8, "float32", 2_000_000)])
    bound = bound_of_program(program, MACHINE)
    assert bound.memory == pytest.approx((2 << 20) / 2e9) and bound.arithmetic == pytest.approx(1e-3)
    assert bound.limit == pytest.approx(bound.memory + bound.arithmetic)
    assert (bound.seconds, bound.between) == (pytest.approx(5e-3), 0.0)
    program.timing = Timing(2, 14_000_000, 6_000_000)
    whole = bound_of_program(program, MACHINE)
    assert (whole.seconds, whole.between) == (pytest.approx(6e-3), pytest.approx(1e-3))
    assert whole.share == pytest.approx(whole.limit / 6e-3)


def test_units_of_one_step_are_counted_once_and_units_that_never_ran_take_no_time() -> None:
    first = unit(8, ns=1_000_000)
    program = ProgramFacts("forward", "C++", [first, dataclasses.replace(first, name="l"), unit(8)])
    assert bound_of_program(program, MACHINE).units == pytest.approx(1e-3)
    assert bound_of_program(ProgramFacts("forward", "C++", [unit(8)]), MACHINE).share == 0.0
