"""Renders sections as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from smelt.bench.report.compare import Comparison
from smelt.bench.report.rows import HEADS, LEFT, NOTE, entries, entry_cells
from smelt.bench.report.sections import Section, comparison_sections, headline, report_sections
from smelt.bench.report.summary import merge
from smelt.bench.results import Benchmark
from smelt.bench.tables import LEGEND


def report_markdown(benchmarks: Sequence[Benchmark], comparison: Comparison | None = None) -> str:
    """Returns the report on all runs as one Markdown text, after the comparison if there is one."""
    rows, replaced = merge(benchmarks)
    blocks = ["# Benchmark report\n"]
    if comparison is not None:
        blocks += [section_markdown(section) for section in comparison_sections(comparison)]
    blocks.append("\n".join(f"- {escape(line)}" for line in headline(rows)) + "\n")
    blocks += [section_markdown(section) for section in report_sections(rows, benchmarks, replaced)]
    lines = [entry_cells(*entry) for entry in entries(rows)]
    blocks += [section_markdown(Section("Rows", NOTE, HEADS, lines, LEFT))] if lines else []
    return "\n".join([*blocks, LEGEND]) + "\n"


def comparison_markdown(comparison: Comparison) -> str:
    """Returns the comparison alone."""
    return "\n".join(section_markdown(section) for section in comparison_sections(comparison))


def section_markdown(section: Section) -> str:
    """Render a heading, the paragraph and the table."""
    text = f"## {escape(section.title)}\n"
    text += f"\n{escape(section.text)}\n" if section.text else ""
    if not section.heads:
        return text
    rule = tuple("---" if index < section.left else "---:" for index in range(len(section.heads)))
    lines = [section.heads, rule, *map(_escaped, section.lines)]
    return text + "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _escaped(line: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(escape(cell) for cell in line)


def escape(text: str) -> str:
    """Escape text so that it is one cell of a table and is shown unchanged."""
    return re.sub(r"([\\`*|<\[\]]|_(?!\w)|(?<!\w)_)", r"\\\1", " ".join(text.split()))
