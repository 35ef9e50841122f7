"""Sparse update schemes: which biases and which parts of which weights are trained, and how much memory that takes.

The memory model is that of the paper (arXiv 2206.15472): an analytic count of the bytes that a training step must keep
beyond an inference. It reproduces the paper's figures for its five schemes for MCUNet; `plan` computes the memory of an
actual program.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from smelt.base.errors import OptionError, SmeltError, unknown_name
from smelt.tiny.graph import Conv, Head, Int8Graph, Layer, Linear, updated_channels


class SchemeError(SmeltError):
    """A scheme does not fit a network, or is malformed."""


@dataclass(frozen=True)
class Scheme:
    """The parameters that are trained besides the classifier, which is always trained.

    Attributes:
        biases: the number of last layers whose biases train.
        weights: for some layers, by their number from 0, the ratio of input channels whose weights train, above 0 and
            at most 1. Of a depthwise layer it is the ratio of channels.
        adapters: for some layers that read positions one by one (linear layers and pointwise convolutions), the rank of
            a product of two float32 matrices that train and add to the layer's result (LoRA, arXiv 2106.09685).
    """

    name: str
    biases: int = 0
    weights: Mapping[int, Fraction] = field(default_factory=dict)
    adapters: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        weights = {layer: Fraction(ratio).limit_denominator(1 << 16) for layer, ratio in sorted(self.weights.items())}
        object.__setattr__(self, "weights", MappingProxyType(weights))
        object.__setattr__(self, "adapters", MappingProxyType(dict(sorted(self.adapters.items()))))
        for layer, rank in self.adapters.items():
            if rank < 1:
                raise SchemeError(
                    f"scheme {self.name!r} has an adapter of rank {rank} at layer {layer}", hint="at least 1"
                )
        if self.biases < 0:
            raise SchemeError(f"scheme {self.name!r} trains {self.biases} biases", hint="a number of layers, from 0")
        for layer, ratio in weights.items():
            if not 0 < ratio <= 1:
                raise SchemeError(
                    f"scheme {self.name!r} trains {self.weights[layer]} of the weights of layer {layer}",
                    hint="a ratio above 0 and at most 1; leave out layers that stay",
                )

    def __hash__(self) -> int:
        return hash((self.biases, tuple(self.weights.items()), tuple(self.adapters.items())))

    def first(self, graph: Int8Graph) -> int:
        """The number of the first layer that a gradient must reach; the count of layers if none."""
        return min([len(graph.layers) - self.biases, *self.weights, *self.adapters])

    def check(self, graph: Int8Graph) -> None:
        """Check that the network has the layers that the scheme names.

        Raises:
            SchemeError: a layer is missing.
        """
        count = len(graph.layers)
        if self.biases > count:
            raise SchemeError(
                f"scheme {self.name!r} trains the biases of {self.biases} layers, {graph.name} has {count}",
                hint=f"at most {count}",
            )
        missing = [layer for layer in (*self.weights, *self.adapters) if not 0 <= layer < count]
        if missing:
            raise SchemeError(
                f"scheme {self.name!r} trains weights of layers {missing}, {graph.name} has {count} layers",
                hint=f"layers are counted from 0 to {count - 1}; a preset is for one network",
            )
        wrong = [layer for layer in self.adapters if not adaptable(graph.layers[layer])]
        if wrong:
            raise SchemeError(
                f"scheme {self.name!r} has adapters at layers {wrong} of {graph.name}",
                hint="adapters go to linear layers and pointwise convolutions",
            )

    def as_json(self) -> dict[str, Any]:
        """The scheme as a JSON value, which `from_json` reads."""
        weights = {str(layer): str(ratio) for layer, ratio in self.weights.items()}
        found = {"name": self.name, "biases": self.biases, "weights": weights}
        return {**found, "adapters": {str(layer): rank for layer, rank in self.adapters.items()}}

    def __str__(self) -> str:
        weights = ", ".join(f"{layer}: {ratio}" for layer, ratio in self.weights.items())
        adapters = ", ".join(f"{layer}: {rank}" for layer, rank in self.adapters.items())
        more = f"; adapters {{{adapters}}}" if adapters else ""
        return f"{self.name} (biases of the last {self.biases} layers; weights {{{weights}}}{more})"


def from_json(value: object) -> Scheme:
    """The scheme from the result of `Scheme.as_json`.

    Raises:
        SchemeError: the value does not describe a scheme.
    """
    try:
        assert isinstance(value, dict)
        weights = {int(layer): Fraction(ratio) for layer, ratio in value["weights"].items()}
        adapters = {int(layer): operator.index(rank) for layer, rank in value.get("adapters", {}).items()}
        return Scheme(str(value["name"]), operator.index(value["biases"]), weights, adapters)
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise SchemeError(
            "this is no scheme",
            why=f"{type(error).__name__}: {error}",
            hint='{"name": "mine", "biases": 20, "weights": {"24": "1/4"}}',
        ) from error


_QUARTER, _HALF = Fraction(1, 4), Fraction(1, 2)

PRESETS: Mapping[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("mcunet-49kb", 20, {24: _QUARTER, 27: _HALF, 30: _HALF}),
        Scheme("mcunet-74kb", 21, {21: Fraction(1), 24: Fraction(1), 27: _HALF, 30: Fraction(1)}),
        Scheme("mcunet-99kb", 22, {**dict.fromkeys((21, 24, 27, 30), Fraction(1)), 36: Fraction(1, 8), 39: _QUARTER}),
        Scheme("mcunet-124kb", 24, {21: _QUARTER, **dict.fromkeys((24, 27, 30), Fraction(1)), 33: _HALF, 39: _HALF}),
        Scheme("mcunet-148kb", 23, {**dict.fromkeys((21, 24, 27, 30, 36), Fraction(1)), 39: _HALF}),
    )
}
"""The schemes that the paper found for MCUNet-5FPS."""


def last_layers(graph: Int8Graph, count: int, name: str | None = None) -> Scheme:
    """The scheme that trains all of the last `count` layers.

    Raises:
        SchemeError: the network has fewer layers.
    """
    layers = len(graph.layers)
    weights = dict.fromkeys(range(max(0, layers - count), layers), Fraction(1))
    made = Scheme(name or f"last-{count}", count, weights)
    made.check(graph)
    return made


def within(graph: Int8Graph, limit: int, name: str) -> Scheme:
    """A scheme by rule, in the manner of the paper's, where no search was made.

    Biases of the last half of the layers train, and, from the end on, half of the input channels of those pointwise
    convolutions that make more channels than they read, as long as the memory model stays within `limit` bytes.

    Raises:
        SchemeError: the biases alone take more.
    """
    count = len(graph.layers)
    found = Scheme(name, count // 2)
    if (needed := memory(graph, found).total) > limit:
        raise SchemeError(
            f"the biases of the last {found.biases} layers of {graph.name} take {needed:,} B by the memory model, "
            f"{name} allows {limit:,} B",
            hint="a larger size, or bias-K of fewer layers",
        )
    for number in reversed(range(count - found.biases, count)):
        layer = graph.layers[number]
        if isinstance(layer, Conv) and layer.pointwise and layer.outputs > layer.inputs:
            more = replace(found, weights={**found.weights, number: _HALF})
            found = more if memory(graph, more).total <= limit else found
    return found


def adaptable(layer: Layer) -> bool:
    """Whether a layer can have a low-rank adapter."""
    return isinstance(layer, Linear) or layer.pointwise


def named(name: str, graph: Int8Graph) -> Scheme:
    """The scheme with a name: a preset, `classifier`, `bias-K` (of the last K layers), `bias`, `last-K`, `full`,
    `within-SIZE` (that of `within`, such as within-49KB), or `lora-R`: adapters of rank R at all layers that can have
    one.

    Raises:
        OptionError: there is no such name.
        SchemeError: the scheme does not fit the network.
    """
    layers = len(graph.layers)
    kind, _, count = name.partition("-")
    if name in PRESETS:
        made = PRESETS[name]
    elif name == "classifier":
        made = Scheme(name)
    elif name == "bias":
        made = Scheme(name, layers)
    elif name == "full":
        made = last_layers(graph, layers, "full")
    elif kind in ("bias", "last") and count.isdecimal():
        made = Scheme(name, int(count)) if kind == "bias" else last_layers(graph, int(count))
    elif kind == "within":
        made = within(graph, parse_size(count), name)
    elif kind == "lora" and count.isdecimal():
        made = Scheme(name, adapters={i: int(count) for i in range(layers) if adaptable(graph.layers[i])})
    else:
        names = (*PRESETS, "classifier", "bias", "bias-K", "last-K", "full", "within-SIZE", "lora-R")
        raise unknown_name("scheme", name, names)
    made.check(graph)
    return made


@dataclass(frozen=True)
class Memory:
    """Bytes that a training step by a scheme takes beyond an inference.

    Attributes:
        inputs: int8 inputs that weight gradients need, saved by the forward; also the classifier's input, and the
            products with the first matrices of adapters.
        masks: one bit (clamped or not) for each element of the results through which a gradient flows.
        weights: int8 weights that train, and float32 adapters.
        biases: int32 biases that train.
    """

    inputs: int
    masks: int
    weights: int
    biases: int

    @property
    def total(self) -> int:
        """The sum of all fields."""
        return self.inputs + self.masks + self.weights + self.biases

    def __str__(self) -> str:
        parts = (("inputs", self.inputs), ("masks", self.masks), ("weights", self.weights), ("biases", self.biases))
        return f"{kib(self.total)} ({', '.join(f'{name} {kib(size)}' for name, size in parts)})"


def kib(size: int) -> str:
    """A number of bytes as text in the paper's unit: its KB are 1024 bytes."""
    return f"{size / 1024:,.1f} KB"


def parse_size(text: str | int) -> int:
    """Bytes of a size such as 200000, "256KB" or "1 MB"; KB and MB are 1024 and 1024 x 1024 bytes, as in the paper.

    Raises:
        OptionError: the text is not a size, or not positive.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(|B|KB|KiB|K|MB|MiB|M)\s*", str(text), re.IGNORECASE)
    if found is None:
        raise OptionError(f"{text!r} is no size", hint="such as 200000, 256KB or 1MB")
    size = int(float(found[1]) * {"": 1, "B": 1, "K": 1024, "M": 1 << 20}[found[2][:1].upper()])
    if size <= 0:
        raise OptionError(f"{text!r} is no size above 0")
    return size


def memory(graph: Int8Graph, scheme: Scheme) -> Memory:
    """The memory that a scheme takes by the memory model, without the classifier's own parameters, which depend on the
    task.

    Raises:
        SchemeError: the scheme does not fit the network.
    """
    scheme.check(graph)
    layers = graph.layers
    inputs, masks, weights = _features(graph), 0, 0
    for number in range(scheme.first(graph), len(layers)):
        masks += -(-graph.tensors[layers[number].y].elements // 8)
    for number, ratio in scheme.weights.items():
        saved, trained = updated(graph, layers[number], ratio)
        inputs += saved
        weights += trained
    for number, rank in scheme.adapters.items():
        layer, x = layers[number], graph.tensors[layers[number].x]
        inputs += (0 if scheme.weights.get(number) == 1 else x.elements) + 4 * rank * (x.elements // layer.inputs)
        weights += 4 * rank * (layer.inputs + layer.outputs)
    biases = sum(4 * layer.outputs for layer in layers[len(layers) - scheme.biases :])
    return Memory(inputs, masks, weights, biases)


def updated(graph: Int8Graph, layer: Layer, ratio: Fraction) -> tuple[int, int]:
    """Bytes of the saved input and of the weights for a ratio of a layer's input channels."""
    channels = updated_channels(layer.inputs, ratio)
    x = graph.tensors[layer.x]
    return x.elements // layer.inputs * channels, layer.weight.data.size // layer.inputs * channels


def _features(graph: Int8Graph) -> int:
    last = graph.operators[-1]
    return graph.tensors[last.x].elements if isinstance(last, (Head, Linear)) else 0
