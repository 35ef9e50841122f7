"""Measures the accuracy that a training by a scheme reaches, bit for bit as on a board, at the speed of this machine.

Layers that no gradient reaches give the same result for an image at every step. So a graph is split after them: the
front runs once for each image, and only the rest runs at each step. A long training runs as C (`host`), a short one in
torch, which needs no build.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from smelt.tiny.data import DataError, Images
from smelt.tiny.graph import Flatten, Head, Int8Graph, sources
from smelt.tiny.host import HostModel
from smelt.tiny.infer import infer_program, inference_of
from smelt.tiny.program import Program, StepOptions
from smelt.tiny.render_c import render
from smelt.tiny.running import Run, execute
from smelt.tiny.scheme import Scheme
from smelt.tiny.simulate import Training, infer
from smelt.tiny.step import step_program

WORTH_A_BUILD = 200
"""Number of steps from which a training in C, including its build, is faster than one in torch."""

Evaluate = Callable[[Scheme], float]
"""The accuracy, from 0 to 1, after a training by a scheme."""


@dataclass(frozen=True)
class Trial:
    """The settings of the trainings by which schemes are compared.

    Attributes:
        steps: number of images of a training, one for each step.
        held_out: number of images on which the accuracy is measured; none of them is trained on.
        rate: the largest learning rate of SGD; `recipe` gives the rate of each step.
    """

    steps: int = 400
    held_out: int = 400
    rate: float = 0.02
    seed: int = 0
    options: StepOptions = field(default_factory=StepOptions)

    def evaluator(self, graph: Int8Graph, data: Images) -> Evaluate:
        """A function that trains by a scheme, bit for bit as the board, and returns the accuracy; each training starts
        from the given graph.

        The function is fastest if schemes are evaluated in the order of the first layer that they train, since it
        reuses features of the layers before it.

        Raises:
            DataError: there are too few images, or their shape or classes do not fit the graph.
        """
        if data.classes != graph.classes:
            raise DataError(f"{data.classes} classes of images, {graph.name} has {graph.classes}")
        chosen = data.sample(self.steps + self.held_out, self.seed)
        front, y = _Front(graph, chosen.quantised(graph)), chosen.labels
        rates = recipe(self.steps, self.rate)

        def evaluate(scheme: Scheme) -> float:
            scheme.check(graph)
            rest, x, renumbered = front.before(scheme)
            trained = train(step_program(rest, renumbered, self.options), x[: self.steps], y[: self.steps], rates)
            return float((trained(x[self.steps :]).argmax(1) == y[self.steps :]).mean())

        return evaluate


class _Front:
    """Features of images before the trained layers, computed from those of the previous scheme where possible."""

    def __init__(self, graph: Int8Graph, images: np.ndarray) -> None:
        self.graph, self.images = graph, images
        self.at, self.features = 0, images

    def before(self, scheme: Scheme) -> tuple[Int8Graph, np.ndarray, Scheme]:
        """The graph from the first layer that a scheme trains on, its input for each image, and the scheme for it."""
        cut = cut_before(self.graph, scheme.first(self.graph))
        if cut < self.at:
            self.at, self.features = 0, self.images
        if cut > self.at:
            self.features = outputs(part(self.graph, self.at, cut), self.features)
            self.at = cut
        rest = part(self.graph, cut, len(self.graph.operators))
        gone = len(self.graph.layers) - len(rest.layers)
        weights = {layer - gone: ratio for layer, ratio in scheme.weights.items()}
        return rest, self.features, replace(scheme, weights=weights)


def cut_before(graph: Int8Graph, layer: int) -> int:
    """The last cut between operators, at or before a layer, that a single tensor crosses.

    Args:
        layer: index of the layer, from 0; the number of layers: cut before the last operator, or earlier.

    Returns:
        The number of operators before the cut.
    """
    layers = graph.layers
    place = graph.operators.index(layers[layer]) if layer < len(layers) else len(graph.operators) - 1
    return max(cut for cut in range(place + 1) if len(_carried(graph, cut)) == 1)


def _carried(graph: Int8Graph, cut: int) -> set[str]:
    before = {graph.input, *(op.y for op in graph.operators[:cut])}
    return {name for op in graph.operators[cut:] for name in sources(op) if name in before}


def part(graph: Int8Graph, start: int, stop: int) -> Int8Graph:
    """The operators from `start` to `stop` - 1 as a graph; a single tensor must cross each of the two cuts."""
    operators = graph.operators[start:stop]
    (cut_tensor,) = _carried(graph, start)
    names = [cut_tensor, *(op.y for op in operators)]
    return Int8Graph(graph.name, {name: graph.tensors[name] for name in names}, operators, cut_tensor, names[-1])


def outputs(graph: Int8Graph, images: np.ndarray, batch: int = 32) -> np.ndarray:
    """The int8 output of a graph for images, (images, *shape)."""
    program = infer_program(graph)
    made = [op for op in graph.operators if not isinstance(op, Flatten)]
    name = made[-1].y if made else graph.input
    found = []
    for begin in range(0, len(images), batch):
        run = Run(program, {graph.input: torch.as_tensor(images[begin : begin + batch])})
        execute(run)
        found.append(run.values[name].numpy())
    return np.concatenate(found).reshape(len(images), *graph.tensors[graph.output].shape)


def cosine(step: int, steps: int, warm_up: int) -> float:
    """The factor of a rate that rises over `warm_up` steps and then falls to 0 along a half cosine."""
    if step < warm_up:
        return (step + 1) / (warm_up + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def recipe(steps: int, rate: float) -> np.ndarray:
    """The rates of the paper's recipe, float32: a tenth of the steps warms up, then a half cosine.

    Trials use it too: with a constant rate, a short training of many layers ends in noise, so that training these
    layers would appear to lower the accuracy.
    """
    return np.array([rate * cosine(step, steps, steps // 10) for step in range(steps)], np.float32)


Infer = Callable[[np.ndarray], np.ndarray]
"""A function from images (int8) to their logits."""


def train(step: Program, images: np.ndarray, labels: np.ndarray, rates: Sequence[float] | np.ndarray) -> Infer:
    """Train on images in order, one for each step; returns the trained model.

    Args:
        images: int8, (images, *shape of the graph's input).
        rates: the learning rate of each step.

    Raises:
        BuildError: the training is long, and there is no C compiler.
    """
    assert isinstance(step.graph.operators[-1], Head)
    forward = inference_of(step)
    if len(images) >= WORTH_A_BUILD:
        model = HostModel(render(forward, step), step, ("-O1",))
        for image, label, rate in zip(images, labels, rates, strict=True):
            model.train_step(image, int(label), float(rate))
        return lambda batch: np.stack([model.infer(image) for image in batch])
    training = Training(step)
    for image, label, rate in zip(images, labels, rates, strict=True):
        training.step(image, int(label), float(rate))
    return lambda batch: infer(forward, batch, training.state).numpy()
