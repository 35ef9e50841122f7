"""What the primitives' records say of the ops in loop bodies, by name: for the stages below, which see loops alone."""

from __future__ import annotations

from smelt.prims.ops import PRIMS
from smelt.prims.table import NO_FACTS, Facts, Prim
from smelt.prims.table import Strides as Strides


def facts_of(target: object) -> Facts:
    """The record of what an external kernel computes: of torch's own operators nothing is known."""
    return target.facts if isinstance(target, Prim) else NO_FACTS


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

FOLDS = {name: prim.facts.fold for name, prim in PRIMS.items() if prim.facts.fold is not None}
"""How reductions fold, by kind."""

MOVES = frozenset(name for name, prim in PRIMS.items() if prim.facts.moves)
"""Ops that read their operands at another index than their own."""
