"""Describes captured frames as plain data for reports: sources of functions; graphs, guards and breaks by line."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Iterable
from types import CodeType

from smelt.abi.frame_facts import BreakFacts, FrameFacts, FunctionSource, GraphFacts, Location, Noted
from smelt.abi.program_facts import ProgramFacts
from smelt.base.report import Report
from smelt.capture.cache import CacheEntry, CompileSite
from smelt.capture.core.breaks import At, BreakReason
from smelt.graph.ir.printer import operations
from smelt.graph.ir.user_line import TORCH, lines_of, user_line

CONTEXT_LINES = 3
"""Number of lines shown before and after a line whose function is not known."""


def frame_facts(site: CompileSite, breaks: Iterable[BreakReason]) -> FrameFacts:
    """The facts of a compile site: its functions' sources, cache entries, recompilations and breaks.

    Args:
        breaks: the breaks of the session; those in the functions of this site are selected.
    """
    code: CodeType = getattr(site.key, "code", site.key)
    begin = _location(At(code, getattr(site.key, "offset", 0)))
    assert begin is not None
    versions = [*site.versions]
    functions = [_source(each) for each in _codes(code, versions)]
    facts = FrameFacts(
        site.name,
        begin,
        functions,
        [_graph_facts(version) for version in versions],
        recompiles=[Noted(f"{c.subject} was {c.before}, is {c.now}", location_of(c.at)) for c in [*site.recompiles]],
        attempts=[*site.attempts],
        given_up=site.given_up,
    )
    facts.breaks = [
        found for found in map(break_facts, breaks) if found.location is not None and _shows(functions, found.location)
    ]
    mentioned = [v.stop.location for v in facts.versions if v.stop is not None] + [
        change.location for change in facts.recompiles
    ]
    for location in dict.fromkeys(mentioned):
        if location is not None and not _shows(facts.functions, location):
            facts.functions.append(_around(location))
    return facts


def has_facts(site: CompileSite) -> bool:
    """Whether the site has a cache entry, or a capture of it was refused or failed."""
    return bool(site.versions or site.given_up or site.failed)


def break_facts(reason: BreakReason) -> BreakFacts:
    """The texts and the location of a break."""
    return BreakFacts(reason.title, reason.why, reason.hint, location_of(reason.at))


def location_of(text: str) -> Location | None:
    """The location in the text `file:line`; None for another text."""
    file, _, line = text.rpartition(":")
    return Location(file, int(line)) if file and line.isdecimal() else None


def _location(at: object) -> Location | None:
    return Location(at.code.co_filename, at.line) if isinstance(at, At) else None


def _graph_facts(version: CacheEntry) -> GraphFacts:
    guards = version.guards
    locations = map(_location, guards.locations)
    noted = [Noted(guards.line(n, with_location=False), location) for n, location in enumerate(locations)]
    gm, report = version.residual.gm, version.residual.report
    computed = [Noted(text, _location(user_line(node))) for node, text in operations(gm)] if gm is not None else []
    stop = None if version.stop is None else break_facts(version.stop)
    facts = GraphFacts(noted, version.residual.source, computed, stop, has_graph=gm is not None)
    if gm is not None:
        passed = (_location(at) for node in gm.graph.nodes for at in lines_of(node))
        facts.lines = frozenset(location for location in passed if location is not None)
    if report is not None:
        facts.programs = [*_programs(report)]
        facts.seconds = _seconds(report)
    return facts


def _programs(report: Report) -> Iterable[ProgramFacts]:
    yield from report.programs or ()
    for child in report.children:
        yield from _programs(child)


def _seconds(report: Report) -> dict[str, float]:
    total = dict(report.seconds)
    for child in report.children:
        for stage, seconds in _seconds(child).items():
            total[stage] = total.get(stage, 0.0) + seconds
    return total


def _codes(own: CodeType, versions: Iterable[CacheEntry]) -> Iterable[CodeType]:
    """The frame's code, then the code objects of the other lines in its graphs and guards, in order of appearance."""
    found: dict[int, CodeType] = {id(own): own}
    for version in versions:
        gm = version.residual.gm
        nodes = gm.graph.nodes if gm is not None else ()
        for at in (*(user_line(node) for node in nodes), *version.guards.locations):
            if isinstance(at, At):
                found.setdefault(id(at.code), at.code)
    return found.values()


def _source(code: CodeType) -> FunctionSource:
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError, SyntaxError, IndexError, UnicodeError):
        lines, first = [], code.co_firstlineno
    if code.co_filename == "<string>" and not any(_name_in_source(code) in line for line in lines):
        # from 3.13 on `inspect` finds the text of `python -c` under "<string>", the name of all code that `exec` runs
        lines = []
    of_torch = code.co_filename.startswith(TORCH)
    return FunctionSource(code.co_qualname, code.co_filename, max(first, 1), tuple(lines), of_torch)


def _name_in_source(code: CodeType) -> str:
    return {"<lambda>": "lambda", "<module>": ""}.get(code.co_name, code.co_name)


def _around(location: Location) -> FunctionSource:
    """The lines near a location, at most `CONTEXT_LINES` before and after it."""
    first = max(location.line - CONTEXT_LINES, 1)
    lines = [linecache.getline(location.file, number) for number in range(first, location.line + CONTEXT_LINES + 1)]
    while lines and not lines[-1]:
        lines.pop()
    return FunctionSource("lines of another function", location.file, first, tuple(lines))


def _shows(functions: Iterable[FunctionSource], location: Location) -> bool:
    return any(f.file == location.file and 0 <= location.line - f.first < len(f.lines) for f in functions)
