"""Decompositions of ATen operators into primitives, one module per family."""

from smelt.prims.rules import (
    activations,
    casts,
    creation,
    elementwise,
    embedding,
    indexing,
    loss,
    normalization,
    pooling,
    products,
    random,
    reductions,
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
    casts,
)
"""The modules whose import fills the registry."""
