"""Parameters of a kernel in order of their first use, and the text of sizes."""

from __future__ import annotations

import re

import pytest

from smelt.codegen.parameters import Arguments, SizeRenderer
from smelt.codegen.scope import Scopes
from smelt.shapes.assumptions import Assumptions
from smelt.shapes.size import Size, evaluate, floordiv, modulo, symbols
from tests.codegen.c_text import value_of


def test_names_follow_the_first_use() -> None:
    made = Arguments()
    assert [made.pointer(name) for name in ("x", "y", "x", "out")] == ["a0", "a1", "a0", "a2"]
    assert [made.stream(number) for number in (7, 3, 7)] == ["u0", "u1", "u0"]
    assert (made.buffers, made.streams) == (["x", "y", "out"], [7, 3])


@pytest.mark.parametrize("hints", [(4, 7), (2, 2), (9, 2)])
def test_the_text_of_a_size_gives_its_value(hints: tuple[int, int]) -> None:
    known = Assumptions()
    a, b = (known.symbol(hint) for hint in hints)
    assert isinstance(a, Size) and isinstance(b, Size)
    for size in (a, a * b, 3 * a - b + 2, floordiv(a * 5 + 1, 3) * b, modulo(a + b, 4), floordiv(a - 5 * b, 7)):
        scopes, arguments = Scopes(), Arguments()
        render = SizeRenderer(scopes, arguments)
        text = render.size(size)
        given = {f"z{i}": hints[(a, b).index(_size_of(symbol, (a, b)))] for i, symbol in enumerate(arguments.symbols)}
        for line in scopes.stack[0].lines:
            found = re.fullmatch(r"const int64_t (\w+) = (.*);", line)
            assert found is not None
            given[found[1]] = value_of(found[2], given)
        values = dict(zip([*symbols(a), *symbols(b)], hints, strict=True))
        assert value_of(text, given) == evaluate(size, values)
        assert render.size(size) == text and len(scopes.stack[0].lines) == len(given) - len(arguments.symbols)
        assert value_of(render.whole_size(size), given) == evaluate(size, values)


def _size_of(symbol: object, sizes: tuple[Size, ...]) -> Size:
    return next(size for size in sizes if symbol in symbols(size))


def test_numbers_are_written_as_they_are() -> None:
    scopes = Scopes()
    render = SizeRenderer(scopes, Arguments())
    assert (render.size(12), render.int_size(12), render.whole_size(12)) == ("12", "12", "(12)")
    assert scopes.stack[0].lines == []
