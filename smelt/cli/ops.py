"""`smelt ops`: the two operator sets that a graph is made of, printed from their tables."""

from __future__ import annotations

from collections import defaultdict

from rich.console import Console

from smelt.prims import decompose  # noqa: F401  (its import fills both tables)
from smelt.prims.registry import DECOMPOSITIONS
from smelt.prims.table import PRIMS


def show_ops(console: Console, aten: bool = False) -> None:
    """Print every primitive with its typed signature, by kind; or the ATen operators that are reduced to them."""
    if aten:
        names = sorted(str(target) for target in DECOMPOSITIONS)
        console.print(*names, f"\n{len(names)} ATen operators with a decomposition", sep="\n", highlight=False)
        return
    by_kind: defaultdict[str, list[str]] = defaultdict(list)
    for prim in PRIMS.values():
        by_kind[prim.kind.value].append(prim.schema())
    for kind, schemas in by_kind.items():
        console.print(f"[bold]{kind}[/] ({len(schemas)})", highlight=False)
        for schema in schemas:
            console.print(f"  {schema}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"\n{len(PRIMS)} primitives", highlight=False)
