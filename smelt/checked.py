"""Wraps a program so that its input and result tensors are compared with the metadata that its graph records.

Programs exchange only tensors: inputs of a call, saved tensors of a forward, tangents, results. Kernels read and write
them by address, so each must have the recorded shape, dtype, device type and strides. Strides of gradients and of the
new values of inputs are not compared: autograd and `copy_` accept any strides, and a gradient that is an unchanged
tangent has the strides of the tangent. Calls are checked only under SMELT_STRICT; otherwise the check costs nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from smelt.abi.staged import Staged
from smelt.autograd.call.sized import meta_in_numbers
from smelt.base.errors import SmeltError
from smelt.base.options import environment
from smelt.graph.ir.meta import OpaqueMeta, TensorMeta, reach, same_steps
from smelt.shapes.size import as_symbol

Program = Callable[[list[Any]], list[Any]]


class WrongLayout(SmeltError):
    """An input or a result of a program differs from the metadata that the program's graph records for it."""


def boundary(name: str, graph: fx.Graph, any_strides: Container[int] = ()) -> Callable[[Program], Program]:
    """The function that wraps a graph's program in checks; outside SMELT_STRICT it returns the program unchanged.

    Args:
        any_strides: positions of the results whose strides do not matter.
    """
    return _Boundary(name, graph, any_strides).around if environment().verify else lambda program: program


def backward_boundary(name: str, graph: fx.Graph) -> Callable[[Program], Program]:
    """The wrapper (see `boundary`) for a program whose results are gradients: no strides of results are compared."""
    return boundary(name, graph, range(len(graph.output_node().meta["val"])))


class _Boundary:
    """The recorded metadata of a graph's inputs and results, without a reference to the graph."""

    def __init__(self, name: str, graph: fx.Graph, any_strides: Container[int]) -> None:
        self.name = name
        nodes = [node for node in graph.nodes if node.op == "placeholder"]
        self.inputs = [(node.name, node.meta["val"], True) for node in nodes]
        self.symbols = [as_symbol(val) for _, val, _ in self.inputs]
        made = enumerate(graph.output_node().meta["val"])
        self.made = [(f"result {i}", val, i not in any_strides) for i, val in made]

    def around(self, program: Program) -> Program:
        """The program, wrapped so that each call checks inputs and results."""
        if isinstance(program, Staged):
            return Staged(functools.partial(self._steps, program), program.positions)

        def run(inputs: list[Any]) -> list[Any]:
            numbers = {s: inputs[i] for i, s in enumerate(self.symbols) if s is not None and i < len(inputs)}
            self._check(self.inputs, inputs, numbers)
            results = program(inputs)
            self._check(self.made, results, numbers)
            return results

        return run

    def _steps(self, program: Staged, inputs: list[Any]) -> Iterator[list[Any]]:
        """Run and check a program in stages; all its sizes are static."""
        self._check(self.inputs, inputs, {})
        for positions, values in zip(program.positions, program.begin(inputs), strict=True):
            self._check([self.made[position] for position in positions], values, {})
            yield values

    def _check(self, recorded: Sequence[tuple[str, Any, bool]], tensors: Sequence[Any], numbers: Any) -> None:
        for (what, val, in_order), tensor in zip(recorded, tensors, strict=False):
            if not isinstance(val, TensorMeta) or isinstance(val, OpaqueMeta) or not isinstance(tensor, torch.Tensor):
                continue
            try:
                meta = meta_in_numbers(val, numbers)
            except (KeyError, AssertionError):  # a size that only the forward computes
                continue
            why = _differs(meta, tensor, in_order)
            if why is not None:
                raise WrongLayout(f"{self.name}: {what} {why}")


def _differs(meta: TensorMeta, tensor: torch.Tensor, in_order: bool) -> str | None:
    """The difference between a tensor and its recorded metadata; strides are compared only if `in_order`."""
    shape = tuple(tensor.shape)
    if shape != meta.shape or tensor.dtype is not meta.dtype or tensor.device.type != meta.device.type:
        return f"is {tensor.dtype}{list(shape)} on {tensor.device}, recorded as {meta}"
    if in_order and tensor.numel() and not same_steps(shape, tensor.stride(), meta.stride):
        return f"of shape {list(shape)} has strides {tensor.stride()}, recorded as {meta.stride}"
    end = reach(shape, tensor.stride(), int(tensor.storage_offset()))
    if end * tensor.element_size() > tensor.untyped_storage().nbytes():
        return f"ends at element {end}, beyond its memory"
    return None
