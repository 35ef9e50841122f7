"""Decompositions of ATen operators into primitives, one module per family."""

from smelt.prims.rules import activations, casts, elementwise, reductions, views

FAMILIES = (elementwise, activations, reductions, views, casts)
"""The modules whose import fills the registry."""
