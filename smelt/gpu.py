"""The programs of a graph on a GPU: they write new values of inputs themselves, and are recorded and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.autograd.plan import Joint
from smelt.base.options import Options
from smelt.base.report import Report
from smelt.program import Program
from smelt.runtime.cuda_graphs import Recorder


def on_gpu(
    programs: Sequence[Program], joint: Joint, device: torch.device, report: Report, options: Options
) -> list[Program]:
    """The forward and backward programs as they run on `device`.

    Sizes that change would need a recording each: in the default mode such graphs are launched kernel by kernel.
    """
    names = [node.name for node in joint.module.graph.nodes if node.op == "placeholder"]
    places = {name: i for i, name in enumerate(names)}
    written = {result: places[name] for result, name in joint.updates().items()}
    forward = written_inside(programs[0], written) if written else programs[0]
    changing = joint.sizes or joint.numbers or joint.reals
    if not options.cuda_graphs or joint.reads or (changing and options.mode == "default"):
        return [forward, *programs[1:]]
    recorder = Recorder(device, name=report.name)
    report.add("8_cuda_graphs.txt", lambda: "\n".join(recorder.reasons()))
    recorded = [
        recorder.wrap(forward, "forward", written=set(written.values()), visible=joint.num_forward, inputs=names)
    ]
    return recorded + [recorder.wrap(program, "backward", written=(), visible=0) for program in programs[1:]]


def recorded_alone(program: Program, device: torch.device, report: Report, options: Options) -> Program:
    """A backward program that was made later: with recordings of its own, where the graph's programs have them."""
    if device.type != "cuda" or not options.cuda_graphs:
        return program
    return Recorder(device, name=report.name).wrap(program, "backward", written=(), visible=0)


def written_inside(program: Program, written: dict[int, int]) -> Program:
    """The program, which gives inputs their new values itself, all at once.

    Args:
        written: position of a result -> position of the input that it is the new value of, and is replaced by.
    """

    def run(inputs: list[Any]) -> list[Any]:
        given = {result: inputs[i] for result, i in written.items()}
        results = program(inputs)
        pairs = [(old, results[result]) for result, old in given.items() if results[result] is not old]
        if pairs:
            torch._foreach_copy_([old for old, _ in pairs], [new for _, new in pairs])
        for result, old in given.items():
            results[result] = old
        return results

    return run
