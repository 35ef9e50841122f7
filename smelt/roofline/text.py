"""Shows how near compiled programs are to the limits of the machine: tables for a terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.table import Table

from smelt.abi.ceilings import Bound, Ceilings, ProgramBound, bound_of_program
from smelt.abi.frame_facts import RunFacts
from smelt.abi.program_facts import ProgramFacts, Unit
from smelt.abi.steps import label

MAX_ROWS = 20
"""Maximum number of kernels in the table."""

CeilingsOf = Callable[[str], Ceilings]
"""Function from the name of a device, such as "cpu" or "cuda:0", to its ceilings."""


def limits(run: RunFacts, ceilings_of: CeilingsOf) -> Iterator[str | Table]:
    """The ceilings of each device, a table of programs and a table of the kernels with the most time above their limit.

    Args:
        run: the facts of a run whose programs were timed.
    """
    named = [*_named_programs(run)]
    if not named:
        yield "no program was compiled: there is nothing to compare with the limits of the machine"
        return
    for device in dict.fromkeys(program.device for _, program in named):
        yield ceilings_text(ceilings_of(device))
    yield _program_table([(name, bound_of_program(each, ceilings_of(each.device))) for name, each in named])
    if any(program.symbolic for _, program in named):
        yield "limits of programs with symbolic sizes are those of the sizes at the first call"
    rows = _kernels([program for _, program in named], ceilings_of)
    if rows:
        yield _kernel_table(rows)


def ceilings_text(ceilings: Ceilings) -> str:
    """The ceilings of one device as text."""
    (small, fast), (large, slow) = ceilings.bandwidths[0], ceilings.bandwidths[-1]
    products = ", ".join(f"{name} {speed / 1e9:.4g}" for name, speed in ceilings.products.items())
    return (
        f"{ceilings.machine}: memory {fast / 1e9:.4g} GB/s for {small >> 10} KiB, {slow / 1e9:.4g} GB/s for "
        f"{large >> 20} MiB; products in GFLOP/s: {products}"
    )


def _named_programs(run: RunFacts) -> Iterator[tuple[str, ProgramFacts]]:
    for frame in run.frames:
        for number, version in enumerate(frame.versions, 1):
            graph = f" {number}" if len(frame.versions) > 1 else ""
            for program in version.programs:
                yield f"{frame.name}{graph} {program.name.replace('_', ' ')}", program


def _program_table(rows: Sequence[tuple[str, ProgramBound]]) -> Table:
    heads = ("ms a call", "limit ms", "share", "memory", "arithmetic", "in kernels", "between")
    table = _table("programs: measured time, and the least time that this machine needs", "program", heads)
    for name, bound in rows:
        times = (bound.memory, bound.arithmetic, bound.units, bound.between if bound.whole else None)
        share = f"{bound.share:.0%}" if bound.seconds else ""
        table.add_row(name, _ms(bound.seconds), _ms(bound.limit), share, *map(_ms, times))
    return table


@dataclass
class _Kernels:
    """Kernels that compute the same operators of the same lines; the times are sums over them, per call."""

    text: str
    steps: int = 0
    seconds: float = 0.0
    limits: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    moved: int = 0
    flops: int = 0
    seen: set[int] = field(default_factory=set)

    @property
    def limit(self) -> float:
        """The sum of the shortest times."""
        return sum(self.limits.values())

    @property
    def resource(self) -> str:
        """The resource that makes up most of the limit."""
        return max(self.limits, key=self.limits.__getitem__)

    def add(self, unit: Unit, bound: Bound) -> None:
        self.limits[bound.resource] += bound.seconds
        self.flops += unit.flops
        self.moved += unit.bytes_read + unit.bytes_written
        if id(unit.step) not in self.seen and unit.step.timing is not None:
            self.seen.add(id(unit.step))
            self.steps, self.seconds = self.steps + 1, self.seconds + unit.step.timing.least_ns / 1e9


def _kernels(programs: Sequence[ProgramFacts], ceilings_of: CeilingsOf) -> list[_Kernels]:
    """The timed kernels by operators and lines, those with the most time above their limit first."""
    found: dict[str, _Kernels] = {}
    for program in programs:
        ceilings = ceilings_of(program.device)
        for unit in program.units:
            text = label(unit.step.origins) or unit.name
            found.setdefault(text, _Kernels(text)).add(unit, ceilings.bound(unit))
    timed = [each for each in found.values() if each.seconds]
    return sorted(timed, key=lambda each: each.limit - each.seconds)


def _kernel_table(rows: Sequence[_Kernels]) -> Table:
    heads = ("ms", "limit ms", "share", "bound by", "GB/s", "GFLOP/s", "steps")
    more = f" ({len(rows) - MAX_ROWS} more are not shown)" if len(rows) > MAX_ROWS else ""
    table = _table(f"kernels and library calls, the most time above the limit first{more}", "computes", heads)
    for each in rows[:MAX_ROWS]:
        speeds = (f"{each.moved / each.seconds / 1e9:.3g}", f"{each.flops / each.seconds / 1e9:.3g}")
        share = f"{each.limit / each.seconds:.0%}"
        table.add_row(each.text, _ms(each.seconds), _ms(each.limit), share, each.resource, *speeds, str(each.steps))
    return table


def _table(title: str, first: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(first, overflow="fold", min_width=20)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    return table


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3g}"
