"""The C side of `partition` (native/flow.c), `dispatch` (native/excluding.c), `unpacked` (native/memory_marks.c)."""

from array import array
from collections.abc import Callable
from typing import Any

import torch

def minimum_cut(tails: array[int], heads: array[int], costs: array[int], nodes: int, source: int, sink: int) -> bytes:
    """The side of a minimum cut: a byte for each node, 1 where it is on the sink's; of all, the cut nearest to it.

    Args:
        tails, heads: of each edge, as 32-bit integers ("i").
        costs: of cutting it, as 64-bit integers ("q"), at most 2**62.

    Raises:
        ValueError: lengths differ, or a number is out of range.
    """

class Excluding:
    """Calls a program while this thread's dispatcher passes some keys by.

    Boxed: with the one list that it is given; else with its arguments as a list, and gives what comes as a tuple.
    """

    program: Callable[[list[Any]], Any]
    keys: int

    def __init__(self, program: Callable[[list[Any]], Any], keys: int, boxed: bool) -> None: ...
    def __call__(self, *inputs: Any) -> Any: ...

def set_dispatch_words(path: str | None, usual: int, /) -> bool:
    """Where a thread's dispatch keys are found, and which ones are excluded as a rule; whether that is so."""

def dispatch_words() -> tuple[int, int] | None:
    """What this thread includes and excludes, as torch stores it."""

def memory_marks_init(tensor_type: type, /) -> bool:
    """Whether tensors can be described."""

def memory_marks(
    tensors: list[torch.Tensor] | tuple[torch.Tensor, ...], positions: tuple[int, ...], address: bool, /
) -> bytes | None:
    """Of the tensors at these positions 8 bytes each: shape, strides, type, device and, if wanted, where it lies.

    None where one cannot be described: a lazy conjugate or negative view, or one that torch does not exchange.
    """
