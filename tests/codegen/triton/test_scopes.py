"""Lines of a Triton function: what varies along the walked axis stands in the loop, all else before it."""

from __future__ import annotations

import torch

from smelt.codegen.triton.scopes import TileScopes

ROWS, COLUMNS = 1, 2


def test_lines_are_emitted_in_the_loops_of_their_axes() -> None:
    scopes = TileScopes()
    scopes.open()
    scopes.walked = COLUMNS
    outer = scopes.define("", "tl.load(a0 + x0)", torch.float32, ROWS)
    inner = scopes.define("", "tl.load(a1 + r0)", torch.float32, ROWS | COLUMNS)
    scopes.later("tl.store(a2 + x0, t0)", ROWS)
    scopes.later("tl.store(a3 + r0, t1)", COLUMNS)
    assert (outer.text, inner.text) == ("t0", "t1")
    assert scopes.finish() == ["t0 = tl.load(a0 + x0)", "tl.store(a2 + x0, t0)"]
    assert scopes.finish(1) == ["t1 = tl.load(a1 + r0)", "tl.store(a3 + r0, t1)"]


def test_equal_texts_of_one_dtype_are_one_value() -> None:
    scopes = TileScopes()
    first = scopes.define("", "x + 1", torch.int32, ROWS)
    assert scopes.define("", "x + 1", torch.int32, ROWS) is first
    assert scopes.define("", "x + 1", torch.int64, ROWS) is not first
    assert scopes.finish() == ["t0 = x + 1", "t1 = x + 1"]
