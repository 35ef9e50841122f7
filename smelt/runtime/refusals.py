"""Refused kernels and library calls: decides which errors are refusals, and reports them."""

from __future__ import annotations

import warnings

import torch

from smelt.base.errors import BuildError, CompileError, SmeltWarning
from smelt.base.stats import count_named
from smelt.runtime import _native

RESOURCE_ERRORS = frozenset({1, 701})
"""The driver's error codes for a launch that needs more than the device has: invalid value, out of resources."""

_reported: set[str] = set()


class OutOfMemory(BuildError):
    """Raised when the device's memory ran out while a kernel was loaded."""


def is_refused_kernel(error: Exception) -> bool:
    """Whether an error refuses the kernel itself; False if memory ran out or the context is lost."""
    if isinstance(error, _native.CudaError):
        return error.code in RESOURCE_ERRORS
    return isinstance(error, CompileError) and not isinstance(error, OutOfMemory)


def is_refused_call(error: Exception) -> bool:
    """Whether an error of a library may be due to the layout or the sizes of operands.

    False if memory ran out, if the context is lost, and for errors about values that programs expect
    (`torch.linalg.LinAlgError`).
    """
    if type(error) not in (RuntimeError, NotImplementedError):  # other errors have separate classes
        return False
    return not isinstance(error, torch.OutOfMemoryError) and "CUDA error" not in str(error)


def anything_refused() -> bool:
    """Whether any kernel or call has been refused in this process."""
    return bool(_reported)


def report_refusal(name: str, error: Exception, replacement: str) -> None:
    """Count a refusal; the first refusal of a kernel also causes a warning."""
    count_named("second_ways", {f"{name}: {replacement}": 1})
    if name not in _reported:
        _reported.add(name)
        reason = " ".join(str(error).strip().splitlines()[:2])[:300]
        warnings.warn(SmeltWarning(f"{name} was refused ({reason}); {replacement}"), stacklevel=2)
