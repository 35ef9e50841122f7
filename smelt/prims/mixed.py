"""Values of the CPU in a graph whose kernels run on a GPU.

What is computed on the CPU stays there and stays ATen: eager's way, which waits for nothing. Where a GPU's operator
takes a value of the CPU (a tensor without dimensions, indices), it is copied first; a constant is made on the GPU.
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
"""Operators that give a value another name, as the saved one of an input: it is copied once under all of them."""


class Mixed:
    """The devices of one graph.

    Attributes:
        active: there are several kinds.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.active = is_mixed(graph)
        self.made: dict[Node, Callable[[Lowering, torch.device], Node]] = {}

    def on_cpu(self, node: Node) -> bool:
        """Whether everything that an ATen node reads and gives is on the CPU, and it is more than another name."""
        if not self.active or node.target in _NAMES:
            return False
        devices = devices_of(node).union(*map(devices_of, node.all_input_nodes))
        return {device.type for device in devices} == {"cpu"}

    def is_of_cpu(self, result: Any) -> bool:
        """Whether a result is on the CPU: no kernel makes it, though it may be made like a value of the GPU."""
        return self.active and isinstance(result, TensorMeta) and result.device.type == "cpu"

    def note_creation(self, value: Any, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A tensor that an operator makes on the CPU from nothing can be made on another device."""
        target: Any = node.target
        rule = DECOMPOSITIONS.get(target)
        if rule is None or node.all_input_nodes or node.meta.get("random") or not isinstance(value, Node):
            return

        def made(p: Lowering, device: torch.device) -> Any:
            p.result = _on(node.meta["val"], device)
            return rule(p, *args, **kwargs)

        self.made[value] = made

    def note_constant(self, value: Node, number: Any) -> None:
        """A constant of one element."""
        meta: TensorMeta = value.meta["val"]
        self.made[value] = lambda p, device: p.full(meta.shape, number, meta.dtype, device)

    def moved(self, p: Lowering, arg: Any) -> Any:
        """An argument of an operator whose result `p.out` is on a GPU."""
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
    """The values of the CPU that a prim graph with kernels on a GPU takes or makes, each with what it is for.

    A recorded CUDA graph would keep what they were when it was recorded.
    """
    if not is_mixed(graph):
        return {}
    found = {}
    for node in graph.nodes:
        if node.op != "output" and any(device.type == "cpu" for device in devices_of(node)):
            origin = node.meta.get("from")
            found[node.name] = f"{node.meta['val']}" + (f", from {origin}" if origin else "")
    return found
