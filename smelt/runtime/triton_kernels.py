"""The generated kernels of one program on one device: built in the background, bound to launches, called by segments.

    kernels = Kernels(sources, device)
    segment0 = kernels.segment([(0, ((1572864, "XBLOCK"),), ((1, 0), (7, 0), (0, 4096), 768)), ...])
    segment0(table)

A segment launches its kernels in order on the device's current stream (native/cuda_segment.c). Nothing waits for the
builds before the first call, so kernels compile while later stages and other segments are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from smelt.base import torch_c
from smelt.base.errors import BuildError
from smelt.base.kernel_source import KernelSource
from smelt.runtime import _native
from smelt.runtime.cuda_driver import LIBRARY, compute_capability, load, open_driver
from smelt.runtime.launch import Table
from smelt.runtime.triton_build import Build, build
from smelt.runtime.triton_interpreter import InterpretedSegment
from smelt.runtime.triton_plan import Launch, PlannedLaunch, plan_launch

Segment = Callable[[Table], None]


class Kernels:
    """The kernels of a program.

    Args:
        sources: they begin to build at once.
        device: a CUDA device; a CPU under TRITON_INTERPRET=1.
        library: the driver's.
        stream: the address of a device's current stream, by its number.

    Raises:
        BuildError: no Triton, no driver.
    """

    def __init__(
        self,
        sources: Sequence[KernelSource],
        device: torch.device | str,
        library: str = LIBRARY,
        stream: Callable[[int], int] | None = torch_c.current_raw_stream,
    ) -> None:
        self.sources, self.device = list(sources), torch.device(device)
        if self.device.type == "cpu":
            return
        if stream is None:
            raise BuildError("this PyTorch was built without CUDA", hint="install one for CUDA: https://pytorch.org")
        self.driver, self.stream = open_driver(library), stream
        self.ordinal = torch.cuda.current_device() if self.device.index is None else self.device.index
        self.arch = compute_capability(self.driver, self.ordinal)
        self.builds = [build(source, source.configs[0], self.arch) for source in self.sources]

    def segment(self, launches: Sequence[Launch]) -> Segment:
        """What runs these launches when it is called with a table.

        Raises:
            CompileError: a launch that no GPU can run.
        """
        planned: list[PlannedLaunch] = []
        builds: list[Build] = []
        for kernel, extents, arguments in launches:
            source = self.sources[kernel]
            launch = plan_launch(source, source.configs[0], extents, arguments)
            if 0 in launch.grid:
                continue
            planned.append(launch)
            if self.device.type != "cpu":
                builds.append(self.builds[kernel])
        if self.device.type == "cpu":
            return InterpretedSegment(planned)
        return _native.Segment(self.driver, self.ordinal, self.stream, _Preparation(self, planned, builds))


class _Preparation:
    """Makes the plan of a segment when it is first called."""

    def __init__(self, kernels: Kernels, launches: list[PlannedLaunch], builds: list[Build]) -> None:
        self.kernels, self.launches, self.builds = kernels, launches, builds

    def __call__(self, table: Table) -> tuple[tuple[_native.LaunchPlan, ...], bool]:
        plan = tuple(self.plan(launch, one) for launch, one in zip(self.launches, self.builds, strict=True))
        return plan, False

    def plan(self, launch: PlannedLaunch, one: Build) -> _native.LaunchPlan:
        cubin = one.result()
        function = load(self.kernels.driver, self.kernels.ordinal, cubin)
        return (
            launch.source.name,
            function.address,
            launch.grid,
            cubin.threads,
            cubin.shared,
            launch.arguments,
            cubin.appended,
        )
