"""The cost of a primitive's arithmetic, in bytes that memory could move in the same time.

The records of primitives state work in operations: `Facts.cost` for one element of a pointwise primitive, `Facts.flops`
for a product. The partition weighs work against memory traffic, so it needs both in one unit; this module contains the
only conversion.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.graph.ir.meta import TensorMeta
from smelt.prims.table import Kind, Prim
from smelt.shapes.size import hint

OPERATIONS_PER_BYTE = 12
"""Number of additions that a processor does in the time in which its memory moves one byte. An exponential costs twelve
of them (`Facts.cost`) and so takes as long as one byte; other primitives follow in proportion.
"""


def arithmetic_bytes(prim: Prim, made: Sequence[TensorMeta], operands: Sequence[TensorMeta]) -> float:
    """Returns the bytes that memory could move while the arithmetic of one call runs; for symbolic sizes their hints
    are used.

    The result is zero for kinds whose time is all memory traffic: views, reductions, copies, lookups.

    Args:
        prim: the primitive.
        made: the metas of its results, without those that are None.
        given: the metas of its tensor operands, in order.
    """
    if prim.facts.flops is not None:
        return hint(prim.facts.flops(made, operands)) / OPERATIONS_PER_BYTE
    if prim.kind in (Kind.POINTWISE, Kind.RANDOM) and made:
        return hint(made[0].numel) * prim.facts.cost / OPERATIONS_PER_BYTE
    return 0.0
