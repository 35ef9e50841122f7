"""Builds HTML and SVG text; everything but markup made by this module is escaped.

Sources, names and strings on the page come from programs that may be untrusted. An element takes text and other
elements; text is escaped, elements are not.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Union

from smelt.base.text import visible

Child = Union["Markup", str, int, float, None, Iterable["Child"]]


class Markup(str):
    """A string of finished HTML, which is not escaped again."""


VOID = frozenset({"br", "meta", "hr"})
"""Names of HTML elements without an end tag."""


def escaped(text: str) -> str:
    """Text escaped for HTML, also inside of quoted attributes."""
    return html.escape(visible(text), quote=True)


def element(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """`<name attribute="...">children</name>`. In attribute names a trailing `_` is dropped, others become `-`.

    True is an attribute without a value; None and False are left out.
    """
    chunks = [f"<{name}"]
    for key, value in attributes.items():
        shown = key.rstrip("_").replace("_", "-")
        if value is True:
            chunks.append(f" {shown}")
        elif value is not None and value is not False:
            chunks.append(f' {shown}="{escaped(str(value))}"')
    chunks.append(">")
    if name in VOID:
        return Markup("".join(chunks))
    _write(children, chunks)
    chunks.append(f"</{name}>")
    return Markup("".join(chunks))


def joined(*children: Child) -> Markup:
    """Elements and text, concatenated."""
    chunks: list[str] = []
    _write(children, chunks)
    return Markup("".join(chunks))


def _write(child: Child, chunks: list[str]) -> None:
    match child:
        case None:
            pass
        case Markup():
            chunks.append(child)
        case str():
            chunks.append(escaped(child))
        case int() | float():
            chunks.append(escaped(str(child)))
        case _:
            for each in child:
                _write(each, chunks)


def shortened(text: str, most: int) -> str:
    """The text, truncated if it is longer than `most` characters."""
    return text if len(text) <= most else f"{text[:most]} ... ({len(text) - most} more characters)"


def bytes_text(count: float) -> str:
    """A number of bytes as text, such as `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def number_text(count: float) -> str:
    """A number as text, such as `12.3 M`."""
    for unit in ("", " k", " M", " G"):
        if abs(count) < 1000:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g} T"


def seconds_text(seconds: float) -> str:
    """A duration as text, such as `12.3 ms`."""
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"


def plural(count: int, name: str) -> str:
    """A count with its noun, such as `1 graph` or `2 graphs`."""
    return f"{count} {name}{'' if count == 1 else 's'}"
