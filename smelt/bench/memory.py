"""Peak memory of this process (VmHWM of proc(5)) or of its GPU."""

from __future__ import annotations

import resource
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


def peak_mb(device: str = "cpu") -> float:
    """Largest memory so far in MiB: resident memory of the process, or memory allocated by torch on the GPU."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 2**20
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    # Elsewhere the kernel keeps only a peak that cannot be reset: kilobytes (bytes on macOS).
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def reset_peak(device: str = "cpu") -> bool:
    """Start a new peak at the present use; False where the system cannot."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        return True
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True
