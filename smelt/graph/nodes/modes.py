"""Regions (gradients, autocast, attention kernels) as graph nodes: capture emits these calls, autograd runs them.

Each `enter_*` returns a token for the matching `exit_*`. These functions change the thread's real state, so a captured
graph also runs as plain Python.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.fx.node import has_side_effect

from smelt.base import torch_c
from smelt.base.process_state import switch


class _Open(threading.local):
    """The regions that graphs have entered on this thread and not left: for each, the function that restores the state,
    and that state.

    A region is noted before it is entered and until it is left, since an interrupt may come in between: the state may
    then be restored without having been changed, or twice.
    """

    def __init__(self) -> None:
        self.regions: list[tuple[Callable[[Any], object], Any]] = []


_open = _Open()
switch("regions", lambda: tuple(_open.regions), lambda before: setattr(_open, "regions", [*before]))


@contextmanager
def regions_left() -> Iterator[None]:
    """A context that leaves the regions entered inside, if an error ends them before their end."""
    depth = len(_open.regions)
    try:
        yield
    except BaseException:
        while len(_open.regions) > depth:
            restore, before = _open.regions[-1]
            restore(before)
            _open.regions.pop()
        raise


def leaving_regions(gm: fx.GraphModule, run: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that runs the nodes of `gm` unchanged, and restores the thread's modes after an error."""
    if not any(node.target in MODE_CHANGES for node in gm.graph.nodes):
        return run

    @functools.wraps(run)
    def left(*inputs: Any) -> Any:
        with regions_left():
            return run(*inputs)

    return left


def note_region(restore: Callable[[Any], object], before: Any) -> None:
    """Record a region that is about to be entered; `restore(before)` leaves it at any point."""
    _open.regions.append((restore, before))


def forget_region() -> None:
    """Remove the record of the innermost region, which has been left."""
    if _open.regions:  # regions are nested, so the last one is the innermost
        _open.regions.pop()


@has_side_effect
def enter_grad_mode(enabled: bool) -> bool:
    """Switch gradient recording on or off; returns the former state."""
    previous = torch.is_grad_enabled()
    note_region(torch_c.set_grad_enabled, previous)
    torch_c.set_grad_enabled(enabled)
    return previous


@has_side_effect
def exit_grad_mode(previous: bool) -> None:
    """Restore the state that `enter_grad_mode` returned."""
    torch_c.set_grad_enabled(previous)
    forget_region()


@has_side_effect
def enter_autocast(
    device_type: str, dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
) -> torch.autocast:
    """Enter `torch.autocast(device_type, dtype, enabled, cache_enabled)`."""
    region = torch.autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
    note_region(torch_c.set_autocast_state, torch_c.autocast_state(device_type))
    region.__enter__()
    return region


@has_side_effect
def exit_autocast(region: torch.autocast) -> None:
    """Leave the region that `enter_autocast` returned."""
    region.__exit__(None, None, None)
    forget_region()


@has_side_effect
def enter_attention_kernels(allowed: tuple[bool, ...]) -> tuple[bool, ...]:
    """Allow these kernels of scaled_dot_product_attention (see `torch_c.ATTENTION_SETTERS`); returns the former
    ones.
    """
    previous = torch_c.attention_kernels()
    note_region(torch_c.set_attention_kernels, previous)
    torch_c.set_attention_kernels(allowed)
    return previous


@has_side_effect
def exit_attention_kernels(previous: tuple[bool, ...]) -> None:
    """Restore the kernels that `enter_attention_kernels` returned."""
    torch_c.set_attention_kernels(previous)
    forget_region()


EXITS = {
    enter_grad_mode: exit_grad_mode,
    enter_autocast: exit_autocast,
    enter_attention_kernels: exit_attention_kernels,
}
"""For each function that enters a region, the function that leaves it."""

MODE_CHANGES = frozenset({*EXITS, *EXITS.values()})
"""Node targets that change the thread's state and make no tensor."""
