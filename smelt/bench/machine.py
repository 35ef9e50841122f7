"""Describes the machine and the versions with which a figure was measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from smelt.base.imports import late

if TYPE_CHECKING:
    from smelt.roofline.processor import cpu_name
else:  # processes that measure the start of a compiler import nothing of it before
    cpu_name = late("smelt.roofline.processor", "cpu_name")

DRIVER = Path("/proc/driver/nvidia/version")
"""The file that contains the version of NVIDIA's driver."""

PACKAGES = ("torch", "smelt", "transformers", "timm", "torchvision", "triton", "numpy")


def describe_cuda() -> dict[str, str]:
    """Returns the versions of CUDA and cuDNN that torch uses and of the driver; empty without a GPU."""
    if not torch.cuda.device_count():
        return {}
    found = {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    driver = re.search(r"Kernel Module.*?(\d+(?:\.\d+)+)", DRIVER.read_text()) if DRIVER.exists() else None
    return found | ({"driver": driver[1]} if driver else {})


def describe_machine(threads: int | None = None) -> dict[str, Any]:
    """Returns processor, usable cores, memory, GPUs, system and versions as plain values without paths.

    Args:
        threads: number of torch's threads in a measurement; None: torch's own choice.
    """
    return {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "threads": threads or torch.get_num_threads(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "cuda": describe_cuda(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "compiler": compiler_version(),
        "packages": package_versions(),
    }


def usable_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def compiler_version() -> str | None:
    """Returns the first line of the C++ compiler's `--version`, or None without a compiler."""
    command = os.environ.get("CXX", "g++").split()
    if shutil.which(command[0]) is None:
        return None
    run = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=30)
    return run.stdout.partition("\n")[0].strip() or None


def package_versions() -> dict[str, str]:
    """Returns the version by package, for the packages that are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
