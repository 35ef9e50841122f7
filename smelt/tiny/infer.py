"""The forward of a graph as calls of kernels, which a training step begins with and an inference consists of.

Consecutive convolutions become one call where that saves memory: a pointwise and a depthwise one channel by channel,
and chains of them row by row (`streaming`).
"""

from __future__ import annotations

from collections.abc import Mapping

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
)
from smelt.tiny.plan import lay_out
from smelt.tiny.program import Builder, Program, Saved, Trained, adapter_names, hidden_name, keys, plane_bytes, ranks_of
from smelt.tiny.streaming import Chain, choose_chains, scratch_bytes


def infer_program(graph: Int8Graph, trained: Mapping[str, Trained] | None = None, enough: int = 0) -> Program:
    """The forward of a graph; it reads trained parameters from RAM, where training steps update them.

    Args:
        enough: bytes of an arena that training steps take anyway, so that less would save nothing.
    """
    kept = trained or {}
    channels = {op.name: kept[op.weight.name].channels for op in graph.layers if op.weight.name in kept}
    saved = Saved(channels=channels, ranks=ranks_of(graph, kept), trained=frozenset(kept))

    def build(chains: tuple[Chain, ...]) -> Program:
        builder = Builder(graph)
        logits = add_forward(builder, saved, chains)
        return Program(graph, builder.values, tuple(builder.calls), logits, dict(kept))

    return choose_chains(graph, saved, build, enough)


def inference_of(step: Program) -> Program:
    """The forward beside a training step: both are computed in one arena."""
    return infer_program(step.graph, step.trained, lay_out(step).size)


def add_forward(builder: Builder, saved: Saved, chains: tuple[Chain, ...] = ()) -> str:
    """Add the calls of a graph's operators; returns the name of the value of the logits (float32).

    Args:
        chains: convolutions that are computed row by row.
    """
    graph = builder.graph
    streamed = {op.name for chain in chains for op in chain.stages}
    ends = {chain.stages[-1].name: chain for chain in chains}
    expanded = {name: one for name, one in _fused(graph, saved).items() if not {name, one.name} & streamed}
    merged = streamed | {pointwise.name for pointwise in expanded.values()}
    for op in graph.operators:
        if isinstance(op, Flatten):
            builder.buffer_of[op.y] = builder.buffer_of[op.x]
        elif op.name in ends:
            _add_chain(builder, ends[op.name], saved)
        elif op.name not in merged:
            _add_operator(builder, op, saved, expanded.get(op.name))
    if graph.tensors[graph.output].dtype == "float32":
        return builder.buffer_of[graph.output]
    logits = builder.value("float_logits", (graph.classes,), "float32")
    builder.call("dequantize", graph.operators[-1], [builder.buffer_of[graph.output]], [logits])
    return logits


def _fused(graph: Int8Graph, saved: Saved) -> dict[str, Conv]:
    """Names of depthwise convolutions -> the pointwise convolution before each that is fused into it: one kernel
    computes both, with one channel of the intermediate result at a time.

    Only pairs whose intermediate result the backward does not need are fused. The intermediate results, the largest
    tensors of such networks, then need no memory.
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


def _add_chain(builder: Builder, chain: Chain, saved: Saved) -> None:
    stages, op = chain.stages, chain.stages[-1]
    reads, writes = [builder.buffer_of[stages[0].x]], [builder.tensor(op.y)]
    builder.buffer_of[op.y] = op.y
    if op.name in saved.masks:
        writes.append(builder.value(f"{op.name}.mask", builder.graph.tensors[op.y].shape, "bit"))
    builder.call(
        "stream",
        op,
        reads,
        writes,
        uses=tuple(one.name for each in stages for one in parameters(each) if one.name in saved.trained),
        scratch=scratch_bytes(builder.graph, stages),
        in_place=op.y if chain.in_place else None,
        stages=stages,
    )


def _scratch(graph: Int8Graph, op: Operator, expand: Conv | None) -> int:
    """Bytes of scratch memory of an operator: padded channels of a depthwise convolution, or a row of attention
    scores.
    """
    if isinstance(op, Attention):
        return 4 * keys(graph, op)
    return plane_bytes(graph, op) * (2 if expand else 1) if isinstance(op, Conv) else 0


def _element_by_element(op: Operator) -> bool:
    """Whether the kernel of an operator may overwrite its first operand, because it reads all that an output needs
    before it writes it: a depthwise convolution a channel at a time, a norm a position at a time.
    """
    return isinstance(op, (Add, AddConstant, Clamp, Lookup, LayerNorm, Multiply)) or (
        isinstance(op, Conv) and op.depthwise
    )


def _gathered(builder: Builder, op: Layer, saved: Saved) -> list[str]:
    """Add a call that copies the input channels whose weights are updated; the value as a list, empty if no copy is
    needed.
    """
    channels = saved.channels.get(op.name)
    if channels is None:
        return []
    name = builder.value(f"{op.name}.kept", (*builder.graph.tensors[op.x].shape[:-1], len(channels)), "int8")
    builder.call("gather", op, [builder.buffer_of[op.x]], [name], uses=(op.weight.name,))
    return [name]


def _adapted(builder: Builder, op: Layer, saved: Saved) -> list[str]:
    """Add the product of a layer's input and its adapter's first matrix; the value as a list, empty without adapter."""
    down, _ = adapter_names(op)
    if down not in saved.trained:
        return []
    x = builder.graph.tensors[op.x]
    name = builder.value(hidden_name(op), (x.elements // op.inputs, saved.ranks[op.name]), "float32")
    builder.call("adapter_down", op, [builder.buffer_of[op.x]], [name], uses=(down,))
    return [name]


KERNELS: dict[type, str] = {
    Linear: "pointwise",
    Head: "head",
    Add: "add",
    AveragePool: "pool",
    Clamp: "clamp",
    AddConstant: "add_constant",
    Lookup: "lookup",
    LayerNorm: "layer_norm",
    Attention: "attention",
    MaxPool: "max_pool",
    Multiply: "multiply",
    Concat: "concat",
}
"""Type of an operator -> the kernel that computes it, if there is one for all operators of the type."""


def kernel_of(op: Operator) -> str:
    """The name of the kernel that computes an operator."""
    if isinstance(op, Conv):
        return "depthwise" if op.depthwise else "pointwise" if op.pointwise else "conv"
    return KERNELS[type(op)]
