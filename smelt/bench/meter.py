"""Measures time and memory on a device, with one class of meter for each kind of device.

On a CPU a meter reads the clock and the resident memory of the process. On a GPU, which runs asynchronously, it uses
events on the current stream and the counts of torch's allocator. Both classes have the same interface, so that tests on
a CPU run the code that measures on a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from smelt.base.errors import OptionError
from smelt.bench.memory import peak_mb, reset_peak, tensors_mb

CYCLES = 2e9
"""An upper estimate of a GPU's clock rate in cycles per second, which converts a delay in seconds to cycles."""


class Meter:
    """The meter of the CPU, where work is done when the call returns."""

    def wait_for_device(self) -> None:
        """Wait until the device has finished."""

    def seconds(self, work: Callable[[], Any], times: int = 1, ahead: float = 0.0) -> float:
        """Returns the seconds of one call of `work`: the mean of `times` consecutive calls, from an idle device to the
        end of the last call.

        ahead: seconds for which a GPU is delayed first: calls that are queued in this time cost only the GPU's time.
        """
        begin = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - begin) / times

    def peak_mb(self) -> float:
        """Returns the largest resident memory of the process so far in MiB."""
        return peak_mb()

    def reset_peak(self) -> bool:
        """Reset the peak to the present use; returns False if the system cannot."""
        return reset_peak()

    def tensors_mb(self, step: Callable[[], Any]) -> float:
        """Returns the peak MiB of tensors while `step()` runs, without other memory of the process."""
        return tensors_mb(step)

    def reserved_mb(self) -> float | None:
        """Returns the largest MiB that torch's allocator took from the device, pools of CUDA graphs included; None on a
        CPU.
        """
        return None

    def release(self) -> None:
        """Free cached memory that is unused."""


class CudaMeter(Meter):
    """The meter of a GPU: work is queued, so time is measured between two events, and memory is that of torch's
    allocator.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def wait_for_device(self) -> None:
        torch.cuda.synchronize(self.device)

    def seconds(self, work: Callable[[], Any], times: int = 1, ahead: float = 0.0) -> float:
        stream = torch.cuda.current_stream(self.device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.wait_for_device()
        if ahead:
            torch.cuda._sleep(round(ahead * CYCLES))
        begin.record(stream)
        for _ in range(times):
            work()
        end.record(stream)
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / times

    def peak_mb(self) -> float:
        return torch.cuda.max_memory_allocated(self.device) / 2**20

    def reset_peak(self) -> bool:
        torch.cuda.reset_peak_memory_stats(self.device)
        return True

    def tensors_mb(self, step: Callable[[], Any]) -> float:
        self.reset_peak()
        step()
        self.wait_for_device()
        return self.peak_mb()

    def reserved_mb(self) -> float | None:
        return torch.cuda.max_memory_reserved(self.device) / 2**20

    def release(self) -> None:
        torch.cuda.empty_cache()


def meter_of(device: str) -> Meter:
    """Returns the meter of `cpu`, `cuda` or `cuda:1`."""
    return CudaMeter(torch.device(device)) if device.startswith("cuda") else Meter()


def check_device(device: str) -> None:
    """Raise if this machine does not have the device.

    Raises:
        OptionError: there is no such device, or torch cannot use it; the message says what to check.
    """
    try:
        kind, index = torch.device(device).type, torch.device(device).index or 0
    except RuntimeError:
        raise OptionError(f"unknown device {device!r}", hint="valid: 'cpu', 'cuda', 'cuda:1'") from None
    if kind == "cpu":
        return
    if kind != "cuda":
        raise OptionError(f"unknown device {device!r}", hint="valid: 'cpu', 'cuda', 'cuda:1'")
    if torch.version.cuda is None:
        raise OptionError("this torch is built without CUDA", hint="pip install a CUDA build of torch, or --device cpu")
    number = torch.cuda.device_count()
    if not number:
        hint = "`nvidia-smi` should list one; an old driver counts as none; or --device cpu"
        raise OptionError(f"torch {torch.__version__} finds no GPU", hint=hint)
    if index >= number:
        raise OptionError(f"there is no device {device!r}", hint=f"{number} GPU{'s' * (number > 1)}, counted from 0")
