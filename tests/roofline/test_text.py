"""smelt/roofline/text.py: what the tables say of programs whose figures are known."""

from __future__ import annotations

import io

from rich.console import Console

from smelt.abi.ceilings import Ceilings
from smelt.abi.frame_facts import FrameFacts, GraphFacts, Location, RunFacts
from smelt.abi.program_facts import ProgramFacts, Unit
from smelt.abi.steps import Origin, Step, Timing
from smelt.roofline.text import limits

MACHINE = Ceilings("a machine", ((1 << 10, 8e9), (1 << 20, 2e9)), {"float32": 1e11}, 5e10)


def shown(run: RunFacts) -> str:
    to = io.StringIO()
    console = Console(file=to, width=160)
    for each in limits(run, lambda device: MACHINE):
        console.print(each)
    return to.getvalue()


def run_of(*programs: ProgramFacts) -> RunFacts:
    version = GraphFacts([], "", [], None, [*programs])
    return RunFacts("t", [FrameFacts("Net.forward", Location("net.py", 1), [], [version])], [])


def unit(name: str, ns: int, moved: int, flops: int = 0) -> Unit:
    step = Step((Origin("net.py:3", name),), timing=Timing(2, 2 * ns, ns) if ns else None)
    return Unit("kernel", name, step, "", "", (), (), moved, 0, flops, "float32" if flops else "")


def test_programs_and_kernels_are_compared_with_their_limits() -> None:
    product, copy = unit("mm", 2_000_000, 8, 10**8), unit("add_3", 4_000_000, 2 << 20)
    text = shown(run_of(ProgramFacts("forward", "C++", [product, copy], timing=Timing(1, 7_000_000, 7_000_000))))
    assert "memory 8 GB/s for 1 KiB, 2 GB/s for 1 MiB; products in GFLOP/s: float32 100" in text
    (program,) = [line.split() for line in text.splitlines() if "Net.forward" in line]
    assert program[2:] == ["7", "2.05", "29%", "1.05", "1", "6", "1"]
    rows = [line.split() for line in text.splitlines() if "net.py:3" in line]
    assert [row[:2] for row in rows] == [["net.py:3", "add"], ["net.py:3", "mm"]]  # the most to win first
    assert rows[0][2:] == ["4", "1.05", "26%", "memory", "0.524", "0", "1"]
    assert rows[1][2:6] == ["2", "1", "50%", "arithmetic"]


def test_kernels_of_one_line_are_bound_by_what_most_of_them_wait_for() -> None:
    both = [unit("linear", 10_000, 1 << 10), unit("linear_1", 2_000_000, 8, 10**8)]
    (row,) = [line.split() for line in shown(run_of(ProgramFacts("f", "C++", both))).splitlines() if "net.py:3" in line]
    assert row[1] == "linear" and row[5] == "arithmetic" and row[-1] == "2"


def test_kernels_that_never_ran_and_runs_without_programs() -> None:
    text = shown(run_of(ProgramFacts("backward_less", "C++", [unit("mm", 0, 8)], symbolic=True)))
    assert "Net.forward backward less" in text and "symbolic" in text and "net.py:3" not in text
    assert "no program was compiled" in shown(RunFacts("t", [], []))
