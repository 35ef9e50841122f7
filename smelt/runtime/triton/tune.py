"""Finds the fastest configuration of a kernel: timed on the arguments of its first call, then kept in the store.

A launch with one configuration is never timed. Candidates run interleaved, many launches between two events. Memory
that a kernel both reads and writes is replaced by a copy, so that timing changes nothing that the program sees. Memory
that is not aligned to 16 bytes is also replaced by a copy, so that candidates are timed with aligned memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from smelt.abi.kernel_source import ALIGNMENT, KernelSource
from smelt.base.errors import BuildError, CompileError
from smelt.base.store import content_key
from smelt.runtime import _native, tune
from smelt.runtime.cuda.driver import OutOfResources, load
from smelt.runtime.launch import Table
from smelt.runtime.triton.build import Build, triton_identity
from smelt.runtime.triton.effects import kernel_effects
from smelt.runtime.triton.plan import Argument, PlannedLaunch
from smelt.runtime.tuned import KERNEL_TIMING
from smelt.runtime.tuner import Tuner

_REPORT_POINTERS = re.compile(r"\bm_refuse\((\w+),")
"""Pattern of the parameter through which a kernel reports a failed check before it traps."""

K = TypeVar("K")

_tuner: Tuner[int] = Tuner("triton-tune", tie=KERNEL_TIMING.tie_factor, close=KERNEL_TIMING.close_factor)


class Clock(tune.Clock, Protocol):
    """The interface of a device for timing."""

    def bytes_from(self, address: int) -> int | None:
        """Returns the bytes from an address to the end of its allocation; None if unknown."""

    def copy(self, address: int, size: int) -> tuple[int, Any]:
        """Returns (address of a copy, owner of the copy's memory)."""


@dataclass(frozen=True)
class Target:
    """The device on which kernels run."""

    driver: _native.Driver
    ordinal: int
    stream: Callable[[int], int]
    clock: Clock

    def segment(self, plan: tuple[_native.LaunchPlan, ...]) -> _native.Segment:
        """Returns a segment that launches this plan."""
        return _native.Segment(self.driver, self.ordinal, self.stream, lambda _: (plan, False))

    def plan(self, launch: PlannedLaunch, build: Build) -> _native.LaunchPlan:
        """Returns a launch in the form that C takes, with its kernel loaded."""
        cubin = build.result()
        address = load(self.driver, self.ordinal, cubin).address
        grid, arguments = launch.grid, launch.arguments
        return (launch.source.name, address, grid, cubin.threads, cubin.shared, arguments, cubin.appended)


@dataclass(frozen=True)
class Choice:
    """A launch and its candidate configurations."""

    launches: tuple[PlannedLaunch, ...]
    builds: tuple[Build, ...]
    key: str


def choice_key(launches: Sequence[PlannedLaunch], clock: Clock) -> str:
    """Returns the key of the choice in the store: the kernel, its candidates, sizes, and the device."""
    source = launches[0].source
    sizes = launches[0].sizes()
    grids = [launch.grid for launch in launches]
    components = (repr(source.signature), repr(source.divisible), repr(source.configs), repr(sizes), repr(grids))
    return content_key(source.source, *components, triton_identity(), clock.name())


def remembered(key: str, source: KernelSource) -> int | None:
    """Returns the number of the winning configuration, from memory or the store; None if unknown."""
    return _tuner.remembered(key, lambda winner: 0 <= winner < len(source.configs))


forget = _tuner.forget


def choose(target: Target, choice: Choice, table: Table) -> _native.LaunchPlan:
    """Returns the fastest candidate, in the form that C takes."""
    number = fastest(target, choice, table)
    return target.plan(choice.launches[number], choice.builds[number])


def fastest(target: Target, choice: Choice, table: Table) -> int:
    """Returns the number of the fastest candidate, with this table's pointers.

    Raises:
        CompileError: no candidate can run on this device.
    """
    if len(choice.launches) == 1:  # the only one, or an earlier winner
        return 0
    known = remembered(choice.key, choice.launches[0].source)
    if known is not None:
        return known
    plans = _runnable(target, choice)
    if len(plans) == 1 or target.clock.recording():
        return next(iter(plans))
    copies = stand_ins(target.clock, choice.launches[0], table)
    if copies is None:
        return next(iter(plans))
    replaced, kept = copies
    times = _measure(target, {number: with_stand_ins(plan, replaced) for number, plan in plans.items()}, table)
    del kept
    if not times:
        raise CompileError(f"no configuration of kernel {choice.launches[0].source.name!r} could be launched")
    winner = _tuner.fastest(times)
    _tuner.keep(choice.key, winner, {"kernel": choice.launches[0].source.name, "seconds": times})
    return winner


def _runnable(target: Target, choice: Choice) -> dict[int, _native.LaunchPlan]:
    """Returns the candidates that build and fit the device, by number."""
    plans: dict[int, _native.LaunchPlan] = {}
    reasons: list[str] = []
    for number, (launch, build) in enumerate(zip(choice.launches, choice.builds, strict=True)):
        try:
            plans[number] = target.plan(launch, build)
        except (OutOfResources, BuildError) as error:
            reasons.append(f"{launch.config}: {error}")
    if not plans:
        raise CompileError(
            f"no configuration of kernel {choice.launches[0].source.name!r} runs on this device", why="\n".join(reasons)
        )
    return plans


def stand_ins(clock: Clock, launch: PlannedLaunch, table: Table) -> tuple[dict[Argument, int], list[Any]] | None:
    """Returns addresses of copies, by pointer, of memory that the launch reads and writes or that is not aligned; None
    if it is too large.

    A kernel that checks values gets no memory for its report, because it may read arbitrary values while it is timed.
    """
    report_pointers = set(_REPORT_POINTERS.findall(launch.source.source))
    effects = kernel_effects(launch.source.source)
    at: dict[int, list[tuple[str, Argument]]] = {}
    for (name, _), argument in zip(launch.source.signature, launch.arguments, strict=True):
        if isinstance(argument, tuple):
            at.setdefault(table.get(argument[0]) + argument[1], []).append((name, argument))
    replaced: dict[Argument, int] = {}
    kept: list[Any] = []
    left = KERNEL_TIMING.max_copied_bytes
    for address, users in at.items():
        names = {name for name, _ in users}
        if names & report_pointers:
            replaced |= dict.fromkeys((argument for _, argument in users), 0)
            continue
        if not (names & effects.reads and names & effects.writes) and address % ALIGNMENT == 0:
            continue
        size = clock.bytes_from(address)
        if size is None or size > left:
            return None
        left -= size
        copy, memory = clock.copy(address, size)
        kept.append(memory)
        replaced |= {argument: copy for _, argument in users}
    return replaced, kept


def with_stand_ins(plan: _native.LaunchPlan, replaced: dict[Argument, int]) -> _native.LaunchPlan:
    """Returns the launch with these addresses in place of its pointers."""
    name, function, grid, threads, shared, arguments, appended = plan
    return name, function, grid, threads, shared, tuple(_replace(a, replaced) for a in arguments), appended


def _replace(argument: Argument, replaced: dict[Argument, int]) -> Argument:
    return replaced.get(argument, argument) if isinstance(argument, tuple) else argument


def _measure(target: Target, plans: dict[int, _native.LaunchPlan], table: Table) -> dict[int, float]:
    """Returns the seconds of a launch of each candidate that the driver does not refuse."""

    def maker(plan: _native.LaunchPlan) -> Maker:
        def launches(count: int) -> Callable[[], object]:
            segment = target.segment((plan,) * count)
            return lambda: segment(table)

        return launches

    return race(target.clock, {number: maker(plan) for number, plan in plans.items()})


Maker = Callable[[int], Callable[[], object]]
"""Function from a number of runs to a function that runs a candidate that many times."""


def race(clock: Clock, makers: Mapping[K, Maker]) -> dict[K, float]:
    """Returns the seconds of each candidate that the driver does not refuse, measured in turns; slow candidates drop
    out early.
    """
    times: dict[K, float] = {}
    runs: dict[K, tuple[Callable[[], object], int]] = {}
    for name, make in makers.items():
        once = make(1)
        try:
            once()
            seconds = clock.time(once)
        except _native.CudaError as error:
            if error.code not in (1, 2, 701):  # the candidate needs more resources than the device has; another may fit
                raise
            continue
        count = max(1, min(KERNEL_TIMING.max_launches, int(KERNEL_TIMING.window_s / max(seconds, 1e-9))))
        runs[name] = make(count), count
    for _ in range(KERNEL_TIMING.rounds):
        for name, (run, count) in runs.items():
            if times and _tuner.is_slower(times.get(name, 0.0), min(times.values())):
                continue
            seconds = clock.time(run) / count
            times[name] = min(seconds, times.get(name, seconds))
    return times
