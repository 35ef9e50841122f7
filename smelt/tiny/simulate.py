"""Computes the values of a program in torch, bit for bit as the generated C.

Integers are exact: sums of int8 products are computed in float64, which represents them exactly. Floats are float32;
each operation rounds, and sums are added in the order of the C (`terms_in_order`), so results do not depend on compiler
or library.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping

import numpy as np
import torch

from smelt.base.errors import SmeltError
from smelt.tiny import simulate_backward, simulate_forward  # noqa: F401 (they fill the table)
from smelt.tiny.graph import Int8Graph
from smelt.tiny.infer import infer_program
from smelt.tiny.program import Program
from smelt.tiny.running import Run, execute


class Training:
    """Training steps of a program, one image at a time.

    Attributes:
        state: trained parameters, by their names in the program.
        steps: the number of steps so far.
        logits: the logits of the last step, float32 (classes,).
    """

    def __init__(self, program: Program, state: Mapping[str, torch.Tensor] | None = None, steps: int = 0) -> None:
        self.program, self.steps = program, steps
        self.state = dict(first_state(program) if state is None else state)
        self.logits: torch.Tensor | None = None

    def step(self, image: torch.Tensor | np.ndarray, label: int, rate: float) -> np.float32:
        """One step of SGD; the loss before the update.

        Raises:
            SmeltError: an image of another shape or type, a label that is no class, or a rate that is not finite.
        """
        graph = self.program.graph
        images = checked_images(graph, torch.as_tensor(image)[None])
        label, rate = checked_step(graph, label, rate)
        run = Run(self.program, {graph.input: images}, self.state, label, rate, self.steps)
        execute(run)
        assert run.loss is not None
        self.steps, self.logits = self.steps + 1, run.values[self.program.logits][0]
        return np.float32(run.loss.item())


def infer(
    program: Program | Int8Graph, images: torch.Tensor | np.ndarray, state: Mapping[str, torch.Tensor] | None = None
) -> torch.Tensor:
    """Logits of images, float32 (images, classes).

    Args:
        program: a graph, or an `infer_program`.
        images: int8, (images, height, width, channels) as the graph's input.
        state: the values of trained parameters; None: their initial values.

    Raises:
        SmeltError: images of another shape or type.
    """
    program = infer_program(program) if isinstance(program, Int8Graph) else program
    run = Run(
        program, {program.graph.input: checked_images(program.graph, images)}, dict(state or first_state(program))
    )
    execute(run)
    return run.values[run.program.logits]


def first_state(program: Program) -> dict[str, torch.Tensor]:
    """The trained parameters before the first step, by name."""
    return {name: torch.from_numpy(np.array(one.data)) for name, one in program.trained.items()}


def checked_step(graph: Int8Graph, label: int, rate: float) -> tuple[int, float]:
    """The label and the learning rate of a training step; the rate as a float32 number.

    Raises:
        SmeltError: the label is no class, or the rate is not finite.
    """
    try:
        number = operator.index(label)
    except TypeError:
        number = -1
    if not 0 <= number < graph.classes:
        raise SmeltError(f"label {label} is none of {graph.classes} classes", hint="whole numbers from 0")
    with np.errstate(over="ignore"):
        found = float(np.float32(rate))
    if not math.isfinite(found):
        raise SmeltError(f"the learning rate is {rate}, which is no finite float32 number")
    return number, found


def checked_images(graph: Int8Graph, images: torch.Tensor | np.ndarray) -> torch.Tensor:
    """A batch of images for a graph, as a tensor.

    Raises:
        SmeltError: another shape or type.
    """
    found = torch.as_tensor(images)
    shape = graph.tensors[graph.input].shape
    if found.dtype != torch.int8 or tuple(found.shape[1:]) != shape:
        raise SmeltError(
            f"{graph.name} takes int8 images of shape (n, *{shape}), got {found.dtype} {tuple(found.shape)}",
            hint="round(pixel / scale) + zero of the graph's input, clamped to -128..127",
        )
    return found
