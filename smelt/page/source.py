"""Shows the source of functions with notes on each line: graphs, graph breaks, guards, recompilations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from smelt.abi.frame_facts import BreakFacts, FrameFacts, FunctionSource, Location, Noted
from smelt.page.markup import Markup, element, joined, plural, shortened

LONGEST_LINE = 1000
"""Maximum number of characters shown of a line of source."""

MAX_NOTES = 60
"""Maximum number of guards shown for one line."""

COLOURS = 6
"""Number of colours for graphs in the style sheet."""


@dataclass
class _Line:
    graphs: list[int] = field(default_factory=list)
    operations: int = 0
    breaks: list[tuple[int, BreakFacts]] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    recompiles: list[str] = field(default_factory=list)


def source_of(frame: FrameFacts, name: str, first_graph: int) -> Markup:
    """The annotated source of the functions that ran in a frame; the frame's own function comes first.

    Args:
        name: prefix of the ids of elements.
        first_graph: the number of the frame's first graph on the page.
    """
    lines = _lines(frame, first_graph)
    shown: list[Markup] = []
    of_torch: list[Markup] = []
    known: set[Location] = set()
    for number, function in enumerate(frame.functions):
        known |= {Location(function.file, function.first + i) for i in range(max(len(function.lines), 1))}
        body = _function(function, lines, f"{name}-s{number}")
        if number:
            body = joined(element("h4", "called: ", element("code", function.name), " ", _where(function)), body)
        (of_torch if number and function.of_torch else shown).append(body)
    if of_torch:
        shown.append(element("details", element("summary", f"{plural(len(of_torch), 'function')} of torch"), of_torch))
    elsewhere = {location: line for location, line in lines.items() if location not in known and _has_notes(line)}
    return joined(shown, _elsewhere(elsewhere, name) if elsewhere else None)


def _where(function: FunctionSource) -> Markup:
    return element("span", f"{function.file}:{function.first}", class_="place")


def _lines(frame: FrameFacts, first_graph: int) -> dict[Location, _Line]:
    """Line -> notes on it."""
    lines: dict[Location, _Line] = defaultdict(_Line)
    graph = first_graph
    for version in frame.versions:
        for operation in version.operations:
            if operation.location is not None:
                lines[operation.location].operations += 1
        for location in version.lines:
            lines[location].graphs.append(graph)
        if version.stop is not None and version.stop.location is not None:
            lines[version.stop.location].breaks.append((graph, version.stop))
        for guard in version.guards:
            if guard.location is not None:
                lines[guard.location].guards.append(guard.text)
        graph += version.has_graph
    for reason in frame.breaks:
        if reason.location is not None:
            lines[reason.location].breaks.append((0, reason))
    for change in frame.recompiles:
        location = change.location or frame.location
        lines[location].recompiles.append(change.text)
    return dict(lines)


def _function(function: FunctionSource, lines: dict[Location, _Line], name: str) -> Markup:
    if not function.lines:
        return element("p", "There is no source: the code was made while the program ran.", class_="quiet")
    indent = min((len(text) - len(text.lstrip()) for text in function.lines if text.strip()), default=0)
    rows = []
    for number, text in enumerate(function.lines, function.first):
        line = lines.get(Location(function.file, number))
        rows.append(_row(number, text[indent:].rstrip("\n"), line, f"{name}-l{number}"))
    return element("div", element("div", rows, class_="lines"), class_="source", tabindex=0)


def _row(number: int, text: str, line: _Line | None, name: str) -> Markup:
    bars = [
        element("i", class_=f"g{graph % COLOURS}", title=f"graph {graph}") for graph in (line.graphs if line else ())
    ]
    flags = (line.breaks and "broken", line.recompiles and "again") if line else ()
    row = element(
        "div",
        element("span", number, class_="no"),
        element("span", bars, class_="bars"),
        element("code", shortened(text, LONGEST_LINE) or " "),
        class_=" ".join(filter(None, ("line", *flags))),
        id=name,
    )
    return joined(row, element("div", _notes(line), class_="notes")) if line and _has_notes(line) else row


def _has_notes(line: _Line) -> bool:
    return bool(line.breaks or line.guards or line.recompiles)


def _notes(line: _Line) -> list[Markup]:
    shown = [show_break(reason) for reason in dict.fromkeys(reason for _, reason in line.breaks)]
    if line.recompiles:
        shown.append(element("div", element("b", "compiled again: "), _list(line.recompiles), class_="note recompile"))
    if line.guards:
        guards = [*dict.fromkeys(line.guards)]
        title = element("summary", plural(len(guards), "guard"))
        shown.append(element("details", title, _list(guards), class_="note guards"))
    return shown


def _list(texts: Sequence[str]) -> Markup:
    more = len(texts) - MAX_NOTES
    items = [element("li", element("code", shortened(text, LONGEST_LINE))) for text in texts[:MAX_NOTES]]
    return element("ul", items, element("li", f"{more} more") if more > 0 else None)


def show_break(reason: BreakFacts) -> Markup:
    """Markup with title, reason and hint of a graph break."""
    return element(
        "div",
        element("b", "graph break: "),
        shortened(reason.title, LONGEST_LINE),
        element("div", shortened(reason.why, LONGEST_LINE)) if reason.why else None,
        element("div", element("b", "try: "), shortened(reason.hint, LONGEST_LINE), class_="try")
        if reason.hint
        else None,
        class_="note break",
    )


def _elsewhere(lines: dict[Location, _Line], name: str) -> Markup:
    """Markup with the notes on lines whose source is not shown."""
    rows = []
    for number, (location, line) in enumerate(lines.items()):
        what = plural(line.operations, "operation") if line.operations else ""
        head = element("div", element("code", str(location)), " ", what, class_="elsewhere", id=f"{name}-e{number}")
        rows.append(joined(head, element("div", _notes(line), class_="notes")))
    breaks = any(line.breaks for line in lines.values())
    title = element("summary", f"{plural(len(lines), 'line')} of other files")
    return element("details", title, rows, open=breaks, class_="others")


def location_list(notes: Sequence[Noted]) -> Markup:
    """Markup for lines of Python with their file and line number."""
    return element(
        "pre",
        element("code", "\n".join(f"{note.text}{f'  # {note.location}' if note.location else ''}" for note in notes)),
        tabindex=0,
    )
