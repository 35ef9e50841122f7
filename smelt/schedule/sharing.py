"""Which buffers lie in others' memory: what a library's kernel returned as a view of its argument.

Whoever reads such a view reads that memory, so it stays as long as the view does and is written by nobody meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from smelt.loops.ir import Extern, Item, LoopProgram
from smelt.schedule.realize import StridedView

Sharing = Mapping[str, frozenset[str]]
"""For each value that may be a view: the buffers whose memory it may lie in, none of them views themselves."""


def find_sharing(program: LoopProgram, views: Mapping[str, StridedView]) -> Sharing:
    """
    Args:
        views: extern arguments that are strided views of buffers.
    """
    found: dict[str, frozenset[str]] = {}
    for name, node in program.nodes.items():
        if isinstance(node, Extern) and node.shares:
            sources: Iterable[str] = (views[s].base if s in views else s for s in node.shares)
        elif isinstance(node, Item) and node.inputs[0] in found:
            sources = node.inputs
        else:
            continue
        found[name] = frozenset(root for source in sources for root in found.get(source, (source,)))
    return found


def behind(sharing: Sharing, names: Iterable[str]) -> set[str]:
    """The buffers that the memory of any of these values may belong to, besides the values themselves."""
    if not sharing:
        return set()
    return {root for name in names for root in sharing.get(name, ())}
