"""`smelt ops`: the table of primitives, printed."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from smelt import prims


def show_ops(console: Console) -> None:
    """Print what `smelt.prims.listing()` says, a section for each kind."""
    found = prims.listing()
    console.print(found if isinstance(found, str | Table) else "\n".join(map(str, found)), highlight=False)
