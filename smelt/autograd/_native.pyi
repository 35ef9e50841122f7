"""The C side of `partition` (native/flow.c)."""

from array import array

def minimum_cut(tails: array[int], heads: array[int], costs: array[int], nodes: int, source: int, sink: int) -> bytes:
    """The side of a minimum cut: a byte for each node, 1 where it is on the sink's; of all, the cut nearest to it.

    Args:
        tails, heads: of each edge, as 32-bit integers ("i").
        costs: of cutting it, as 64-bit integers ("q"), at most 2**62.

    Raises:
        ValueError: lengths differ, or a number is out of range.
    """
