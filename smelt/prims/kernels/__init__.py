"""Primitives that each call one kernel of torch, by family: generated loops would not be faster."""

from smelt.prims.kernels import (
    devices,
    fourier,
    linalg,
    losses,
    order,
    pooling,
    scattering,
    segments,
    special,
    windows,
)

FAMILIES = (special, order, scattering, pooling, windows, segments, losses, linalg, fourier, devices)
"""The modules that define these primitives: importing them fills `table.PRIMS`."""
