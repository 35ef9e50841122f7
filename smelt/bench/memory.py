"""Peak resident memory of this process (VmHWM of proc(5))."""

from __future__ import annotations

import resource
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


def _status(field: str) -> float | None:
    """MiB of one field of the process's status; None where there is none."""
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
    return None


def peak_mb() -> float:
    """Largest resident memory so far in MiB."""
    peak = _status("VmHWM")
    if peak is not None:
        return peak
    # Elsewhere the kernel keeps only a peak that cannot be reset: kilobytes (bytes on macOS).
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def reset_peak() -> bool:
    """Start a new peak at the present use; False where the system cannot."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    peak, present = _status("VmHWM"), _status("VmRSS")
    # Some kernels of containers take the command and do nothing; pages that come between are a few.
    return peak is not None and present is not None and peak < present + 16
