"""A torch-level graph with branches on tensors' values, or with seams, in; a callable that runs it in pieces out.

The graph is cut there. Each piece, and each way of a branch, is compiled as a graph of its own when it first runs,
since only then the tensors that it gets are known; PyTorch's autograd links what they give. A way that is never taken
is never compiled, and a layer that is skipped now and then is compiled once. Seams run as they are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from smelt.base.process_state import preserving
from smelt.graph.conditional import Conditional, cut_out, operands_of
from smelt.graph.meta import meta_of
from smelt.graph.module import Graph, GraphModule
from smelt.graph.seams import Seam, without_regions_at

CompilePiece = Callable[[fx.GraphModule, Sequence[Any], str], Callable[..., Any]]
"""(graph, example inputs, name) -> callable over the same inputs that gives a tuple"""

VERSIONS = 16
"""Kinds of inputs that a piece is compiled for; further ones run in eager."""


class Piece:
    """A part of a graph without branches, compiled for each kind of inputs that it meets."""

    def __init__(self, graph: fx.Graph, name: str, compile_piece: CompilePiece) -> None:
        self.graph, self.name, self.compile_piece = graph, name, compile_piece
        self.versions: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self.eager = GraphModule({}, graph)

    def __call__(self, *inputs: Any) -> Any:
        key = (torch.is_grad_enabled(), *map(_kind, inputs))
        run = self.versions.get(key)
        if run is None:
            run = self.versions[key] = preserving(self._compile, inputs)
        return run(*inputs)

    def _compile(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        if len(self.versions) >= VERSIONS:
            return self.eager.forward
        graph = Graph()
        copies: dict[fx.Node, Any] = {}
        given = iter(inputs)
        for node in self.graph.nodes:
            value: Any = next(given) if node.op == "placeholder" else None
            if node.op == "placeholder" and not isinstance(value, torch.Tensor):
                copies[node] = value
                continue
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node.op == "placeholder":
                copies[node].meta["val"] = meta_of(value)
        tensors = [at for at, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        run = self.compile_piece(GraphModule({}, graph), [inputs[at] for at in tensors], self.name)
        return run if len(tensors) == len(inputs) else lambda *given: run(*[given[at] for at in tensors])


def _kind(value: Any) -> Any:
    if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_quantized:  # quicker than a meta
        return value.shape, value.dtype, value.stride(), value.device, value.requires_grad
    return meta_of(value) if isinstance(value, torch.Tensor) else (type(value), value)


class Pieces:
    """Runs a graph: pieces and branches in order.

    Attributes:
        steps: (what to run, positions of its inputs among the values, positions of its outputs, values that die then).
        results: positions of what it returns; None: that is no row of values.
        regions: (number of the step that enters, of the one that leaves, position of the token, what leaves).
    """

    def __init__(self, graph: fx.Graph, name: str, compile_piece: CompilePiece) -> None:
        self.name, self.compile_piece = name, compile_piece
        graph = without_regions_at(graph)
        self.steps: list[tuple[Callable[..., Any], list[int], list[int], list[int]]] = []
        self.place: dict[fx.Node, int] = {}
        self.regions: list[tuple[int, int, int, Callable[..., Any]]] = []
        nodes = list(graph.nodes)
        self.inputs = [self._number(node) for node in nodes if node.op == "placeholder"]
        self.output = graph.output_node()
        needed = {node: at for at, user in enumerate(nodes) for node in user.all_input_nodes}  # the last that needs it
        region: list[fx.Node] = []
        for at, node in enumerate(nodes):
            if isinstance(node.target, (Conditional, Seam)):
                self._add_region(region, needed, at)
                self._add_branch(node) if isinstance(node.target, Conditional) else self._add_seam(node)
                region = []
            elif node.op not in ("placeholder", "output") and not _takes_result(node):
                region.append(node)
        self._add_region(region, needed, len(nodes) - 1)
        self._find_last_uses()
        returned: Any = self.output.args[0]
        flat = isinstance(returned, tuple) and all(isinstance(each, fx.Node) for each in returned)
        self.results = [self.place[each] for each in returned] if flat else None

    def __call__(self, *inputs: Any) -> Any:
        values: list[Any] = [None] * len(self.place)
        for at, value in zip(self.inputs, inputs, strict=True):
            values[at] = value
        del inputs
        number = 0
        try:
            for number, (run, taken, given, dead) in enumerate(self.steps):  # noqa: B007
                results = run(*[values[at] for at in taken])
                for at, value in zip(given, results, strict=True):
                    values[at] = value
                del results
                for at in dead:
                    values[at] = None
        except BaseException:
            self._leave_regions(values, number)
            raise
        if self.results is not None:
            return tuple([values[at] for at in self.results])
        return fx.node.map_arg(self.output.args[0], lambda node: values[self.place[node]])

    def _leave_regions(self, values: list[Any], failed: int) -> None:
        """Leave what is entered when step number `failed` raises, the innermost first."""
        for entered, left, at, leave in sorted(self.regions, key=lambda region: -region[0]):
            if entered < failed <= left:
                leave(values[at])

    def _number(self, node: fx.Node) -> int:
        return self.place.setdefault(node, len(self.place))

    def _add_region(self, region: list[fx.Node], needed: dict[fx.Node, int], end: int) -> None:
        outputs = [node for node in region if needed.get(node, -1) >= end and not _is_unpacked(node)]
        if not region:
            return
        operands = operands_of(region, outputs)
        piece = Piece(cut_out(region, operands, outputs), f"{self.name}_{len(self.steps)}", self.compile_piece)
        self.steps.append((piece, [self.place[n] for n in operands], [self._number(n) for n in outputs], []))

    def _add_branch(self, node: fx.Node) -> None:
        target: Any = node.target
        name = f"{self.name}_{len(self.steps)}"
        ways = {
            truth: Pieces(way.graph, f"{name}_{truth}".lower(), self.compile_piece)
            for truth, way in ((True, target.true), (False, target.false))
        }

        results = [user for user in node.users if _takes_result(user)]

        def branch(condition: Any, *operands: Any) -> list[Any]:
            out = ways[bool(condition)](*operands)
            return [out[result.args[1]] for result in results]

        taken = [self.place[each] for each in node.args if isinstance(each, fx.Node)]
        self.steps.append((branch, taken, [self._number(result) for result in results], []))

    def _add_seam(self, node: fx.Node) -> None:
        """Its results, and each that is taken from them by itself."""
        target: Any = node.target
        operands, parts = node.all_input_nodes, [user for user in node.users if _takes_result(user)]

        def run(*values: Any) -> list[Any]:
            given = dict(zip(operands, values, strict=True))
            out = target(*fx.node.map_arg(node.args, given.__getitem__))
            return [*(out[part.args[1]] for part in parts), None if parts else out]

        places = [self._number(each) for each in (*parts, node)]
        self.steps.append((run, [self.place[each] for each in operands], places, []))
        if target.leaves:
            token = self.place[operands[0]]
            entered = next(i for i, (_, _, given, _) in enumerate(self.steps) if token in given)
            self.regions.append((entered, len(self.steps) - 1, token, target))

    def _find_last_uses(self) -> None:
        """Values are let go after their last use: what autograd does not keep is free for others."""
        kept = {self.place[node] for node in self.output.all_input_nodes}
        for _, taken, given, dead in reversed(self.steps):
            dead += [at for at in dict.fromkeys([*taken, *given]) if at not in kept]
            kept |= {*taken, *given}


def _takes_result(node: fx.Node) -> bool:
    """The node names one output of a branch or a seam."""
    owner = node.args[0] if node.target is operator.getitem else None
    return isinstance(owner, fx.Node) and isinstance(owner.target, (Conditional, Seam))


def _is_unpacked(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), tuple)
