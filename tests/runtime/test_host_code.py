"""Host programs are executed in pieces, and their code is kept: for the same text and interpreter, and undamaged."""

from __future__ import annotations

import ast
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from smelt.base.store import store
from smelt.runtime import host_code as module
from smelt.runtime.host_code import FILE, MIN_STORED_CHARS, PIECE, from_bytes, host_code, pieces, to_bytes

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


SOURCE = HEAD + bindings(400) + LONG + CALL


def run(code: Any) -> dict[str, Any]:
    scope: dict[str, Any] = {"extern": lambda *args: args}
    for each in code:
        exec(each, scope)
    return scope


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The texts that are compiled, with an empty store."""
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    found: list[str] = []
    original = module._compiled
    monkeypatch.setattr(module, "_compiled", lambda source: found.append(source) or original(source))
    return found


def test_kept_code_is_the_text_s(compilations: list[str]) -> None:
    scope = run(host_code(SOURCE, to_bytes(SOURCE)))
    assert scope["call"]([]) is scope["k399"] and scope["call"].__code__.co_filename == FILE
    line = next(number for number, text in enumerate(SOURCE.splitlines(), 1) if text.startswith("def call"))
    assert scope["call"].__code__.co_firstlineno == line
    assert compilations == [SOURCE]  # by `to_bytes` alone


@pytest.mark.parametrize("change", ["text", "interpreter", "payload", "digest", "cut off", "empty", "longer"])
def test_code_of_another_text_or_interpreter_and_damaged_code_are_not_used(change: str) -> None:
    kept, source = to_bytes(SOURCE), SOURCE
    at = {"interpreter": 0, "digest": 40, "payload": len(kept) - 9}.get(change)
    if at is not None:
        kept = kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :]
    elif change == "text":
        source = SOURCE.replace("groups': 1", "groups': 2")
    else:
        kept = {"cut off": kept[:-1], "empty": b"", "longer": kept + b"0"}[change]
    assert from_bytes(kept, source) is None
    assert run(host_code(source, kept))["k0"][1]["groups"] == (2 if change == "text" else 1)


def test_a_long_text_is_compiled_once_for_all_processes(compilations: list[str]) -> None:
    assert len(SOURCE) >= MIN_STORED_CHARS
    for _ in range(2):
        assert len(run(host_code(SOURCE))["places"]) == 500
    assert compilations == [SOURCE]
    (entry,) = (path for path in store().root.glob("host/*/*.code"))
    entry.write_bytes(b"")
    with pytest.warns(UserWarning, match="damaged"):
        assert len(run(host_code(SOURCE))["places"]) == 500
    assert compilations == [SOURCE] * 2


def test_a_short_text_is_not_kept(compilations: list[str]) -> None:
    host_code("x = 1")
    host_code("x = 1")
    assert len(compilations) == 2 and not store().root.joinpath("host").exists()


def test_errors_are_python_s() -> None:
    with pytest.raises(SyntaxError):
        host_code("def call(:")
