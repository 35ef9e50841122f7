"""What a graph runs as: calls of kernels in order, the values between them, and the parameters that train.

`infer_program` is the forward of a graph; `step.step_program` goes on to loss, backward and update. Two tables know a
kernel by its name: its meaning in torch is in `simulate`, its call in C in `render_c`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from smelt.base.errors import OptionError, unknown_name
from smelt.tiny.graph import (
    Add,
    AddConstant,
    Attention,
    AveragePool,
    Clamp,
    Conv,
    Flatten,
    Head,
    Int8Graph,
    Layer,
    LayerNorm,
    Linear,
    Lookup,
    Operator,
    parameters,
    sources,
)

BYTES = {"int8": 1, "int32": 4, "float32": 4}


@dataclass(frozen=True)
class Value:
    """A tensor in the arena. "bit" values hold a bit for each element, in bytes from the lowest bit on."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Its size in the arena."""
        return -(-prod(self.shape) // 8) if self.dtype == "bit" else prod(self.shape) * BYTES[self.dtype]


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a kernel.

    Attributes:
        op: the operator of the graph that it belongs to; the depthwise one, of a fused pair.
        reads, writes: names of values.
        uses, updates: names of trained parameters, as they are before the call and as it leaves them.
        scratch: bytes that it needs while it runs.
        in_place: the value that may lie where its first read value lies.
        expand: the pointwise convolution that is fused into a depthwise one.
        label: a number of its own among the calls that draw random numbers.
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
    label: int = 0


@dataclass(frozen=True, eq=False)
class Trained:
    """A parameter in RAM.

    Attributes:
        data: what it holds at first, in the form in which it trains: of a sparse layer the updated channels alone.
        channels: the input channels that are updated, ascending; None: all of them.
    """

    name: str
    data: np.ndarray
    channels: tuple[int, ...] | None = None

    @property
    def bytes(self) -> int:
        """Its size in RAM."""
        return int(self.data.nbytes)


ROUNDINGS = ("nearest", "stochastic", "latent")
BACKWARDS = ("float32", "int8")


@dataclass(frozen=True)
class StepOptions:
    """How parameters are updated.

    Attributes:
        rounding: of int8 weights after an update. "nearest": changes of less than half a step are lost. "stochastic":
            up or down by chance, right in the mean, some operations a weight more. "latent": to the nearest of a
            float32 copy, four more bytes a weight. Biases are rounded to the nearest but for "stochastic".
        momentum: of SGD; above 0 a float32 velocity for each parameter, four more bytes each.
        scaled: quantisation-aware scaling of gradients (QAS).
        seed: of rounding by chance.
        backward: of convolutions and linear layers. "float32": gradients of accumulators as they are. "int8": rounded
            by chance to int8, one scale for a tensor, so that products and sums are those of integers.
        held: keep the gradients of all parameters until the walk back is done, and apply them then, as frameworks do.
            The bits are the same, the memory is not: for comparison.
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
        """What tells the draws of one update from those of others, 32 bits."""
        return (self.seed * 0x27D4EB2F + label * 0x165667B1) & 0xFFFFFFFF


def latent_name(parameter: str) -> str:
    """The float32 copy of an int8 weight."""
    return f"{parameter}.latent"


def velocity_name(parameter: str) -> str:
    """The velocity of a parameter."""
    return f"{parameter}.velocity"


def adapter_names(layer: Layer) -> tuple[str, str]:
    """The two matrices of a layer's low-rank adapter: (rank, inputs) and (outputs, rank)."""
    return f"{layer.name}.down", f"{layer.name}.up"


def hidden_name(layer: Layer) -> str:
    """What the first matrix of an adapter makes of the layer's input."""
    return f"{layer.name}.hidden"


def gradient_name(parameter: str) -> str:
    """The gradient of a parameter, where it is held."""
    return f"d {parameter}"


@dataclass(frozen=True, eq=False)
class Program:
    """Calls in order, over values by name. `logits` are read by whoever called it."""

    graph: Int8Graph
    values: dict[str, Value]
    calls: tuple[Call, ...]
    logits: str
    trained: dict[str, Trained] = field(default_factory=dict)
    options: StepOptions = StepOptions()


class Builder:
    """Collects the values and calls of a program.

    Attributes:
        buffer_of: the value that holds each tensor of the graph; of a flattened one, that of its source.
    """

    def __init__(self, graph: Int8Graph) -> None:
        self.graph = graph
        self.values: dict[str, Value] = {}
        self.calls: list[Call] = []
        self.buffer_of: dict[str, str] = {graph.input: self.tensor(graph.input)}

    def value(self, name: str, shape: Iterable[int], dtype: str) -> str:
        """A new value."""
        assert name not in self.values, name
        self.values[name] = Value(name, tuple(shape), dtype)
        return name

    def tensor(self, name: str) -> str:
        """A value for a tensor of the graph."""
        tensor = self.graph.tensors[name]
        return self.value(name, tensor.shape, tensor.dtype)

    def call(
        self, kernel: str, op: Operator | None, reads: Iterable[str], writes: Iterable[str], **more: object
    ) -> None:
        """A call, after all others."""
        self.calls.append(Call(kernel, op, tuple(reads), tuple(writes), **more))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Saved:
    """What the backward wants of the forward.

    Attributes:
        masks: operators whose clamp masks are kept.
        channels: for some layers, the input channels that are kept apart; None: all, the input itself.
        ranks: of adapters, by the names of their layers.
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


def infer_program(graph: Int8Graph, trained: Mapping[str, Trained] | None = None) -> Program:
    """The forward of a graph, which reads the parameters that train where they are."""
    builder = Builder(graph)
    kept = trained or {}
    channels = {op.name: kept[op.weight.name].channels for op in graph.layers if op.weight.name in kept}
    logits = add_forward(builder, Saved(channels=channels, ranks=ranks_of(graph, kept), trained=frozenset(kept)))
    return Program(graph, builder.values, tuple(builder.calls), logits, dict(kept))


def add_forward(builder: Builder, saved: Saved) -> str:
    """The calls of a graph's operators; returns the value of the logits, float32."""
    graph = builder.graph
    expanded = _fused(graph, saved)
    for op in graph.operators:
        if isinstance(op, Flatten):
            builder.buffer_of[op.y] = builder.buffer_of[op.x]
        elif op.name not in {pointwise.name for pointwise in expanded.values()}:
            _add_operator(builder, op, saved, expanded.get(op.name))
    if graph.tensors[graph.output].dtype == "float32":
        return builder.buffer_of[graph.output]
    logits = builder.value("float_logits", graph.tensors[graph.output].shape, "float32")
    builder.call("dequantize", graph.operators[-1], [builder.buffer_of[graph.output]], [logits])
    return logits


def _fused(graph: Int8Graph, saved: Saved) -> dict[str, Conv]:
    """Depthwise convolutions -> the pointwise one before each, whose result then is a channel at a time.

    Where the backward wants nothing of that result, the widest tensors of a network never exist.
    """
    readers: dict[str, int] = {}
    made: dict[str, Operator] = {}
    fused: dict[str, Conv] = {}
    for op in graph.operators:
        for name in sources(op):
            readers[name] = readers.get(name, 0) + 1
        made[op.y] = op
    for op in (layer for layer in graph.layers if layer.depthwise):
        before = made.get(op.x)
        if not isinstance(before, Conv) or not before.pointwise or readers[op.x] > 1:
            continue
        wanted = {before.weight.name, before.bias.name, op.weight.name, *adapter_names(before)} & saved.trained
        if not wanted and before.name not in saved.masks and op.name not in saved.channels:
            fused[op.name] = before
    return fused


def _add_operator(builder: Builder, op: Operator, saved: Saved, expand: Conv | None) -> None:
    reads = [builder.buffer_of[name] for name in sources(expand or op)]
    writes = [builder.tensor(op.y)]
    builder.buffer_of[op.y] = op.y
    if isinstance(op, Layer):
        reads += _gathered(builder, op, saved) + _adapted(builder, op, saved)
    if op.name in saved.masks:
        writes.append(builder.value(f"{op.name}.mask", builder.graph.tensors[op.y].shape, "bit"))
    held = [one.name for each in (op, expand) if each is not None for one in parameters(each)]
    held += adapter_names(op)[1:] if isinstance(op, Layer) else ()
    builder.call(
        "expand_depthwise" if expand else kernel_of(op),
        op,
        reads,
        writes,
        uses=tuple(name for name in held if name in saved.trained),
        scratch=_scratch(builder.graph, op, expand),
        in_place=op.y if expand is None and _element_by_element(op) else None,
        expand=expand,
    )


def _scratch(graph: Int8Graph, op: Operator, expand: Conv | None) -> int:
    """Bytes of the planes of a depthwise convolution, or of a row of attention."""
    if isinstance(op, Attention):
        return 4 * keys(graph, op)
    return plane_bytes(graph, op) * (2 if expand else 1) if isinstance(op, Conv) else 0


def keys(graph: Int8Graph, op: Attention) -> int:
    """Positions that attention reads."""
    k = graph.tensors[op.k]
    return k.elements // k.channels


def _element_by_element(op: Operator) -> bool:
    """Whether a kernel may write over its first operand: a depthwise one does it by channels, a norm by positions."""
    return isinstance(op, (Add, AddConstant, Clamp, Lookup, LayerNorm)) or (isinstance(op, Conv) and op.depthwise)


def _gathered(builder: Builder, op: Layer, saved: Saved) -> list[str]:
    """The value of the updated input channels of a layer, if that is not the whole input."""
    channels = saved.channels.get(op.name)
    if channels is None:
        return []
    name = builder.value(f"{op.name}.kept", (*builder.graph.tensors[op.x].shape[:-1], len(channels)), "int8")
    builder.call("gather", op, [builder.buffer_of[op.x]], [name], uses=(op.weight.name,))
    return [name]


def _adapted(builder: Builder, op: Layer, saved: Saved) -> list[str]:
    """What a layer's adapter makes of its input, if it has one."""
    down, _ = adapter_names(op)
    if down not in saved.trained:
        return []
    x = builder.graph.tensors[op.x]
    name = builder.value(hidden_name(op), (x.elements // op.inputs, saved.ranks[op.name]), "float32")
    builder.call("adapter_down", op, [builder.buffer_of[op.x]], [name], uses=(down,))
    return [name]


def kernel_of(op: Operator) -> str:
    """The kernel that computes an operator."""
    match op:
        case Conv():
            return "depthwise" if op.depthwise else "pointwise" if op.pointwise else "conv"
        case Linear():
            return "pointwise"
        case Head():
            return "head"
        case Add():
            return "add"
        case AveragePool():
            return "pool"
        case Clamp():
            return "clamp"
        case AddConstant():
            return "add_constant"
        case Lookup():
            return "lookup"
        case LayerNorm():
            return "layer_norm"
        case Attention():
            return "attention"
    raise AssertionError(f"{op.name} is no call")


PLANE_SLACK = 8
"""Bytes behind a plane that kernels may read: they take four at a time."""


def plane_bytes(graph: Int8Graph, op: Conv) -> int:
    """Bytes of a padded channel of a depthwise convolution's input, in whole words."""
    if not op.depthwise:
        return 0
    height, width, _ = graph.tensors[op.x].shape
    return -(-(height + 2 * op.padding[0]) * (width + 2 * op.padding[1]) // 4) * 4 + PLANE_SLACK


def bordered(op: Conv) -> bool:
    """Whether the backward of a depthwise convolution puts a border of zeros around the gradient and tests no tap."""
    return op.stride == 1 and all(pad < extent for pad, extent in zip(op.padding, op.kernel, strict=True))


def gradient_plane_elements(graph: Int8Graph, op: Conv, border: bool) -> int:
    """Elements of a channel of the gradient of a depthwise convolution's result, in a kernel that may border it."""
    height, width, _ = graph.tensors[op.x if border else op.y].shape
    return (height + op.kernel[0] - 1) * (width + op.kernel[1] - 1) if border else height * width
