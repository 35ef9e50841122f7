"""Splits a prim graph into parts where it reads numbers from tensors or moves tensors between devices.

A buffer can be allocated only when its size is known. So the graph is split by levels: part 0 contains the nodes that
need no number read from a tensor; the host program then reads the numbers from results of part 0, part 1 contains the
nodes that need these numbers, and so on. Each part is a graph like any other, with the numbers among its inputs. In
graphs with values on the CPU and on a GPU (an optimizer's step count, for example) even parts compute on the CPU and
odd ones on the GPU; the host copies tensors between them. Step counts that the GPU does not need are the last part,
which overlaps with the GPU's work.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from smelt.base.torch_private import OpOverload
from smelt.graph.ir.meta import TensorMeta, contiguous_stride, is_dense
from smelt.graph.ir.module import Graph, GraphModule
from smelt.graph.ir.schema import is_random
from smelt.graph.trace.unbacked import holds
from smelt.prims.known_sizes import with_known_sizes
from smelt.prims.table import PRIMS, Kind, Prim
from smelt.shapes.size import Size, Symbol, as_symbol, of_factor, symbols

aten = torch.ops.aten

_READS = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})
_FREE = frozenset({Kind.VIEW, Kind.CREATION})
"""Kinds of prims that each part recomputes instead of receiving their results in memory."""

_COUNTS: frozenset[Any] = frozenset(
    {operator.getitem, aten.add.Tensor, aten.add.Scalar, aten._foreach_add.Scalar, aten._foreach_add.List}
)
"""Operators with which optimizers count steps; none of them raises an error for any value."""


@dataclass
class Part:
    """Nodes that the host runs, followed by a graph that is compiled.

    Attributes:
        host: nodes that the host runs first, in order: reads of numbers, items of lists that such nodes return, checks.
        module: the graph; None if it would compute nothing.
        inputs: nodes of the whole graph that are the graph's tensor inputs.
        symbols: the graph's inputs that are numbers, which follow the tensors.
        outputs: nodes of the whole graph that the part computes.
        counts: whether the part only counts steps.
    """

    host: list[fx.Node] = field(default_factory=list)
    module: fx.GraphModule | None = None
    inputs: list[fx.Node] = field(default_factory=list)
    symbols: list[Symbol] = field(default_factory=list)
    outputs: list[fx.Node] = field(default_factory=list)
    counts: bool = False


@dataclass
class PartSequence:
    """The inputs of a graph, its parts in order, and its results."""

    inputs: list[fx.Node]
    parts: list[Part]
    results: tuple[Any, ...]

    def needed_after(self, at: int) -> set[str]:
        """Returns the names of the values that parts after this one, or the caller, receive."""
        needed = {r.name for r in self.results if isinstance(r, fx.Node)}
        for part in self.parts[at + 1 :]:
            needed |= {n.name for n in (*part.inputs, *(n for node in part.host for n in node.all_input_nodes))}
        return needed

    def in_place_updates(self, updates: Mapping[int, str]) -> dict[int, dict[int, str]]:
        """Returns the outputs that may overwrite the inputs whose new values they are; all belong to one graph.

        That graph is the last one that does more than count steps, and no later part may need the old values. Earlier
        graphs must not overwrite inputs: if a check of a later graph fails, the inputs have to be unchanged.

        Args:
            updates: for positions of results of the whole graph, the input whose new value the result is.

        Returns:
            By number of the graph and position of its output, the input whose new value the output is.
        """
        graphs = [at for at, part in enumerate(self.parts) if part.module is not None]
        number = max((i for i, at in enumerate(graphs) if not self.parts[at].counts), default=-1)
        if number < 0:
            return {}
        last = self.parts[graphs[number]]
        given = {node.name for node in last.inputs} - self.needed_after(graphs[number])
        found = {}
        for position, old in updates.items():
            new = self.results[position]
            if old in given and new in last.outputs and self.results.count(new) == 1:
                found[last.outputs.index(new)] = old
        return {number: found} if found else {}


def split_at_reads(gm: fx.GraphModule) -> PartSequence | None:
    """Returns the parts of a graph; None if it reads no numbers and is on one device."""
    used = (n for n in gm.graph.nodes if n.op == "call_function" or n.users)
    mixed = len({kind for n in used if (kind := device_type(n)) is not None}) > 1
    if not mixed and not any(map(_is_read, gm.graph.nodes)):
        return None
    return _Split(moved(gm) if mixed else gm, mixed).chain()


def device_type(node: fx.Node) -> str | None:
    """Returns the type of a value's device, for a list that of its first tensor; None for seeds and numbers."""
    meta = node.meta.get("val")
    if isinstance(meta, TensorMeta):
        return meta.device.type
    if isinstance(meta, (tuple, list)):
        return next((m.device.type for m in meta if isinstance(m, TensorMeta)), None)
    return None


def moved(gm: fx.GraphModule) -> fx.GraphModule:
    """Returns the graph with a copy wherever a kernel on one device reads a value on another."""
    graph = Graph()
    env: dict[fx.Node, fx.Node] = {}
    copies: dict[tuple[fx.Node, torch.device], fx.Node] = {}

    def on(value: fx.Node, device: torch.device) -> fx.Node:
        meta = value.meta.get("val")
        if not isinstance(meta, TensorMeta) or meta.device.type == device.type:
            return env[value]
        if (value, device) not in copies:
            copy = graph.call_function(move, (env[value], device))
            stride = meta.stride if is_dense(meta.shape, meta.stride) else contiguous_stride(meta.shape)
            copy.meta["val"] = replace(meta, device=device, stride=stride)
            copies[value, device] = copy
        return copies[value, device]

    for node in gm.graph.nodes:
        device = _device_of(node)
        if node.target is PRIMS["to_device"]:
            source, device = node.args
            copies[source, device] = env[node] = graph.call_function(move, (env[source], device))
            env[node].meta["val"] = node.meta["val"]
        elif node.op != "call_function" or device is None or _moves(node):
            env[node] = graph.node_copy(node, env.__getitem__)
        else:
            here = {n: on(n, device) for n in node.all_input_nodes}
            env[node] = graph.node_copy(node, here.__getitem__)
        if node.op == "output":
            env[node].meta["val"] = node.meta["val"]
    return GraphModule(gm, graph)


def _device_of(node: fx.Node) -> torch.device | None:
    meta = node.meta.get("val")
    metas = meta if isinstance(meta, (tuple, list)) else [meta]
    return next((m.device for m in metas if isinstance(m, TensorMeta)), None)


def _moves(node: fx.Node) -> bool:
    """Whether a node copies a value from one device to another, so that the host runs it."""
    if node.target is move:
        return True
    device = device_type(node)
    return (
        device is not None
        and any(
            isinstance(n.meta.get("val"), TensorMeta) and n.meta["val"].device.type != device
            for n in node.all_input_nodes
        )
        and node.target in MOVERS
    )


def move(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns the tensor on another device. The host waits for copies from a GPU, not for copies to a GPU."""
    return tensor.to(device, non_blocking=device.type != "cpu")


MOVERS = frozenset({aten._to_copy.default, aten.copy.default})
"""ATen operators that may copy between devices."""


def _is_read(node: fx.Node) -> bool:
    target = node.target
    return node.op == "call_function" and isinstance(target, OpOverload) and not _READS.isdisjoint(target.tags)


class _Split:
    def __init__(self, gm: fx.GraphModule, mixed: bool = False) -> None:
        self.gm, self.mixed = gm, mixed
        self.nodes: list[fx.Node] = list(gm.graph.nodes)
        output = self.nodes.pop()
        self.results: tuple[Any, ...] = tuple(output.args[0])  # type: ignore[arg-type]
        self.promised: dict[fx.Node, Any] = {}
        for node, meta in zip(self.results, output.meta["val"], strict=True):
            if isinstance(node, fx.Node) and isinstance(meta, TensorMeta):
                self.promised.setdefault(node, meta)
        self.level: dict[fx.Node, int] = {}
        self.symbol_level: dict[Symbol, int] = {}
        self.on_host: dict[fx.Node, int] = {}
        self.inputs = [n for n in self.nodes if n.op == "placeholder"]
        self.assign_levels()

    # -- levels ---------------------------------------------------------------------------------------------------

    def assign_levels(self) -> None:
        """Choose the part that computes each node, or the part before which the host runs it."""
        drawn = 0
        for node in self.nodes:
            if node.op in ("placeholder", "get_attr"):
                self.level[node] = 0
                continue
            moves = self.mixed and _moves(node)
            level = self.first_level(node, moves)
            if _is_read(node) or moves:
                level += 1
            elif is_random(node.target):  # random numbers are drawn in the program's order
                level = drawn = max(level, drawn)
            self.level[node] = level
            self.note_host(node, level, moves)
        self.late = self.idle_counts() if self.mixed else set()
        last = max((level for node, level in self.level.items() if device_type(node) != "cpu"), default=0)
        self.level |= dict.fromkeys(self.late, last + 1)

    def first_level(self, node: fx.Node, moves: bool) -> int:
        """Returns the first part, on the node's device, for which all operands and sizes of the node exist."""
        level = max((self.level[n] for n in node.all_input_nodes), default=0)
        level = max([level, *(self.symbol_level.get(s, 0) for s in _symbols_of(node))])
        item = node.target is operator.getitem
        if self.mixed and not (moves or item or _is_read(node)):  # parts pass tensors, not lists, to each other
            level += level % 2 != (device_type(node) not in (None, "cpu"))
        return level

    def note_host(self, node: fx.Node, level: int, moves: bool) -> None:
        """Record the level of a node that the host runs, and of the size that it gives."""
        number = as_symbol(node.meta["val"])
        if number is not None:
            self.symbol_level[number] = level
        if moves or number is not None or node.target is holds or _is_read(node) or self.is_item_on_host(node):
            self.on_host[node] = level

    def is_item_on_host(self, node: fx.Node) -> bool:
        return node.target is operator.getitem and node.args[0] in self.on_host

    def idle_counts(self) -> set[fx.Node]:
        """Returns the nodes that count steps on the CPU and are needed only for results."""
        late: set[fx.Node] = set()
        for node in reversed(self.nodes):
            counts = node.op == "call_function" and node.target in _COUNTS and node not in self.on_host
            if counts and device_type(node) == "cpu" and all(n in late or n.op == "output" for n in node.users):
                late.add(node)
        # an item is read in the part that makes its list: parts pass tensors, not lists, to each other
        return {node for node in late if node.target is not operator.getitem or node.args[0] in late}

    # -- parts ----------------------------------------------------------------------------------------------------

    def chain(self) -> PartSequence:
        parts = [Part() for _ in range(max(self.level.values()) + 1)]
        for node, level in self.on_host.items():
            parts[level].host.append(node)
        wanted = [r for r in self.results if isinstance(r, fx.Node)]
        wanted += [n for node in self.on_host for n in node.all_input_nodes]
        for level in reversed(range(len(parts))):
            self.build(parts[level], level, wanted)
            parts[level].counts = bool(parts[level].outputs) and self.late.issuperset(parts[level].outputs)
            wanted += parts[level].inputs
        return PartSequence(self.inputs, parts, self.results)

    def computed(self, node: fx.Node) -> bool:
        """Whether a part's graph computes a node."""
        return node.op != "placeholder" and node not in self.on_host

    def symbols_of(self, inputs: Iterable[fx.Node], inside: Sequence[fx.Node], results: Sequence[Any]) -> list[Symbol]:
        """Returns the symbols in metadata and arguments of these nodes, in order of appearance."""
        seen = [self.meta(n) for n in inputs] + [n.meta["val"] for n in inside] + [n.args for n in inside]
        return list(dict.fromkeys(s for value in (*seen, *results) for s in _symbols_in(with_known_sizes(value))))

    def build(self, part: Part, level: int, wanted: Iterable[fx.Node]) -> None:
        """Set the graph of a part, which computes the wanted nodes of its level."""
        part.outputs = [n for n in dict.fromkeys(wanted) if self.computed(n) and self.level[n] == level]
        if not part.outputs:
            return
        inside, given = self.needed(part.outputs, level)
        part.inputs = [n for n in self.nodes if n in given]
        metas = tuple(self.meta(n) for n in part.outputs)
        part.symbols = self.symbols_of(part.inputs, inside, metas)
        graph = Graph()
        env: dict[fx.Node, fx.Node] = {}
        for node in part.inputs:
            env[node] = graph.create_node("placeholder", node.name, (), {}, node.name)
            env[node].meta = {**node.meta, "val": self.meta(node)}
        for symbol in part.symbols:
            graph.create_node("placeholder", symbol.name, (), {}, symbol.name).meta["val"] = of_factor(symbol)
        for node in inside:
            env[node] = graph.node_copy(node, env.__getitem__)
        out = graph.output(tuple(env[n] for n in part.outputs))
        out.meta["val"] = metas
        part.module = GraphModule(self.gm, graph)

    def needed(self, outputs: Iterable[fx.Node], level: int) -> tuple[list[fx.Node], set[fx.Node]]:
        """Returns (nodes that a part has to compute, in order; its input nodes)."""
        inside: set[fx.Node] = set()
        inputs: set[fx.Node] = set()
        waiting = list(outputs)
        while waiting:
            node = waiting.pop()
            if node in inside or node in inputs or isinstance(node.meta["val"], Size):
                continue
            if self.computed(node) and (self.level[node] == level or _is_free(node)):
                inside.add(node)
                waiting.extend(node.all_input_nodes)
            else:
                inputs.add(node)
        return [n for n in self.nodes if n in inside], inputs

    def meta(self, node: fx.Node) -> TensorMeta:
        """Returns the meta, with its layout, that a value has when parts pass it on."""
        own = self.promised.get(node, node.meta["val"]) if self.computed(node) else node.meta["val"]
        if node.op == "placeholder" or node in self.on_host or is_dense(own.shape, own.stride):
            return own
        return replace(own, stride=contiguous_stride(own.shape))


def _is_free(node: fx.Node) -> bool:
    return node.op == "get_attr" or (isinstance(node.target, Prim) and node.target.kind in _FREE)


def _symbols_of(node: fx.Node) -> Iterator[Symbol]:
    """Yields the symbols on which a node's arguments and sizes depend."""
    given = (node.args, dict(node.kwargs))
    # a check establishes facts about its symbols, so its arguments are not simplified by these facts
    yield from _symbols_in(given if node.target is holds else with_known_sizes(given))
    if as_symbol(node.meta["val"]) is None and not _is_read(node):
        yield from _symbols_in(with_known_sizes(node.meta["val"]))


def _symbols_in(value: Any) -> Iterator[Symbol]:
    match value:
        case Size():
            yield from symbols(value)
        case TensorMeta(shape=shape, stride=stride):
            yield from symbols(*shape, *stride)
        case fx.Node():
            yield from _symbols_in(value.meta["val"]) if isinstance(value.meta["val"], Size) else ()
        case tuple() | list():
            for each in value:
                yield from _symbols_in(each)
        case dict():
            yield from _symbols_in(tuple(value.values()))
        case slice():
            yield from _symbols_in((value.start, value.stop, value.step))
