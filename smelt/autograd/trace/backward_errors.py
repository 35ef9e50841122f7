"""Decides whether eager would also raise an error of a backward's trace, by running the graph in eager.

Some forwards are valid while their derivative formulas fail: `scatter` with a source larger than its index, `qr` in a
mode without a derivative. An error in a trace may also be a bug of this compiler. To distinguish the two, the graph is
run in eager on tensors of ones, with gradients: an error that the backward of some result raises there is eager's.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import fx

from smelt.base.process_state import preserving
from smelt.base.python_text import root_package
from smelt.graph.ir.meta import extent
from smelt.graph.nodes.modes import MODE_CHANGES

MAX_ELEMENTS = 1 << 22
"""Maximum number of elements of all inputs together for which the graph is run in eager."""

ErrorKey = tuple[type[Exception], str]


def error_key(error: Exception) -> ErrorKey:
    """Returns a key by which errors are compared: equal for the same error."""
    return type(error), str(error)


def errors_of_backward(gm: fx.GraphModule, examples: Sequence[Any]) -> frozenset[ErrorKey]:
    """Returns the errors that eager raises in the backward of each result of a torch-level graph; empty if the graph
    cannot be run.
    """
    if not all(map(_is_plain, examples)) or not all(map(_only_computes, gm.graph.nodes)):
        return frozenset()
    if sum(extent(x.shape, x.stride()) for x in examples) > MAX_ELEMENTS:
        return frozenset()
    found = set()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        try:
            results = preserving(gm, *map(_ones, examples))
        except Exception:  # the forward does not accept ones: its errors depend on values
            return frozenset()
        for result in results if isinstance(results, (list, tuple)) else [results]:
            if isinstance(result, torch.Tensor) and result.requires_grad:
                try:
                    result.backward(torch.ones_like(result), retain_graph=True)
                except Exception as error:
                    found.add(error_key(error))
    return frozenset(found)


def _is_plain(example: Any) -> bool:
    return type(example) in (torch.Tensor, torch.nn.Parameter) and example.device.type == "cpu"


_KINDS = (BuiltinFunctionType, FunctionType, MethodDescriptorType)


def _only_computes(node: fx.Node) -> bool:
    """Whether the node is a function, method or mode of PyTorch, an input or the output, and not a tensor of the
    program, which the run could write to."""
    if node.op != "call_function":
        return node.op in ("call_method", "placeholder", "output")
    if node.target in MODE_CHANGES:
        return True
    return isinstance(node.target, _KINDS) and root_package(node.target) in ("torch", "_operator")


def _ones(example: torch.Tensor) -> torch.Tensor:
    """Returns ones with the example's strides; zeros for indices, since zero is always a valid index."""
    value = 1 if example.is_floating_point() or example.is_complex() else 0
    memory = torch.full((extent(example.shape, example.stride()),), value, dtype=example.dtype)
    if example.is_leaf:
        return memory.as_strided(example.shape, example.stride()).requires_grad_(example.requires_grad)
    # a computed tensor may be written in place; a view of a leaf may not
    return memory.requires_grad_().clone().as_strided(example.shape, example.stride())
