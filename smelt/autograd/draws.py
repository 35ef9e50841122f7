"""The random numbers of a call, and how they are drawn once more: second derivatives run the program again.

A graph's numbers follow from a seed for each device and the place of each operator in the program, or (`eager_rng`)
from the states of PyTorch's generators. Either is kept by a call that may be differentiated twice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import fx

from smelt.autograd.plan import Joint
from smelt.graph.meta import TensorMeta

_again = threading.local()

Beginning = dict[torch.device, torch.Tensor]
"""What a call's numbers follow from, by device: a seed, or the state of the device's generator."""


def drawing_devices(graph: fx.Graph) -> tuple[torch.device, ...]:
    """The devices on which the graph draws random numbers, in the order of their first."""
    metas = (node.meta["val"] for node in graph.nodes if node.meta.get("random"))
    firsts = (next((v for v in m if isinstance(v, TensorMeta)), None) if isinstance(m, tuple) else m for m in metas)
    return tuple(dict.fromkeys(first.device for first in firsts if isinstance(first, TensorMeta)))


def draws(joint: Joint) -> bool:
    """Whether the graph draws random numbers."""
    return bool(joint.seeds or drawing_devices(joint.module.graph))


def seed(device: torch.device) -> torch.Tensor:
    """The seed of a call: from the device's generator, unless an earlier call is repeated.

    It lies on the device, so that nothing waits, and a recorded CUDA graph takes it as an input like any other.
    """
    given: Beginning = getattr(_again, "seeds", {})
    known = given.get(device)
    return torch.empty((), dtype=torch.int64, device=device).random_() if known is None else known


def beginning(joint: Joint) -> Beginning:
    """What the numbers of the call that comes next follow from."""
    if joint.seeds:
        return {device: seed(device) for device in joint.seeds}
    return {device: _state(device) for device in drawing_devices(joint.module.graph)}


@contextmanager
def from_beginning(joint: Joint, begin: Beginning | None) -> Iterator[None]:
    """A call inside of it draws what followed from `begin`; nothing outside is drawn otherwise than without it."""
    if begin is None:
        yield
    elif joint.seeds:
        before = getattr(_again, "seeds", {})
        _again.seeds = begin
        try:
            yield
        finally:
            _again.seeds = before
    else:
        states = {device: _state(device) for device in begin}
        _set_states(begin)
        try:
            yield
        finally:
            _set_states(states)


def _state(device: torch.device) -> torch.Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


def _set_states(states: Beginning) -> None:
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)
