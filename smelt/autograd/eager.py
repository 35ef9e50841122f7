"""The `aot_eager` backend's programs: ATen graphs run operator by operator, with the strides that eager would give.

Values in a functional graph are logical: a node's value and eager's tensor may differ in strides. So `view` runs as
`reshape`, and results are copied to the strides that the metadata of the graph's output promises.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from smelt.abi.kernels import KERNELS
from smelt.autograd.call.absent_tangents import Backward
from smelt.autograd.call.calling_convention import Compiled, Program, wrap
from smelt.autograd.call.checked_results import checked
from smelt.autograd.call.double_backward import DoubleBackward
from smelt.autograd.call.sized import meta_in_numbers
from smelt.autograd.partition.eager_partition import split
from smelt.autograd.trace.joint import trace_joint
from smelt.base.default_device import without_default_device
from smelt.base.errors import SmeltError
from smelt.base.options import Options
from smelt.base.torch_private import is_view
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.module import Graph, GraphModule
from smelt.shapes.size import as_symbol

aten = torch.ops.aten


@without_default_device()
def compile_aot_eager(gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor], options: Options) -> Compiled:
    """Returns the callable of `gm`: the joint trace, split and wrapped, run by PyTorch's own operators."""
    # all random numbers come from PyTorch's generator, as in eager
    joint = trace_joint(gm, example_inputs, dataclasses.replace(options, eager_rng=True))
    forward, backward = split(joint)
    double_backward = DoubleBackward(gm, joint, lambda graph, examples: compile_aot_eager(graph, examples, options))
    if backward is None:
        return wrap(joint, eager_program(forward), None, double_backward)
    return wrap(joint, eager_program(forward), Backward(backward, eager_program), double_backward)


def eager_program(module: fx.GraphModule) -> Program:
    """Returns a boxed program (`list -> list`) that runs a functional ATen graph."""
    return laid_out(module, with_reshape(module).forward)


def laid_out(module: fx.GraphModule, run: Callable[..., Any]) -> Program:
    """Returns `run`, which computes the graph, as a boxed program whose results have the strides that eager would give
    them.

    Raises:
        SmeltError: when called, if `run` returns another number of results than the graph has.
    """
    promised: tuple[TensorMeta, ...] = module.graph.output_node().meta["val"]
    sizes = [as_symbol(n.meta["val"]) for n in module.graph.nodes if n.op == "placeholder"]
    symbols = [s for s in sizes if s is not None]
    count = sum(isinstance(meta, TensorMeta) for meta in promised)  # results that are numbers come last
    symbolic = any(meta.symbolic for meta in promised[:count])

    def program(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        operands = tuple(inputs)
        inputs.clear()
        own = set(map(id, operands))  # as in eager, inputs are saved directly: the user may replace their memory
        metas = promised
        outputs = list(run(*operands))
        if len(outputs) != len(promised):
            raise SmeltError(f"a compiled graph returned {len(outputs)} results", why=f"the graph has {len(promised)}")
        if symbolic:
            numbers: dict[Any, Any] = dict(zip(symbols, operands[len(operands) - len(symbols) :], strict=True))
            numbers |= {as_symbol(m): n for m, n in zip(promised[count:], outputs[count:], strict=True)}
            metas = tuple(meta_in_numbers(meta, numbers) for meta in promised[:count])
        for i in range(count):
            found = outputs[i].numel() or not symbolic  # symbolic strides say nothing about empty tensors
            if found and outputs[i].stride() != metas[i].stride:
                outputs[i] = restride(outputs[i], metas[i])
            # autograd forbids writes to a view that a custom function returned
            if is_view(outputs[i]) and id(outputs[i]) not in own:
                outputs[i] = _no_view(outputs[i])
        return outputs

    return program


def _no_view(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor on the same memory that autograd does not treat as a view."""
    out = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return out.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def with_reshape(module: fx.GraphModule) -> fx.GraphModule:
    """Returns a copy of the graph that runs with operands of any strides: `view` becomes `reshape`, and kernels that
    need certain strides are replaced by wrappers (`KERNELS`).

    Results of operators of users' libraries are checked against their fake kernels.
    """
    graph = Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        env[node] = graph.node_copy(node, env.__getitem__)
        if node.target is aten.view.default:
            env[node].target = aten.reshape.default
        elif node.target in KERNELS:
            env[node].target = KERNELS[node.target]
        elif node.op == "call_function":
            env[node].target = checked(node)
    return GraphModule(module, graph)


def restride(tensor: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """Returns `tensor` with the strides of `meta`: a copy unless only dimensions of size 1 differ."""
    wanted, have = meta.stride, tensor.stride()
    if all(size <= 1 or a == b for size, a, b in zip(tensor.shape, wanted, have, strict=True)):
        return tensor.as_strided(tensor.shape, wanted)
    out = torch.empty_strided(tensor.shape, wanted, dtype=tensor.dtype, device=tensor.device)
    return out.copy_(tensor)
