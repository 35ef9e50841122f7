"""Captures a PyTorch model as a functional ATen graph, by smelt's capture, and measures the ranges of its values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

import smelt
from smelt.base.errors import SmeltError

BATCH = 16
"""Number of images of one batch during calibration."""


class QuantizeError(SmeltError):
    """A model cannot be converted to an int8 graph, or the calibration data are not usable."""


@dataclass
class Captured:
    """A model as one graph.

    Attributes:
        graph: functional ATen operators; its first placeholder is the image batch, the others are parameters.
        held: placeholder -> its parameter, for all placeholders but the first.
        ranges: node -> its minimum and maximum over the calibration data.
    """

    graph: fx.GraphModule
    held: dict[fx.Node, torch.Tensor]
    ranges: dict[fx.Node, tuple[float, float]] = field(default_factory=dict)

    @property
    def image(self) -> fx.Node:
        """The placeholder of the image batch."""
        return next(iter(self.graph.graph.nodes))


def capture(model: nn.Module, calibration_data: Any) -> Captured:
    """Capture a model in eval mode and run it on the data.

    Args:
        calibration_data: float images (n, channels, height, width), or batches of them; a batch may be a tuple that
            begins with its images, as loaders give them.

    Raises:
        QuantizeError: there are no images, or the data are not images.
        Unsupported: the model is not one graph.
    """
    images = _images(calibration_data)
    own = next((one.dtype for one in model.parameters()), images.dtype)
    if own != images.dtype:
        raise QuantizeError(
            f"calibration data are {images.dtype}, the model's parameters {own}", hint=f"images.to({own})"
        )
    taken: list[tuple[fx.GraphModule, Sequence[torch.Tensor]]] = []

    def take(graph: fx.GraphModule, _: Sequence[torch.Tensor]) -> Any:
        def run(*arguments: torch.Tensor) -> Any:
            taken.append((graph, arguments))
            return graph.forward(*arguments)

        return run

    training = {module: module.training for module in model.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)  # it fuses a whole encoder layer
    try:
        with torch.no_grad():
            backend = smelt.aot_autograd(fw_compiler=take)
            smelt.compile(model, backend=backend, fullgraph=True, dynamic=False)(images[:BATCH])
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, was in training.items():
            module.training = was
    if len(taken) != 1:
        raise QuantizeError(f"the model ran as {len(taken)} graphs", hint="smelt.explain(model) shows where it was cut")
    graph, arguments = taken[0]
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    # the image batch comes first: a model's forward takes it, parameters are read from the model later
    found = Captured(graph, dict(zip(places[1:], arguments[1:], strict=True)))
    _calibrate(found, images)
    return found


def _images(data: Any) -> torch.Tensor:
    if data is None:
        raise QuantizeError(
            "a float model needs calibration data: the ranges of its activations are measured",
            hint="quantize(model, images), some hundred images like those that it will see",
        )
    try:
        given = [data] if isinstance(data, torch.Tensor) else iter(data)
    except TypeError as error:
        raise QuantizeError(
            f"the calibration data are of type {type(data).__name__}", hint="images, or batches of them"
        ) from error
    batches = [_batch(one) for one in given]
    if not batches or sum(len(batch) for batch in batches) == 0:
        raise QuantizeError("the calibration data hold no images")
    if len(kinds := {(batch.dtype, batch.shape[1:]) for batch in batches}) > 1:
        shown = " and ".join(sorted(f"{dtype} (n, {', '.join(map(str, shape))})" for dtype, shape in kinds))
        raise QuantizeError(f"batches of the calibration data differ: {shown}", hint="images of one size and type")
    images = torch.cat(batches)
    if images.ndim != 4 or not images.is_floating_point():
        raise QuantizeError(
            f"calibration data are {images.dtype} of shape {tuple(images.shape)}",
            hint="float images (n, channels, height, width), as the model takes them",
        )
    if not images.isfinite().all():
        raise QuantizeError("the calibration data hold values that are not finite")
    return images


def _batch(one: Any) -> torch.Tensor:
    first = one[0] if isinstance(one, (tuple, list)) and one else one
    if not isinstance(first, torch.Tensor):
        raise QuantizeError(f"a batch of the calibration data is a {type(one).__name__}", hint="a tensor of images")
    return first


class _Ranges(fx.Interpreter):
    """Runs a graph and widens the range of each of its nodes."""

    def __init__(self, captured: Captured) -> None:
        super().__init__(captured.graph)
        self.ranges = captured.ranges

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel():
            low, high = (bound.item() for bound in value.aminmax())
            before = self.ranges.get(n, (low, high))
            self.ranges[n] = (min(low, before[0]), max(high, before[1]))
        return value


def _calibrate(captured: Captured, images: torch.Tensor) -> None:
    """Run all images; the last batch is padded by repeating its last image, as the graph has a fixed batch size."""
    size = min(BATCH, len(images))
    interpreter = _Ranges(captured)
    with torch.no_grad():
        for start in range(0, len(images), size):
            batch = images[start : start + size]
            filled = torch.cat([batch, *[batch[-1:]] * (size - len(batch))])
            interpreter.run(filled, *captured.held.values())


def chain(node: fx.Node, targets: Iterable[Any]) -> fx.Node | None:
    """The user of a node, if there is only one and its target is one of these operators; else None."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target in targets else None
