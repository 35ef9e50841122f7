"""Facts of the primitives' records about ops of loop bodies, by name: for later stages, which do not import prims."""

from __future__ import annotations

from smelt.prims.ops import PRIMS
from smelt.prims.table import NO_FACTS, Facts, Prim
from smelt.prims.table import Strides as Strides


def facts_of(target: object) -> Facts:
    """The record of the primitive that an extern computes; the default record for operators of torch."""
    return target.facts if isinstance(target, Prim) else NO_FACTS


COSTS = {name: prim.facts.cost for name, prim in PRIMS.items()}
"""Rough cost of an element, in additions."""

BOOLEAN = frozenset(name for name, prim in PRIMS.items() if prim.facts.boolean)
"""Ops whose result is bool whatever their operands are."""

EXACT = frozenset(name for name, prim in PRIMS.items() if prim.facts.exact)
"""Ops whose result on low-precision floats needs no rounding."""

PERIODIC = frozenset(name for name, prim in PRIMS.items() if prim.facts.periodic)
"""Ops with a fast argument reduction that is valid only for a range of arguments."""

DIVISIONS = frozenset(name for name, prim in PRIMS.items() if prim.facts.divides)
"""Ops for which eager raises an error on integers with a divisor of 0."""

FOLDS = {name: prim.facts.fold for name, prim in PRIMS.items() if prim.facts.fold is not None}
"""How reductions fold, by kind."""

MOVES = frozenset(name for name, prim in PRIMS.items() if prim.facts.moves)
"""Ops that read their operands at another index than their own."""
