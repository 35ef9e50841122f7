"""Kernels and calls of libraries that are refused: which errors say so, and how it is told."""

from __future__ import annotations

import warnings

import torch

from smelt.base.errors import BuildError, CompileError, SmeltWarning
from smelt.base.stats import count_named
from smelt.runtime import _native

TOO_MUCH = frozenset({1, 701})
"""What the driver answers to a launch that needs more than the device has: invalid value, out of resources."""

_told: set[str] = set()


class OutOfMemory(BuildError):
    """The device's memory ran out while a kernel was loaded."""


def is_refused_kernel(error: Exception) -> bool:
    """Whether a kernel was refused for what it is; not where memory ran out, or where the context is gone."""
    if isinstance(error, _native.CudaError):
        return error.code in TOO_MUCH
    return isinstance(error, CompileError) and not isinstance(error, OutOfMemory)


def is_refused_call(error: Exception) -> bool:
    """Whether a library may have refused a call for the layout or the sizes of its operands.

    Not so where memory ran out, where the context is gone, and where the error is one of those that a program expects
    of values (`torch.linalg.LinAlgError`).
    """
    if type(error) not in (RuntimeError, NotImplementedError):  # all others have classes of their own
        return False
    return not isinstance(error, torch.OutOfMemoryError) and "CUDA error" not in str(error)


def anything_refused() -> bool:
    """Whether something has been refused in this process."""
    return bool(_told)


def tell(name: str, error: Exception, way: str) -> None:
    """Count a refusal, and warn of the first one of a kernel."""
    count_named("second_ways", {f"{name}: {way}": 1})
    if name not in _told:
        _told.add(name)
        reason = " ".join(str(error).strip().splitlines()[:2])[:300]
        warnings.warn(SmeltWarning(f"{name} was refused ({reason}); {way}"), stacklevel=2)
