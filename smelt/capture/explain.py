"""`smelt.explain`: shows the graphs, graph breaks with reasons, guards and residual code of a captured program."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from smelt.abi.frame_facts import FrameFacts, RunFacts
from smelt.base.imports import late
from smelt.base.options import Options
from smelt.base.report import collecting_facts
from smelt.base.stats import stats
from smelt.base.text import on_one_line, visible
from smelt.base.version import VERSION
from smelt.capture.compiled import compile_callable, watching
from smelt.capture.core.breaks import BreakReason
from smelt.capture.frame_report import break_facts, frame_facts, has_facts
from smelt.capture.session import CompileGraph, Session
from smelt.graph.nodes.cut_points import cuts, why_cut

if TYPE_CHECKING:
    from smelt.page.page import render
else:  # few explanations become a page
    render = late("smelt.page.page", "render")


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`.

    Attributes:
        graph_count: number of compiled graphs.
        graph_break_count: number of distinct graph breaks.
        op_count: number of operations in all graphs.
        break_reasons: title, line, reason and hint of each break.
        graphs: the captured graphs.
        guards: the guards of each cache entry, as lines of Python.
        residuals: the residual code of each cache entry.
        result: the result of the call.
        fallback_ops: the operators that run in eager inside the graphs compiled in the call, with counts.
        cuts: the nodes at which a graph is cut into several pieces, with reasons.
        without_cuda_graphs: reasons for which programs of the call ran without a CUDA graph, with counts.
        attempts: repeated attempts of captures, each with the permissions that its plan lost and the reason.
        session: the session with its present cache entries, from which `html` renders also what was compiled after the
            call, such as the backward.
    """

    graph_count: int
    graph_break_count: int
    op_count: int
    break_reasons: list[BreakReason]
    graphs: list[fx.GraphModule]
    guards: list[list[str]]
    residuals: list[str]
    result: Any
    fallback_ops: dict[str, int] = field(default_factory=dict)
    cuts: list[str] = field(default_factory=list)
    without_cuda_graphs: dict[str, int] = field(default_factory=dict)
    attempts: list[str] = field(default_factory=list)
    session: Session | None = field(default=None, repr=False, compare=False)

    def html(self, title: str = "smelt.explain") -> str:
        """The explanation as a self-contained HTML page, with sources, kernels and kernel times."""
        sessions = [self.session] if self.session is not None else []
        run = run_facts(title, [*_frames(sessions)], sessions)
        run.eager_operators = self.fallback_ops
        return render(run)

    def __str__(self) -> str:
        lines = [f"graphs: {self.graph_count}   graph breaks: {self.graph_break_count}   operations: {self.op_count}"]
        if self.fallback_ops:
            lines += ["", "in eager inside the graphs:", *(f"  {n} x {name}" for name, n in self.fallback_ops.items())]
        if self.cuts:
            lines += ["", "compiled in parts, with one graph cut at:", *(f"  {cut}" for cut in self.cuts)]
        if self.without_cuda_graphs:
            lines += ["", "without CUDA graphs:", *(f"  {n} x {why}" for why, n in self.without_cuda_graphs.items())]
        if self.attempts:
            lines += ["", "captured more than once:", *(f"  {attempt}" for attempt in self.attempts)]
        for number, reason in enumerate(self.break_reasons, 1):
            lines += ["", f"break {number}: {reason}"]
        for number, (guards, residual) in enumerate(zip(self.guards, self.residuals, strict=True), 1):
            lines += ["", f"version {number}, {len(guards)} guards:", *(f"  {line}" for line in guards)]
            lines += ["residual code:", *(f"  {line}" for line in residual.splitlines())]
        return visible("\n".join(lines))


_TABLES = ("extern_ops", "cuda_graph_reasons")


def explain(
    fn: Callable[..., object], compile_graph: CompileGraph, options: Options | None = None
) -> Callable[..., Explanation]:
    """A callable that runs `fn` once with its arguments and returns an Explanation of its capture.

    Args:
        fn: the function or module to compile; existing cache entries are not used.
        compile_graph: compiles each graph, as for `compile_callable`.
    """

    def explained(*args: object, **kwargs: object) -> Explanation:
        compiled = compile_callable(fn, compile_graph, options)
        before = stats()
        with collecting_facts():
            result = compiled(*args, **kwargs)
        made = {table: dict(Counter(stats()[table]) - Counter(before[table])) for table in _TABLES}
        fallbacks, reasons = (made[table] for table in _TABLES)
        return replace(describe(compiled._smelt_session, result), fallback_ops=fallbacks, without_cuda_graphs=reasons)

    return explained


def describe(session: Session, result: object = None) -> Explanation:
    """The state of a compiled callable as an Explanation, with the result of a call."""
    versions = [version for site in session.sites.values() for version in site.versions]
    graphs = [v.residual.gm for v in versions if v.residual.gm is not None]
    return Explanation(
        graph_count=len(graphs),
        graph_break_count=len(session.breaks),
        op_count=sum(v.residual.ops for v in versions),
        break_reasons=list(session.breaks),
        graphs=graphs,
        guards=[v.guards.lines() for v in versions],
        residuals=[v.residual.source for v in versions],
        result=result,
        attempts=[attempt for site in session.sites.values() for attempt in site.attempts],
        cuts=list(dict.fromkeys(_describe_cut(node) for gm in graphs for node in cuts(gm.graph))),
        session=session,
    )


def run_facts(title: str, frames: list[FrameFacts], sessions: Sequence[Session]) -> RunFacts:
    """The facts of an HTML page about these frames, with the graph breaks of the sessions."""
    breaks = [*dict.fromkeys(break_facts(reason) for session in sessions for reason in [*session.breaks])]
    counts = {
        "graphs": sum(version.has_graph for frame in frames for version in frame.versions),
        "graph breaks": len(breaks),
        "recompiles": sum(len(frame.recompiles) for frame in frames),
    }
    seconds: Counter[str] = Counter()
    for frame in frames:
        for version in frame.versions:
            seconds.update(version.seconds)
    python = ".".join(map(str, sys.version_info[:3]))
    versions = f"smelt {VERSION}, torch {torch.__version__}, Python {python}, {sys.platform}"
    return RunFacts(title, frames, breaks, counts, dict(seconds), versions=versions)


def _frames(sessions: Sequence[Session]) -> Iterator[FrameFacts]:
    for session in distinct(sessions):
        for site in [*session.sites.values()]:
            if has_facts(site):
                yield frame_facts(site, [*session.breaks])


def distinct(sessions: Sequence[Session]) -> Iterator[Session]:
    """The sessions but for those that only run what earlier ones have compiled: modules of one class may share it."""
    shown: set[int] = set()
    for session in sessions:
        sites = [*session.sites.values()]
        own = {id(version.residual) for site in sites for version in [*site.versions]}
        if not own or own - shown or any(site.given_up or site.failed for site in sites):
            yield session
        shown |= own


class Watch:
    """Collects the sessions that compile while `watched` is open.

    Attributes:
        sessions: the sessions, kept alive also after the program has dropped their callables.
        forgotten: the frames of entries that `smelt.reset()` has removed.
        texts: the texts of `explain` for these entries.
        breaks: the graph breaks of these entries.
    """

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.forgotten: list[FrameFacts] = []
        self.texts: list[str] = []
        self.breaks: list[BreakReason] = []

    def record(self, session: Session) -> None:
        """Add a new session; for a known session, which is about to forget its entries, store their facts."""
        if session not in self.sessions:
            self.sessions.append(session)
        elif session.sites:
            self.forgotten += _frames([session])
            self.texts.append(_text(session))
            self.breaks += session.breaks

    def frames(self) -> list[FrameFacts]:
        """The frames in the order in which they were compiled, by compiled callable."""
        return [*self.forgotten, *_frames(self.sessions)]

    def text(self) -> str:
        """The texts of `explain` for all compiled callables; empty if nothing was compiled."""
        texts = (_text(session) for session in distinct(self.sessions))
        return "\n\n".join(filter(None, [*self.texts, *texts]))

    def page(self, title: str) -> RunFacts:
        """The facts of an HTML page about all frames."""
        run = run_facts(title, self.frames(), self.sessions)
        gone = (break_facts(reason) for reason in self.breaks)
        run.breaks = [*dict.fromkeys([*gone, *run.breaks])]
        run.counts["graph breaks"] = len(run.breaks)
        return run


@contextmanager
def watched() -> Iterator[Watch]:
    """A context manager that collects all that is compiled in it, and times the kernels."""
    watch = Watch()
    record = watch.record
    watching.append(record)
    try:
        with collecting_facts():
            yield watch
    finally:
        watching.remove(record)


def _text(session: Session) -> str:
    sites = [site for site in [*session.sites.values()] if has_facts(site)]
    if not sites:
        return ""
    head = f"== {on_one_line(sites[0].name)} =="
    changes = [f"  {on_one_line(f'{site.name}: {change}')}" for site in sites for change in site.recompiles]
    recompiles = ["", "compiled again:", *changes] if changes else []
    return "\n".join([head, str(describe(session)), *recompiles])


def _describe_cut(node: fx.Node) -> str:
    at = node.meta.get("at")
    return why_cut(node) if at is None else f"{why_cut(node)} ({at})"
