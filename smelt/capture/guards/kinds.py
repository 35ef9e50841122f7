"""Dispatch, in C, to versions of a piece of a graph by the metadata of its input tensors and by its other inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch

from smelt.base.class_tables import classes, isinstance
from smelt.capture import _native as native
from smelt.capture.guards.calibrate import calibrate
from smelt.graph.ir.meta import meta_of

_COMPARED_BY_VALUE = classes(int, bool, float, complex, str, bytes, type(None))


def variants_by_kind(
    make: Callable[[tuple[object, ...], bool], Callable[..., object]], most: int
) -> Callable[..., object]:
    """A callable that dispatches to the version for the kinds of its inputs and the present grad mode.

    Args:
        make: (inputs, is_kept) -> a missing version.
        most: maximum number of versions that are kept.
    """
    calibrate()
    return native.Variants(make, kind_of, torch.is_grad_enabled, most)


def kind_of(value: object) -> object:
    """The key of an input: a version is valid for all inputs with an equal key."""
    if isinstance(value, torch.Tensor):
        plain = value.layout is torch.strided and not value.is_quantized
        return native.TensorSpec(value) if plain else (type(value), meta_of(value))
    return value if type(value) in _COMPARED_BY_VALUE else (type(value), value)
