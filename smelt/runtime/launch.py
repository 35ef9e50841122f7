"""The functions with which generated host programs launch kernels: `Table`, `launch`, `launch_short`.

A table contains the base pointers that a kernel `void f(char **P)` indexes. `launch` releases the GIL; `launch_short`
keeps it, for kernels so short that another thread would not profit. Tables do not own memory: the program keeps the
tensors alive.
"""

from __future__ import annotations

import torch

from smelt.runtime import _native
from smelt.runtime.memory import offer_resizing
from smelt.runtime.native_layout import admit, calibrate
from smelt.runtime.openmp import torch_openmp

Table = _native.Table
launch = _native.launch
launch_short = _native.launch_short
data_ptr = _native.data_ptr

FAST_TENSOR_READS: bool = calibrate()
"""Whether data pointers are read without a Python call; False if torch's layout was not recognised."""

RESIZABLE: bool = FAST_TENSOR_READS and offer_resizing()
"""Whether `resize_` works on tensors that programs return; False if torch's storages were not recognised."""

FAST_DEVICES: dict[torch.device, bool] = {}


def read_fast(device: torch.device) -> bool:
    """Also read data pointers of this device's tensors without a Python call; returns True on success."""
    if device not in FAST_DEVICES:
        FAST_DEVICES[device] = FAST_TENSOR_READS and (device.type == "cpu" or admit(device))
    return FAST_DEVICES[device]


_runtime = torch_openmp()
THREADS: bool = _native.threads_init(str(_runtime) if _runtime else None)
"""Whether native kernels of this extension run on torch's OpenMP threads; False on a torch without OpenMP."""
