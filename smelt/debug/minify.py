"""`smelt minify`: reduces a graph that fails to a small one that fails in the same way."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

import smelt
from smelt.base.errors import SmeltWarning
from smelt.base.eviction import MINIFIED
from smelt.base.private_folder import write_private
from smelt.base.text import on_one_line
from smelt.debug.case import Case, NoCase, load_forward, make_inputs, modes, read_case
from smelt.debug.compare import EagerFails, copies
from smelt.debug.graphs import Small, sizes, with_inputs, with_outputs, with_size, without
from smelt.debug.repro import WRONG, outcome, outcome_of
from smelt.graph.ir.repro_script import describe_inputs, repro_script


class Minifier:
    """Tries smaller graphs, and keeps each one that fails in the same way.

    Attributes:
        best: the smallest graph so far; text: its script.
        tries: number of graphs that were tried.
    """

    def __init__(self, case: Case, kind: str, message: str, seconds: float) -> None:
        self.case, self.kind, self.message = case, kind, message
        self.until = time.monotonic() + seconds
        self.tries = 0
        self.facts = dict(case.facts)
        self.best = captured(case)
        self.text = case.text

    def run(self) -> Small:
        """The smallest graph that was found."""
        if not self.keep(self.best):
            raise NoCase(f"{self.case.path} does not fail in the same way when its graph is printed again")
        before = None
        while before != self._size() and time.monotonic() < self.until:
            before = self._size()
            for step in (self.shorten, self.fewer_outputs, self.cut, self.drop, self.shrink):
                step()
        return self.best

    def _size(self) -> tuple[int, ...]:
        elements = sum(x.numel() for x in self.best.inputs if isinstance(x, torch.Tensor))
        return len(self.best.calls), len(self.best.inputs), elements

    def keep(self, small: Small | None) -> bool:
        """Whether the graph fails in the same way; if so, it becomes `best`."""
        if small is None or time.monotonic() >= self.until:
            return False
        self.tries += 1
        try:
            text = self.printed(small)
            found = outcome(load_forward(text, str(self.case.path)), make_inputs(_facts(text)), _facts(text))
        except (EagerFails, NoCase, RuntimeError, TypeError, ValueError, SyntaxError):
            return False
        if found.kind != self.kind:
            return False
        self.best, self.text, self.message = small, text, found.message
        return True

    def printed(self, small: Small) -> str:
        """The script of a graph."""
        settings = {name: self.facts[name] for name in ("backend", "dynamic", "options", "modes")}
        inputs = describe_inputs(small.inputs, values=self.kind == WRONG)
        error = {"kind": self.kind, "message": self.message}
        return repro_script(small.module, inputs, settings, self.facts["name"], error)

    def shorten(self) -> None:
        """End the graph at the earliest node with which it still fails, by bisection."""
        names = [n.name for n in self.best.calls]
        best, low, high = self.best, 0, len(names) - 1
        while low < high:
            middle = (low + high) // 2
            if self.keep(with_outputs(best, [names[middle]])):
                high = middle
            else:
                low = middle + 1

    def fewer_outputs(self) -> None:
        """Try the graph with only one of its results, or half of them."""
        names = [n.name for n in self.best.graph.output_node().all_input_nodes]
        chunk = len(names) // 2
        while chunk >= 1 and len(names) > 1:
            for at in range(0, len(names), chunk):
                left = names[:at] + names[at + chunk :]
                if left and self.keep(with_outputs(self.best, left)):
                    names = left
                    break
            else:
                chunk //= 2

    def cut(self) -> None:
        """Replace nodes by inputs, first many at once, then fewer."""
        chunk = max(len(self.best.calls) // 2, 1)
        while chunk:
            for names in _chunks([n.name for n in self.best.calls][:-1], chunk):
                left = {n.name for n in self.best.calls}
                self.keep(with_inputs(self.best, [name for name in names if name in left], self.best.values()))
            chunk //= 2

    def drop(self) -> None:
        """Remove nodes, each replaced by one of its operands."""
        for name in [n.name for n in self.best.calls]:
            if name in {n.name for n in self.best.calls}:
                any(map(self.keep, without(self.best, name, self.best.values())))

    def shrink(self) -> None:
        """Reduce sizes, and drop gradients of inputs."""
        for size in sizes(self.best):
            any(self.keep(with_size(self.best, size, new)) for new in (1, 2, 3, size // 2) if 0 < new < size)
        for at, x in enumerate(self.best.inputs):
            if isinstance(x, torch.Tensor) and x.requires_grad:
                inputs = [*self.best.inputs]
                inputs[at] = x.detach()
                self.keep(Small(self.best.graph, inputs))


def _chunks(names: list[str], size: int) -> Iterator[list[str]]:
    for at in range(0, len(names), size):
        yield names[at : at + size]


def _facts(text: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(text.split("import ", 1)[0], "CASE", "exec"), namespace)
    facts: dict[str, Any] = namespace["CASE"]
    return facts


def captured(case: Case) -> Small:
    """The graph of a case and its inputs.

    Raises:
        NoCase: the function cannot be captured.
    """
    found: list[Small] = []

    def keep(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append(Small(gm.graph, copies(inputs)))
        return gm.forward

    with modes(case.facts):
        try:
            smelt.compile(case.forward, backend=keep, fullgraph=True, dynamic=False)(*copies(case.inputs()))
        except Exception as error:
            raise NoCase(f"the graph of {case.path} cannot be captured again", why=str(error)) from error
    if len(found) != 1:
        raise NoCase(f"{case.path} computes nothing")
    return found[0]


def minify(path: Path, out: Path | None, seconds: float) -> int:
    """Reduce the graph of a report and write its script; returns 1 if the graph does not fail (any more), else 0.

    Raises:
        NoCase: the report cannot be run.
    """
    case = read_case(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        found = outcome_of(case)
        if not found.kind:
            print(f"{on_one_line(case.facts['name'])} no longer fails: there is nothing to minify", file=sys.stderr)
            return 1
        work = Minifier(case, found.kind, found.message, seconds)
        small = work.run()
    file = out or case.path.with_name(MINIFIED)
    try:
        write_private(file, work.text)
    except OSError as error:
        raise NoCase(f"{file} cannot be written", why=error.strerror or str(error)) from error
    print(f"{small_text(small)} fail with the same {work.kind} ({work.tries} graphs tried): {file}")
    return 0


def small_text(small: Small) -> str:
    """The size of a graph in words."""
    calls, inputs = len(small.calls), len(small.inputs)
    return f"{calls} operation{'s' * (calls != 1)} on {inputs} input{'s' * (inputs != 1)}"


def main(path: Path, out: Path | None, seconds: float) -> int:
    """The command. Exit status: 0 if a smaller graph was written, 1 if it does not fail, 2 if it cannot be run."""
    try:
        return minify(path, out, seconds)
    except NoCase as error:
        print(error, file=sys.stderr)
        return 2
