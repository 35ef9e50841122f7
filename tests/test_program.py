"""Host programs are executed in pieces: what a text's syntax tree takes does not grow with the text."""

from __future__ import annotations

import ast
import tracemalloc

import pytest

from smelt.program import PIECE, pieces

HEAD = '"""A program."""\n\n'
BINDING = "k{0} = extern('convolution', {{'stride': (1, 1), 'groups': 1}}, [((2, 16, 8, 8), (1024, 64, 8, 1))])\n"
LONG = "places = [\n" + "".join(f"    ({i}, 'float32'),\n" for i in range(500)) + "]\n"
CALL = "def call(inputs):\n" + "".join(f"    x{i} = k{i}\n" for i in range(400)) + "\n    return x399\n"


def bindings(count: int) -> str:
    return "".join(BINDING.format(i) for i in range(count))


def test_the_pieces_are_the_program() -> None:
    source = HEAD + bindings(400) + LONG + "\n" + CALL
    found = [*pieces(source)]
    assert len(found) > 3 and "".join(piece.lstrip("\n") for piece in found).replace("\n", "") == source.replace(
        "\n", ""
    )
    scope = {"extern": lambda *args: args}
    for piece in found:
        exec(compile(piece, "<test>", "exec"), scope)
    assert scope["call"]([]) is scope["k399"] and len(scope["places"]) == 500


def test_statements_stay_whole_and_on_their_lines() -> None:
    source = HEAD + bindings(100) + LONG + CALL
    statements = [node for piece in pieces(source) for node in ast.parse(piece).body]
    assert [(type(s), s.lineno, s.end_lineno) for s in statements] == [
        (type(s), s.lineno, s.end_lineno) for s in ast.parse(source).body
    ]


@pytest.mark.parametrize("source", ["", "\n", HEAD, "x = 1"])
def test_short_texts_are_one_piece(source: str) -> None:
    assert [*pieces(source)] == [source]


def test_memory_does_not_grow_with_the_number_of_statements() -> None:
    def peak(count: int) -> int:
        tracemalloc.start()
        for piece in pieces(bindings(count)):
            compile(piece, "<test>", "exec")
        found = tracemalloc.get_traced_memory()[1] - 2 * count * len(BINDING)  # the lines themselves
        tracemalloc.stop()
        return found

    least = PIECE // len(BINDING) + 2
    assert peak(20 * least) < 2 * peak(2 * least)
