"""`smelt check`: a script whose compiled graphs run beside eager, until the first tensor that differs beyond rounding.

At each call of a graph both run on copies of its inputs, forward and backward; then the program goes on with the
compiled one. Where a result differs, the graph is recompiled with all of its tensors as results, or with each one
alone: the first that differs gives the user's line.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import fx

from smelt import driver
from smelt.base.errors import SmeltWarning
from smelt.base.options import Options
from smelt.base.report import Report, saved_report
from smelt.base.text import visible
from smelt.cli.run import run_script
from smelt.debug.compare import Difference, EagerFails, copies, first_difference
from smelt.debug.graphs import Small, copied
from smelt.debug.repro import WRONG
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.repro_script import describe_inputs, repro_script, settings_of

FOUND = 3
"""The exit status of a script that ended because a tensor differs."""


class Checker:
    """Compiles graphs so that each call is compared with eager.

    Attributes:
        graphs, calls: how many there were.
        found: a tensor differed.
    """

    def __init__(self) -> None:
        self.graphs = self.calls = 0
        self.found = False

    def compile(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], report: Report, options: Options
    ) -> Callable[..., Any]:
        """Replaces `driver.compile_whole`. Random numbers are drawn as in eager, so that results can be compared."""
        options = dataclasses.replace(options, eager_rng=True)
        compiled = driver.compile_whole(gm, example_inputs, report, options)
        eager = _eager(gm, example_inputs, options)
        self.graphs += 1

        def run(*inputs: Any) -> Any:
            self.calls += 1
            try:
                difference = first_difference(compiled, eager, inputs)
            except EagerFails:  # so does the compiled graph, with the error that the program expects
                return compiled(*inputs)
            if difference is not None:
                self.found = True
                print(visible("\n".join(_failure_lines(gm, inputs, report.name, options, difference))), file=sys.stderr)
                raise SystemExit(FOUND)
            return compiled(*inputs)

        return run


def _eager(gm: fx.GraphModule, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    return driver.compile_whole(gm, inputs, Report("eager"), dataclasses.replace(options, backend="eager"))


def _failure_lines(
    gm: fx.GraphModule, inputs: Sequence[Any], name: str, options: Options, difference: Difference
) -> list[str]:
    """What is said of a difference, and a report that `smelt repro` and `smelt minify` take."""
    found = _first_node(gm, inputs, options)
    lines = [f"{name} differs from eager"]
    if found is None:
        results = gm.graph.output_node().all_input_nodes
        at = int(difference.what.split()[-1])
        node = results[at] if difference.what.startswith("result") and at < len(results) else None
        lines.append(f"  {difference} (only together with the rest of the graph)")
    else:
        node, inner = found
        lines.append(f"  first: {node.name}, {inner}")
    if node is not None and node.meta.get("at") is not None:
        lines.append(f"  at:    {node.meta['at']}")
    report = Report(f"{name}_differs")
    error = {"kind": WRONG, "message": str(difference)}
    literals, settings = describe_inputs(inputs, gm, values=True), settings_of(options)
    report.add(driver.REPRO, lambda: repro_script(gm, literals, settings, name, error))
    lines.append(f"  {saved_report(report, None)}; smelt minify makes it smaller")
    return lines


def _first_node(gm: fx.GraphModule, inputs: Sequence[Any], options: Options) -> tuple[fx.Node, Difference] | None:
    """The first node whose tensor differs where the graph gives all of them, or it alone; None where none does."""
    nodes = [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]
    nodes = [n for n in nodes if isinstance(n.meta.get("val"), TensorMeta)]
    found = _given(gm, nodes, inputs, options)
    if found is not None and found.what.startswith("result"):
        node = nodes[int(found.what.split()[-1])]
        return node, _given(gm, [node], inputs, options) or found
    for node in nodes[:MANY]:  # a gradient, or fused kernels: what is wrong shows in the node alone
        found = _given(gm, [node], inputs, options)
        if found is not None:
            return node, found
    return None


MANY = 64
"""Nodes that are compiled alone."""


def _given(gm: fx.GraphModule, wanted: Sequence[fx.Node], inputs: Sequence[Any], options: Options) -> Difference | None:
    """The difference of a graph whose results are these nodes."""
    made, nodes = copied(Small(gm.graph, [*inputs]))
    output = made.graph.output_node()
    output.args = (tuple(nodes[node.name] for node in wanted),)
    output.meta["val"] = tuple(node.meta["val"] for node in wanted)
    module = fx.GraphModule(gm, made.graph)
    try:
        compiled = driver.compile_whole(module, copies(inputs), Report("check"), options)
        return first_difference(compiled, _eager(module, inputs, options), inputs)
    except Exception:  # a subgraph may be impossible to compile where the whole graph is not
        return None


@contextmanager
def _checked() -> Iterator[Checker]:
    checker, before = Checker(), driver.beside
    driver.beside = checker.compile
    try:
        yield checker
    finally:
        driver.beside = before


def check_script(target: str, args: Sequence[str], module: bool) -> int:
    """Run a script beside eager; its own exit status, or FOUND where a tensor differs."""
    with _checked() as checker, warnings.catch_warnings():
        warnings.simplefilter("default", SmeltWarning)
        status = run_script(target, args, module, quiet=True)
    if checker.found:
        return FOUND
    calls, graphs = (f"{n} {what}{'s' * (n != 1)}" for n, what in ((checker.calls, "call"), (checker.graphs, "graph")))
    summary = f"{calls} of {graphs} agree with eager" if checker.graphs else "nothing was compiled"
    print(f"smelt: {summary}", file=sys.stderr)
    return status
