"""The generated kernels of one program on one device: built in the background, bound to launches, called by segments.

    kernels = Kernels(sources, device)
    segment0 = kernels.segment([(0, ((1572864, "XBLOCK"),), ((1, 0), (7, 0), (0, 4096), 768)), ...])
    segment0(table)

A segment launches its kernels in order on the device's current stream (native/cuda_segment.c). Nothing waits for the
builds before the first call, so kernels compile while later stages and other segments are made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch

from smelt.base import torch_c
from smelt.base.errors import BuildError, CompileError
from smelt.base.kernel_source import KernelSource
from smelt.runtime import _native
from smelt.runtime.cuda_clock import CudaClock
from smelt.runtime.cuda_driver import LIBRARY, compute_capability, open_driver
from smelt.runtime.launch import Table
from smelt.runtime.triton_align import BuildVariant, Variants, segment_of
from smelt.runtime.triton_build import Build, build
from smelt.runtime.triton_interpreter import InterpretedSegment
from smelt.runtime.triton_plan import Launch, PlannedLaunch, plan_launch
from smelt.runtime.triton_products import Library, Product, Template
from smelt.runtime.triton_tune import Choice, Clock, Target, choice_key, fastest, remembered

Segment = Callable[[Table], object]


class Kernels:
    """The kernels of a program.

    Args:
        sources: they begin to build at once.
        device: a CUDA device; a CPU under TRITON_INTERPRET=1.
        library: the driver's.
        stream: the address of a device's current stream, by its number.
        clock: what times candidates.
        measured: whether products may be the library's, where that is faster.

    Raises:
        BuildError: no Triton, no driver.
    """

    def __init__(
        self,
        sources: Sequence[KernelSource],
        device: torch.device | str,
        library: str = LIBRARY,
        stream: Callable[[int], int] | None = torch_c.current_raw_stream,
        clock: Clock | None = None,
        measured: bool = True,
    ) -> None:
        self.sources, self.device, self.measured = list(sources), torch.device(device), measured
        self.target: Target | None = None
        if self.device.type == "cpu":
            return
        if stream is None:
            raise BuildError("this PyTorch was built without CUDA", hint="install one for CUDA: https://pytorch.org")
        driver = open_driver(library)
        ordinal = torch.cuda.current_device() if self.device.index is None else self.device.index
        self.arch = compute_capability(driver, ordinal)
        self.target = Target(driver, ordinal, stream, clock or CudaClock(driver, ordinal, stream))
        self.builds: dict[tuple[int, int], Build] = {}
        for kernel, source in enumerate(self.sources):
            if len(source.configs) == 1:  # of several, sizes may tell which one is wanted
                self.build(kernel, 0)

    def segment(self, launches: Sequence[Launch]) -> Segment:
        """What runs these launches when it is called with a table.

        Raises:
            CompileError: a launch that no GPU can run.
        """
        launches = _launched(launches)
        planned = [self._planned(launch) for launch in launches]
        target = self.target
        if target is None:
            return InterpretedSegment([candidates[0] for candidates in planned])
        choices = [self._choice(launch[0], each, target) for launch, each in zip(launches, planned, strict=True)]
        preparation = _Preparation(target, choices, self.variant)
        return _native.Segment(target.driver, target.ordinal, target.stream, preparation)

    def product(
        self,
        library: Library,
        before: Sequence[Launch],
        after: Sequence[Launch],
        templates: Sequence[tuple[Sequence[Launch], Launch]],
    ) -> Callable[..., object]:
        """What computes a matrix product together with what is around it: `product(table, out, *factors)`.

        Args:
            library: the product by itself.
            before, after: launches around the library's call.
            templates: launches that do the same, each of a kernel that computes the product and what comes before it.
        """
        if self.target is None:  # an interpreter is there to try kernels
            first, launch = templates[0]
            segment = self.segment([*first, launch])
            return lambda table, *_: segment(table)
        whole = [Template(_launched(first), launch) for first, launch in templates]
        return Product(self, self.target, library, _launched(before), _launched(after), whole, self.measured)

    def planned(self, launch: Launch) -> list[PlannedLaunch]:
        """The launch with each configuration of its kernel; those that no grid holds are left out."""
        kernel, extents, arguments = launch
        source = self.sources[kernel]
        found = []
        for config in source.configs:
            with contextlib.suppress(CompileError):
                found.append(plan_launch(source, config, extents, arguments))
        return found

    def choice(self, launch: Launch) -> Choice:
        """The candidates of a launch."""
        assert self.target is not None
        return self._choice(launch[0], self._planned(launch), self.target)

    def _planned(self, launch: Launch) -> list[PlannedLaunch]:
        """The launch with each configuration of its kernel."""
        kernel, extents, arguments = launch
        source = self.sources[kernel]
        return [plan_launch(source, config, extents, arguments) for config in source.configs]

    def _choice(self, kernel: int, launches: list[PlannedLaunch], target: Target) -> Choice:
        """The candidates of a launch, which begin to build; one alone if it is known."""
        key, numbers = "", range(len(launches))
        if len(launches) > 1:
            key = choice_key(launches, target.clock)
            known = remembered(key, launches[0].source)
            numbers = numbers if known is None else range(known, known + 1)
        return Choice(tuple(launches[n] for n in numbers), tuple(self.build(kernel, n) for n in numbers), key)

    def build(self, kernel: int, config: int) -> Build:
        """A kernel with one of its configurations, which begins to build."""
        known = self.builds.get((kernel, config))
        if known is None:
            source = self.sources[kernel]
            known = self.builds[kernel, config] = build(source, source.configs[config], self.arch)
        return known

    def variant(self, source: KernelSource, launch: PlannedLaunch) -> Build:
        """Another source of a launch's kernel, which begins to build."""
        return build(source, launch.config, self.arch)


def _launched(launches: Sequence[Launch]) -> list[Launch]:
    """Without those that have nothing to do."""
    return [launch for launch in launches if all(number for number, _ in launch[1])]


class _Preparation:
    """Makes the plan of a segment when it is first called; launches meanwhile where candidates are timed."""

    def __init__(self, target: Target, choices: list[Choice], build: BuildVariant) -> None:
        self.target, self.choices, self.build = target, choices, build

    def __call__(self, table: Table) -> _native.Prepared:
        alone = all(len(choice.launches) == 1 for choice in self.choices)
        chosen = []
        for choice in self.choices:
            number = 0 if alone else fastest(self.target, choice, table)
            chosen.append((choice.launches[number], choice.builds[number]))
            if not alone:  # the next one is timed on its results
                segment_of(self.target, chosen[-1:], self.build)(table)
        return Variants(self.target, chosen, self.build).prepared(launched=not alone)
