"""Builds the program of a training step (forward, loss, backward and update) from a graph and a scheme.

The backward is built operator by operator, from the last one to the first that a gradient must reach; gradients that no
update needs are not computed. A parameter is updated as soon as its gradient is known, before the backward of earlier
operators, so the gradients of weights are never stored. The calls of the backward that read a weight come before its
update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from smelt.base.errors import OptionError
from smelt.tiny.graph import (
    Add,
    AddConstant,
    Attention,
    AveragePool,
    Clamp,
    Concat,
    Conv,
    Flatten,
    Head,
    Int8Graph,
    Layer,
    LayerNorm,
    Linear,
    Lookup,
    MaxPool,
    Multiply,
    Operator,
    parameters,
    sources,
    updated_channels,
)
from smelt.tiny.infer import add_forward
from smelt.tiny.program import (
    PLANE_SLACK,
    Builder,
    Program,
    Saved,
    StepOptions,
    Trained,
    adapter_names,
    bordered,
    columns_bytes,
    gradient_name,
    gradient_plane_elements,
    hidden_name,
    keys,
    latent_name,
    ranks_of,
    velocity_name,
)
from smelt.tiny.scheme import Scheme
from smelt.tiny.streaming import Chain, choose_chains

MAX_POSITIONS = (2**31 - 1) // (127 * 255)
"""Maximum number of positions of a result whose int8 gradient is multiplied with an input: sums over positions stay
within int32.
"""


def magnitude_channels(layer: Layer, count: int) -> tuple[int, ...]:
    """The `count` input channels with the largest sums of absolute (dequantised) weights, ascending; of equal sums the
    first.
    """
    assert layer.weight.scales is not None
    scales = layer.weight.scales.astype(np.float64)
    weight = np.abs(layer.weight.data.astype(np.float64))
    of_inputs = (
        (weight * (scales if layer.depthwise else scales.reshape(-1, *[1] * (weight.ndim - 1))))
        .reshape(-1, layer.inputs)
        .sum(0)
    )
    return tuple(sorted(np.argsort(-of_inputs, kind="stable")[:count].tolist()))


def trained_parameters(
    graph: Int8Graph,
    scheme: Scheme,
    options: StepOptions,
    channels: Mapping[int, tuple[int, ...]] | None = None,
) -> dict[str, Trained]:
    """The trained parameters of a scheme, by name, with their initial values, latent copies and velocities.

    Args:
        channels: layer number -> the input channels to update, ascending; other layers update those of largest
            magnitude.
    """
    head = graph.operators[-1]
    assert isinstance(head, Head)
    found = [Trained(one.name, one.data) for one in parameters(head)]
    for number, layer in enumerate(graph.layers):
        if number >= len(graph.layers) - scheme.biases:
            found.append(Trained(layer.bias.name, layer.bias.data))
        if number in scheme.weights:
            found.append(
                _trained_weight(layer, updated_channels(layer.inputs, scheme.weights[number]), channels, number)
            )
        if number in scheme.adapters:
            found += _adapter(layer, scheme.adapters[number], options.seed, number)
    held = {one.name: one for one in found}
    for one in found:
        zeros = np.zeros(one.data.shape, np.float32)
        if options.rounding == "latent" and one.data.dtype == np.int8:
            held[latent_name(one.name)] = Trained(latent_name(one.name), one.data.astype(np.float32))
        if options.momentum:
            held[velocity_name(one.name)] = Trained(velocity_name(one.name), zeros)
    return held


def _adapter(layer: Layer, rank: int, seed: int, number: int) -> list[Trained]:
    """A low-rank adapter whose initial contribution is zero: the first matrix is random, the second zero (arXiv
    2106.09685).
    """
    bound = layer.inputs**-0.5
    down = np.random.default_rng([seed, number]).uniform(-bound, bound, (rank, layer.inputs)).astype(np.float32)
    pair = (down, np.zeros((layer.outputs, rank), np.float32))
    return [Trained(name, data) for name, data in zip(adapter_names(layer), pair, strict=True)]


def _trained_weight(layer: Layer, count: int, channels: Mapping[int, tuple[int, ...]] | None, number: int) -> Trained:
    chosen = (channels or {}).get(number) or magnitude_channels(layer, count)
    if list(chosen) != sorted(set(chosen)) or not 0 <= chosen[0] <= chosen[-1] < layer.inputs or len(chosen) != count:
        raise OptionError(
            f"channels {chosen} of layer {number} are not {count} of its {layer.inputs} input channels, ascending"
        )
    if count == layer.inputs:
        return Trained(layer.weight.name, layer.weight.data)
    return Trained(layer.weight.name, np.ascontiguousarray(layer.weight.data[..., list(chosen)]), tuple(chosen))


def step_program(
    graph: Int8Graph,
    scheme: Scheme,
    options: StepOptions | None = None,
    channels: Mapping[int, tuple[int, ...]] | None = None,
) -> Program:
    """The training step of a graph for one image, with softmax cross entropy and SGD.

    Args:
        channels: see `trained_parameters`.

    Raises:
        SchemeError: the scheme names layers that the graph lacks.
        OptionError: the graph does not end in a float classifier, or `channels` are not channels of the layer.
    """
    options = options or StepOptions()
    scheme.check(graph)
    if not isinstance(graph.operators[-1], Head):
        raise OptionError(
            f"{graph.name} ends in an int8 classifier, which does not train", hint="smelt.tiny.models.with_head"
        )
    trained = trained_parameters(graph, scheme, options, channels)
    reached = _reached(graph, frozenset(trained))
    kept = {op.name: trained[op.weight.name].channels for op in graph.layers if op.weight.name in trained}
    unmasked = (Head, Flatten, Lookup, MaxPool)
    masks = frozenset(op.name for op in graph.operators if op.y in reached and not isinstance(op, unmasked))
    saved = Saved(masks, kept, ranks_of(graph, trained), frozenset(trained))

    def build(chains: tuple[Chain, ...]) -> Program:
        builder = Builder(graph)
        logits = add_forward(builder, saved, chains)
        _Backward(builder, trained, reached, options).run()
        return Program(graph, builder.values, tuple(builder.calls), logits, trained, options)

    return choose_chains(graph, saved, build)


def _reached(graph: Int8Graph, trained: frozenset[str]) -> frozenset[str]:
    """The tensors that depend on a trained parameter: only their gradients are computed."""
    reached: set[str] = set()
    for op in graph.operators:
        own = {one.name for one in parameters(op)} | set(adapter_names(op) if isinstance(op, Layer) else ())
        if own & trained or any(name in reached for name in sources(op)):
            reached.add(op.y)
    return frozenset(reached)


@dataclass
class _Backward:
    """Adds the calls of the backward, from the loss to the first trained parameter.

    Attributes:
        gradients: tensor -> the value that holds the sum of its gradients so far.
        late: under the option `held`, the updates to make after the backward: (operator, parameter, label).
    """

    builder: Builder
    trained: dict[str, Trained]
    reached: frozenset[str]
    options: StepOptions
    late: list[tuple[Operator, str, int]] = field(default_factory=list)
    gradients: dict[str, str] = field(default_factory=dict)
    labels: int = 0

    def run(self) -> None:
        graph = self.builder.graph
        logits = self.builder.buffer_of[graph.output]
        self.gradients[graph.output] = self.gradient("loss", graph.output)
        self.builder.call("loss", graph.operators[-1], [logits], [self.gradients[graph.output]])
        for op in reversed(graph.operators):
            if op.y in self.reached:
                self.operator(op, self.gradients.pop(op.y))
        for op, name, label in self.late:
            self.builder.call("apply", op, [gradient_name(name)], [], updates=(name,), label=label)

    def operator(self, op: Operator, g: str) -> None:
        """Add the backward of one operator, given the value `g` of the gradient of its result."""
        match op:
            case Head():
                self.head(op, g)
            case Flatten():
                self.give(op.x, g)
            case Conv() | Linear():
                self.products(op, self.unclamped(op, g))
            case AveragePool():
                self.to_source("pool_backward", op, self.unclamped(op, g))
            case Clamp():
                self.give(op.x, self.unclamped(op, g))
            case AddConstant():
                self.to_source("scale_a", op, self.unclamped(op, g), in_place=True)
            case Lookup():
                self.to_source("lookup_backward", op, g, self.builder.buffer_of[op.x], in_place=True)
            case LayerNorm():
                x = self.builder.buffer_of[op.x]
                self.to_source("layer_norm_backward", op, self.unclamped(op, g), x, in_place=True)
            case MaxPool():
                self.to_source("max_pool_backward", op, g, self.builder.buffer_of[op.x])
            case Add() | Attention() | Multiply() | Concat():
                self.operands(op, self.unclamped(op, g))

    def operands(self, op: Add | Attention | Multiply | Concat, g: str) -> None:
        """Add the gradients of several operands, given that of the accumulator (`g`)."""
        match op:
            case Add():
                self.add(op, g)
            case Attention():
                self.attention(op, g)
            case Multiply():
                self.multiply(op, g)
            case Concat():
                wanted = [name for name in op.xs if name in self.reached]
                made = [self.gradient(f"{op.name}.{name}", name) for name in wanted]
                self.builder.call("concat_backward", op, [g], made)
                for name, one in zip(wanted, made, strict=True):
                    self.give(name, one)

    def unclamped(self, op: Operator, g: str) -> str:
        out = self.gradient(f"{op.name}.accumulator", op.y)
        self.builder.call("unclamp", op, [g, f"{op.name}.mask"], [out], in_place=out)
        return out

    def head(self, op: Head, g: str) -> None:
        self.to_source("head_backward", op, g)
        self.update("head_update", op, [g, self.builder.buffer_of[op.x]], [op.weight.name, op.bias.name])

    def attention(self, op: Attention, g: str) -> None:
        """Add the gradients of q, k and v; a tensor that holds several (a fused projection) gets one gradient."""
        reads = [g, *(self.builder.buffer_of[name] for name in sources(op))]
        wanted = [name for name in dict.fromkeys(sources(op)) if name in self.reached]
        made = [self.gradient(f"{op.name}.{name}", name) for name in wanted]
        self.builder.call("attention_backward", op, reads, made, scratch=8 * keys(self.builder.graph, op))
        for name, one in zip(wanted, made, strict=True):
            self.give(name, one)

    def products(self, op: Layer, g: str) -> None:
        """Add the updates of bias and weights and the gradient of the input, given that of the accumulator (`g`)."""
        if op.bias.name in self.trained:
            self.update("update_bias", op, [g], [op.bias.name])
        low = self.adapter(op, g)
        backward, trains = op.x in self.reached, op.weight.name in self.trained
        operands, form = [g], ""
        if self.options.backward == "int8" and (backward or trains):
            operands, form = self.in_int8(op, g), "_int8"
        if backward:
            plane = self.plane(op, form) if isinstance(op, Conv) and op.depthwise else columns_bytes(op) if form else 0
            kernel = "depthwise_backward" if op.depthwise else "conv_backward"
            self.to_source(kernel + form, op, *operands, in_place=op.depthwise and not form, scratch=plane, more=low)
        if trains:
            kept = f"{op.name}.kept"
            x = kept if kept in self.builder.values else self.builder.buffer_of[op.x]
            kernel = "update_depthwise" if op.depthwise else "update_weight"
            self.update(kernel + form, op, [operands[0], x, *operands[1:]], [op.weight.name])
        if low is not None:
            self.update("update_down", op, [low, self.builder.buffer_of[op.x]], [adapter_names(op)[0]])

    def adapter(self, op: Layer, g: str) -> str | None:
        """Add the update of an adapter's second matrix and the gradient of its operand (the product with the first
        matrix); returns the value of that gradient, None if the layer has no adapter.
        """
        _, up = adapter_names(op)
        if up not in self.trained:
            return None
        shape = self.builder.values[hidden_name(op)].shape
        low = self.builder.value(f"d {hidden_name(op)}", shape, "float32")
        self.builder.call("adapter_hidden", op, [g], [low], uses=(up,))
        self.update("update_up", op, [g, hidden_name(op)], [up])
        return low

    def plane(self, op: Conv, form: str) -> int:
        """Bytes of one channel of the gradient of a depthwise convolution's result; `form` is "_int8", or "" for
        float32.
        """
        elements = gradient_plane_elements(self.builder.graph, op, bordered(op))
        return elements + PLANE_SLACK if form else 4 * elements

    def positions(self, op: Layer) -> int:
        y = self.builder.graph.tensors[op.y]
        return y.elements // y.channels

    def in_int8(self, op: Layer, g: str) -> list[str]:
        """Quantise a gradient to int8; returns the values of the quantised gradient and of its scale."""
        if self.positions(op) > MAX_POSITIONS:
            raise OptionError(
                f"{op.name} has a result of {self.positions(op):,} positions: sums over them may leave int32",
                hint='backward="float32"',
            )
        shape = self.builder.graph.tensors[op.y].shape
        made = [self.builder.value(f"{g}.int8", shape, "int8"), self.builder.value(f"{g}.scale", (1,), "float32")]
        self.labels += 1
        self.builder.call("quantize_gradient", op, [g], made, label=self.labels)
        return made

    def add(self, op: Add, g: str) -> None:
        for name, side in ((op.a, "a"), (op.b, "b")):
            if name in self.reached:
                out = self.gradient(f"{op.name}.{side}", name)
                self.builder.call(f"scale_{side}", op, [g], [out], in_place=out)
                self.give(name, out)

    def multiply(self, op: Multiply, g: str) -> None:
        for side, name, other in (("b", op.b, op.a), ("a", op.a, op.b)):
            if name in self.reached:
                out, whole = self.gradient(f"{op.name}.{side}", name), side == "a"
                reads = [g, self.builder.buffer_of[other]]
                self.builder.call(f"multiply_backward_{side}", op, reads, [out], in_place=out if whole else None)
                self.give(name, out)

    def to_source(
        self, kernel: str, op: Operator, *g: str, in_place: bool = False, scratch: int = 0, more: str | None = None
    ) -> None:
        """Add the gradient of an operator's input, computed by a kernel, if the input depends on a trained parameter;
        `more`: the gradient within the operator's adapter, whose share is added.
        """
        (x,) = sources(op)
        if x not in self.reached:
            return
        out = self.gradient(f"{op.name}.input", x)
        uses = tuple(one.name for one in parameters(op)[:1] if one.name in self.trained)
        self.builder.call(kernel, op, g, [out], uses=uses, in_place=out if in_place else None, scratch=scratch)
        if more is not None:
            assert isinstance(op, Layer)
            both = self.gradient(f"{op.name}.input with adapter", x)
            self.builder.call("adapter_backward", op, [out, more], [both], uses=adapter_names(op)[:1], in_place=both)
            out = both
        self.give(x, out)

    def give(self, tensor: str, g: str) -> None:
        """Add a gradient to the sum of the gradients of a tensor."""
        if tensor not in self.reached:
            return
        before = self.gradients.get(tensor)
        if before is not None:
            both, g = [before, g], self.gradient(f"{before}+", tensor)
            self.builder.call("accumulate", None, both, [g], in_place=g)
        self.gradients[tensor] = g

    def update(self, kernel: str, op: Operator, reads: list[str], names: list[str]) -> None:
        """Add a call that updates the trained parameters `names`, or that stores their gradients under the option
        `held`.
        """
        self.labels += len(names)
        if not self.options.held:
            self.builder.call(kernel, op, reads, [], updates=tuple(names), label=self.labels)
            return
        self.late += [(op, name, self.labels) for name in names]
        made = [self.builder.value(gradient_name(n), self.trained[n].data.shape, "float32") for n in names]
        self.builder.call(kernel, op, reads, made, label=self.labels)

    def gradient(self, name: str, tensor: str) -> str:
        """Add a value for a gradient of a tensor; returns its name."""
        return self.builder.value(f"d {name}", self.builder.graph.tensors[tensor].shape, "float32")
