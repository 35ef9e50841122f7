"""Finds, by an operator's schema, the arguments with which its result may share memory: they have to live as long.

Values of a functional graph have no memory, but in a program compiled from it they do: a library kernel may return a
view of an argument (`x.view(torch.int32)`), which is valid as long as the argument's memory, and changes when that
memory is written.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from typing import Any

from torch.fx import Node

from smelt.base.torch_private import OpOverload, schema_of


@cache
def shared_arguments(op: OpOverload) -> tuple[tuple[int | str, bool], ...]:
    """Returns the arguments of which a result of the operator may be a view: (position or name, whether it is
    keyword-only).

    These are the arguments that the schema puts into the alias set of a result, or all arguments with an alias set if a
    result has the wildcard set.
    """
    schema = schema_of(op)
    results: set[str] = set()
    for value in schema.returns:
        if value.alias_info is not None:
            # the wildcard does not name the arguments
            results |= {*value.alias_info.before_set, *value.alias_info.after_set} or {"*"}
    found: list[tuple[int | str, bool]] = []
    for i, argument in enumerate(schema.arguments):
        info = argument.alias_info
        if info is not None and ("*" in results or results & {*info.before_set, *info.after_set}):
            found.append((argument.name if argument.kwarg_only else i, argument.kwarg_only))
    return tuple(found)


def shared_operands(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """Returns the arguments of a call whose memory a result may share: tensors or lists of them."""
    if not isinstance(target, OpOverload):
        return []
    found = []
    names = [argument.name for argument in schema_of(target).arguments]
    for key, keyword in shared_arguments(target):
        if keyword:
            found.append(kwargs.get(key))  # type: ignore[arg-type]
        elif isinstance(key, int):
            found.append(args[key] if key < len(args) else kwargs.get(names[key]))
    return found


def memory_of(node: Node) -> set[Node]:
    """Returns the nodes in whose memory the value of a node may be: only the node itself if its value is not a view."""
    found: set[Node] = set()
    waiting, seen = [node], {node}
    while waiting:
        one = waiting.pop()
        sources = list(_view_sources(one))
        if not sources:
            found.add(one)
        for other in sources:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return found


def may_show(results: Sequence[Any], inputs: Collection[Node], is_view: Callable[[Node], bool]) -> list[int]:
    """Returns the positions of results whose memory may be that of one of these inputs.

    Args:
        is_view: function that decides whether a node may be returned as a view of its operands, although no schema says
            so.
    """

    def shows(node: Node) -> bool:
        waiting, seen = [node], {node}
        while waiting:
            for root in memory_of(waiting.pop()):
                if root in inputs:
                    return True
                sources = [n for n in root.all_input_nodes if n not in seen] if is_view(root) else []
                seen.update(sources)
                waiting += sources
        return False

    return [i for i, value in enumerate(results) if isinstance(value, Node) and shows(value)]


def _view_sources(node: Node) -> Iterable[Node]:
    if node.op != "call_function":
        return ()
    if node.target is operator.getitem:
        source = node.args[0]
        return (n for n in _view_sources(source)) if isinstance(source, Node) else ()
    operands = shared_operands(node.target, node.args, dict(node.kwargs))
    return (
        n for each in operands for n in (each if isinstance(each, (list, tuple)) else (each,)) if isinstance(n, Node)
    )
