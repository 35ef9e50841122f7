"""Primitives that are calls of torch's own kernels, by family: what a loop nest would not do better."""

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
"""The modules whose import fills the table."""
