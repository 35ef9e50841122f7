"""Renders the whole page: each compiled frame of a run. The page has no script, and its security policy forbids any."""

from __future__ import annotations

import os
from collections.abc import Iterator

from smelt.abi.ceilings import Ceilings
from smelt.abi.frame_facts import BreakFacts, FrameFacts, GraphFacts, RunFacts
from smelt.page.markup import Markup, element, joined, plural, seconds_text, shortened
from smelt.page.picture import draw_shares, draw_times
from smelt.page.programs import Sources, show_program, slowest
from smelt.page.source import COLOURS, LONGEST_LINE, location_list, show_break, source_of
from smelt.page.style import STYLE

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content security policy of the page: nothing is loaded and no script runs, whatever strings a program contains."""

BEGIN = "<!DOCTYPE html>"


def render(run: RunFacts) -> str:
    """The page as text, to be written as UTF-8."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"smelt: {run.title}"),
        element("style", Markup(STYLE)),
    )
    body = element(
        "body",
        element("header", element("h1", run.title), element("p", run.versions, class_="quiet")),
        element("main", _parts(run)),
    )
    return f"{BEGIN}\n{element('html', head, body, lang='en')}\n"


def _parts(run: RunFacts) -> Iterator[Markup]:
    if run.notes:
        yield element("div", [element("p", note) for note in run.notes], class_="say")
    yield _summary(run)
    if not run.frames and not run.breaks:
        yield element("p", "Nothing was compiled: no compiled function was called.", class_="say nothing")
        return
    yield _breaks(run)
    yield _contents(run.frames)
    yield from _slowest(run.frames)
    sources, graph = Sources(), 1
    for number, frame in enumerate(run.frames, 1):
        yield _frame(frame, f"f{number}", graph, sources, run.ceilings)
        graph += sum(version.has_graph for version in frame.versions)
    yield _times(run)


def _summary(run: RunFacts) -> Markup:
    tiles: list[tuple[str, object]] = [*run.counts.items()]
    if run.seconds:
        tiles.append(("to compile", seconds_text(sum(run.seconds.values()))))
    timed = [unit.step.timing for program in run.programs() for unit in program.units if unit.step.timing is not None]
    if timed:
        spent = sum(timing.total_ns for timing in timed) / 1e9
        tiles.append(("in kernels and libraries", seconds_text(spent)))
    return element("div", [_tile(name, value) for name, value in tiles], class_="tiles")


def _tile(name: str, value: object) -> Markup:
    kind = "tile bad" if _is_bad(name, value) else "tile"
    return element("div", element("b", str(value)), element("span", name), class_=kind)


def _is_bad(name: str, value: object) -> bool:
    return name.rstrip("s") in ("graph break", "recompile", "fallback") and value != 0


def _breaks(run: RunFacts) -> Markup:
    if not run.breaks:
        return element("section", element("h2", "Graph breaks"), element("p", "none", class_="quiet"), id="breaks")
    links = _links(run.frames)
    rows = [_break_row(reason, links) for reason in run.breaks]
    return element("section", element("h2", "Graph breaks"), element("ol", rows, class_="breaks"), id="breaks")


def _break_row(reason: BreakFacts, links: dict[str, str]) -> Markup:
    location = str(reason.location) if reason.location is not None else ""
    link = links.get(location)
    shown = element("a", location, href=f"#{link}") if link else element("span", location)
    return element("li", shown, show_break(reason))


def _links(frames: list[FrameFacts]) -> dict[str, str]:
    """File and line -> link to the element of the page that shows the line."""
    links: dict[str, str] = {}
    for number, frame in enumerate(frames, 1):
        for index, function in enumerate(frame.functions):
            for line in range(function.first, function.first + len(function.lines)):
                links.setdefault(f"{function.file}:{line}", f"f{number}-s{index}-l{line}")
    return links


def _contents(frames: list[FrameFacts]) -> Markup:
    rows = []
    for number, frame in enumerate(frames, 1):
        broken = len({v.stop for v in frame.versions if v.stop is not None} if frame.versions else {*frame.breaks})
        facts = [
            plural(sum(v.has_graph for v in frame.versions), "graph"),
            f"{plural(broken, 'break')}" if broken else "",
        ]
        facts.append(plural(len(frame.recompiles), "recompile") if frame.recompiles else "")
        link = element("a", element("code", frame.name), href=f"#f{number}")
        rows.append(element("li", link, " ", element("small", ", ".join(filter(None, facts)))))
    return element("section", element("h2", "Frames"), element("ol", rows, class_="contents"), id="frames")


def _slowest(frames: list[FrameFacts]) -> Iterator[Markup]:
    programs = [
        (_program_id(f"f{number}", version, location), program)
        for number, frame in enumerate(frames, 1)
        for version, graph in enumerate(frame.versions)
        for location, program in enumerate(graph.programs)
    ]
    rows = slowest(programs)
    if rows is not None:
        yield element("section", element("h2", "Where the steps spend their time"), rows, id="slowest")


def _program_id(frame: str, version: int, program: int) -> str:
    return f"{frame}-v{version}-p{program}"


def _frame(frame: FrameFacts, name: str, first: int, sources: Sources, ceilings: dict[str, Ceilings]) -> Markup:
    given_up = element("p", "runs in eager from now on", class_="say") if frame.given_up else None
    attempts = (
        element("details", element("summary", f"captured {plural(len(frame.attempts) + 1, 'time')}"),
                element("ul", [element("li", shortened(each, LONGEST_LINE)) for each in frame.attempts]))
        if frame.attempts
        else None
    )  # fmt: skip
    graphs, graph = [], first
    for number, version in enumerate(frame.versions):
        graphs.append(_version(version, f"{name}-v{number}", graph, sources, ceilings))
        graph += version.has_graph
    location = f"{os.path.basename(frame.location.file)}:{frame.location.line}"
    return element(
        "section",
        element("h2", element("code", frame.name), " ", element("small", location, title=str(frame.location))),
        given_up,
        attempts,
        source_of(frame, name, first),
        graphs,
        id=name,
        class_="frame",
    )


def _version(version: GraphFacts, name: str, graph: int, sources: Sources, ceilings: dict[str, Ceilings]) -> Markup:
    colour = element("i", class_=f"g{graph % COLOURS}") if version.has_graph else None
    title = f"graph {graph}" if version.has_graph else "no graph: nothing is computed"
    facts = [plural(len(version.operations), "operation"), plural(len(version.guards), "guard")]
    facts.append(f"compiled for {seconds_text(sum(version.seconds.values()))}" if version.seconds else "")
    end = "ends at a break" if version.stop is not None else ""
    numbered = enumerate(version.programs)
    programs = [show_program(each, f"{name}-p{n}", sources, ceilings.get(each.device)) for n, each in numbered]
    return element(
        "details",
        element("summary", colour, " ", element("b", title), " ", ", ".join(filter(None, [*facts, end]))),
        programs,
        _folded("operations as captured", location_list(version.operations)) if version.operations else None,
        _folded("guards", location_list(version.guards)) if version.guards else None,
        _folded("the code that took the frame's place", element("pre", element("code", version.residual), tabindex=0)),
        _folded("compile time by stage", draw_shares(version.seconds)) if version.seconds else None,
        open=version.has_graph,
        class_="version",
        id=name,
    )


def _folded(title: str, inside: Markup) -> Markup:
    return element("details", element("summary", title), inside, class_="folded")


def _times(run: RunFacts) -> Markup:
    children = [element("h2", "Where the time went")]
    if run.seconds:
        children += [element("h3", "compiling, by stage"), draw_shares(run.seconds)]
    if len(run.memory) > 1:
        series = {"area": [(each.seconds, float(each.resident)) for each in run.memory]}
        if any(each.device for each in run.memory):
            series["device"] = [(each.seconds, float(each.device)) for each in run.memory]
        facts = "resident memory of the process" + (", and torch's on the GPU" if "device" in series else "")
        children += [element("h3", "memory over time"), draw_times(series, facts), element("p", facts, class_="quiet")]
    if run.eager_operators:
        rows = [element("li", element("code", name), f" {count} times") for name, count in run.eager_operators.items()]
        children += [element("h3", "operators in eager inside of graphs"), element("ul", rows)]
    return element("section", joined(children), id="times")
