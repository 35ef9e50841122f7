"""`smelt check`: runs a script and compares each compiled graph with eager, until a tensor differs beyond rounding.

At each call of a graph the compiled graph and eager run on copies of its inputs, forward and backward; then the program
continues with the compiled graph. If a result differs, the graph is recompiled with all of its tensors as results, or
with each one as the only result: the first tensor that differs gives the user's line.
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
        graphs, calls: numbers of graphs and calls so far.
        found: whether a tensor differed.
    """

    def __init__(self) -> None:
        self.graphs = self.calls = 0
        self.found = False

    def compile(
        self, gm: fx.GraphModule, example_inputs: Sequence[Any], report: Report, options: Options
    ) -> Callable[..., Any]:
        """Compile a graph in place of `driver.compile_whole`. Random numbers are drawn as in eager, for comparison."""
        options = dataclasses.replace(options, eager_rng=True)
        compiled = driver.compile_whole(gm, example_inputs, report, options)
        eager = _eager(gm, example_inputs, options)
        self.graphs += 1

        def run(*inputs: Any) -> Any:
            self.calls += 1
            try:
                difference = first_difference(compiled, eager, inputs)
            except EagerFails:  # the compiled graph fails, too, with the error that the program expects
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
    """The lines printed about a difference. Also saves a report for `smelt repro` and `smelt minify`."""
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
    """The first node whose tensor differs if the graph returns the tensors of all nodes, or only this one; None if
    neither shows a difference.
    """
    nodes = [n for n in gm.graph.nodes if n.op not in ("placeholder", "output")]
    nodes = [n for n in nodes if isinstance(n.meta.get("val"), TensorMeta)]
    found = _given(gm, nodes, inputs, options)
    if found is not None and found.what.startswith("result"):
        node = nodes[int(found.what.split()[-1])]
        return node, _given(gm, [node], inputs, options) or found
    for node in nodes[:MANY]:  # a wrong gradient or fused kernel may only show with a single result
        found = _given(gm, [node], inputs, options)
        if found is not None:
            return node, found
    return None


MANY = 64
"""Maximum number of nodes that are each compiled as the only result."""


def _given(gm: fx.GraphModule, wanted: Sequence[fx.Node], inputs: Sequence[Any], options: Options) -> Difference | None:
    """The first difference from eager of a graph whose results are these nodes; None without one or if it fails."""
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
    """Run a script and compare its graphs with eager; returns its exit status, or FOUND if a tensor differs."""
    with _checked() as checker, warnings.catch_warnings():
        warnings.simplefilter("default", SmeltWarning)
        status = run_script(target, args, module, quiet=True)
    if checker.found:
        return FOUND
    calls, graphs = (f"{n} {what}{'s' * (n != 1)}" for n, what in ((checker.calls, "call"), (checker.graphs, "graph")))
    summary = f"{calls} of {graphs} agree with eager" if checker.graphs else "nothing was compiled"
    print(f"smelt: {summary}", file=sys.stderr)
    return status
