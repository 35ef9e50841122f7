"""The Triton kernels of one program on one device: built in the background, bound to launches, called by segments.

    kernels = Kernels(sources, device)
    segment0 = kernels.segment([(0, ((1572864, "XBLOCK"),), ((1, 0), (7, 0), (0, 4096), 768)), ...])
    segment0(table)

A segment launches its kernels in order on the device's current stream (cuda_segment.c). Nothing waits for the
builds before the first call, so kernels compile while later stages and other segments are made.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from smelt.abi.kernel_source import Config, KernelSource
from smelt.base import torch_c
from smelt.base.errors import BuildError, CompileError
from smelt.base.stats import count
from smelt.runtime import _native
from smelt.runtime.cuda.clock import CudaClock
from smelt.runtime.cuda.driver import LIBRARY, compute_capability, open_driver
from smelt.runtime.launch import Table
from smelt.runtime.refusals import is_refused_kernel, report_refusal
from smelt.runtime.triton.align import Ahead, Variants
from smelt.runtime.triton.build import Build, build
from smelt.runtime.triton.interpreter import InterpretedSegment
from smelt.runtime.triton.kernel_fallback import KernelFallback, fallback_step, simpler_configs
from smelt.runtime.triton.plan import Launch, PlannedLaunch, plan_launch
from smelt.runtime.triton.products import Library, Product, Template
from smelt.runtime.triton.tune import Choice, Clock, Target, choice_key, fastest, remembered

Segment = Callable[[Table], object]


class Kernels:
    """The kernels of a program.

    Args:
        sources: sources of the kernels, which begin to build at once.
        device: a CUDA device; a CPU under TRITON_INTERPRET=1.
        library: the driver.
        stream: function from the number of a device to the address of its current stream.
        clock: the clock that times candidates.
        measured: whether products use the library if that is faster.
        fallbacks: the fallback of each kernel, or None.

    Raises:
        BuildError: Triton or the driver was not found.
    """

    def __init__(
        self,
        sources: Sequence[KernelSource],
        device: torch.device | str,
        library: str = LIBRARY,
        stream: Callable[[int], int] | None = torch_c.current_raw_stream,
        clock: Clock | None = None,
        measured: bool = True,
        fallbacks: Sequence[KernelFallback | None] = (),
    ) -> None:
        self.sources, self.device, self.measured = list(sources), torch.device(device), measured
        self.fallbacks = list(fallbacks) or [None] * len(self.sources)
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
        self.variants: set[tuple[object, ...]] = set()
        self.ahead: weakref.WeakSet[Ahead] = weakref.WeakSet()
        for kernel, source in enumerate(self.sources):
            if len(source.configs) == 1:  # with several configurations, the choice may depend on sizes
                self.build(kernel, 0)

    def segment(self, launches: Sequence[Launch]) -> Segment:
        """Returns a segment that runs these launches when it is called with a table.

        Raises:
            CompileError: no GPU can run one of the launches.
        """
        launches = _launched(launches)
        planned = [self._planned(launch) for launch in launches]
        target = self.target
        if target is None:
            return InterpretedSegment([candidates[0] for candidates in planned])
        choices = [self._choice(launch[0], each, target) for launch, each in zip(launches, planned, strict=True)]
        fallbacks = [self.fallbacks[launch[0]] for launch in launches] if self.fallbacks else [None] * len(launches)
        preparation = _Preparation(target, choices, self, launches, fallbacks, self.device)
        return _native.Segment(target.driver, target.ordinal, target.stream, preparation)

    def product(
        self,
        library: Library,
        before: Sequence[Launch],
        after: Sequence[Launch],
        templates: Sequence[tuple[Sequence[Launch], Launch]],
    ) -> Callable[..., object]:
        """Returns a function that computes a matrix product with its prologues and epilogue:
        `product(table, out, *factors)`.

        Args:
            library: the library's call for the product alone.
            before, after: launches around the library's call.
            templates: alternatives, each the launch of a kernel that computes the product, after the launches that it
                needs.
        """
        if self.target is None:  # the interpreter is used to test kernels, so no library call
            first, launch = templates[0]
            segment = self.segment([*first, launch])
            return lambda table, *_: segment(table)
        variants = [Template(_launched(first), launch) for first, launch in templates]
        return Product(self, self.target, library, _launched(before), _launched(after), variants, self.measured)

    def planned(self, launch: Launch) -> list[PlannedLaunch]:
        """Returns the launch with each configuration of its kernel, except those whose grid is too large."""
        kernel, extents, arguments = launch
        source = self.sources[kernel]
        found = []
        for config in source.configs:
            with contextlib.suppress(CompileError):
                found.append(plan_launch(source, config, extents, arguments))
        return found

    def choice(self, launch: Launch) -> Choice:
        """Returns the candidates of a launch."""
        assert self.target is not None
        return self._choice(launch[0], self._planned(launch), self.target)

    def _planned(self, launch: Launch) -> list[PlannedLaunch]:
        """Returns the launch with each configuration of its kernel."""
        kernel, extents, arguments = launch
        source = self.sources[kernel]
        return [plan_launch(source, config, extents, arguments) for config in source.configs]

    def _choice(self, kernel: int, launches: list[PlannedLaunch], target: Target) -> Choice:
        """Returns the candidates of a launch, which begin to build; only the winner if that is known."""
        key, numbers = "", range(len(launches))
        if len(launches) > 1:
            key = choice_key(launches, target.clock)
            known = remembered(key, launches[0].source)
            numbers = numbers if known is None else range(known, known + 1)
        return Choice(tuple(launches[n] for n in numbers), tuple(self.build(kernel, n) for n in numbers), key)

    def build(self, kernel: int, config: int) -> Build:
        """Begin to build a kernel in one of its configurations."""
        known = self.builds.get((kernel, config))
        if known is None:
            source = self.sources[kernel]
            known = self.builds[kernel, config] = build(source, source.configs[config], self.arch)
        return known

    def variant(self, source: KernelSource, launch: PlannedLaunch) -> Build:
        """Begin to build a variant of a launch's kernel with another source."""
        key = source.source, source.divisible, launch.config
        if key not in self.variants:
            self.variants.add(key)
            if source.divisible != launch.source.divisible:
                count("unaligned_kernels")
        return build(source, launch.config, self.arch)


def _launched(launches: Sequence[Launch]) -> list[Launch]:
    """Returns the launches without those of empty grids."""
    return [launch for launch in launches if all(number for number, _ in launch[1])]


class _Preparation:
    """Makes the plan of a segment at its first call, launch by launch: each may be timed on the results of earlier
    launches, and a refused kernel is replaced by its next alternative.
    """

    def __init__(
        self,
        target: Target,
        choices: list[Choice],
        kernels: Kernels,
        launches: Sequence[Launch],
        fallbacks: Sequence[KernelFallback | None],
        device: torch.device,
    ) -> None:
        self.target, self.choices, self.kernels, self.device = target, choices, kernels, device
        self.launches, self.fallbacks = launches, fallbacks
        alone = [choice.launches[0] for choice in choices if len(choice.launches) == 1]
        self.ahead = Ahead(alone, kernels.ahead, kernels.variant)
        self.steps: list[Callable[[Table], object]] = []

    def __call__(self, table: Table) -> _native.Prepared | None:
        if self.steps:
            for step in self.steps:
                step(table)
            return None
        all_prepared = [self.launch(number, table) for number in range(len(self.choices))]
        kernels = [prepared for prepared in all_prepared if isinstance(prepared, tuple)]
        if len(kernels) == len(all_prepared):
            return _OfSegment(self, range(len(all_prepared)), kernels).prepared(launched=True)
        self.steps = self.in_steps(range(len(all_prepared)), all_prepared)
        return None

    def launch(self, number: int, table: Table, known: tuple[PlannedLaunch, Build] | None = None) -> LaunchOrStep:
        """Launch a kernel by its first alternative that is not refused.

        Args:
            known: the first alternative to try, if it is already known.
        """
        refusal: Exception | None = None
        name = f"kernel {self.choices[number].launches[0].source.name!r}"
        for make in self._makers(number, table, known):
            try:
                prepared = make()
                Variants(self.target, [prepared], self.kernels.variant, self.ahead).segment()(table)
            except Exception as error:
                if not is_refused_kernel(error):
                    raise
                refusal = refusal or error
                continue
            if refusal is not None:
                report_refusal(name, refusal, f"it runs as {prepared[0].config}")
            return prepared
        assert refusal is not None
        second = self.fallbacks[number]
        if second is None:
            raise refusal
        report_refusal(name, refusal, "PyTorch's operators run in its place")
        step = fallback_step(second, self.launches[number][2], self.device)
        step(table)
        return step

    def _makers(
        self, number: int, table: Table, known: tuple[PlannedLaunch, Build] | None
    ) -> Iterator[Callable[[], tuple[PlannedLaunch, Build]]]:
        """Yields functions that make a launch with its kernel: first the fastest configuration, then simpler ones."""
        choice = self.choices[number]

        def wanted() -> tuple[PlannedLaunch, Build]:
            if known is not None:
                return known
            found = fastest(self.target, choice, table)
            return choice.launches[found], choice.builds[found]

        def built(config: Config) -> tuple[PlannedLaunch, Build]:
            _, extents, arguments = self.launches[number]
            launch = plan_launch(choice.launches[0].source, config, extents, arguments)
            return launch, self.kernels.variant(launch.source, launch)

        yield wanted
        for config in simpler_configs(choice.launches[0].config):
            yield partial(built, config)

    def in_steps(self, numbers: Sequence[int], all_prepared: Sequence[LaunchOrStep]) -> list[Callable[[Table], object]]:
        """Returns the steps of a segment: runs of kernels, and the alternatives that replace refused kernels."""
        steps: list[Callable[[Table], object]] = []
        run: list[tuple[PlannedLaunch, Build]] = []
        of_run: list[int] = []
        for number, prepared in (*zip(numbers, all_prepared, strict=True), (-1, None)):
            if isinstance(prepared, tuple):
                run.append(prepared)
                of_run.append(number)
                continue
            if run:
                steps.append(_OfSegment(self, of_run, run).segment())
                run, of_run = [], []
            if prepared is not None:
                steps.append(prepared)
        return steps


class _OfSegment(Variants):
    """Makes the launches for pointers that are not multiples of 16 one by one, as in the first call: each by its first
    alternative that is not refused.

    Args:
        numbers: numbers of these launches in the preparation.
    """

    def __init__(
        self, preparation: _Preparation, numbers: Sequence[int], chosen: Sequence[tuple[PlannedLaunch, Build]]
    ) -> None:
        super().__init__(preparation.target, chosen, preparation.kernels.variant, preparation.ahead)
        self.preparation, self.numbers = preparation, list(numbers)

    def __call__(self, positions: tuple[int, ...], table: Table) -> _native.Moved:
        begun = self.begun(positions, table)
        all_prepared = [
            self.preparation.launch(n, table, prepared) for n, prepared in zip(self.numbers, begun, strict=True)
        ]
        if all(prepared is wanted for prepared, wanted in zip(all_prepared, begun, strict=True)):
            return self.plan(begun), True
        steps = self.preparation.in_steps(self.numbers, all_prepared)

        def run(table: Table) -> None:
            for step in steps:
                step(table)

        return run, True


LaunchOrStep = tuple[PlannedLaunch, Build] | Callable[[Table], object]
"""A launch with its kernel, or a function that replaces it."""
