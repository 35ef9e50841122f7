"""Matrix products with prologues and epilogue: the library's call between kernels, or one kernel for all.

    product0 = kernels.product(mm_0, [before], [after], [([before], template), ...])
    product0(table, out, a, b)

The first call times these alternatives on its own arguments, over copies of memory that they change, and runs the
fastest; the choice is kept in the store. Templates that do not build, or need more resources than the device has, are
not candidates. While a stream is recorded, or if some memory is too large to copy, the library is used and the choice
is postponed. The library also computes calls with pointers that are not multiples of 16, since a template would read
such a factor element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from smelt.abi.kernel_source import KernelSource
from smelt.base.errors import BuildError, CompileError
from smelt.base.stats import count_named
from smelt.base.store import content_key
from smelt.runtime import _native
from smelt.runtime.cuda.driver import OutOfResources
from smelt.runtime.launch import Table
from smelt.runtime.refusals import is_refused_kernel, report_refusal
from smelt.runtime.triton.align import Variants, unaligned_parameters
from smelt.runtime.triton.build import Build, triton_identity
from smelt.runtime.triton.plan import Argument, Launch, PlannedLaunch
from smelt.runtime.triton.tune import Choice, Target, choose, fastest, race, stand_ins, with_stand_ins
from smelt.runtime.tuned import KERNEL_TIMING
from smelt.runtime.tuner import Tuner

LIBRARY = "library"

_tuner: Tuner[str] = Tuner("triton-product", tie=1.0, close=KERNEL_TIMING.template_gain)
forget = _tuner.forget

Run = Callable[..., None]
"""A function `run(table, out, *factors)`."""


class Library(Protocol):
    """The product as an extern; `into(out, *factors)` writes it."""

    operation: str
    into: Callable[..., Any]


class Maker(Protocol):
    """The interface that makes launches of the program's kernels (`Kernels`)."""

    def segment(self, launches: Sequence[Launch]) -> Callable[[Table], object]:
        """Returns a segment that runs these launches."""

    def planned(self, launch: Launch) -> list[PlannedLaunch]:
        """Returns the launch with each configuration of its kernel, except those whose grid is too large."""

    def choice(self, launch: Launch) -> Choice:
        """Returns the candidates of a launch."""

    def build(self, kernel: int, config: int) -> Build:
        """Begin to build a kernel with one of its configurations."""

    def variant(self, source: KernelSource, launch: PlannedLaunch) -> Build:
        """Begin to build another source of a launch's kernel."""


@dataclass(frozen=True)
class Template:
    """A kernel that computes the product, and the launches before it."""

    before: Sequence[Launch]
    launch: Launch


@dataclass(frozen=True)
class Implementation:
    """One configuration of a template. `name`: the name of this choice in the store."""

    name: str
    template: Template
    launch: PlannedLaunch
    build: Build


class Product:
    """A product with its prologues and epilogue as a function `product(table, out, *factors)`.

    Args:
        measured: whether the library is a candidate; otherwise the first template that runs is used.
    """

    def __init__(
        self,
        maker: Maker,
        target: Target,
        library: Library,
        before: Sequence[Launch],
        after: Sequence[Launch],
        templates: Sequence[Template],
        measured: bool,
    ) -> None:
        self.maker, self.target, self.library = maker, target, library
        self.before, self.after, self.templates, self.measured = before, after, templates, measured
        self.run: Run | None = None
        self.by_library: Run | None = None
        planned = [maker.planned(template.launch) for template in templates]
        self.key = product_key(library, planned, target.clock.name(), measured)
        known = _tuner.remembered(self.key)
        self.implementations = self._implementations(planned, known)

    def __call__(self, table: Table, out: torch.Tensor, *factors: torch.Tensor) -> None:
        if self.run is None:
            self._first_call(table, out, *factors)
        else:
            self.run(table, out, *factors)

    def _implementations(self, planned: Sequence[Sequence[PlannedLaunch]], known: str | None) -> list[Implementation]:
        """Returns the configurations of the templates, which begin to build; at most one if the best is known."""
        implementations = []
        for number, (template, launches) in enumerate(zip(self.templates, planned, strict=True)):
            for launch in launches:
                name = f"template {number} {launch.config}"
                if known is None or known == name:
                    config = launch.source.configs.index(launch.config)
                    implementations.append(
                        Implementation(name, template, launch, self.maker.build(template.launch[0], config))
                    )
        return implementations

    def _first_call(self, table: Table, out: torch.Tensor, *factors: torch.Tensor) -> None:
        if self.measured and self._moved(table):
            self._library()(table, out, *factors)
            return
        known = _tuner.remembered(self.key)
        if known is None and self.target.clock.recording():
            self._library()(table, out, *factors)  # nothing can be timed during a recording
            return
        chosen = known or self._chosen(table, out, factors)
        implementation = next(
            (implementation for implementation in self.implementations if implementation.name == chosen), None
        )
        self.run = self._library() if implementation is None else self._template(implementation, table)
        count_named("product_choices", {LIBRARY if self.run is self.by_library else "template": 1})
        try:
            self.run(table, out, *factors)
        except _native.CudaError as error:  # a template known from the store, or one that is used without measuring
            if self.run is self.by_library or not is_refused_kernel(error):
                raise
            report_refusal(f"a template of {self.library.operation}", error, "the library's product runs in its place")
            self.run = self._library()
            self.run(table, out, *factors)

    def _chosen(self, table: Table, out: torch.Tensor, factors: Sequence[torch.Tensor]) -> str:
        """Returns the name of the chosen alternative; the library's name if a kernel of the others is refused."""
        try:
            return self._measured(table, out, factors) if self.measured else self._first()
        except Exception as error:
            if not is_refused_kernel(error):
                raise
            report_refusal(f"a template of {self.library.operation}", error, "the library's product runs in its place")
            return LIBRARY

    def _library(self) -> Run:
        if self.by_library is None:
            before, after = self.maker.segment(self.before), self.maker.segment(self.after)
            library = self.library

            def run(table: Table, out: torch.Tensor, *factors: torch.Tensor) -> None:
                before(table)
                library.into(out, *factors)
                after(table)

            self.by_library = run if self.before or self.after else lambda table, *tensors: library.into(*tensors)
        return self.by_library

    def _moved(self, table: Table) -> bool:
        """Whether a pointer that a template requires to be aligned is not a multiple of 16."""
        return any(
            unaligned_parameters(table, implementation.launch)
            for implementation in {
                id(implementation.template): implementation for implementation in self.implementations
            }.values()
        )

    def _template(self, implementation: Implementation, table: Table) -> Run:
        """Returns the launch of a template, or the library's call if a template known from the store does not run any
        more.
        """
        chosen = []
        try:
            for choice in map(self.maker.choice, implementation.template.before):
                number = fastest(self.target, choice, table)
                chosen.append((choice.launches[number], choice.builds[number]))
            chosen.append((implementation.launch, implementation.build))
            for launch, build in chosen:
                self.target.plan(launch, build)
        except (OutOfResources, BuildError):
            return self._library()
        segment = _OfTemplate(self, chosen).segment()

        def run(table: Table, out: torch.Tensor, *factors: torch.Tensor) -> None:
            if segment(table) is False:
                self._library()(table, out, *factors)

        return run

    def _runnable(self) -> tuple[dict[str, _native.LaunchPlan], list[str]]:
        """Returns (plans of the alternatives that build and fit the device, reasons why others do not)."""
        plans: dict[str, _native.LaunchPlan] = {}
        notes: list[str] = []
        for implementation in self.implementations:
            try:
                plans[implementation.name] = self.target.plan(implementation.launch, implementation.build)
            except (OutOfResources, BuildError) as error:
                notes.append(f"{implementation.name}: {error}")
        return plans, notes

    def _first(self) -> str:
        """Returns the name of the first template that runs.

        Raises:
            CompileError: no template runs.
        """
        plans, notes = self._runnable()
        if not plans:
            raise CompileError(
                f"no template of {self.library.operation} runs on this device",
                why="\n".join(notes),
                hint="options={'gemm': 'auto'} leaves such products to the library",
            )
        return next(iter(plans))

    def _measured(self, table: Table, out: torch.Tensor, factors: Sequence[torch.Tensor]) -> str:
        """Returns the name of the fastest alternative."""
        plans, notes = self._runnable()
        copies = self._stand_ins(table)
        if not plans or copies is None:
            return LIBRARY
        replaced, kept = copies
        implementations = {implementation.name: implementation for implementation in self.implementations}
        before, after = self._plans(self.before, table, replaced), self._plans(self.after, table, replaced)
        makers = {LIBRARY: self._library_runs(table, out, factors, before, after)}
        for name, plan in plans.items():
            first = self._plans(implementations[name].template.before, table, replaced)
            makers[name] = self._template_runs(table, (*first, with_stand_ins(plan, replaced)))
        times = race(self.target.clock, makers)
        del kept
        if not times:
            return LIBRARY  # the library then raises the error
        least = min(times.values())
        winner = _tuner.fastest(times) if _tuner.is_slower(times.get(LIBRARY, least), least) else LIBRARY
        record = {"operation": self.library.operation, "seconds": times, "dropped": notes}
        _tuner.keep(self.key, winner, record)
        return winner

    def _plans(
        self, launches: Sequence[Launch], table: Table, replaced: dict[Argument, int]
    ) -> tuple[_native.LaunchPlan, ...]:
        chosen = (choose(self.target, self.maker.choice(launch), table) for launch in launches)
        return tuple(with_stand_ins(plan, replaced) for plan in chosen)

    def _stand_ins(self, table: Table) -> tuple[dict[Argument, int], list[Any]] | None:
        """Returns addresses of copies, by pointer, of memory that an alternative reads and writes; None if it is too
        large to copy.
        """
        launches = [self.maker.choice(launch).launches[0] for launch in (*self.before, *self.after)]
        launches += {
            id(implementation.template): implementation.launch for implementation in self.implementations
        }.values()
        replaced: dict[Argument, int] = {}
        kept: list[Any] = []
        for launch in launches:
            found = stand_ins(self.target.clock, launch, table)
            if found is None:
                return None
            replaced |= found[0]
            kept += found[1]
        return replaced, kept

    def _library_runs(
        self,
        table: Table,
        out: torch.Tensor,
        factors: Sequence[torch.Tensor],
        before: tuple[_native.LaunchPlan, ...],
        after: tuple[_native.LaunchPlan, ...],
    ) -> Callable[[int], Callable[[], object]]:
        first, last = self.target.segment(before), self.target.segment(after)

        def runs(count: int) -> Callable[[], object]:
            def run() -> None:
                for _ in range(count):
                    if before:
                        first(table)
                    self.library.into(out, *factors)
                    if after:
                        last(table)

            return run

        return runs

    def _template_runs(
        self, table: Table, plan: tuple[_native.LaunchPlan, ...]
    ) -> Callable[[int], Callable[[], object]]:
        def runs(count: int) -> Callable[[], object]:
            segment = self.target.segment(plan * count)
            return lambda: segment(table)

        return runs


class _OfTemplate(Variants):
    """Handles pointers of a template that are not multiples of 16: the library is called if alternatives are measured
    or the template's variant is refused.
    """

    def __init__(self, product: Product, chosen: Sequence[tuple[PlannedLaunch, Build]]) -> None:
        super().__init__(product.target, chosen, product.maker.variant)
        self.operation, self.measured = product.library.operation, product.measured

    def __call__(self, positions: tuple[int, ...], table: Table) -> _native.Moved | None:
        if self.measured:
            return None
        try:
            return super().__call__(positions, table)
        except Exception as error:
            if not is_refused_kernel(error):
                raise
            report_refusal(f"a template of {self.operation}", error, "the library's product runs in its place")
            return None


def product_key(library: Library, planned: Sequence[Sequence[PlannedLaunch]], device: str, measured: bool) -> str:
    """Returns the key of the choice in the store: the kernels with their sizes, the library, and the device.

    Sizes that are arguments are rounded to their magnitude, so that programs with changing sizes share choices for
    similar sizes.
    """
    components = [library.operation if not planned or not _symbolic(planned) else "", device, str(measured)]
    for launches in planned:
        for launch in launches[:1]:
            sizes = [size.bit_length() for size in launch.sizes()]
            components += [launch.source.source, repr(launch.source.signature), repr(sizes)]
        components.append(repr([launch.config for launch in launches]))
    version = f"{torch.__version__} {torch.version.cuda}"
    return content_key("product", *components, triton_identity(), version)


def _symbolic(planned: Sequence[Sequence[PlannedLaunch]]) -> bool:
    """Whether sizes are arguments of the kernels."""
    return any(one.sizes() for launches in planned for one in launches)
