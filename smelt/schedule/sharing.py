"""Finds results of library kernels that may be views of an argument and so share its memory.

A read of such a view is a read of that memory, which therefore lives as long as the view and is not overwritten before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from smelt.loops.ir import Extern, Item, LoopProgram
from smelt.schedule.realize import StridedView

Sharing = Mapping[str, frozenset[str]]
"""For each value that may be a view, the buffers of which it may be a view; none of these is a view itself."""


def find_sharing(program: LoopProgram, views: Mapping[str, StridedView]) -> Sharing:
    """Returns the values of a program that may be views of others' memory.

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


def shared_buffers(sharing: Sharing, names: Iterable[str]) -> set[str]:
    """Returns the buffers, other than the values themselves, whose memory any of these values may share."""
    if not sharing:
        return set()
    return {root for name in names for root in sharing.get(name, ())}
