"""NVIDIA's driver: opened by name when the first GPU program is made, so that importing smelt does not need one.

Kernels are loaded here, once for each process and device, and never unloaded.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from smelt.abi.kernel_source import Cubin
from smelt.base.errors import BuildError, CompileError
from smelt.base.locks import new_lock
from smelt.runtime import _native
from smelt.runtime.refusals import OutOfMemory

LIBRARY = "libcuda.so.1"
OLDEST = 12000
"""The oldest supported version of the driver: 12.0, which PyTorch's CUDA libraries require."""

_COMPUTE_MAJOR, _COMPUTE_MINOR, _MAX_SHARED = 75, 76, 97  # values of CU_DEVICE_ATTRIBUTE_...
# error codes: invalid image, no binary for this GPU, unsupported PTX version, invalid source
_NOT_FOR_THIS = {200, 209, 222, 300}
_RESOURCE_ERRORS = {1, 701}  # error codes: invalid value (more than a block may have), out of resources
_OUT_OF_MEMORY = 2
_lock = new_lock()
_functions: dict[tuple[_native.Driver, int, str], Function] = {}


class OutOfResources(CompileError):
    """Raised for a kernel that needs more registers, threads or shared memory than the device has."""


@dataclass(frozen=True)
class Function:
    """A loaded kernel.

    Attributes:
        address: address of the driver's function object.
        registers: number of registers of a thread.
        local_bytes: bytes of local memory of a thread, used for spilled registers.
    """

    cubin: Cubin
    address: int
    registers: int
    local_bytes: int


@functools.cache
def open_driver(library: str = LIBRARY) -> _native.Driver:
    """Open the driver.

    Raises:
        BuildError: no driver was found, it does not start, or it is too old.
    """
    try:
        driver = _native.Driver(library)
    except OSError as error:
        raise BuildError(
            "NVIDIA's driver was not found", why=str(error), hint="install the driver of the GPU"
        ) from None
    except _native.CudaError as error:
        hint = "a process forked after CUDA was used cannot use it: start processes with 'spawn'"
        raise BuildError("NVIDIA's driver does not start", why=str(error), hint=hint) from None
    version = driver.version()
    if version < OLDEST:
        known = f"{version // 1000}.{version % 1000 // 10}"
        raise BuildError(f"NVIDIA's driver is for CUDA {known}, which is too old", hint="install a newer driver")
    return driver


def compute_capability(driver: _native.Driver, device: int) -> int:
    """Returns the compute capability of a device as an integer, such as 90 for 9.0."""
    return 10 * driver.attribute(device, _COMPUTE_MAJOR) + driver.attribute(device, _COMPUTE_MINOR)


def load(driver: _native.Driver, device: int, cubin: Cubin) -> Function:
    """Load the kernel into the device's context.

    Raises:
        OutOfResources: the kernel needs more resources than this device has.
        BuildError: the driver refused the kernel.
    """
    key = (driver, device, cubin.key)
    with _lock:
        known = _functions.get(key)
    if known is None:
        loaded = _load(driver, device, cubin)
        with _lock:
            known = _functions.setdefault(key, loaded)
    return known


def _load(driver: _native.Driver, device: int, cubin: Cubin) -> Function:
    most = driver.attribute(device, _MAX_SHARED)
    if cubin.shared > most:
        raise OutOfResources(
            f"kernel {cubin.name!r} needs {cubin.shared} bytes of shared memory a block, the device has {most}"
        )
    try:
        address, registers, local_bytes, threads = driver.load(device, cubin.image, cubin.entry, cubin.shared)
    except _native.CudaError as error:
        if error.code == _OUT_OF_MEMORY:
            raise OutOfMemory(
                f"the device's memory ran out while kernel {cubin.name!r} was loaded",
                why=str(error),
                hint="use less: torch.cuda.empty_cache() gives back what PyTorch's allocator keeps",
            ) from None
        if error.code in _RESOURCE_ERRORS:
            raise OutOfResources(f"kernel {cubin.name!r} does not fit the device", why=str(error)) from None
        hint = (
            "the driver may be older than Triton's assembler: install a newer one"
            if error.code in _NOT_FOR_THIS
            else None
        )
        raise BuildError(f"kernel {cubin.name!r} was refused", why=str(error), hint=hint) from None
    if cubin.threads > threads:
        raise OutOfResources(
            f"kernel {cubin.name!r} has {cubin.threads} threads a block, its {registers} registers allow {threads}"
        )
    return Function(cubin, address, registers, local_bytes)
