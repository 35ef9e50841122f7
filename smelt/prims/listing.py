"""The two operator sets as rows, for `smelt ops` and the documentation."""

from __future__ import annotations

from dataclasses import dataclass

from torch._ops import OpOverload

from smelt.prims.registry import DECOMPOSITIONS
from smelt.prims.rules import FAMILIES
from smelt.prims.table import PRIMS


@dataclass(frozen=True)
class Row:
    """One operator.

    Attributes:
        name: `add` or `aten.add.Tensor`.
        kind: a prim's kind; for ATen the family of its decomposition (`elementwise`, `loss` ...).
        status: `prim`, `kernel` for a prim that is one kernel of torch's library, or `decomposed` for an ATen operator
            that becomes prims.
        schema: the typed signature.
    """

    name: str
    kind: str
    status: str
    schema: str


def listing() -> list[Row]:
    """Every prim, then every ATen operator with a decomposition, by name. Other operators run in eager."""
    prims = [Row(p.name, p.kind.value, "prim" if p.kernel is None else "kernel", p.schema()) for p in PRIMS.values()]
    return sorted(prims, key=lambda row: row.name) + sorted(map(_aten_row, DECOMPOSITIONS), key=lambda row: row.name)


def _aten_row(target: OpOverload) -> Row:
    assert FAMILIES
    family = DECOMPOSITIONS[target].__module__.rpartition(".")[2]
    return Row(str(target), family, "decomposed", str(target._schema))
