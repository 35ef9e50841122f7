"""The program of a graph: calls of kernels in order, the values that they pass on, and the parameters that are trained.

`infer_program` gives the forward of a graph; `step.step_program` adds loss, backward and update. Two tables are keyed
by the names of kernels: `simulate` has the computation of each kernel in torch, `render_c` its call in C.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from smelt.base.errors import OptionError, unknown_name
from smelt.tiny.graph import (
    Attention,
    Conv,
    Int8Graph,
    Layer,
    Linear,
    Operator,
)

BYTES = {"int8": 1, "int32": 4, "float32": 4}


@dataclass(frozen=True)
class Value:
    """A tensor in the arena. A value of dtype "bit" has one bit for each element, eight to a byte, the first in the
    lowest bit.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Size of the value in the arena, in bytes."""
        return -(-prod(self.shape) // 8) if self.dtype == "bit" else prod(self.shape) * BYTES[self.dtype]


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a kernel.

    Attributes:
        op: the operator of the graph that the call computes or differentiates; of several convolutions in one call,
            the last.
        reads, writes: names of values.
        uses, updates: names of the trained parameters that the call reads, and of those that it writes.
        scratch: bytes of temporary memory that the call needs.
        in_place: the written value that may have the same address as the first read value.
        expand: the pointwise convolution that is fused into the depthwise convolution `op`, if any.
        stages: the convolutions of a chain that is computed row by row, the first one first.
        label: number of the call among those that use random numbers, so that their random numbers differ.
    """

    kernel: str
    op: Operator | None
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    uses: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    scratch: int = 0
    in_place: str | None = None
    expand: Conv | None = None
    stages: tuple[Conv, ...] = ()
    label: int = 0


@dataclass(frozen=True, eq=False)
class Trained:
    """A parameter in RAM.

    Attributes:
        data: the initial content; of a layer that is trained in part, only the updated input channels.
        channels: the input channels that are updated, ascending; None: all of them.
    """

    name: str
    data: np.ndarray
    channels: tuple[int, ...] | None = None

    @property
    def bytes(self) -> int:
        """Size of the parameter in RAM, in bytes."""
        return int(self.data.nbytes)


ROUNDINGS = ("nearest", "stochastic", "latent")
BACKWARDS = ("float32", "int8")


@dataclass(frozen=True)
class StepOptions:
    """How parameters are updated.

    Attributes:
        rounding: how int8 weights are rounded after an update. "nearest": changes of less than half a quantisation step
            are lost. "stochastic": up or down at random, so that the expected value is exact; costs some more
            operations per weight. "latent": a float32 copy is updated, and the weight is the copy rounded to nearest;
            costs four more bytes per weight. Biases are rounded at random with "stochastic", to nearest otherwise.
        momentum: the momentum of SGD; above 0, each element of a parameter needs a float32 velocity (four more bytes).
        scaled: whether gradients are scaled by quantisation-aware scaling (QAS).
        seed: the seed of random rounding.
        backward: the dtype in which convolutions and linear layers take the gradients of their accumulators. "float32":
            unchanged. "int8": rounded at random to int8, with one scale per tensor, so that products and sums are
            computed in integers.
        held: keep the gradients of all parameters until the backward is complete and then update, as frameworks do.
            Results are bit for bit the same but more memory is needed; meant for comparison.
    """

    rounding: str = "stochastic"
    momentum: float = 0.0
    scaled: bool = True
    seed: int = 0
    held: bool = False
    backward: str = "float32"

    def __post_init__(self) -> None:
        if self.rounding not in ROUNDINGS:
            raise unknown_name("rounding", self.rounding, ROUNDINGS)
        if self.backward not in BACKWARDS:
            raise unknown_name("backward", self.backward, BACKWARDS)
        if not 0 <= self.momentum < 1:
            raise OptionError(f"momentum is {self.momentum}", hint="at least 0 and below 1")

    def salt(self, label: int) -> int:
        """The 32-bit seed of the random numbers of the update with this label."""
        return (self.seed * 0x27D4EB2F + label * 0x165667B1) & 0xFFFFFFFF


def latent_name(parameter: str) -> str:
    """The name of the float32 copy of an int8 weight."""
    return f"{parameter}.latent"


def velocity_name(parameter: str) -> str:
    """The name of a parameter's velocity."""
    return f"{parameter}.velocity"


def adapter_names(layer: Layer) -> tuple[str, str]:
    """The names of the two matrices of a layer's low-rank adapter, of shapes (rank, inputs) and (outputs, rank)."""
    return f"{layer.name}.down", f"{layer.name}.up"


def hidden_name(layer: Layer) -> str:
    """The name of the product of a layer's input and the first matrix of its adapter."""
    return f"{layer.name}.hidden"


def gradient_name(parameter: str) -> str:
    """The name of the gradient of a parameter, under the option `held`."""
    return f"d {parameter}"


@dataclass(frozen=True, eq=False)
class Program:
    """Calls in order, and the values that they use, by name. `logits` is the name of the result."""

    graph: Int8Graph
    values: dict[str, Value]
    calls: tuple[Call, ...]
    logits: str
    trained: dict[str, Trained] = field(default_factory=dict)
    options: StepOptions = StepOptions()


class Builder:
    """Collects the values and calls of a program.

    Attributes:
        buffer_of: tensor of the graph -> the value that holds it; a flattened tensor is in the value of its source.
    """

    def __init__(self, graph: Int8Graph) -> None:
        self.graph = graph
        self.values: dict[str, Value] = {}
        self.calls: list[Call] = []
        self.buffer_of: dict[str, str] = {graph.input: self.tensor(graph.input)}

    def value(self, name: str, shape: Iterable[int], dtype: str) -> str:
        """Add a value of this name, shape and dtype; returns the name."""
        assert name not in self.values, name
        self.values[name] = Value(name, tuple(shape), dtype)
        return name

    def tensor(self, name: str) -> str:
        """Add a value with the shape and dtype of a tensor of the graph; returns its name."""
        tensor = self.graph.tensors[name]
        return self.value(name, tensor.shape, tensor.dtype)

    def call(
        self, kernel: str, op: Operator | None, reads: Iterable[str], writes: Iterable[str], **more: object
    ) -> None:
        """Append a call; `more`: further fields of `Call`."""
        self.calls.append(Call(kernel, op, tuple(reads), tuple(writes), **more))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Saved:
    """The values that the forward must keep for the backward.

    Attributes:
        masks: operators whose clamp masks are kept.
        channels: layer -> the input channels that are copied for the weight gradient; None: the whole input is kept.
        ranks: name of a layer with an adapter -> the adapter's rank.
        trained: names of the parameters in RAM.
    """

    masks: frozenset[str] = frozenset()
    channels: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    trained: frozenset[str] = frozenset()


def ranks_of(graph: Int8Graph, trained: Mapping[str, Trained]) -> dict[str, int]:
    """The ranks of the adapters among trained parameters, by the names of their layers."""
    downs = {op.name: adapter_names(op)[0] for op in graph.layers}
    return {name: len(trained[down].data) for name, down in downs.items() if down in trained}


def keys(graph: Int8Graph, op: Attention) -> int:
    """The number of positions of k and v."""
    k = graph.tensors[op.k]
    return k.elements // k.channels


PLANE_SLACK = 8
"""Bytes after the end of a plane that kernels may read, because they load four bytes at a time."""


def plane_bytes(graph: Int8Graph, op: Conv) -> int:
    """Bytes of one padded input channel (a plane) of a depthwise convolution, in whole words of 4 bytes plus
    `PLANE_SLACK`.
    """
    if not op.depthwise:
        return 0
    height, width, _ = graph.tensors[op.x].shape
    return -(-prod(op.padded(height, width)) // 4) * 4 + PLANE_SLACK


def bordered(op: Conv) -> bool:
    """Whether the backward of a depthwise convolution pads the gradient with a border of zeros: then no tap of the
    kernel needs a test of bounds.
    """
    (left, right, top, bottom), (height, width) = op.border, op.kernel
    return op.stride == 1 and max(top, bottom) < height and max(left, right) < width


def gradient_plane_elements(graph: Int8Graph, op: Conv, border: bool) -> int:
    """The number of elements of one channel of the gradient of a depthwise convolution's result; `border`: with a
    border of zeros (see `bordered`).
    """
    height, width, _ = graph.tensors[op.x if border else op.y].shape
    return (height + op.kernel[0] - 1) * (width + op.kernel[1] - 1) if border else height * width


def columns_bytes(op: Layer) -> int:
    """Bytes in which the backward of a pointwise layer in int8 copies the weights of two inputs; 0 for other layers."""
    pointwise = isinstance(op, Linear) or op.pointwise
    return 2 * op.outputs if pointwise else 0
