"""The RAM of a training step in total, from the planner: arena, trained parameters and stack."""

from __future__ import annotations

from smelt.tiny.graph import Int8Graph
from smelt.tiny.infer import inference_of
from smelt.tiny.plan import lay_out
from smelt.tiny.program import StepOptions
from smelt.tiny.render_c import trained_bytes
from smelt.tiny.scheme import Scheme
from smelt.tiny.step import step_program


def ram_of(graph: Int8Graph, scheme: Scheme, stack: int, options: StepOptions | None = None) -> int:
    """Bytes of RAM of a training step, with `stack` bytes of stack."""
    step = step_program(graph, scheme, options)
    arena = max(lay_out(step).size, lay_out(inference_of(step)).size)
    return arena + trained_bytes(step) + stack
