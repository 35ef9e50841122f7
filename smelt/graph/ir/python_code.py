"""Writes the Python code of a graph by `torch.fx`, even for arguments that have no text.

`torch.fx` writes each argument into the code by its `repr`. Values whose class defines `repr` (also enumerations), and
keywords that are not identifiers, are stored separately from the code.
"""

from __future__ import annotations

import enum
import sys
import types
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg

from smelt.base.locks import new_lock
from smelt.base.python_text import is_plain_name
from smelt.base.torch_private import OpOverload


def write_code(module: fx.GraphModule) -> None:
    """Write the Python code of the module's `forward`, and compile it.

    One thread at a time: `torch.fx` renames nodes while it writes.
    """
    with _writing:
        _write(module)


_writing = new_lock()


def _write(module: fx.GraphModule) -> None:
    graph = module._graph
    if all(map(_is_writable, graph.nodes)):
        fx.GraphModule.recompile(module)
        return
    module._graph = _with_bound_calls(graph)
    try:
        fx.GraphModule.recompile(module)
    finally:
        module._graph = graph


def _is_writable(node: fx.Node) -> bool:
    """Whether `torch.fx` writes correct code for the node: it writes keywords unchanged, and values by their `repr`."""
    return (
        _is_called_by_name(node)
        and all(map(is_plain_name, node.kwargs))
        and _is_text(node.args)
        and _is_text(node.kwargs)
    )


def _is_called_by_name(node: fx.Node) -> bool:
    """Whether `torch.fx` can name the function: if its `__module__` is torch's, fx writes that path without checking
    it.
    """
    target = node.target
    if node.op != "call_function" or isinstance(target, _NAMED_BY_KIND):
        return True
    module, name = getattr(target, "__module__", None), getattr(target, "__name__", None)
    if type(name) is not str or type(module) is not str:
        return module is None and any(getattr(namespace, str(name), None) is target for namespace in _TORCH)
    if module.partition(".")[0] != "torch":
        return True
    return is_plain_name(name) and getattr(sys.modules.get(module), name, None) is target


_NAMED_BY_KIND = (OpOverload, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
_TORCH = (torch, torch.nn.functional)


def _is_text(value: Any) -> bool:
    kind = type(value)
    if isinstance(value, (list, tuple)):  # this includes the list classes of `torch.fx`
        return all(map(_is_text, value))
    if isinstance(value, dict):
        return all(map(_is_text, value)) and all(map(_is_text, value.values()))
    if kind is slice:
        return _is_text((value.start, value.stop, value.step))
    return kind in _PLAIN or not isinstance(value, (*_PLAIN, enum.Enum))


_PLAIN = (int, float, bool, str, complex, bytes)


def _with_bound_calls(graph: fx.Graph) -> fx.Graph:
    """Returns a copy of the graph in which each call without a text is replaced by an object that contains its
    arguments.
    """
    out, env = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        if _is_writable(node) or node.op not in ("call_function", "call_method"):
            env[node] = out.node_copy(node, env.__getitem__)
        else:
            operands = tuple(env[each] for each in node.all_input_nodes)
            env[node] = out.create_node("call_function", _BoundCall(node), operands, {}, node.name)
    return out


class _BoundCall:
    """A node's call, to be called with the values that the node reads."""

    __name__ = __qualname__ = "held_call"

    def __init__(self, node: fx.Node) -> None:
        reads: dict[fx.Node, Any] = {each: _Read(number) for number, each in enumerate(node.all_input_nodes)}
        self.target, self.method = node.target, node.op == "call_method"
        self.args, self.kwargs = map_arg((node.args, node.kwargs), reads.__getitem__)

    def __call__(self, *operands: Any) -> Any:
        args, kwargs = _filled(self.args, operands), _filled(self.kwargs, operands)
        if self.method:
            return getattr(args[0], str(self.target))(*args[1:], **kwargs)
        return self.target(*args, **kwargs)  # type: ignore[operator]


class _Read:
    def __init__(self, number: int) -> None:
        self.number = number


def _filled(value: Any, operands: tuple[Any, ...]) -> Any:
    kind = type(value)
    if kind is _Read:
        return operands[value.number]
    if kind is slice:
        return slice(*(_filled(each, operands) for each in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return {key: _filled(each, operands) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, operands) for each in value]
    return tuple(_filled(each, operands) for each in value) if isinstance(value, tuple) else value
