"""Peak memory on the CPU: of this process (VmHWM of proc(5)), and of the tensors of a step."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


def _status(field: str) -> float | None:
    """Returns one field of the process's status in MiB; None if the system does not provide it."""
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
    return None


def peak_mb() -> float:
    """Returns the largest resident memory of this process so far in MiB."""
    peak = _status("VmHWM")
    if peak is not None:
        return peak
    # Other systems report only a peak that cannot be reset, in kilobytes (bytes on macOS).
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def reset_peak() -> bool:
    """Reset the peak to the present use; returns False if the system cannot."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    peak, present = _status("VmHWM"), _status("VmRSS")
    # Some container kernels accept the write and do nothing; a few pages may be touched between the two reads.
    return peak is not None and present is not None and peak < present + 16


def tensors_mb(step: Callable[[], Any]) -> float:
    """Returns the peak MiB of tensors while `step()` runs: tensors that existed before, and the memory that torch
    allocates during the step.

    Memory that torch's allocator did not provide is not counted: see `smelt.runtime.memory.recycle`.
    """
    gc.collect()
    before = _bytes_of_tensors()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    assert profile.profiler is not None and profile.profiler.kineto_results is not None
    events = (event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]")
    changes = [nbytes for _, nbytes in sorted((event.start_ns(), event.nbytes()) for event in events)]
    return (before + max(accumulate(changes), default=0)) / 2**20


def _bytes_of_tensors() -> int:
    """Returns the bytes of all CPU tensors that Python's collector tracks and whose memory torch allocated; each
    storage counts once.
    """
    sizes: dict[int, int] = {}
    for tensor in gc.get_objects():
        if issubclass(type(tensor), torch.Tensor) and tensor.device.type == "cpu" and tensor.layout is torch.strided:
            storage = tensor.untyped_storage()
            nbytes = storage.nbytes()  # symbolic for fake tensors, which are not counted
            # Storages over memory that torch did not allocate cannot be resized. Fake tensors are on meta.
            if storage.device.type == "cpu" and isinstance(nbytes, int) and nbytes and storage.resizable():
                with suppress(RuntimeError):  # the storage of a wrapper subclass has a size, but no address
                    sizes[storage.data_ptr()] = nbytes
    return sum(sizes.values())
