"""Shows the programs of graphs on the page: a picture, kernels with sources and measurements, memory after each
step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from smelt.abi.ceilings import Ceilings, bound_of_program
from smelt.abi.program_facts import ProgramFacts, Unit
from smelt.abi.steps import Origin, Timing, label
from smelt.page.markup import Markup, bytes_text, element, joined, number_text, plural, seconds_text, shortened
from smelt.page.picture import MAX_BOXES, Box, draw_program, draw_steps

INLINE_CHARACTERS = 2_000_000
"""Number of characters of sources on a page above which a source that was shown before is replaced by a link."""

LONGEST_SOURCE = 200_000


class Sources:
    """The texts of kernels that one page has shown, and the elements that show them."""

    def __init__(self) -> None:
        self.characters = 0
        self.shown: dict[str, str] = {}

    def show(self, text: str, where: str) -> Markup:
        """The text as markup, or a link to the element that has shown it (see INLINE_CHARACTERS)."""
        known = self.shown.get(text)
        if known is not None and self.characters > INLINE_CHARACTERS:
            return element("p", "the same source as ", element("a", "another kernel", href=f"#{known}"))
        self.shown.setdefault(text, where)
        self.characters += len(text)
        return element("pre", element("code", shortened(text, LONGEST_SOURCE)), tabindex=0)


def show_program(program: ProgramFacts, name: str, sources: Sources, ceilings: Ceilings | None = None) -> Markup:
    """Markup for one program; the ids of its elements begin with `name`.

    Args:
        ceilings: what the program's device can do at most; None: not known.
    """
    timed = [unit.step.timing for unit in program.units if unit.step.timing is not None]
    spent = sum(timing.least_ns for timing in timed) / 1e9
    kernels = sum(unit.kind != "library call" for unit in program.units)
    facts = [
        plural(kernels, "kernel"),
        plural(len(program.units) - kernels, "library call"),
        f"{program.target}",
        f"{seconds_text(spent)} in them" if spent else "",
        "sizes are those of the first call" if program.symbolic else "",
    ]
    picture = element("div", draw_program(_boxes(program, name)), class_="scroll picture", tabindex=0)
    more = len(program.units) - MAX_BOXES
    rows = [_unit(program, unit, number, name, sources, ceilings) for number, unit in enumerate(program.units)]
    return element(
        "div",
        element("h4", program.name.replace("_", " ")),
        element("p", ", ".join(filter(None, facts)), class_="quiet"),
        _limit(program, ceilings) if ceilings is not None and spent else None,
        picture,
        element("p", f"{more} more steps are in the list alone", class_="quiet") if more > 0 else None,
        _folded(element("div", _heads(), rows, class_="units"), len(rows)),
        _memory(program),
        class_="program",
    )


MAX_OPEN = 60
"""Maximum number of steps of a program that are listed without a click."""


def _folded(units: Markup, count: int) -> Markup:
    return units if count <= MAX_OPEN else element("details", element("summary", f"all {count} steps"), units)


def slowest(programs: Sequence[tuple[str, ProgramFacts]], most: int = 10) -> Markup | None:
    """A table of the steps that take most time, by operators and lines, with links.

    Args:
        programs: (prefix of the ids, program).
        most: maximum number of rows.
    """
    spent: dict[tuple[str, str], _OperatorTime] = {}
    for name, program in programs:
        for number, unit in enumerate(program.units):
            timing = unit.step.timing
            if timing is not None and timing.calls:
                spent.setdefault((_operators(unit), _lines(unit)), _OperatorTime()).add(timing, _id(name, number))
    if not spent:
        return None
    total = sum(each.seconds for each in spent.values())
    shown = [
        element(
            "li",
            element("a", element("b", operators), " ", element("small", lines), href=f"#{each.link}"),
            f" {seconds_text(each.seconds)} ({100 * each.seconds / total:.0f} %) in {plural(each.calls, 'call')}",
            f" of {plural(each.steps, 'step')}" if each.steps > 1 else None,
        )
        for (operators, lines), each in sorted(spent.items(), key=lambda item: -item[1].seconds)[:most]
    ]
    return element("ol", shown, class_="slowest")


@dataclass
class _OperatorTime:
    """Total time of the steps with the same operators and lines; `link` leads to the slowest step."""

    seconds: float = 0.0
    calls: int = 0
    steps: int = 0
    most: float = -1.0
    link: str = ""

    def add(self, timing: Timing, link: str) -> None:
        seconds = timing.total_ns / 1e9
        self.seconds, self.calls, self.steps = self.seconds + seconds, self.calls + timing.calls, self.steps + 1
        if seconds > self.most:
            self.most, self.link = seconds, link


def _boxes(program: ProgramFacts, name: str) -> list[Box]:
    makers: dict[str, int] = {}
    boxes = []
    for number, unit in enumerate(program.units):
        sources = sorted({makers[value] for value in unit.reads if value in makers})
        boxes.append(Box(_kind(unit), _operators(unit), _lines(unit), _title(unit), _id(name, number), tuple(sources)))
        makers |= dict.fromkeys(unit.makes, number)
    return boxes


def _id(name: str, number: int) -> str:
    return f"{name}-k{number}"


def _kind(unit: Unit) -> str:
    return "library" if unit.kind == "library call" else unit.kind


def _operators(unit: Unit) -> str:
    names = dict.fromkeys(origin.operator for origin in unit.step.origins)
    return "+".join(names) or unit.name


def _lines(unit: Unit) -> str:
    locations = dict.fromkeys(os.path.basename(str(origin.at)) for origin in unit.step.origins if origin.at is not None)
    first = next(iter(locations), "")
    backward = " backward" if any(origin.backward for origin in unit.step.origins) else ""
    return first + (f" and {len(locations) - 1} more" if len(locations) > 1 else "") + backward


def _title(unit: Unit) -> str:
    return f"{unit.kind} {unit.name}: {label(unit.step.origins)}"


def _limit(program: ProgramFacts, ceilings: Ceilings) -> Markup:
    """The least time that the machine needs for the program, what bounds it, and the measured time."""
    bound = bound_of_program(program, ceilings)
    bounds = f"{seconds_text(bound.arithmetic)} of arithmetic, {seconds_text(bound.memory)} of memory"
    between = f", {seconds_text(bound.between)} of them between the steps" if bound.between else ""
    text = f"at least {seconds_text(bound.limit)} on this machine ({bounds}); a call takes "
    share = f"{seconds_text(bound.seconds)}{between}: "
    return element("p", text, share, element("b", f"{100 * bound.share:.0f} % of the limit"), class_="limit")


def _heads() -> Markup:
    names = ("computes", "time", "bytes", "flops", "GB/s", "of limit")
    return element("div", [element("span", name) for name in names], class_="unit heads", aria_hidden="true")


def _unit(
    program: ProgramFacts, unit: Unit, number: int, name: str, sources: Sources, ceilings: Ceilings | None
) -> Markup:
    moved = unit.bytes_read + unit.bytes_written
    timing = unit.step.timing
    least = timing.least_ns / 1e9 if timing is not None and timing.calls else 0.0
    head = element(
        "summary",
        element("span", element("b", _operators(unit)), " ", element("small", _lines(unit))),
        element("span", seconds_text(least) if least else "not run", data_is="time"),
        element("span", bytes_text(moved), data_is="bytes"),
        element("span", number_text(unit.flops) if unit.flops else "–", data_is="flops"),
        element("span", f"{moved / least / 1e9:.3g}" if least else "–", data_is="GB/s"),
        element("span", _share(unit, least, ceilings), data_is="of limit"),
        class_="unit",
    )
    where = _id(name, number)
    text = program.sources.get(unit.source, "")
    body = element(
        "div",
        element("div", id=where, class_="anchor"),
        element("p", _facts(unit)),
        element("ul", [element("li", _of_line(each)) for each in unit.step.origins], class_="origins"),
        _values("reads", unit.reads, program),
        _values("writes", unit.makes, program),
        sources.show(text, where)
        if text
        else element("p", "no kernel of smelt's: a library computes it", class_="quiet"),
        class_="inside",
    )
    return element("details", head, body, class_=f"kernel {_kind(unit)}")


def _share(unit: Unit, seconds: float, ceilings: Ceilings | None) -> str:
    """The shortest possible time of a unit as a share of its time, such as `83 %`."""
    return f"{100 * ceilings.bound(unit).seconds / seconds:.0f} %" if ceilings is not None and seconds else "–"


def _facts(unit: Unit) -> str:
    timing = unit.step.timing
    facts = [f"{unit.kind} {unit.name}", unit.shape]
    facts.append(f"reads {bytes_text(unit.bytes_read)}, writes {bytes_text(unit.bytes_written)}")
    if timing is not None and timing.calls:
        mean = seconds_text(timing.total_ns / timing.calls / 1e9)
        facts.append(f"{plural(timing.calls, 'call')}, the quickest {seconds_text(timing.least_ns / 1e9)}, mean {mean}")
    return "; ".join(filter(None, facts))


def _of_line(origin: Origin) -> Markup:
    backward = " backward" if origin.backward else ""
    return joined(element("code", origin.operator), backward, f" at {origin.at}" if origin.at is not None else None)


def _values(title: str, names: Sequence[str], program: ProgramFacts) -> Markup | None:
    if not names:
        return None
    shown = [joined(element("code", name), f" {program.types.get(name, '')}") for name in names[:40]]
    items = [joined(", ", each) if i else each for i, each in enumerate(shown)]
    return element("p", element("b", title), " ", items, f" and {len(names) - 40} more" if len(names) > 40 else None)


def _memory(program: ProgramFacts) -> Markup | None:
    if not any(program.memory):
        return None
    peak = max(program.memory)
    at = program.memory.index(peak)
    text = f"most: {bytes_text(peak)} after step {at + 1} of {len(program.memory)}"
    text += f"; intermediates share a block of {bytes_text(program.arena)}" if program.arena else ""
    curve = draw_steps(program.memory, [(at, "")], "bytes of intermediates and results after each step")
    return element("div", element("h5", "memory, step by step"), curve, element("p", text, class_="quiet"))
