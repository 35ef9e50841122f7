"""Joint graph in; the facts out that follow from its calls: the inputs that gradients depend on, devices that draw."""

from __future__ import annotations

from smelt.autograd.trace.plan import CallFacts, Joint, computed_from, needed, recomputes
from smelt.autograd.trace.rng import drawing_devices, generator_devices


def call_facts(joint: Joint) -> CallFacts:
    """Returns all facts about a joint graph."""
    devices = drawing_devices(joint.module.graph), generator_devices(joint)
    return CallFacts(needed(joint), computed_from(joint), recomputes(joint), *devices)
