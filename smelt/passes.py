"""Runs one pass of the pipeline: its time is counted, its result is printed and verified.

Printing means: the result is written to the trace folder under SMELT_TRACE; the last result of each stage is also kept
for failure reports. Verifying means: under SMELT_STRICT, a result that breaks the rules of its IR level raises an error
before the next pass runs. A result is printed before it is verified, so that the trace contains it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from torch import fx

from smelt.abi.rendered import Rendered
from smelt.abi.steps import Timing
from smelt.autograd.trace.joint import Joint
from smelt.base.imports import late
from smelt.base.options import environment
from smelt.base.report import Report
from smelt.graph.ir.printer import print_graph
from smelt.graph.verify import verified
from smelt.loops.describe import describe as describe_loops
from smelt.loops.ir import LoopProgram
from smelt.loops.split_by_device import PartSequence
from smelt.loops.verify import verify as verify_loops
from smelt.schedule.describe import describe as describe_schedule
from smelt.schedule.facts import describe_program
from smelt.schedule.plan import Schedule
from smelt.schedule.verify import verify as verify_schedule

if TYPE_CHECKING:
    from smelt.codegen.triton.host import print_kernels
else:
    print_kernels = late("smelt.codegen.triton.host", "print_kernels")

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class PassRunner:
    """Runs passes for one graph.

    Attributes:
        report: the report of the graph.
        program: the name of the program that is being compiled: "forward", "backward", or the name of one of its parts.
    """

    report: Report
    program: str = ""

    def __call__(self, stage: str, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the pass `make` on these arguments and return its result; its time is added to that of `stage`."""
        with timed(stage, self.report):
            made = make(*args, **kwargs)
            self.record(make.__name__, made)
        return made

    def record(self, name: str, made: Any) -> None:
        """Print and verify the result `made` of the pass `name`."""
        if isinstance(made, Rendered) and self.report.plan is not None:
            self._describe_program(made)
        match made:
            case Joint(module=module):
                self.report.add("2_joint.py", lambda: print_graph(module))
                verified(module, "joint")
            case LoopProgram():
                self.report.add(f"4_{self.program}_loops.txt", lambda: describe_loops(made))
                if environment().verify:
                    verify_loops(made)
            case Schedule():
                self.report.plan = made if self.report.programs is not None else None
                self.report.add(f"5_{self.program}_schedule.txt", lambda: describe_schedule(made))
                if environment().verify:
                    verify_schedule(made)
            case Rendered(device=None):
                self.report.add(f"6_{self.program}_kernels.cpp", lambda: "\n".join(made.cpp_sources))
                self.report.add(f"7_{self.program}_host.py", lambda: made.host_source)
            case Rendered():
                self.report.add(f"6_{self.program}_kernels.py", lambda: print_kernels(made.kernels))
                self.report.add(f"7_{self.program}_host.py", lambda: made.host_source)
            case _:
                for part, graph in self._graphs(name, made):
                    self.report.dump(f"3_{part}.py", lambda graph=graph: print_graph(graph))  # type: ignore[misc]
                    verified(graph, "prims")

    def _describe_program(self, rendered: Rendered) -> None:
        """Describe a program for `smelt.explain`, which times its steps afterwards; called only if that is active."""
        report, target = self.report, "C++" if rendered.device is None else "Triton"
        facts = describe_program(self.program, target, report.plan, rendered.steps, rendered.text_of)
        for step in (*rendered.steps.all(), *(unit.step for unit in facts.units)):
            step.timing = step.timing or Timing()
        facts.timing = rendered.steps.timing = Timing()
        facts.device = str(rendered.device or "cpu")
        report.plan = None
        if report.programs is not None:
            report.programs.append(facts)

    def _graphs(self, name: str, made: Any) -> Iterator[tuple[str, fx.GraphModule]]:
        """The prim graphs in the result of a pass, each with the name under which it is printed."""
        match made:
            case fx.GraphModule():
                yield name, made
            case PartSequence(parts=parts):
                modules = (part.module for part in parts if part.module is not None)
                yield from ((f"{self.program}{i}", module) for i, module in enumerate(modules))
            case (fx.GraphModule() as forward, fx.GraphModule() | None as backward):
                yield f"{name}_forward", forward
                yield from [(f"{name}_backward", backward)] if backward is not None else ()
            case (fx.GraphModule() as graph, _):
                yield name, graph


@contextmanager
def timed(stage: str, report: Report) -> Iterator[None]:
    """Context whose duration is added to the compile time of a stage."""
    started = time.perf_counter()
    yield
    report.spend(stage, time.perf_counter() - started)
