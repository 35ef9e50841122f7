"""`fake_cuda.c`, built and driven from Python."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path
from typing import Any

CALLS = ("DRIVER_VERSION", "LOAD", "ATTRIBUTE", "SET_ATTRIBUTE", "LAUNCH", "INIT")


class Launched(ctypes.Structure):
    """What one launch was given."""

    _fields_ = [
        ("function", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("values", ctypes.c_uint64 * 64),
    ]


@functools.cache
def _built() -> Path:
    path = Path(tempfile.mkdtemp(prefix="smelt-fake-cuda-")) / "libcuda.so"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-shared", "-fPIC", "-w", str(source), "-o", str(path)], check=True)
    return path


class FakeCuda:
    """A copy of the library for one test: its counters start at zero."""

    def __init__(self, folder: Path) -> None:
        path = folder / "libcuda.so.1"
        path.write_bytes(_built().read_bytes())
        self.path = str(path)
        self.library = ctypes.CDLL(self.path)
        self.library.fake_set_current.argtypes = [ctypes.c_void_p]
        self.library.fake_current.restype = ctypes.c_void_p
        self.set_current, self.current = self.library.fake_set_current, self.library.fake_current

    def __getitem__(self, name: str) -> Any:
        return ctypes.c_int.in_dll(self.library, f"fake_{name}").value

    def __setitem__(self, name: str, value: int) -> None:
        ctypes.c_int.in_dll(self.library, f"fake_{name}").value = value

    def fail(self, call: str, code: int) -> None:
        """Let a function of the driver answer `code`."""
        (ctypes.c_int * len(CALLS)).in_dll(self.library, "fake_error")[CALLS.index(call)] = code

    @property
    def entry(self) -> str:
        return (ctypes.c_char * 128).in_dll(self.library, "fake_entry").value.decode()

    def launched(self) -> list[Launched]:
        """All launches so far."""
        return list((Launched * 4096).in_dll(self.library, "fake_log")[: self["launches"]])
