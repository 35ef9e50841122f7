"""A `torch.fx.GraphModule` that writes its Python code only when somebody runs or reads it.

Stages hand graphs on without running them, and code generation is a large part of the time to build a module.
"""

from __future__ import annotations

from typing import Any

from torch import fx


class GraphModule(fx.GraphModule):
    """`fx.GraphModule`, compiled at its first call or at the first look at its `code`."""

    def recompile(self) -> Any:
        """Forget the code: it is written anew when needed."""
        type(self).forward = _compile_and_run
        self.__dict__.pop("_code", None)
        return None

    @property
    def code(self) -> str:
        """The Python source of `forward`."""
        if "_code" not in self.__dict__:
            fx.GraphModule.recompile(self)
        return self._code

    def __str__(self) -> str:
        self.code  # noqa: B018  the base class prints what this writes
        return super().__str__()


def _compile_and_run(self: GraphModule, *args: Any, **kwargs: Any) -> Any:
    fx.GraphModule.recompile(self)
    return self.forward(*args, **kwargs)


def remove_dead(graph: fx.Graph, random: bool = True) -> None:
    """Erase the nodes whose value nobody reads; without `random`, those that draw random numbers stay."""
    for node in reversed(graph.nodes):
        if not random and node.meta.get("random"):
            continue
        if not node.users and node.op in ("call_function", "get_attr"):
            graph.erase_node(node)
