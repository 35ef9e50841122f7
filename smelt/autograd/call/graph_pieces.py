"""Runs a torch-level graph with branches on tensors' values, or with eager boundaries, in pieces.

The graph is cut at branches and boundaries. Each piece, and each arm of a branch, is compiled as a separate graph when
it first runs, because its inputs are known only then; PyTorch's autograd connects the pieces. An arm that is never
taken is never compiled, and a layer that is skipped in some calls is compiled once. Eager boundaries run in eager.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from smelt.base.process_state import preserving
from smelt.base.text import Writer
from smelt.graph.ir.meta import meta_of
from smelt.graph.ir.module import Graph, GraphModule
from smelt.graph.nodes.conditional import Conditional, cut_out, operands_of
from smelt.graph.nodes.cut_points import EagerBoundary, without_regions_at
from smelt.graph.nodes.modes import regions_left

CompilePiece = Callable[[fx.GraphModule, Sequence[Any], str], Callable[..., Any]]
"""Function (graph, example inputs, name) -> callable over the same inputs that returns a tuple."""

MakeVariants = Callable[[Callable[[tuple[Any, ...], bool], Callable[..., Any]], int], Callable[..., Any]]
"""Function (function that makes a program for inputs, maximum number of programs) -> callable that runs the program for
the inputs that it gets.
"""

VERSIONS = 16
"""Maximum number of kinds of inputs for which a piece is compiled; further kinds run in eager."""


class Piece:
    """A subgraph without branches, compiled for each kind of inputs that it gets."""

    def __init__(self, graph: fx.Graph, name: str, compile_piece: CompilePiece) -> None:
        self.graph, self.name, self.compile_piece = graph, name, compile_piece
        self.eager = GraphModule({}, graph)

    def version(self, inputs: Sequence[Any], kept: bool) -> Callable[..., Any]:
        """Returns the program for inputs of this kind; kinds beyond the limit run in eager."""
        return preserving(self._compile, inputs) if kept else self.eager.forward

    def _compile(self, inputs: Sequence[Any]) -> Callable[..., Any]:
        graph = Graph()
        copies: dict[fx.Node, Any] = {}
        remaining = iter(inputs)
        for node in self.graph.nodes:
            value: Any = next(remaining) if node.op == "placeholder" else None
            if node.op == "placeholder" and not isinstance(value, torch.Tensor):
                copies[node] = value
                continue
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node.op == "placeholder":
                copies[node].meta["val"] = meta_of(value)
        tensors = [at for at, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        run = self.compile_piece(GraphModule({}, graph), [inputs[at] for at in tensors], self.name)
        return run if len(tensors) == len(inputs) else lambda *values: run(*[values[at] for at in tensors])


class Pieces:
    """Runs a graph's pieces and branches in order, by a Python function that is generated for the graph.

    Attributes:
        lines: the body of that function, one line per step; values are called `v0`, `v1`, ...
        scope: the names that its text refers to.
        run: the function.
        taken, assigned: for each step, positions of its inputs and outputs among the values.
        enters: whether some steps enter and leave a region (autocast, for example).
    """

    def __init__(self, graph: fx.Graph, name: str, compile_piece: CompilePiece, variants: MakeVariants) -> None:
        self.name, self.compile_piece, self.variants = name, compile_piece, variants
        graph = without_regions_at(graph)
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {}
        self.taken: list[list[int]] = []
        self.assigned: list[list[int]] = []
        self.variables: dict[fx.Node, int] = {}
        self.enters = False
        nodes = list(graph.nodes)
        self.inputs = [self._number(node) for node in nodes if node.op == "placeholder"]
        self.output = graph.output_node()
        # the last user of each value
        needed = {node: at for at, user in enumerate(nodes) for node in user.all_input_nodes}
        region: list[fx.Node] = []
        for at, node in enumerate(nodes):
            if isinstance(node.target, (Conditional, EagerBoundary)):
                self._add_region(region, needed, at)
                self._add_branch(node) if isinstance(node.target, Conditional) else self._add_boundary(node)
                region = []
            elif node.op not in ("placeholder", "output") and not _takes_result(node):
                region.append(node)
        self._add_region(region, needed, len(nodes) - 1)
        self.run = self._written()

    def _number(self, node: fx.Node) -> int:
        return self.variables.setdefault(node, len(self.variables))

    def _named(self, called: Callable[..., Any]) -> str:
        name = f"f{len(self.scope)}"
        self.scope[name] = called
        return name

    def _add(self, line: str, taken: list[int], assigned: list[int]) -> None:
        self.lines.append(line)
        self.taken.append(taken)
        self.assigned.append(assigned)

    def _add_region(self, region: list[fx.Node], needed: dict[fx.Node, int], end: int) -> None:
        outputs = [node for node in region if needed.get(node, -1) >= end and not _is_unpacked(node)]
        if not region:
            return
        operands = operands_of(region, outputs)
        name = f"{self.name}_{len(self.lines)}"
        piece = Piece(cut_out(region, operands, outputs), name, self.compile_piece)
        taken, assigned = [self.variables[n] for n in operands], [self._number(n) for n in outputs]
        call = f"{self._named(self.variants(piece.version, VERSIONS))}({_values(taken)})"
        self._add(f"{_values(assigned)} = {call}" if assigned else call, taken, assigned)

    def _add_branch(self, node: fx.Node) -> None:
        target: Any = node.target
        name = f"{self.name}_{len(self.lines)}"
        true, false = (
            self._named(Pieces(way.graph, f"{name}_{truth}", self.compile_piece, self.variants).run)
            for truth, way in (("true", target.true), ("false", target.false))
        )
        results = [user for user in node.users if _takes_result(user)]
        condition, *operands = (self.variables[each] for each in node.args if isinstance(each, fx.Node))
        line = f"r = ({true} if v{condition} else {false})({_values(operands)})"
        assigned = [self._number(result) for result in results]
        if assigned:
            line += f"; {_values(assigned)} = {''.join(f'r[{result.args[1]!r}], ' for result in results)}"
        self._add(f"{line}; del r", [condition, *operands], assigned)

    def _add_boundary(self, node: fx.Node) -> None:
        """Add the step of an eager boundary, and the steps that take single results from it."""
        target: Any = node.target
        operands, readers = node.all_input_nodes, [user for user in node.users if _takes_result(user)]

        def run(*values: Any) -> list[Any]:
            operand_values = dict(zip(operands, values, strict=True))
            out = target(*fx.node.map_arg(node.args, operand_values.__getitem__))
            return [*(out[reader.args[1]] for reader in readers), None if readers else out]

        assigned = [self._number(each) for each in (*readers, node)]
        taken = [self.variables[each] for each in operands]
        self._add(f"{_values(assigned)} = {self._named(run)}({_values(taken)})", taken, assigned)
        self.enters |= target.leaves

    def _last_uses(self) -> list[list[int]]:
        """Returns for each step the values to release after it, so that memory that autograd does not keep is freed."""
        kept = {self.variables[node] for node in self.output.all_input_nodes}
        dead: list[list[int]] = []
        for taken, assigned in zip(reversed(self.taken), reversed(self.assigned), strict=True):
            dead.append([at for at in dict.fromkeys([*taken, *assigned]) if at not in kept])
            kept |= {*taken, *assigned}
        return dead[::-1]

    def _written(self) -> Callable[..., Any]:
        """Returns the compiled function that runs the steps."""
        w = Writer()
        with w.block(f"def run({_values(self.inputs)}):"):
            if not self.enters:
                self._write_steps(w)
            else:
                with w.block(f"with {self._named(regions_left)}():"):
                    self._write_steps(w)
            w(f"return {self._returned(self.output.args[0])}")
        exec(compile(w.text(), f"<{self.name} in pieces>", "exec"), self.scope)
        return self.scope["run"]

    def _write_steps(self, w: Writer) -> None:
        for line, dead in zip(self.lines, self._last_uses(), strict=True):
            w(line)
            if dead:
                w(f"{''.join(f'v{at} = ' for at in dead)}None")

    def _returned(self, value: Any) -> str:
        """Returns the expression of the graph's result, as text: values, or containers of values and constants."""
        if isinstance(value, fx.Node) or value is None:
            return "None" if value is None else f"v{self.variables[value]}"
        if type(value) is tuple and value:
            return f"({''.join(f'{self._returned(each)}, ' for each in value)})"
        name = self._named(lambda values: fx.node.map_arg(value, lambda node: values[f"v{self.variables[node]}"]))
        return f"{name}(locals())"


def _values(numbers: Sequence[int]) -> str:
    return "".join(f"v{at}, " for at in numbers)


def _takes_result(node: fx.Node) -> bool:
    """Whether the node takes one output of a branch or a boundary."""
    owner = node.args[0] if node.target is operator.getitem else None
    return isinstance(owner, fx.Node) and isinstance(owner.target, (Conditional, EagerBoundary))


def _is_unpacked(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), tuple)
