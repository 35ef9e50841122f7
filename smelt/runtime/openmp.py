"""Finds the OpenMP runtime that torch loaded, so that no second runtime is loaded into the process.

Two OpenMP runtimes in one process would each start a thread pool and compete for the cores. Generated kernels link the
file that is already loaded (by its soname), and the native extension looks up its entry points at run time.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from pathlib import Path

import torch

_NAMES = ("libgomp", "libiomp5", "libomp")


def loaded_runtimes() -> list[Path]:
    """Returns every OpenMP runtime mapped into this process, in load order; more than one is an error."""
    if sys.platform.startswith("linux"):
        with open("/proc/self/maps") as maps:
            paths = {fields[5].strip(): None for line in maps if len(fields := line.split(maxsplit=5)) == 6}
        return [Path(path) for path in paths if _is_runtime(path)]
    folder = Path(torch.__file__).parent / "lib"
    return [path for path in sorted(folder.glob("*omp*")) if _is_runtime(str(path))]


@functools.cache
def torch_openmp() -> Path | None:
    """Returns the runtime that torch uses, or None if torch was built without OpenMP.

    Other packages bring another runtime (scikit-learn's wheel has one, and transformers imports it). Torch's runtime is
    the one that the loader finds for torch's library, or, if the loader cannot be queried, the one in torch's folder.
    """
    runtimes = loaded_runtimes()
    bound = _bound_by_torch()
    folder = Path(torch.__file__).parent
    inside = [path for path in runtimes if path == bound] or [path for path in runtimes if folder in path.parents]
    return next(iter(inside or runtimes), None)


def _bound_by_torch() -> Path | None:
    """Returns the file in which the loader finds OpenMP's functions for torch's CPU library; None if it is unknown."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not sys.platform.startswith("linux") or not library.exists():
        return None
    try:
        function = ctypes.CDLL(str(library)).omp_get_max_threads
    except (OSError, AttributeError):
        return None
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(each, 16) for each in line.split(maxsplit=1)[0].split("-"))
            if begin <= address < end and len(fields := line.split(maxsplit=5)) == 6:
                return Path(fields[5].strip())
    return None


def _is_runtime(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    stem = name.split(".", 1)[0].split("-", 1)[0]
    return stem in _NAMES and (".so" in name or ".dylib" in name)
