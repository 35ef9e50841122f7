"""Functions that residual code calls to reconstruct values of the frame.

This module imports nothing of capture: a process that only loads an artefact runs it as well.
"""

from __future__ import annotations

import collections
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import torch

from smelt.base import torch_c


def as_instance(tensor: torch.Tensor, cls: type) -> torch.Tensor:
    """Give a result of a graph, which no other code has yet, the class of the program's tensor."""
    tensor.__class__ = cls
    return tensor


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor of the memory and history of an instance of a subclass, without a call of its code."""
    with torch_c.without_torch_function():
        return tensor.as_subclass(torch.Tensor)


def make_wrapper(
    cls: type,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    requires_grad: bool,
) -> torch.Tensor:
    """An instance of a wrapper subclass, without its attributes."""
    made: torch.Tensor = torch.Tensor._make_wrapper_subclass(
        cls, shape, strides=stride, dtype=dtype, device=device, requires_grad=requires_grad
    )
    return made


def set_plainly(tensor: torch.Tensor, name: str, value: object) -> None:
    """Set an attribute of an instance of a subclass of tensors, without a call of its `__torch_function__`."""
    with torch_c.without_torch_function():
        setattr(tensor, name, value)


def with_plain_inputs(graph: Callable[..., object], positions: Iterable[int]) -> Callable[..., object]:
    """A graph whose inputs at these positions are instances of subclasses: it gets plain tensors of the same memory
    and history, so that it does not call their `__torch_function__`.
    """

    def run(*inputs: torch.Tensor) -> object:
        given = [*inputs]
        for position in positions:
            given[position] = as_plain(given[position])
        return graph(*given)

    return run


def ordered_fill(target: collections.OrderedDict[object, object], pairs: dict[object, object]) -> None:
    """Fill an ordered dict, or an instance of a subclass, without calling the subclass's methods."""
    store = collections.OrderedDict.__setitem__
    for key, value in pairs.items():
        store(target, key, value)


def exhausted() -> Iterator[object]:
    """A generator that is exhausted."""
    nothing: tuple[object, ...] = ()
    out = (item for item in nothing)
    next(out, None)
    return out


class SetsState(Protocol):
    """A C iterator whose position can be set."""

    def __setstate__(self, state: object) -> None: ...


def set_state(value: SetsState, state: object) -> None:
    """Set the position of a C iterator, without the warning of Python 3.12."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        value.__setstate__(state)


def used_up(view: Callable[[dict[object, object]], Iterable[object]] | None) -> Iterator[object]:
    """An exhausted iterator over a view of a dict, made by the method `view`, or over a set if `view` is None."""
    out = iter(set() if view is None else view({}))
    next(out, None)
    return out


def remake_match(pattern: re.Pattern[str], string: str, start: int, end: int, spans: object) -> re.Match[str] | None:
    """The match in a string or bytes whose groups have the positions `spans`; None if there is no such match."""
    for match in (pattern.match, pattern.fullmatch):
        found = match(string, start, end)
        if found is not None and found.regs == spans:
            return found
    return next((found for found in pattern.finditer(string, start, end) if found.regs == spans), None)
