"""Wraps the programs of a graph on a GPU: they write new values of inputs in place and are recorded as CUDA graphs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from smelt.autograd.call.unpacked import copy_of
from smelt.autograd.trace.plan import Joint
from smelt.base.imports import late
from smelt.base.options import Options, environment
from smelt.base.report import Report
from smelt.base.stats import count_named
from smelt.base.torch_private import OpOverload
from smelt.graph.ir.aliasing import may_show
from smelt.graph.nodes.range_checks import IN_RANGE, waits
from smelt.prims.table import Kind, Prim
from smelt.program import Program
from smelt.runtime.memory import copy_all

if TYPE_CHECKING:
    from smelt.runtime.cuda.graphs import Recorder
else:
    Recorder = late("smelt.runtime.cuda.graphs", "Recorder")


class Recordings:
    """The CUDA graphs of one compiled graph.

    Each set of sizes needs its own CUDA graph, so in the default mode a graph with symbolic sizes is launched kernel by
    kernel. Floating-point numbers that change, such as a learning rate, are inputs as tensors and need no new CUDA
    graph. If a program also computes on the CPU, each of its parts on the GPU is recorded separately.
    """

    def __init__(self, joint: Joint, device: torch.device | None, report: Report, options: Options) -> None:
        self.joint = joint
        self.names = [node.name for node in joint.module.graph.nodes if node.op == "placeholder"]
        self.on_gpu = device is not None and device.type == "cuda"
        self.waiting = _waiting_operator(joint.module.graph)
        wanted = _wants_recordings(options) and not joint.reads and not (joint.sizes and options.mode == "default")
        wanted = wanted and self.waiting is None
        self.recorder: Recorder | None = None
        if device is not None and self.on_gpu and wanted:
            self.recorder = recorder = _recorder(device, report, options)
            report.add("8_cuda_graphs.txt", lambda: "\n".join(recorder.reasons()))
        elif self.on_gpu:
            count_named("cuda_graph_reasons", {f"{report.name}: no CUDA graphs: {self._why_not(options)}": 1})

    def _why_not(self, options: Options) -> str:
        if environment().debug_memory:
            return "SMELT_DEBUG_MEMORY looks at memory after each kernel"
        if not options.cuda_graphs:
            return "switched off by the mode or options={'cuda_graphs': False}"
        if self.joint.reads:
            return "the program reads a number from a tensor"
        if self.waiting is not None:
            return f"{self.waiting} waits for the GPU"
        return "its sizes change, and each would need one (mode='reduce-overhead' makes them)"

    def record_part(self, program: Program) -> Program:
        """Returns one part of a split program, recorded as a CUDA graph if the programs of this graph are recorded."""
        return program if self.recorder is None else self.recorder.wrap(program, "part", written=None, visible=None)

    def of_graph(self, programs: Sequence[Program], split: Sequence[bool], old: Sequence[int]) -> list[Program]:
        """Returns the forward and backward programs with in-place writes of inputs and CUDA graphs, where these apply.

        Args:
            split: for each program, whether it is split into parts, each of which is recorded separately.
            old: `old_values` of the forward's graph.
        """
        if not self.on_gpu:
            return list(programs)
        positions = {name: i for i, name in enumerate(self.names)}
        written = {result: positions[name] for result, name in self.joint.updates().items()}
        first, *backward = programs
        if written:
            first = written_inside(first, written, old)
        if self.recorder is None:
            return [first, *backward]
        if not split[0]:
            first = self.recorder.wrap(
                first, "forward", written=set(written.values()), visible=self.joint.num_forward, inputs=self.names
            )
        return [first] + [
            program if is_split else self.recorder.wrap(program, "backward", written=(), visible=0)
            for program, is_split in zip(backward, split[1:], strict=True)
        ]


def recorded_alone(program: Program, device: torch.device, report: Report, options: Options) -> Program:
    """Returns a backward program that was compiled later; on a GPU with CUDA graphs it gets its own recordings."""
    if device.type != "cuda" or not _wants_recordings(options):
        return program
    return _recorder(device, report, options).wrap(program, "backward", written=(), visible=0)


_WAITING = re.compile(
    r"aten::(_?linalg_(eigh?|eigvals|eigvalsh|svd|svdvals|lstsq|pinv|matrix_rank|cond)|pinverse|svd)$"
)
"""Matrix decompositions whose CPU code waits for results of the GPU. Such a call fails while a stream records a CUDA
graph, and cuSOLVER then also fails outside of recordings (seen in `cusolverDnXsyevd`, torch 2.11, H100)."""


def _waiting_operator(graph: fx.Graph) -> str | None:
    """Returns the name of a graph's first operator that a CUDA graph cannot record (see `_WAITING`); None if all can be
    recorded.
    """
    for node in graph.nodes:
        if isinstance(node.target, OpOverload):
            name = node.target.name().split(".")[0]
            if _WAITING.match(name) or waits(node) or _waits_alone(node):
                return name
    return None


def _waits_alone(node: fx.Node) -> bool:
    """Whether the node is the check that remains of an operator whose result is unused, and that waits for the GPU."""
    return node.target is IN_RANGE and bool(node.args[5])


def _wants_recordings(options: Options) -> bool:
    return options.cuda_graphs and not environment().debug_memory


def _recorder(device: torch.device, report: Report, options: Options) -> Recorder:
    return Recorder(device, name=report.name, owner=options.owner)


def old_values(graph: fx.Graph, updates: Mapping[int, str]) -> list[int]:
    """Returns the positions of results that may share memory with a written input without being its new value.

    Args:
        updates: for positions of results, the name of the input whose new value the result is.
    """
    if not updates:
        return []
    inputs = {node for node in graph.nodes if node.op == "placeholder" and node.name in updates.values()}
    results: Any = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    return [i for i in may_show(results, inputs, _is_view) if i not in updates]


def _is_view(node: fx.Node) -> bool:
    return isinstance(node.target, Prim) and node.target.kind is Kind.VIEW


def written_inside(program: Program, written: Mapping[int, int], old: Sequence[int]) -> Program:
    """Returns the program, extended so that it writes the new values of inputs in place, all in one call.

    A result that shares memory with a written input and is returned as well (for a backward) is replaced by a copy.

    Args:
        written: for positions of results, the position of the input whose new value the result is; the input replaces
            the result.
        old: positions of results that may share memory with a written input.
    """

    def run(inputs: list[Any]) -> list[Any]:
        targets = {result: inputs[i] for result, i in written.items()}
        results = program(inputs)
        pairs = [(before, results[result]) for result, before in targets.items() if results[result] is not before]
        if pairs:
            if old:
                _copy_old(results, old, [before for before, _ in pairs])
            copy_all([before for before, _ in pairs], [new for _, new in pairs])
        for result, before in targets.items():
            results[result] = before
        return results

    return run


def _copy_old(results: list[Any], old: Sequence[int], overwritten: Sequence[torch.Tensor]) -> None:
    """Replace results whose memory will be overwritten by copies of themselves."""
    begins = {tensor.untyped_storage().data_ptr() for tensor in overwritten if tensor.numel()}
    for i in old:
        value = results[i]
        if isinstance(value, torch.Tensor) and value.numel() and value.untyped_storage().data_ptr() in begins:
            results[i] = copy_of(value)
