"""Decompositions of ATen operators into primitives, one module per family."""

from smelt.prims.rules import (
    activations,
    casts,
    creation,
    elementwise,
    embedding,
    indexing,
    kernels,
    lists,
    loss,
    normalization,
    pooling,
    products,
    random,
    reductions,
    resampling,
    views,
)

FAMILIES = (
    elementwise,
    activations,
    reductions,
    normalization,
    loss,
    views,
    indexing,
    embedding,
    creation,
    random,
    products,
    pooling,
    resampling,
    casts,
    kernels,
    lists,
)
"""The modules whose import fills the registry."""
