"""C functions for `partition` (native/flow.c), `dispatch` (native/excluding.c), `unpacked` (native/memory_marks.c)."""

from array import array
from collections.abc import Callable
from typing import Any

import torch

def minimum_cut(tails: array[int], heads: array[int], costs: array[int], nodes: int, source: int, sink: int) -> bytes:
    """The minimum cut of a network that is nearest to the sink: a byte for each node, 1 if it is on the sink's side.

    Args:
        tails, heads: the nodes of each edge, as 32-bit integers ("i").
        costs: the cost of cutting each edge, as 64-bit integers ("q"), at most 2**62.

    Raises:
        ValueError: the lengths differ, or a number is out of range.
    """

class Excluding:
    """Calls a program while some dispatch keys are excluded in this thread.

    If `boxed`, it is called with one list, which it passes to the program. Otherwise it passes its arguments as a list,
    and returns the program's results as a tuple.
    """

    program: Callable[[list[Any]], Any]
    keys: int

    def __init__(self, program: Callable[[list[Any]], Any], keys: int, boxed: bool) -> None: ...
    def __call__(self, *inputs: Any) -> Any: ...

def set_dispatch_words(path: str | None, usual: int, /) -> bool:
    """Set the library in which the thread-local dispatch keys are found, and the keys that are excluded by default;
    returns whether they are found.
    """

def dispatch_words() -> tuple[int, int] | None:
    """The included and the excluded dispatch keys of this thread, as torch stores them; None if they are not found."""

def memory_marks_init(tensor_type: type, /) -> bool:
    """Set the tensor type; returns whether its tensors can be described."""

def memory_marks(
    tensors: list[torch.Tensor] | tuple[torch.Tensor, ...], positions: tuple[int, ...], address: bool, /
) -> bytes | None:
    """A hash of 8 bytes for each tensor at these positions, of its shape, strides, dtype, device and, if wanted,
    address.

    None if a tensor cannot be described: a lazy conjugate or negative view, or a tensor that torch cannot exchange.
    """
