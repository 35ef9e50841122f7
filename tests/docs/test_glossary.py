"""The glossary stays short, and each of its terms says where it is at home."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \| `(?P<file>[^`|]+)` \|$")


def test_it_has_at_most_forty_terms_a_line_each() -> None:
    lines = [line for line in (ROOT / "docs/glossary.md").read_text().splitlines() if line.startswith("| ")]
    rows = [ROW.match(line) for line in lines[1:]]
    assert all(rows) and 20 <= len(rows) <= 40
    terms = [row["term"] for row in rows if row]
    assert len({*terms}) == len(terms)
    missing = [row["file"] for row in rows if row and not (ROOT / "smelt" / row["file"]).exists()]
    assert not missing
