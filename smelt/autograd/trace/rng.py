"""The random numbers of a call, and their reproduction when second derivatives rerun the program.

Random numbers are a function of one seed per device and the operator's position in the program. Under `eager_rng`, and
for operators that PyTorch itself runs, they come from PyTorch's generators instead. A call that may be differentiated
twice keeps its seeds and the generators' states.
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
    """The RNG state at the start of a call: its seeds, and the states of the generators that its operators use."""

    seeds: dict[torch.device, torch.Tensor]
    states: dict[torch.device, torch.Tensor]


def drawing_devices(graph: fx.Graph) -> tuple[torch.device, ...]:
    """Returns the devices on which the graph draws random numbers, in order of first use."""
    return tuple(dict.fromkeys(device for node in graph.nodes for device in _drawn_on(node)))


def _drawn_on(node: fx.Node) -> tuple[torch.device, ...]:
    if not node.meta.get("random"):
        return ()
    meta = node.meta["val"]
    first = next((v for v in meta if isinstance(v, TensorMeta)), None) if isinstance(meta, (tuple, list)) else meta
    return (first.device,) if isinstance(first, TensorMeta) else ()


def seeded_devices(graph: fx.Graph) -> tuple[torch.device, ...]:
    """Returns the devices whose random numbers come from seeds. A graph on a GPU takes CPU numbers from PyTorch's
    generator.
    """
    found = drawing_devices(graph)
    return tuple(device for device in found if device.type != "cpu") if is_mixed(graph) else found


def generator_devices(joint: Joint) -> tuple[torch.device, ...]:
    """Returns the devices whose PyTorch generators the graph uses, as eager does."""
    if joint.facts is not None:
        return joint.facts.generators
    nodes = joint.module.graph.nodes
    found = ((node, device) for node in nodes for device in _drawn_on(node))
    return tuple(dict.fromkeys(d for node, d in found if d not in joint.seeds or node.target not in FROM_SEEDS))


def draws(joint: Joint) -> bool:
    """Whether the graph draws random numbers."""
    return bool(drawing_devices(joint.module.graph) if joint.facts is None else joint.facts.drawing)


def seed(device: torch.device) -> torch.Tensor:
    """Returns the seed of a call: drawn from the device's generator, or that of the earlier call that `with_seeds`
    repeats.

    It is a 0-d int64 tensor on the device: it needs no synchronization, and is an ordinary input of a CUDA graph.
    """
    given: dict[torch.device, torch.Tensor] = getattr(_replayed, "seeds", {})
    known = given.get(device)
    return torch.empty((), dtype=torch.int64, device=device).random_() if known is None else known


def beginning(joint: Joint, generators: Sequence[torch.device]) -> Beginning:
    """Returns the RNG state for the next call, with drawn seeds; `generators`: the result of `generator_devices`."""
    return Beginning({d: seed(d) for d in joint.seeds}, {d: _state(d) for d in generators})


@contextmanager
def with_seeds(begin: Beginning) -> Iterator[None]:
    """A context in which calls use the seeds of `begin` instead of new ones."""
    before = getattr(_replayed, "seeds", {})
    _replayed.seeds = begin.seeds
    try:
        yield
    finally:
        _replayed.seeds = before


@contextmanager
def from_beginning(begin: Beginning | None) -> Iterator[None]:
    """A context in which calls draw the same random numbers as from `begin`; generators are restored afterwards."""
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
