"""smelt/page/markup.py: whatever a program holds is text on the page."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from smelt.abi.frame_facts import BreakFacts, FrameFacts, FunctionSource, GraphFacts, Location, Noted, RunFacts
from smelt.abi.program_facts import ProgramFacts, Unit
from smelt.abi.steps import Origin, Step
from smelt.page.markup import bytes_text, element, number_text, seconds_text, visible
from smelt.page.page import render

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg onload=alert(1)>",
    "</style><script>alert(1)</script>",
    "</code></pre></details><script>alert(1)</script>",
    "javascript:alert(1)",
    "<!-- --><![CDATA[<script>alert(1)</script>]]>",
    "&lt;script&gt;alert(1)&lt;/script&gt;&#60;script&#62;",
    "\x00\x1b[2J\r\udcff\ufeff",
    "access = '\u202e\u2066user\u2069'",
    "{0}%s${x}`",
]


class Outline(HTMLParser):
    """Elements with their attributes, and the text between them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def outline(page: str) -> Outline:
    found = Outline()
    found.feed(page)
    return found


def run_of(text: str) -> RunFacts:
    """The text in every place that a program reaches."""
    location = Location(text, 3)
    step = Step((Origin(f"{text}:3", text), Origin(f"{text}:4", text, True)))
    units = [
        Unit("kernel", text, step, text, text, (text,), (), 1, 2, 3),
        Unit("library call", text, step, "", "", ("y",), (text,), 1, 2, 3),
    ]
    program = ProgramFacts(text, "C++", units, {text: text}, {text: text}, [1, 2], 3)
    stop = BreakFacts(text, text, text, location)
    graph = GraphFacts([Noted(text, location)], text, [Noted(text, location)], stop, [program], {text: 1.0})
    graph.lines = frozenset([location])
    function = FunctionSource(text, text, 1, (f"def f(x):  # {text}\n", f"    {text}\n", "    return x\n"))
    other = FunctionSource(text, f"{text}2", 1, (), True)
    frame = FrameFacts(
        text, location, [function, other], [graph], [stop], [Noted(text, Location("else", 1))], [text], True
    )
    eager, notes = {text: 1}, [text]
    return RunFacts(text, [frame], [stop], {"graphs": 1}, {text: 1.0}, [], eager, text, notes)


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_text_stays_text(number: int) -> None:
    text = HOSTILE[number]
    harmless = outline(render(run_of("harmless")))
    found = outline(render(run_of(text)))
    assert [tag for tag, _ in found.elements] == [tag for tag, _ in harmless.elements]
    assert [sorted(attributes) for _, attributes in found.elements] == [sorted(a) for _, a in harmless.elements]
    assert not {"script", "iframe", "object", "img", "link", "base"} & {tag for tag, _ in found.elements}
    links = [a["href"] for tag, a in found.elements if tag == "a"]
    assert links and all(link is not None and link.startswith("#") for link in links)
    shown = visible(text)
    times = sum("harmless" in each for each in harmless.texts)  # pictures shorten it, and show the name of a file alone
    assert sum(shown in each for each in found.texts) > 0.8 * times > 30


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    found = outline(render(run_of("x")))
    (policy,) = (a["content"] for tag, a in found.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert not any(key.startswith("on") or key in ("src", "srcset", "style") for _, a in found.elements for key in a)


def test_characters_that_hide_or_turn_others_are_written_out() -> None:
    assert visible("a\u202eb\x00c\td\n") == "a\\u202eb\\x00c\td\n"
    render(run_of("\udcff")).encode()  # can be written


def test_ids_are_there_once_and_links_lead_somewhere() -> None:
    found = outline(render(run_of("x")))
    ids = [a["id"] for _, a in found.elements if "id" in a]
    assert len(ids) == len({*ids})
    assert {a["href"] for tag, a in found.elements if tag == "a"} <= {f"#{each}" for each in ids}


def test_elements() -> None:
    assert element("a", "<", None, ["b", 1], href='"', hidden=True, id=None) == '<a href="&quot;" hidden>&lt;b1</a>'
    assert [bytes_text(n) for n in (0, 999, 1000, 12345678)] == ["0 B", "999 B", "1 kB", "12.3 MB"]
    assert [number_text(n) for n in (0, 1234, 5e9)] == ["0", "1.23 k", "5 G"]
    assert [seconds_text(n) for n in (2, 0.0123, 4.5e-6, 7e-9)] == ["2 s", "12.3 ms", "4.5 us", "7 ns"]


def test_a_run_without_frames_is_reported() -> None:
    assert "Nothing was compiled" in render(RunFacts("x.py", [], []))
    assert "Nothing was compiled" not in render(run_of("x"))
