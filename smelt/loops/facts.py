"""Facts about operations of loop bodies, by name, from the primitives' records: for stages that do not import prims."""

from __future__ import annotations

from smelt.prims.ops import PRIMS
from smelt.prims.table import NO_FACTS, Facts, Prim
from smelt.prims.table import Strides as Strides


def facts_of(target: object) -> Facts:
    """Returns the record of the primitive that an extern computes; the default record for operators of torch."""
    return target.facts if isinstance(target, Prim) else NO_FACTS


COSTS = {name: prim.facts.cost for name, prim in PRIMS.items()}
"""Approximate cost of an element in additions, by operation."""

BOOLEAN = frozenset(name for name, prim in PRIMS.items() if prim.facts.boolean)
"""Operations whose result is bool for operands of any dtype."""

EXACT = frozenset(name for name, prim in PRIMS.items() if prim.facts.exact)
"""Operations whose result on low-precision floats needs no rounding."""

PERIODIC = frozenset(name for name, prim in PRIMS.items() if prim.facts.periodic)
"""Operations with a fast argument reduction that is valid only for a range of arguments."""

DIVISIONS = frozenset(name for name, prim in PRIMS.items() if prim.facts.divides)
"""Operations for which eager raises an error on integers with a divisor of 0."""

FOLDS = {name: prim.facts.fold for name, prim in PRIMS.items() if prim.facts.fold is not None}
"""The fold of a reduction, by kind."""

MOVES = frozenset(name for name, prim in PRIMS.items() if prim.facts.moves)
"""Operations that read their operands at an index other than the result's."""
