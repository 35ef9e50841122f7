"""`torch.fx`'s graph and module, without costs that matter when graphs are passed between stages.

Nodes are made without a search of their arguments for symbolic numbers, and a module writes its Python code only when
it is run or read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from torch import fx
from torch.fx.graph import _illegal_names, _Namespace
from torch.fx.immutable_collections import immutable_dict
from torch.fx.node import map_arg

from smelt.graph.ir.python_code import write_code

_NO_KWARGS: dict[str, Any] = immutable_dict()


class _Names(_Namespace):
    """The names of a graph's nodes, as fx gives them, without a regular expression for those that are identifiers."""

    def create_name(self, candidate: str, obj: object | None) -> str:
        """Returns a unique name like `candidate`; `candidate` itself if it ends in a number and is not taken."""
        if obj is not None or not (candidate.isascii() and candidate.isidentifier()):
            return super().create_name(candidate, obj)
        used = self._used_names
        base, _, digits = candidate.rpartition("_")
        if base and digits.isdecimal():
            if candidate in used:
                return super().create_name(candidate, obj)
            number = int(digits)
        else:
            base, number = candidate, self._base_count.get(candidate, 0)
            if candidate in _illegal_names:
                number += 1
                candidate = f"{base}_{number}"
        while candidate in used:
            number += 1
            candidate = f"{base}_{number}"
        used.add(candidate)
        self._base_count[base] = number
        return candidate


class _Lookup:
    """Finds the nodes of a graph by their targets, like the table of fx, which is updated with every node.

    The compiler hardly ever looks for nodes.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph

    def __contains__(self, node: fx.Node) -> bool:
        return node.graph is self.graph and not node._erased

    def insert(self, node: fx.Node) -> None:
        """Does nothing: the graph has the node."""

    remove = insert

    def find_nodes(self, *, op: str, target: Any = None) -> list[fx.Node]:
        """Returns the nodes of this kind, all or those of one target."""
        return [node for node in self.graph.nodes if node.op == op and (target is None or node.target == target)]


class Graph(fx.Graph):
    """`fx.Graph` that makes nodes in half the time.

    `fx.Graph.create_node` flattens the arguments as a pytree, only to warn of symbolic numbers, and enters each node in
    a table by target, whose hash is computed in Python.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._graph_namespace = _Names()
        self._find_nodes_lookup_table = _Lookup(self)  # type: ignore[assignment]

    def create_node(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        name: str | None = None,
        type_expr: Any = None,
    ) -> fx.Node:
        """Make a new node at the insertion point."""
        return self._made(op, target, args or (), kwargs, _name_of(target) if name is None else name, type_expr)

    def node_copy(self, node: fx.Node, arg_transform: Callable[[fx.Node], Any] = lambda x: x) -> fx.Node:
        """Returns a copy of the node in this graph, with `arg_transform` applied to each operand."""
        args, kwargs = node.args, node.kwargs
        copy = self._made(
            node.op,
            node.target,
            map_arg(args, arg_transform) if args else (),
            map_arg(kwargs, arg_transform) if kwargs else None,
            node.name,
            node.type,
        )
        copy.meta.update(node.meta)
        return copy

    def _made(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, name: str, type_expr: Any
    ) -> fx.Node:
        name = self._graph_namespace.create_name(name, None)
        node = fx.Node(self, name, op, target, args, kwargs or _NO_KWARGS, type_expr)
        self._graph_namespace._obj_to_name[node] = name
        for hook in getattr(self.owning_module, "_create_node_hooks", ()):
            hook(node)
        self._insert(node)
        self._len += 1
        return node


def _name_of(target: Any) -> str:
    """Returns the name from which fx derives the name of a node that calls `target`."""
    if not isinstance(target, str):
        return _snake_case(target.__name__)
    return _snake_case(target[2:-2] if target.startswith("__") and target.endswith("__") else target)


@lru_cache(4096)
def _snake_case(name: str) -> str:
    """Convert `aB` to `a_b`. Cached, because a graph calls few functions in many nodes."""
    return _INNER_CAPITAL.sub(r"_\1", name).lower()


_INNER_CAPITAL = re.compile(r"(?<=[a-z])([A-Z])")


class GraphModule(fx.GraphModule):
    """`fx.GraphModule`, compiled at its first call or when its `code` is first read."""

    def recompile(self) -> Any:
        """Discard the code, which is written anew when it is needed."""
        type(self).forward = _compile_and_run
        self.__dict__.pop("_code", None)
        return None

    @property
    def code(self) -> str:
        """The Python source of `forward`."""
        if "_code" not in self.__dict__:
            write_code(self)
        return self._code

    def __str__(self) -> str:
        self.code  # noqa: B018  the base class prints what this writes
        return super().__str__()


def _compile_and_run(self: GraphModule, *args: Any, **kwargs: Any) -> Any:
    if type(self).forward is _compile_and_run:  # not `self.forward`, if a caller has kept this method
        write_code(self)
    return self.forward(*args, **kwargs)


def copied(gm: fx.GraphModule) -> GraphModule:
    """Returns a copy of the module with a separate graph: nodes of the same names, in the same order."""
    graph = Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        env[node] = graph.node_copy(node, env.__getitem__)
    return GraphModule(gm, graph)


def remove_dead(graph: fx.Graph, random: bool = True) -> None:
    """Erase the nodes whose value is not used; without `random`, nodes that draw random numbers stay."""
    for node in reversed(graph.nodes):
        if not random and node.meta.get("random"):
            continue
        if not node.users and node.op in ("call_function", "get_attr"):
            graph.erase_node(node)


def dismantle(graph: fx.Graph) -> None:
    """Break the reference cycles of a graph that nobody uses any more, so that it is freed without the cycle collector.

    Its nodes keep their operands and `meta`, and lose their users and their place in the graph.
    """
    graph._graph_namespace._obj_to_name.clear()
    nodes = list(graph.nodes)
    for node in nodes:
        node.users.clear()
    while nodes:  # the last one first: nothing that is left uses it
        nodes.pop()._remove_from_list()
