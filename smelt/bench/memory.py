"""Peak resident memory of this process (VmHWM of proc(5))."""

from __future__ import annotations

import resource
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")


def peak_mb() -> float:
    """Largest resident memory so far in MiB."""
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    # Elsewhere the kernel keeps only a peak that cannot be reset: kilobytes (bytes on macOS).
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def reset_peak() -> bool:
    """Start a new peak at the present use; False where the system cannot."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True
