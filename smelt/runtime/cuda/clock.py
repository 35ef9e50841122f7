"""Times kernels on a CUDA device with events, and copies memory that they change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from smelt.runtime import _native
from smelt.runtime.tuned import KERNEL_TIMING


class DeviceClock:
    """Times launches with CUDA events; see `tune.Clock`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def recording(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def time(self, run: Callable[[], object]) -> float:
        with torch.cuda.device(self.device):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(KERNEL_TIMING.lead_cycles)
            start.record()
            run()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1e3

    def name(self) -> str:
        return torch.cuda.get_device_name(self.device)


class CudaClock(DeviceClock):
    """Times kernels and copies memory for the tuner; see `triton.tune.Clock`."""

    def __init__(self, driver: _native.Driver, ordinal: int, stream: Callable[[int], int]) -> None:
        super().__init__(torch.device("cuda", ordinal))
        self.driver, self.ordinal, self.stream = driver, ordinal, stream

    def bytes_from(self, address: int) -> int | None:
        for segment in torch.cuda.memory_snapshot():
            if segment["device"] != self.ordinal:
                continue
            start = segment["address"]
            if start <= address < start + segment["total_size"]:
                return _rest(segment, address)
        return None  # the address is not in PyTorch's memory

    def copy(self, address: int, size: int) -> tuple[int, Any]:
        block = torch.empty(size, dtype=torch.uint8, device=self.device)
        self.driver.copy(self.ordinal, block.data_ptr(), address, size, self.stream(self.ordinal))
        return block.data_ptr(), block


def _rest(segment: dict[str, Any], address: int) -> int | None:
    """Returns the bytes from the address to the end of its block in a segment of PyTorch's allocator; None if it is not
    in the segment.
    """
    at = segment["address"]
    for block in segment["blocks"]:
        at += block["size"]
        if address < at:
            return at - address
    return None
