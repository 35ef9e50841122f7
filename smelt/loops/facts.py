"""What the primitives' records say of the ops in loop bodies, by name: for the stages below, which see loops alone."""

from __future__ import annotations

from smelt.prims.ops import PRIMS

COSTS = {name: prim.facts.cost for name, prim in PRIMS.items()}
"""Rough cost of an element, in additions."""

BOOLEAN = frozenset(name for name, prim in PRIMS.items() if prim.facts.boolean)
"""Ops whose result is bool whatever their operands are."""

EXACT = frozenset(name for name, prim in PRIMS.items() if prim.facts.exact)
"""Ops whose result on low-precision floats needs no rounding."""

PERIODIC = frozenset(name for name, prim in PRIMS.items() if prim.facts.periodic)
"""Ops with a quick reduction of their argument that cannot take all of them."""

DIVISIONS = frozenset(name for name, prim in PRIMS.items() if prim.facts.divides)
"""Ops that eager refuses for whole numbers over 0."""

MOVES = frozenset(name for name, prim in PRIMS.items() if prim.facts.moves)
"""Ops that read their operands at another place than their own."""
