"""CPU values in a graph whose kernels run on a GPU.

Operators on the CPU remain ATen operators on the CPU, as in eager, so that they do not wait for the GPU. If an operator
on the GPU takes a CPU tensor (without dimensions, or indices), the tensor is copied to the GPU first; a constant is
created on the GPU instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.fx import Node

from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.seeds import devices_of, is_mixed
from smelt.prims.registry import DECOMPOSITIONS, Lowering
from smelt.prims.table import PRIMS

_NAMES = frozenset({torch.ops.aten.alias.default, torch.ops.aten.detach.default})
"""Operators that return their operand itself (such as `detach` of a saved input): operand and result share one copy on
the GPU.
"""


class Mixed:
    """The CPU values of one graph that has values on several kinds of devices.

    Attributes:
        active: whether the graph has values on several kinds of devices; if not, the methods change nothing.
        made: for each CPU value without operands, a function that creates it on another device.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.active = is_mixed(graph)
        self.made: dict[Node, Callable[[Lowering, torch.device], Node]] = {}

    def on_cpu(self, node: Node) -> bool:
        """Whether the node stays an ATen operator on the CPU: all its operands and results are there. False for an
        operator that returns its operand.
        """
        if not self.active or node.target in _NAMES:
            return False
        devices = devices_of(node).union(*map(devices_of, node.all_input_nodes))
        return {device.type for device in devices} == {"cpu"}

    def is_of_cpu(self, result: Any) -> bool:
        """Whether a result is on the CPU. No GPU kernel computes such a value; a constant among them is created on the
        GPU as well if an operator there reads it.
        """
        return self.active and isinstance(result, TensorMeta) and result.device.type == "cpu"

    def note_creation(self, value: Any, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record that a CPU tensor was created without operands, and so can be created on another device."""
        target: Any = node.target
        rule = DECOMPOSITIONS.get(target)
        if rule is None or node.all_input_nodes or node.meta.get("random") or not isinstance(value, Node):
            return

        def made(p: Lowering, device: torch.device) -> Any:
            p.result = _on(node.meta["val"], device)
            return rule(p, *args, **kwargs)

        self.made[value] = made

    def note_constant(self, value: Node, number: Any) -> None:
        """Record that a CPU tensor is a constant of one element, and so can be created on another device."""
        meta: TensorMeta = value.meta["val"]
        self.made[value] = lambda p, device: p.full(meta.shape, number, meta.dtype, device)

    def moved(self, p: Lowering, arg: Any) -> Any:
        """Returns the argument of the operator with result `p.out`: if that result is on a GPU, CPU tensors in the
        argument are replaced by tensors on the GPU.
        """
        if not self.active or not isinstance(p.out, TensorMeta) or p.out.device.type == "cpu":
            return arg
        return self._moved(p, arg, p.out.device)

    def _moved(self, p: Lowering, arg: Any, device: torch.device) -> Any:
        if isinstance(arg, (tuple, list)):
            return type(arg)(self._moved(p, each, device) for each in arg)
        if not isinstance(arg, Node) or not isinstance(arg.meta["val"], TensorMeta):
            return arg
        if arg.meta["val"].device.type != "cpu":
            return arg
        result, made = p.result, self.made.get(arg)
        value = p.emit(PRIMS["to_device"], arg, device) if made is None else made(p, device)
        p.result = result
        p.of_cpu.add(value)
        return value


def _on(meta: Any, device: torch.device) -> TensorMeta:
    assert isinstance(meta, TensorMeta)
    return TensorMeta(meta.shape, meta.dtype, meta.stride, device)


def cpu_values(graph: fx.Graph) -> dict[str, str]:
    """Returns the CPU values in a prim graph whose kernels run on a GPU: description and origin by name.

    A CUDA graph would keep these values from the time when it was recorded.
    """
    if not is_mixed(graph):
        return {}
    found = {}
    for node in graph.nodes:
        if node.op != "output" and any(device.type == "cpu" for device in devices_of(node)):
            origin = node.meta.get("from")
            found[node.name] = f"{node.meta['val']}" + (f", from {origin}" if origin else "")
    return found
