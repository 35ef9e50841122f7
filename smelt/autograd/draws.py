"""The random numbers of a call, drawn once more: second derivatives run the program again.

A graph's numbers follow from a seed and the place of each operator in the program, or (`eager_rng`) from the state of
PyTorch's generator. Either is kept by a call that may be differentiated twice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from smelt.autograd.plan import Joint

_again = threading.local()


def draws(joint: Joint) -> bool:
    """Whether the graph draws random numbers."""
    return joint.has_seed or any(node.meta.get("random") for node in joint.module.graph.nodes)


def seed() -> torch.Tensor:
    """The seed of a call: from PyTorch's generator, unless an earlier call is repeated."""
    given: torch.Tensor | None = getattr(_again, "seed", None)
    return torch.empty((), dtype=torch.int64).random_() if given is None else given


def beginning(joint: Joint) -> torch.Tensor:
    """What the numbers of the call that comes next follow from."""
    return seed() if joint.has_seed else torch.get_rng_state()


@contextmanager
def from_beginning(joint: Joint, begin: torch.Tensor | None) -> Iterator[None]:
    """A call inside of it draws what followed from `begin`; nothing outside is drawn otherwise than without it."""
    if begin is None:
        yield
    elif joint.has_seed:
        before = getattr(_again, "seed", None)
        _again.seed = begin
        try:
            yield
        finally:
            _again.seed = before
    else:
        state = torch.get_rng_state()
        torch.set_rng_state(begin)
        try:
            yield
        finally:
            torch.set_rng_state(state)
