"""Lists the two operator sets as rows with their status (`smelt ops`) and as a page (docs/operators.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from smelt.base.torch_c import operator_names, runs_on_cpu
from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.schema import Kind, find_op, op_info
from smelt.loops import lower  # noqa: F401  (its import fills the table of lowerings)
from smelt.loops.registry import LOWERINGS
from smelt.prims import decompose  # noqa: F401  (its import fills the tables of prims and decompositions)
from smelt.prims.registry import DECOMPOSITIONS
from smelt.prims.table import PRIMS, Prim

STATUSES = {
    "prim": "a primitive that becomes loops, fused with its neighbours in generated kernels",
    "decomposed": "an ATen operator that becomes primitives",
    "extern kernel": "one call of a library's kernel: a primitive, or an ATen operator that becomes one",
    "eager fallback": "one call of PyTorch's own operator inside the compiled program; counted in "
    '`stats()["fallback_ops"]`, named in `stats()["extern_ops"]` and by `explain`',
}
"""Status -> its description."""


@dataclass(frozen=True)
class Row:
    """One operator.

    Attributes:
        name: name of the operator, such as `add` or `aten.add.Tensor`.
        kind: for a prim its kind; for ATen the family of its decomposition (`elementwise`, `loss` ...), or "".
        status: a key of STATUSES. A decomposition may decline some uses (complex numbers, say), which then fall back.
        schema: the typed signature.
    """

    name: str
    kind: str
    status: str
    schema: str


def prim_rows() -> list[Row]:
    """Every primitive, by kind and name."""
    return sorted(map(_prim_row, PRIMS.values()), key=lambda row: (row.kind, row.name))


def aten_rows() -> list[Row]:
    """The operators of canonical ATen, by name: pure operators (no writes, not composites of others) on CPU tensors."""
    targets = {*DECOMPOSITIONS, *filter(_is_canonical, map(find_op, operator_names()))}
    return sorted((_aten_row(target) for target in targets if target is not None), key=lambda row: row.name)


def _prim_row(prim: Prim) -> Row:
    return Row(prim.name, prim.kind.value, "prim" if prim.name in LOWERINGS else "extern kernel", prim.schema())


def _aten_row(target: OpOverload) -> Row:
    rule: Any = DECOMPOSITIONS.get(target)
    if rule is None:
        return Row(str(target), "", "eager fallback", str(schema_of(target)))
    code = rule.__code__
    emits = PRIMS.keys() & {*code.co_names, *(c for c in code.co_consts if isinstance(c, str))}
    status = "extern kernel" if emits - LOWERINGS.keys() else "decomposed"
    return Row(str(target), rule.__module__.rpartition(".")[2], status, str(schema_of(target)))


def _is_canonical(target: OpOverload | None) -> bool:
    if target is None or target.namespace != "aten" or schema_of(target).name.startswith(_OWN_TESTS):
        return False
    info = op_info(target)
    makes_tensors = any("Tensor" in str(r.type) for r in schema_of(target).returns)
    return info.kind is not Kind.WRITE and not info.composite and makes_tensors and runs_on_cpu(target)


_OWN_TESTS = ("aten::_test_", "aten::_foobar")
"""Prefixes of the names of operators that exist only for PyTorch's own tests."""


def counted(rows: Iterable[Row]) -> str:
    """Number of rows by status as text, such as `85 prim, 12 extern kernel`."""
    counts = Counter(row.status for row in rows)
    return ", ".join(f"{counts[status]} {status}" for status in STATUSES if counts[status])


def page() -> str:
    """The text of docs/operators.md."""
    version = ".".join(torch.__version__.split(".")[:2])
    prims, aten = prim_rows(), aten_rows()
    lines = [
        "<!-- made by `smelt ops --write docs/operators.md`; do not edit -->",
        "",
        "# Operators",
        "",
        "Graphs are made of two sets of operators: canonical ATen after the autograd stage, and primitives, to which",
        f"ATen is reduced. This page lists both, with torch {version}. What runs how:",
        "",
        *(f"- **{status}**: {text}" for status, text in STATUSES.items()),
        "",
        "What OpInfo's samples say of each operator of PyTorch's API is in [operators-opinfo.md](operators-opinfo.md).",
        "",
        f"## Primitives: {len(prims)} ({counted(prims)})",
    ]
    for kind, rows in groupby(prims, key=lambda row: row.kind):
        lines += ["", f"### {kind}", "", "| primitive | status |", "|---|---|"]
        lines += [f"| `{_cell(row.schema)}` | {row.status} |" for row in rows]
    lines += [
        "",
        f"## Canonical ATen: {len(aten)} ({counted(aten)})",
        "",
        "| operator | family | status |",
        "|---|---|---|",
    ]
    lines += [f"| `{row.name}` | {row.kind} | {row.status} |" for row in aten]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
