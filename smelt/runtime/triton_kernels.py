"""The generated kernels of one program on one device: built in the background, bound to launches, called by segments.

    kernels = Kernels(sources, device)
    segment0 = kernels.segment([(0, ((1572864, "XBLOCK"),), ((1, 0), (7, 0), (0, 4096), 768)), ...])
    segment0(table)

A segment launches its kernels in order on the device's current stream. Nothing waits for the builds before the first
call, so kernels compile while later stages and other segments are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from smelt.base.kernel_source import KernelSource
from smelt.runtime.launch import Table
from smelt.runtime.triton_interpreter import InterpretedSegment
from smelt.runtime.triton_plan import Launch, plan_launch

Segment = Callable[[Table], None]


class Kernels:
    """The kernels of a program.

    Args:
        device: a CUDA device; a CPU under TRITON_INTERPRET=1.
    """

    def __init__(self, sources: Sequence[KernelSource], device: torch.device | str) -> None:
        self.sources, self.device = list(sources), torch.device(device)

    def segment(self, launches: Sequence[Launch]) -> Segment:
        """What runs these launches when it is called with a table.

        Raises:
            CompileError: a launch that no GPU can run.
        """
        planned = [
            plan_launch(self.sources[kernel], self.sources[kernel].configs[0], extents, arguments)
            for kernel, extents, arguments in launches
        ]
        return InterpretedSegment([launch for launch in planned if 0 not in launch.grid])
