"""The random numbers of a call, and how they are reproduced when second derivatives rerun the program.

A graph's numbers follow from a seed for each device and the position of each operator in the program, or (`eager_rng`,
or an operator that stays torch's) from the states of PyTorch's generators. A call that may be differentiated twice
keeps both.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import fx

from smelt.autograd.trace.plan import Joint
from smelt.base.process_state import switch
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.seeds import FROM_SEEDS, is_mixed

_replayed = threading.local()
switch("seeds", lambda: getattr(_replayed, "seeds", {}), lambda before: setattr(_replayed, "seeds", before))


@dataclass(frozen=True)
class Beginning:
    """The RNG state of a call: its seeds, and the states of generators that torch's operators draw from."""

    seeds: dict[torch.device, torch.Tensor]
    states: dict[torch.device, torch.Tensor]


def drawing_devices(graph: fx.Graph) -> tuple[torch.device, ...]:
    """The devices on which the graph draws random numbers, by their first use."""
    return tuple(dict.fromkeys(device for node in graph.nodes for device in _drawn_on(node)))


def _drawn_on(node: fx.Node) -> tuple[torch.device, ...]:
    if not node.meta.get("random"):
        return ()
    meta = node.meta["val"]
    first = next((v for v in meta if isinstance(v, TensorMeta)), None) if isinstance(meta, (tuple, list)) else meta
    return (first.device,) if isinstance(first, TensorMeta) else ()


def seeded_devices(graph: fx.Graph) -> tuple[torch.device, ...]:
    """The drawing devices that use seeds. In a graph on a GPU, torch's generator draws the CPU's numbers."""
    found = drawing_devices(graph)
    return tuple(device for device in found if device.type != "cpu") if is_mixed(graph) else found


def generator_devices(joint: Joint) -> tuple[torch.device, ...]:
    """The devices whose generators the graph's operators draw from as eager does."""
    nodes = joint.module.graph.nodes
    found = ((node, device) for node in nodes for device in _drawn_on(node))
    return tuple(dict.fromkeys(d for node, d in found if d not in joint.seeds or node.target not in FROM_SEEDS))


def draws(joint: Joint) -> bool:
    """Whether the graph draws random numbers."""
    return bool(drawing_devices(joint.module.graph))


def seed(device: torch.device) -> torch.Tensor:
    """The seed of a call: from the device's generator, unless an earlier call is repeated.

    It is a tensor on the device, so that nothing synchronizes and a CUDA graph takes it like any other input.
    """
    given: dict[torch.device, torch.Tensor] = getattr(_replayed, "seeds", {})
    known = given.get(device)
    return torch.empty((), dtype=torch.int64, device=device).random_() if known is None else known


def beginning(joint: Joint, generators: Sequence[torch.device]) -> Beginning:
    """The RNG state from which the next call draws; `generators`: those of `generator_devices`."""
    return Beginning({d: seed(d) for d in joint.seeds}, {d: _state(d) for d in generators})


@contextmanager
def with_seeds(begin: Beginning) -> Iterator[None]:
    """Within this context, calls take these seeds."""
    before = getattr(_replayed, "seeds", {})
    _replayed.seeds = begin.seeds
    try:
        yield
    finally:
        _replayed.seeds = before


@contextmanager
def from_beginning(begin: Beginning | None) -> Iterator[None]:
    """Within this context, calls draw the numbers that followed `begin`; generators are restored afterwards."""
    if begin is None:
        yield
        return
    states = {device: _state(device) for device in begin.states}
    _set_states(begin.states)
    try:
        with with_seeds(begin):
            yield
    finally:
        _set_states(states)


def _state(device: torch.device) -> torch.Tensor:
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


def _set_states(states: dict[torch.device, torch.Tensor]) -> None:
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)
