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
from torch.fx.node import map_arg

from smelt.graph.ir.python_code import write_code

# The setters of fx move a node to the end of the graph's table of targets, where a new node is anyway.
_set_args: Callable[[fx.Node, Any], None] = vars(fx.Node)["args"].fset
_set_kwargs: Callable[[fx.Node, Any], None] = vars(fx.Node)["kwargs"].fset


class Graph(fx.Graph):
    """`fx.Graph` that makes nodes in half the time, by setting their arguments directly.

    `fx.Graph.create_node` flattens the arguments as a pytree, only to warn of symbolic numbers.
    """

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
        node = super().create_node(op, target, None, None, _name_of(target) if name is None else name, type_expr)
        if args:
            _set_args(node, args)
        if kwargs:
            _set_kwargs(node, kwargs)
        return node

    def node_copy(self, node: fx.Node, arg_transform: Callable[[fx.Node], Any] = lambda x: x) -> fx.Node:
        """Returns a copy of the node in this graph, with `arg_transform` applied to each operand."""
        copy = super().create_node(node.op, node.target, None, None, node.name, node.type)
        if node.args:
            _set_args(copy, map_arg(node.args, arg_transform))
        if node.kwargs:
            _set_kwargs(copy, map_arg(node.kwargs, arg_transform))
        copy.meta.update(node.meta)
        return copy


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
