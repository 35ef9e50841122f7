"""Makes a loaded program visible step by step: to PyTorch's profiler, as NVTX ranges, and to timers of kernels.

A host program looks up its callees by name at each call. Therefore observation replaces the objects under these names,
and a program that is not observed pays nothing. Replacements for a profiler remove themselves once the profiler is off.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.autograd import profiler

from smelt.abi.staged import Staged
from smelt.abi.steps import Step, Steps, Timing, observable
from smelt.base.locks import new_lock
from smelt.base.options import environment
from smelt.runtime.launch import Table
from smelt.runtime.refusals import anything_refused
from smelt.runtime.sizes import Sized, Version
from smelt.runtime.tuned import KERNEL_TIMING


class Observed:
    """The steps of one program.

    Args:
        scope: the program's global names.
        addresses: addresses of segments in C++.
        launches: launches of segments of Triton kernels.
    """

    def __init__(
        self,
        steps: Steps,
        scope: dict[str, Any],
        addresses: Mapping[str, int],
        launches: Sequence[Sequence[Any]],
        program: Any,
    ) -> None:
        self.steps, self.scope, self.launches = steps, scope, launches
        kernels = scope.get("kernels")
        self.on_gpu = kernels is not None and kernels.target is not None
        self.ranges = _nvtx_ranges() if environment().nvtx else None
        self.segments = {addresses[name]: each for name, each in steps.segments.items() if name in addresses}
        self.sized = program if isinstance(program, Sized) else None
        self.before: dict[str, Any] | None = None
        self.always = self.ranges is not None or any(step.timing is not None for step in steps.all())
        self.paused = False
        """Whether the steps of the current call run unobserved."""

    def observe(self) -> None:
        """Begin to observe the program; has no effect if it is already observed."""
        with _lock:
            self._observe()

    def _observe(self) -> None:
        if self.before is not None:
            return
        if self.sized is not None:
            self.before = {"at": self.sized.at, "versions": self.sized.versions}
            self.sized.at, self.sized.versions = functools.partial(self._shown_version, self.sized.at), {}
            return
        shown = self._shown(self.scope)
        self.before = {name: self.scope[name] for name in shown}
        self.scope.update(shown)

    def restore(self) -> None:
        """Stop observing: restore the original objects."""
        with _lock:
            before, self.before = self.before, None
            if before is None:
                return
            if self.sized is not None:
                self.sized.at, self.sized.versions = before["at"], before["versions"]
            else:
                self.scope.update(before)

    def _shown_version(self, at: Any, *sizes: int) -> Version:
        """Returns a version for these sizes whose steps are observed."""
        scope = dict(self.scope)
        externs = iter(self.steps.externs.values())
        segments, products = iter(self.steps.segments.values()), iter(self.steps.products.values())
        bound = scope["extern"]
        scope["extern"] = lambda *given: ObservedExtern(self, bound(*given), next(externs))
        scope |= {name: self._launcher(scope[name]) for name in _LAUNCHERS}
        if scope["kernels"] is not None:
            scope["kernels"] = _Kernels(self, scope["kernels"], segments, products)
        version: Version = FunctionType(at.__code__, scope)(*sizes)
        known = self.before["versions"].get(sizes) if self.before is not None else None
        if known is not None:
            for mine, other in zip(version.externs, known.externs, strict=True):
                mine.follow(other)
        return version

    def _shown(self, scope: dict[str, Any]) -> dict[str, Any]:
        """Returns the replacement of an object that the program calls."""
        shown: dict[str, Any] = {n: ObservedExtern(self, scope[n], step) for n, step in self.steps.externs.items()}
        if self.segments:
            return shown | {name: self._launcher(scope[name]) for name in _LAUNCHERS}
        for (name, steps), launches in zip(self.steps.segments.items(), self.launches, strict=False):
            shown[name] = self.segment(scope["kernels"], launches, scope[name], steps)
        for name, step in self.steps.products.items():
            shown[name] = functools.partial(self.run, step, scope[name])
        return shown

    def _launcher(self, launch: Callable[[int, Table], None]) -> Callable[[int, Table], None]:
        """Returns a function that launches the kernels of a segment in C++ one by one."""

        def launch_observed(address: int, table: Table) -> None:
            steps = self.segments.get(address)
            if steps is None or not self.is_observed():
                launch(address, table)
                return
            for step in steps:
                self.run(step, _launch_alone, step, table)

        return launch_observed

    def segment(
        self, kernels: Any, launches: Sequence[Any], together: Callable[[Table], object], steps: list[Step]
    ) -> Callable[[Table], object]:
        """Returns a segment that launches Triton kernels one by one.

        On a GPU the first call launches them together, to find out which of them are refused. They are still launched
        together if one was refused, and while a CUDA graph is recorded, which should have no additional nodes.
        """
        alone: list[Callable[[Table], object]] = []
        combined = Step(tuple(origin for step in steps for origin in step.origins))
        tried = kernels.target is None

        def launch_observed(table: Table) -> object:
            nonlocal tried
            if not self.is_observed():
                return together(table)
            if not tried or anything_refused() or _is_recording():
                tried = True
                return self.run(combined, together, table)
            if not alone:
                alone.extend(kernels.segment([launch]) for launch in launches)
            for step, each in zip(steps, alone, strict=True):
                self.run(step, each, table)
            return None

        return launch_observed

    def is_observed(self) -> bool:
        """Returns whether there is an observer; if not, stops observing."""
        if self.paused:
            return False
        if self.always or profiler._is_profiler_enabled:
            return True
        self.restore()
        return False

    def run(self, step: Step, call: Callable[..., Any], *args: Any) -> Any:
        """Run one step, shown to all observers."""
        if not self.is_observed():
            return call(*args)
        with contextlib.ExitStack() as regions:
            if profiler._is_profiler_enabled:
                regions.enter_context(profiler.record_function(step.label))
            if self.ranges is not None:
                self.ranges[0](step.label)
                regions.callback(self.ranges[1])
            if step.timing is None:
                return call(*args)
            return timed(step.timing, self.on_gpu and not _is_recording(), call, *args)


def timed(timing: Timing, on_gpu: bool, call: Callable[..., Any], *args: Any) -> Any:
    """Run a call and add its time, on a GPU that of its kernels.

    A GPU is delayed before the call, so that the host has queued the kernels when the first one begins. (A call of many
    kernels may take the host longer than this delay; then the time contains the gaps in which the GPU waits.)
    """
    if not on_gpu:
        begin = time.perf_counter_ns()
        result = call(*args)
        timing.add(time.perf_counter_ns() - begin)
        return result
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(KERNEL_TIMING.lead_cycles)
    start.record()
    result = call(*args)
    end.record()
    end.synchronize()
    timing.add(round(start.elapsed_time(end) * 1e6))
    return result


class TimedProgram:
    """A program of which every second call is timed as a whole, and the steps of the other calls are timed alone.

    Steps that are timed alone run one at a time, with a wait after each on a GPU. The difference between a whole call
    and the sum of its steps is the time in which no step runs.
    """

    def __init__(self, program: Callable[[list[Any]], list[Any]], observed: Observed, timing: Timing) -> None:
        self.program, self.observed, self.timing = program, observed, timing
        self.calls = 0

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run one call, like any other program."""
        self.calls += 1
        observed = self.observed
        if self.calls % 2 or profiler._is_profiler_enabled or (observed.on_gpu and _is_recording()):
            return self.program(inputs)
        observed.paused = True
        try:
            return timed(self.timing, observed.on_gpu, self.program, inputs)
        finally:
            observed.paused = False


_lock = new_lock()
"""Protects observers, which threads may add and remove at the same time."""

_LAUNCHERS = ("launch", "launch_short")


class ObservedExtern:
    """The replacement of an extern."""

    def __init__(self, observed: Observed, kernel: Any, step: Step) -> None:
        self.kernel = kernel
        self.call = lambda *tensors: observed.run(step, kernel.call, *tensors)
        self.into = lambda *tensors: observed.run(step, kernel.into, *tensors)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)


class _Kernels:
    """The replacement of a program's Triton kernels while one of its versions is made."""

    def __init__(
        self, observed: Observed, kernels: Any, segments: Iterator[list[Step]], products: Iterator[Step]
    ) -> None:
        self.observed, self.kernels, self.segments, self.products = observed, kernels, segments, products

    def segment(self, launches: Any) -> Callable[[Table], object]:
        """Returns a segment whose launches are observed."""
        return self.observed.segment(self.kernels, launches, self.kernels.segment(launches), next(self.segments))

    def product(self, library: Any, *rest: Any) -> Callable[..., object]:
        """Returns a product that is observed."""
        made = self.kernels.product(library.kernel, *rest)
        return functools.partial(self.observed.run, next(self.products), made)


class Noted:
    """The replacement of a program's Triton kernels while its text is executed: records what its segments launch."""

    def __init__(self, kernels: Any) -> None:
        self.kernels = kernels
        self.launches: list[Sequence[Any]] = []

    def segment(self, launches: Sequence[Any]) -> Callable[[Table], object]:
        """Same interface as the kernels' `segment`; records the call."""
        self.launches.append(launches)
        made: Callable[[Table], object] = self.kernels.segment(launches)
        return made

    def product(self, *given: Any) -> Callable[..., object]:
        """Same interface as the kernels' `product`; records the call."""
        made: Callable[..., object] = self.kernels.product(*given)
        return made


def observe(
    steps: Steps, scope: dict[str, Any], addresses: Mapping[str, int], launches: Sequence[Sequence[Any]], program: Any
) -> Any:
    """Register a loaded program; it is observed at once if there is an observer. Returns the program to call."""
    observed = Observed(steps, scope, addresses, launches, program)
    scope["observed"] = observed  # kept alive by the program
    observable(observed)
    if observed.always or profiler._is_profiler_enabled:
        observed.observe()
    if steps.timing is None or isinstance(program, Staged):  # the stages of a program begin and end between its steps
        return program
    return TimedProgram(program, observed, steps.timing)


def _launch_alone(step: Step, table: Table) -> None:
    """Call a kernel with its arguments, each of which is as wide as a pointer."""
    given = [each if isinstance(each, int) else table.get(each[0]) + each[1] for each in step.arguments]
    _kernel(table.get(step.slot), len(given))(*given)


@functools.lru_cache(maxsize=4096)
def _kernel(address: int, count: int) -> Callable[..., None]:
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * count)(address)


def _is_recording() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


Ranges = tuple[Callable[[str], object], Callable[[], object]]


def _nvtx_ranges() -> Ranges | None:
    """Returns the functions that begin and end an NVTX range; None without CUDA."""
    try:
        torch.cuda.nvtx.range_push("smelt")
        torch.cuda.nvtx.range_pop()
    except RuntimeError:  # this PyTorch was built without CUDA
        return None
    return torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
