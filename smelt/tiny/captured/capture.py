"""Captures a PyTorch model as a functional ATen graph, by smelt's capture, and measures the ranges of its values."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
        graph: functional ATen operators; placeholders are the image batch and parameters, in the order of first use.
        image: the placeholder of the image batch.
        held: placeholder -> its parameter or buffer, for all other placeholders.
        ranges: node -> its minimum and maximum over the calibration data.
    """

    graph: fx.GraphModule
    image: fx.Node
    held: dict[fx.Node, torch.Tensor]
    ranges: dict[fx.Node, tuple[float, float]] = field(default_factory=dict)


def capture(model: nn.Module, calibration_data: Any) -> Captured:
    """Capture a model in eval mode and run it on the data.

    Args:
        calibration_data: float images (n, channels, height, width) or sequences (n, channels, length), or batches of
            them; a batch may be a tuple that begins with its images, as loaders give them.

    Raises:
        QuantizeError: there are no images, or the data are not images.
        Unsupported: the model is not one graph.
    """
    images = _images(calibration_data)
    elsewhere = {one.device.type for one in (images, *model.parameters(), *model.buffers())} - {"cpu"}
    if elsewhere:
        raise QuantizeError(
            f"the model or the calibration data are on {', '.join(sorted(elsewhere))}", hint="model.cpu(), images.cpu()"
        )
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

    batch = images[:BATCH]
    training = {module: module.training for module in model.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)  # it fuses a whole encoder layer
    try:
        with torch.no_grad():
            backend = smelt.aot_autograd(fw_compiler=take)
            smelt.compile(model, backend=backend, fullgraph=True, dynamic=False)(batch)
    except SmeltError:
        raise
    except Exception as error:
        raise _refused(model, batch) or error from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, was in training.items():
            module.training = was
    if len(taken) != 1:
        raise QuantizeError(f"the model ran as {len(taken)} graphs", hint="smelt.explain(model) shows where it was cut")
    graph, arguments = taken[0]
    found = _with_places(graph, arguments, batch)
    _calibrate(found, images)
    return found


def _with_places(graph: fx.GraphModule, arguments: Sequence[torch.Tensor], batch: torch.Tensor) -> Captured:
    """A graph whose placeholders are known by the arguments of its run, of which one is the image batch itself."""
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    held = dict(zip(places, arguments, strict=True))
    image = next((place for place, given in held.items() if given is batch), None)
    if image is None or not image.users:
        raise QuantizeError("the model's result does not depend on its images")
    del held[image]
    return Captured(graph, image, held)


def _refused(model: nn.Module, images: torch.Tensor) -> QuantizeError | None:
    """The error of a model that does not take the images in PyTorch either; names the layer. None if it takes them."""
    entered: list[tuple[str, nn.Module, tuple[Any, ...]]] = []
    hooks = [
        hook
        for path, module in model.named_modules()
        for hook in (
            module.register_forward_pre_hook(lambda one, args, path=path: entered.append((path, one, args))),
            module.register_forward_hook(lambda *_: entered.pop() and None),
        )
    ]
    try:
        with torch.no_grad():
            model(images)
    except Exception as error:
        path, module, positional = entered[-1] if entered else ("", model, (images,))
        shapes = ", ".join(str(tuple(one.shape)) for one in positional if isinstance(one, torch.Tensor))
        lines = traceback.extract_tb(error.__traceback__)
        own = [one for one in lines if not one.filename.startswith((_TORCH, __file__))] or lines
        shown = f"{path or 'the model'} ({type(module).__name__}) of an input {shapes}"
        return QuantizeError(
            f"the model does not take calibration data of shape {tuple(images.shape)}",
            why=f"{type(error).__name__} in {shown}: {str(error).strip() or 'no message'}",
            at=f"{own[-1].filename}:{own[-1].lineno}",
            hint="images (n, channels, height, width) with which model(images) runs in PyTorch",
        )
    finally:
        for hook in hooks:
            hook.remove()
    return None


def described(model: nn.Module, line: str) -> str:
    """A line of a program, with the modules of the model whose class it is in if the line is PyTorch's own.

    Args:
        line: file:number.
    """
    file, _, number = line.rpartition(":")
    if not file.startswith(_TORCH) or not number.isdecimal():
        return line
    found = [
        f"{path or 'the model'} ({type(module).__name__})"
        for path, module in model.named_modules()
        if any(_defines(each, file, int(number)) for each in type(module).__mro__ if each not in (nn.Module, object))
    ]
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return f"{', '.join(found[:_NAMED])}{more}: {line}" if found else line


def _defines(owner: type, file: str, number: int) -> bool:
    """Whether the source of a class includes a line of a file."""
    try:
        lines, first = inspect.getsourcelines(owner)
        return inspect.getsourcefile(owner) == file and first <= number < first + len(lines)
    except (OSError, TypeError):
        return False


_TORCH = str(Path(torch.__file__).parent)
_NAMED = 3
"""Number of modules that an error names."""


def _images(data: Any) -> torch.Tensor:
    if data is None:
        raise QuantizeError(
            "a float model needs calibration data: the ranges of its activations are measured",
            hint="quantize(model, images), some hundred images like those that it will see",
        )
    try:
        positional = [data] if isinstance(data, torch.Tensor) else iter(data)
    except TypeError as error:
        raise QuantizeError(
            f"the calibration data are of type {type(data).__name__}", hint="images, or batches of them"
        ) from error
    batches = [_batch(one) for one in positional]
    if sum(batch.numel() for batch in batches) == 0:
        raise QuantizeError("the calibration data hold no images")
    if len(kinds := {(batch.dtype, batch.shape[1:]) for batch in batches}) > 1:
        shown = " and ".join(sorted(f"{dtype} (n, {', '.join(map(str, shape))})" for dtype, shape in kinds))
        raise QuantizeError(f"batches of the calibration data differ: {shown}", hint="images of one size and type")
    images = torch.cat(batches).detach()
    if images.device.type == "cpu" and not images.isfinite().all():
        raise QuantizeError("the calibration data hold values that are not finite", hint="images without NaN and inf")
    return images


def _batch(one: Any) -> torch.Tensor:
    first = one[0] if isinstance(one, (tuple, list)) and one else one
    if not isinstance(first, torch.Tensor):
        raise QuantizeError(f"a batch of the calibration data is a {type(one).__name__}", hint="a tensor of images")
    if first.ndim not in (3, 4) or not first.is_floating_point():
        raise QuantizeError(
            f"calibration data are {first.dtype} of shape {tuple(first.shape)}",
            hint="float images (n, channels, height, width), or sequences (n, channels, length)",
        )
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
    places = [node for node in captured.graph.graph.nodes if node.op == "placeholder"]
    with torch.no_grad():
        for start in range(0, len(images), size):
            batch = images[start : start + size]
            filled = torch.cat([batch, *[batch[-1:]] * (size - len(batch))])
            interpreter.run(*(captured.held.get(place, filled) for place in places))


def chain(node: fx.Node, targets: Iterable[Any]) -> fx.Node | None:
    """The user of a node, if there is only one and its target is one of these operators; else None."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target in targets else None
