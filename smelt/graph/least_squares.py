"""The results of `torch.linalg.lstsq`: how many residuals there are may depend on values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.base.errors import Unsupported
from smelt.graph.answers import depends_on_values
from smelt.graph.layouts import given, val_of
from smelt.graph.meta import TensorMeta
from smelt.graph.place import Layout, layout_for

_CPU = torch.device("cpu")
_STEADY = ("gels", "gelsy", None)
"""The first takes full rank for granted, the second (the usual one on the CPU) gives no residuals."""


def least_squares(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Layout, ...] | None:
    """The layouts of the results; None where values tell how many residuals there are.

    Raises:
        DataDependent: values tell it of a batch.
        Unsupported: sizes that change, or another device than the CPU.
    """
    said = given(func, args, kwargs)
    rows, columns = val_of(said["self"]).shape[-2:]
    if rows <= columns or said["driver"] in _STEADY:
        return _asked(func, said)
    if val_of(said["self"]).ndim > 2 or val_of(said["b"]).ndim != 2:
        raise depends_on_values(f"{func} of a batch")
    return None


def without_residuals(func: OpOverload, said: Mapping[str, Any]) -> tuple[Layout, Layout, Layout]:
    """Solution, rank and singular values."""
    solution, _, rank, values = _asked(func, said)
    return solution, rank, values


def _asked(func: OpOverload, said: Mapping[str, Any]) -> tuple[Layout, ...]:
    """What the kernel gives for a matrix of full rank with these sizes."""
    a, b = val_of(said["self"]), val_of(said["b"])
    if a.symbolic or b.symbolic or a.device != _CPU or b.device != _CPU:
        raise Unsupported(f"{func} of sizes that change", hint="mark_static, or dynamic=False")
    with torch.no_grad():
        matrix = _zeros(a)
        matrix.diagonal(dim1=-2, dim2=-1).fill_(1)
        found = func(matrix, _zeros(b), said["rcond"], driver=said["driver"])
    return tuple(layout_for(tuple(x.shape), x.dtype, tuple(x.stride()), x.device) for x in found)


def _zeros(val: TensorMeta) -> torch.Tensor:
    return torch.empty_strided(val.shape, val.stride, dtype=val.dtype).zero_()
