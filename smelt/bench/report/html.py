"""Renders sections, plots and rows as one HTML page that needs no other file and no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from smelt.bench.report.compare import Comparison
from smelt.bench.report.plots import cold_plot, speedup_plot
from smelt.bench.report.rows import HEADS, LEFT, NOTE, Lines, about_lines, entries, entry_cells, stage_lines
from smelt.bench.report.sections import Section, comparison_sections, headline, report_sections
from smelt.bench.report.summary import TALLIES, find_judged, merge, tally
from smelt.bench.results import Benchmark, Result, Row
from smelt.bench.tables import LEGEND

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1f2328; --soft: #59636e; --line: #d0d7de; --wash: #f6f8fa;
  --bad: #c92a2a; --rival: #1c7ed6; --series-0: #d9480f; --series-1: #2b8a3e; --series-2: #862e9c; --series-3: #5c940d }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #e6edf3; --soft: #9198a1; --line: #3d444d;
  --wash: #151b23; --bad: #ff8787; --rival: #74c0fc; --series-0: #ff922b; --series-1: #69db7c; --series-2: #da77f2;
  --series-3: #c0eb75 } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 84rem; margin: 2rem auto; padding: 0 1rem;
  background: var(--paper); color: var(--ink) }
h2 { margin: 2.2rem 0 .4rem } p { max-width: 60rem } .soft { color: var(--soft) } .lead { font-size: 1.1rem }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); vertical-align: top }
.left { text-align: left; overflow-wrap: anywhere } th { white-space: nowrap; cursor: pointer; background: var(--wash) }
th[aria-sort=ascending]::after { content: " \\2191" } th[aria-sort=descending]::after { content: " \\2193" }
.bad { color: var(--bad) } svg { max-width: 100%; height: auto } svg text { fill: var(--ink) }
input { font: inherit; padding: .3rem .6rem; width: 24rem; max-width: 100%; margin: .4rem 0 }
button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; text-align: left;
  text-decoration: underline dotted }
.more td { text-align: left; background: var(--wash) } .more h4 { margin: .6rem 0 .1rem } .more p { margin: .1rem 0 }
pre { white-space: pre-wrap; margin: .2rem 0; max-height: 20rem; overflow: auto }
"""

SCRIPT = """
for (const more of document.querySelectorAll(".more")) more.hidden = true;
document.addEventListener("click", (event) => {
  const button = event.target.closest("button"), head = event.target.closest("th");
  if (button) {
    const more = button.closest("tbody").querySelector(".more");
    more.hidden = !more.hidden;
    button.setAttribute("aria-expanded", String(!more.hidden));
  } else if (head) sort(head);
});
function sort(head) {
  const table = head.closest("table"), up = head.getAttribute("aria-sort") !== "ascending", sign = up ? 1 : -1;
  for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const text = (body) => body.rows[0].cells[head.cellIndex].textContent.trim();
  const number = head.classList.contains("left") ? () => NaN : parseFloat;
  const bodies = Array.from(table.tBodies).sort((a, b) => {
    const x = text(a), y = text(b);
    if (!x || !y) return (x ? 0 : 1) - (y ? 0 : 1);
    return sign * (number(x) - number(y) || x.localeCompare(y, undefined, { numeric: true }));
  });
  table.append(...bodies);
}
document.getElementById("filter")?.addEventListener("input", (event) => {
  const words = event.target.value.toLowerCase().split(/\\s+/);
  for (const body of document.querySelectorAll("#rows tbody")) {
    const text = body.textContent.toLowerCase();
    body.hidden = !words.every((word) => text.includes(word));
  }
});
"""


def report_html(benchmarks: Sequence[Benchmark], comparison: Comparison | None = None) -> str:
    """Returns the report on all runs as one page, after the comparison if there is one."""
    rows, replaced = merge(benchmarks)
    blocks = [section_html(section) for section in comparison_sections(comparison)] if comparison else []
    blocks += [f'<p class="lead">{escape(line)}</p>' for line in headline(rows)]
    blocks += plots_html(rows)
    sections = [section_html(section) for section in report_sections(rows, benchmarks, replaced)]
    blocks += [*sections[:-1], rows_html(rows), sections[-1], f'<p class="soft">{escape(LEGEND)}</p>']
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>smelt bench</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>Benchmark report</h1>\n{''.join(blocks)}"
        '<p class="soft">Made by <code>smelt bench report</code>.</p>'
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def plots_html(rows: Sequence[Row]) -> list[str]:
    """Returns the plots for which there are figures."""
    name = find_judged(rows)
    plots = {
        "Speed-ups over eager": speedup_plot(rows),
        "Cold start": cold_plot(rows, name) if name else None,
    }
    return [f'<h2>{escape(title)}</h2>\n<div class="scroll">{svg}</div>\n' for title, svg in plots.items() if svg]


def section_html(section: Section) -> str:
    """Render a heading, the paragraph and a sortable table."""
    text = f"<h2>{escape(section.title)}</h2>\n"
    text += f'<p class="soft">{escape(section.text)}</p>\n' if section.text else ""
    if not section.heads:
        return text
    lines = "".join(f"<tbody>{line_html(line, section.left)}</tbody>\n" for line in section.lines)
    return f'{text}<div class="scroll"><table>{heads_html(section.heads, section.left)}{lines}</table></div>\n'


def heads_html(heads: Sequence[str], left: int) -> str:
    """Render the head of a table whose first `left` columns are text."""
    cells = (f"<th{' class=left' if index < left else ''}>{escape(head)}</th>" for index, head in enumerate(heads))
    return f"<thead><tr>{''.join(cells)}</tr></thead>\n"


def line_html(line: Sequence[str], left: int) -> str:
    """Render a line of plain text cells."""
    cells = (f"<td{' class=left' if index < left else ''}>{escape(cell)}</td>" for index, cell in enumerate(line))
    return f"<tr>{''.join(cells)}</tr>"


def rows_html(rows: Sequence[Row]) -> str:
    """Render every row and contender, with a filter, and the details of each below a button."""
    if not rows:
        return ""
    bodies = "".join(entry_html(*entry) for entry in entries(rows))
    table = f'<table id="rows">{heads_html(HEADS, LEFT)}{bodies}</table>'
    field = '<input id="filter" type="search" placeholder="filter by words" aria-label="filter rows">'
    return f'<h2>Rows</h2>\n<p class="soft">{escape(NOTE)}</p>\n{field}\n<div class="scroll">{table}</div>\n'


def entry_html(row: Row, result: Result, other: str) -> str:
    """Render one contender on one row: a line, and its details. `other` is the contender with which starts are
    compared.
    """
    model, *rest = entry_cells(row, result, other)
    cells = [f'<td class=left><button aria-expanded="false">{escape(model)}</button></td>']
    for index, cell in enumerate(rest, 1):
        marks = ["left"] if index < LEFT else []
        marks += ["bad"] if index == HEADS.index("status") and cell not in ("pass", "skipped") else []
        cells.append(f'<td class="{" ".join(marks)}">{escape(cell)}</td>')
    details = details_html(row, result, other)
    return f'<tbody><tr>{"".join(cells)}</tr><tr class="more"><td colspan="{len(HEADS)}">{details}</td></tr></tbody>\n'


def details_html(row: Row, result: Result, other: str) -> str:
    """Render all figures of one contender on one row."""
    blocks = [_list(about_lines(row, result, other))]
    if result.error:
        blocks.append(f"<h4>{escape(result.status)}</h4><pre>{escape(result.error)}</pre>")
    if result.accuracy and result.accuracy.failures:
        blocks.append(f"<h4>Wrong results</h4><pre>{escape(chr(10).join(result.accuracy.failures))}</pre>")
    if result.accuracy and result.accuracy.unlucky:
        text = escape("\n".join(result.accuracy.unlucky))
        blocks.append(f"<h4>Off with the first seed, right with two others</h4><pre>{text}</pre>")
    for key, title in TALLIES.items():
        if found := tally(result, key):
            blocks.append(f"<h4>{title}</h4>{_list([(text, str(n)) for text, n in found.most_common()])}")
    if stages := stage_lines(result.counts):
        blocks.append(f"<h4>Compile time by stage</h4>{_list(stages)}")
    return "".join(blocks)


def _list(lines: Lines) -> str:
    return "".join(f"<p>{escape(head)}: {escape(text)}</p>" for head, text in lines)
