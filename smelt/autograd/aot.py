"""Makes a backend for `smelt.compile` from compilers of functional FX graphs for forward and backward.

The compilers get graphs without mutation, aliasing and autograd. `calling_convention.wrap` adds everything else in
which a call must behave like eager: written inputs, outputs that share memory, strides, and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import fx

from smelt.autograd.call.absent_tangents import Backward, without_tangents
from smelt.autograd.call.calling_convention import Compiled, Program, wrap
from smelt.autograd.call.double_backward import DoubleBackward
from smelt.autograd.eager import laid_out, with_reshape
from smelt.autograd.partition.eager_partition import split
from smelt.autograd.partition.partition import partition as min_cut
from smelt.autograd.trace.joint import trace_joint
from smelt.autograd.trace.plan import Joint
from smelt.base.errors import OptionError, SmeltError, shown
from smelt.base.options import resolve_options
from smelt.graph.ir.meta import TensorMeta
from smelt.prims.decompose import decompose
from smelt.shapes.size import hint

FxCompiler = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
"""Type of a compiler: (functional graph, example inputs) -> callable over the graph's inputs that returns its
outputs.
"""
Partition = Callable[[fx.GraphModule, Joint], tuple[fx.GraphModule, fx.GraphModule | None]]
"""Type of a partition: (joint graph, its plan) -> (forward, backward); see `eager_partition.split` for their inputs and
outputs.
"""
Backend = Callable[[fx.GraphModule, Sequence[torch.Tensor]], Compiled]


def aot_autograd(
    fw_compiler: FxCompiler,
    bw_compiler: FxCompiler | None = None,
    *,
    opset: Literal["aten", "prims"] = "aten",
    partition: Literal["save", "min-cut"] | Partition | None = None,
    activation_memory_budget: float = 1.0,
) -> Backend:
    """A backend for `smelt.compile(backend=...)` and `smelt.register_backend` from compilers of functional FX graphs.

    Args:
        fw_compiler: `(graph, example_inputs) -> callable`. The graph is a `torch.fx.GraphModule` without mutation; the
            callable takes its inputs one by one and returns its outputs as a tuple or list. Example inputs are tensors
            on the meta device (and, for dynamic shapes, integers): they have a shape, a stride and a dtype, no data.
        bw_compiler: the same for backward graphs (saved values, then tangents in; gradients out). Default: fw_compiler.
        opset: "aten" (functional ATen operators) or "prims" (the closed set that `smelt ops` lists, and ATen operators
            that have no decomposition).
        partition: "save" keeps what backward reads and recomputes only views (the default of "aten"); "min-cut" weighs
            memory against recomputation (the default of "prims", which it needs); or a function `(joint graph, plan) ->
            (forward, backward)`.
        activation_memory_budget: for "min-cut", from 0 (save as little as possible for backward) to 1 (save the values
            with which backward is fastest).

    Raises:
        OptionError: the opset or partition is unknown, the partition is a min-cut over ATen operators, the budget is
            not between 0 and 1, or a compiler cannot be called.
    """
    second = fw_compiler if bw_compiler is None else bw_compiler
    for compiler in (fw_compiler, second):
        if not callable(compiler):
            raise OptionError(f"a compiler is a callable (graph, example_inputs) -> callable, got {shown(compiler)}")
    cut = _partition(opset, partition)
    # the compilers' programs draw random numbers from PyTorch's generator
    options = resolve_options(options={"eager_rng": True, "activation_memory_budget": activation_memory_budget})
    if cut != "min-cut":
        options = replace(options, backend="aot_eager")  # this backend's backward takes inputs unchanged

    def backend(gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> Compiled:
        joint = trace_joint(gm, example_inputs, options)
        module = joint.module if opset == "aten" else decompose(joint.module, options, apart=cut == "min-cut")
        match cut:
            case "save":
                forward, backward = split(joint, module)
            case "min-cut":
                forward, backward = min_cut(module, joint, options)
            case made:
                forward, backward = made(without_tangents(module, ()), joint)
        run, double_backward = _program(forward, fw_compiler), DoubleBackward(gm, joint, backend)
        if backward is None:
            return wrap(joint, run, None, double_backward)
        programs = Backward(backward, lambda graph: _program(graph, second))
        programs.compile()
        return wrap(joint, run, programs, double_backward)

    backend.__name__ = f"aot_autograd_{getattr(fw_compiler, '__name__', type(fw_compiler).__name__)}"
    return backend


def _partition(opset: str, partition: Any) -> Any:
    """Returns the partition function for these options; raises an error if they contradict each other."""
    if opset not in ("aten", "prims"):
        raise OptionError(f"opset {shown(opset)}", hint='one of "aten", "prims"')
    cut: Any = partition or ("save" if opset == "aten" else "min-cut")
    if not callable(cut) and cut not in ("save", "min-cut"):
        raise OptionError(f"partition {shown(cut)}", hint='one of "save", "min-cut", or a function')
    if cut == "min-cut" and opset == "aten":
        raise OptionError("partition='min-cut' with opset='aten'", why="it weighs primitives", hint='opset="prims"')
    return cut


def _program(module: fx.GraphModule, compiler: FxCompiler) -> Program:
    """Returns the program that the compiler made of a graph, with the calling convention of `wrap`."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    run = compiler(with_reshape(module), [_example(node.meta["val"]) for node in inputs])
    if not callable(run):
        raise SmeltError(f"a compiler given to aot_autograd returned {type(run).__name__}", hint="return a callable")
    return laid_out(module, run)


def _example(val: Any) -> Any:
    if not isinstance(val, TensorMeta):
        return hint(val)
    shape, stride = (tuple(map(hint, sizes)) for sizes in (val.shape, val.stride))
    return torch.empty_strided(shape, stride, dtype=val.dtype, device="meta")
