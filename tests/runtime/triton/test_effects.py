"""What a kernel reads and writes, from its text."""

from __future__ import annotations

import pytest

from smelt.runtime.triton.effects import kernel_effects
from tests.runtime.triton_sources import ADD, ROWS

HEAD = "import triton\nimport triton.language as tl\n\n"


def effects(body: str, head: str = "") -> tuple[str, str]:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    found = kernel_effects(f"{HEAD}{head}\n@triton.jit\ndef kernel(a, b, c, n, B: tl.constexpr):\n{lines}")
    return "".join(sorted(found.reads)), "".join(sorted(found.writes))


def test_whole_kernels() -> None:
    for text, expected in ((ADD, ({"a", "b"}, {"out"})), (ROWS, ({"a"}, {"out"}))):
        assert tuple(found & {"a", "b", "out"} for found in kernel_effects(text)) == expected


@pytest.mark.parametrize("body,reads,writes", [
    ("tl.store(a, tl.load(a) + 1)", "a", "a"),
    ("x = a + n\ny = x\ntl.store(y + 1, tl.load(b))", "b", "an"),
    ("tl.atomic_add(a + tl.load(b), 1.0)", "ab", "a"),
    ("for i in range(n):\n    p = q\n    q = a + i\n    tl.store(p, 1)", "", "an"),
    ("p = a if n else b\ntl.store(p, 0)", "", "abn"),
    ("p: tl.tensor = a\np += 1\ntl.load(pointer=p)", "a", ""),
    ("p, q = a, b\ntl.load(p)", "ab", ""),
    ("tl.store(tl.make_block_ptr(a, (n,), (1,), (0,), (B,), (0,)), 1)", "", "Ban"),
    ("x = tl.load(b)\ntl.store(a, x, x > 0)", "b", "a"),
    ("(p := a)\ntl.store(tl.advance(p, [1]), 0)", "", "a"),
    ("libdevice.exp(tl.load(a)).to(tl.float32)", "a", ""),
])  # fmt: skip
def test_operations(body: str, reads: str, writes: str) -> None:
    assert effects(body) == ("".join(sorted(reads)), "".join(sorted(writes)))


def test_functions_of_the_module() -> None:
    head = """@triton.jit
def put(where, value):
    tl.store(where, value)

@triton.jit
def add(where, value):
    put(where, tl.load(where) + value)

@triton.jit
def again(p, n):
    again(p, n)

@triton.jit
def moved(p):
    return p + 1
"""
    assert effects("add(a + 1, tl.load(b))", head) == ("ab", "a")
    assert effects("put(value=1, where=moved(c))", head) == ("", "c")
    assert effects("again(b, 1)", head) == ("b", "b")
    assert effects("add(1, 2)", head) == ("", "")
