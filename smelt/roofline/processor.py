"""The name of this machine's processor."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """Returns the processor's model name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
