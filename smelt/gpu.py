"""The programs of a graph on a GPU: they write new values of inputs themselves, and are recorded and replayed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from smelt.autograd.call.unpacked import copy_of
from smelt.autograd.trace.plan import Joint
from smelt.base.options import Options, environment
from smelt.base.report import Report
from smelt.base.stats import count_named
from smelt.graph.nodes.range_checks import IN_RANGE, waits
from smelt.program import Program
from smelt.runtime.cuda.graphs import Recorder


class Recordings:
    """The CUDA graphs of one compiled graph.

    Sizes that change would need a recording each: in the default mode such graphs are launched kernel by kernel. Not so
    floating-point numbers, such as a learning rate: what a call computes of them comes in tensors. Of a program that
    also computes on the CPU each part on the GPU is recorded by itself.
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

    def of_part(self, program: Program) -> Program:
        """A part of a program, as it runs."""
        return program if self.recorder is None else self.recorder.wrap(program, "part", written=None, visible=None)

    def of_graph(self, programs: Sequence[Program], in_parts: Sequence[bool]) -> list[Program]:
        """The forward and backward programs as they run."""
        if not self.on_gpu:
            return list(programs)
        places = {name: i for i, name in enumerate(self.names)}
        written = {result: places[name] for result, name in self.joint.updates().items()}
        forward, *backward = programs
        if written:
            forward = written_inside(forward, written)
        if self.recorder is None:
            return [forward, *backward]
        if not in_parts[0]:
            forward = self.recorder.wrap(
                forward, "forward", written=set(written.values()), visible=self.joint.num_forward, inputs=self.names
            )
        return [forward] + [
            program if parts else self.recorder.wrap(program, "backward", written=(), visible=0)
            for program, parts in zip(backward, in_parts[1:], strict=True)
        ]


def recorded_alone(program: Program, device: torch.device, report: Report, options: Options) -> Program:
    """A backward program that was made later: with recordings of its own, where the graph's programs have them."""
    if device.type != "cuda" or not _wants_recordings(options):
        return program
    return _recorder(device, report, options).wrap(program, "backward", written=(), visible=0)


_WAITING = re.compile(
    r"aten::(_?linalg_(eigh?|eigvals|eigvalsh|svd|svdvals|lstsq|pinv|matrix_rank|cond)|pinverse|svd)$"
)
"""Decompositions that go on by what the GPU has found. One that is begun while a stream records fails, and cuSOLVER
then fails outside of recordings, too (seen of `cusolverDnXsyevd` with torch 2.11 on an H100)."""


def _waiting_operator(graph: fx.Graph) -> str | None:
    """The first operator of a graph that cannot be recorded, and must not be tried."""
    for node in graph.nodes:
        if isinstance(node.target, OpOverload):
            name = node.target.name().split(".")[0]
            if _WAITING.match(name) or waits(node) or _waits_alone(node):
                return name
    return None


def _waits_alone(node: fx.Node) -> bool:
    """Whether this is the look that is left of an operator whose result nobody uses."""
    return node.target is IN_RANGE and bool(node.args[5])


def _wants_recordings(options: Options) -> bool:
    return options.cuda_graphs and not environment().debug_memory


def _recorder(device: torch.device, report: Report, options: Options) -> Recorder:
    return Recorder(device, name=report.name, owner=options.owner)


def written_inside(program: Program, written: dict[int, int]) -> Program:
    """The program, which gives inputs their new values itself, all at once.

    Where it hands out an old value as well (what a backward needs), that is a copy.

    Args:
        written: position of a result -> position of the input that it is the new value of, and is replaced by.
    """

    def run(inputs: list[Any]) -> list[Any]:
        given = {result: inputs[i] for result, i in written.items()}
        results = program(inputs)
        pairs = [(old, results[result]) for result, old in given.items() if results[result] is not old]
        if pairs:
            overwritten = {old.untyped_storage().data_ptr() for old, _ in pairs if old.numel()}
            for i, value in enumerate(results):
                if i not in given and isinstance(value, torch.Tensor) and value.numel():
                    if value.untyped_storage().data_ptr() in overwritten:
                        results[i] = copy_of(value)
            torch._foreach_copy_([old for old, _ in pairs], [new for _, new in pairs])
        for result, old in given.items():
            results[result] = old
        return results

    return run
