"""smelt/autograd/call/backward_notes.py: an error in a compiled backward names the line of the forward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import smelt

FAILS: list[bool] = []


@pytest.fixture
def ops() -> Iterator[Any]:
    """An operator of the program whose backward is an operator that fails when it is told to."""
    with torch.library._scoped_library("smelt_test_notes", "DEF") as lib:
        lib.define("there(Tensor x) -> Tensor")
        lib.define("back(Tensor g) -> Tensor")

        def back(g: torch.Tensor) -> torch.Tensor:
            if FAILS:
                raise ValueError("planted")
            return g * 2

        for name, fn in (("there", lambda x: x * 2), ("back", back)):
            lib.impl(name, fn, "CPU")
            torch.library.register_fake(f"smelt_test_notes::{name}", torch.empty_like, lib=lib)
        torch.library.register_autograd(
            "smelt_test_notes::there", lambda ctx, g: torch.ops.smelt_test_notes.back(g), lib=lib
        )
        yield torch.ops.smelt_test_notes
    FAILS.clear()


@pytest.mark.parametrize("sizes", [(3,), (3, 4)], ids=["static", "symbolic"])
def test_the_line_is_noted(ops: Any, sizes: tuple[int, ...]) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y = ops.there(y)
        return y.exp().sum()

    line = fn.__code__.co_firstlineno + 2
    compiled = smelt.compile(fn)
    for n in sizes:
        compiled(torch.randn(n, requires_grad=True)).backward()
    loss = compiled(torch.randn(sizes[-1], requires_grad=True))
    FAILS.append(True)
    with pytest.raises(ValueError, match="planted") as found:
        loss.backward()
    (note,) = found.value.__notes__
    assert f"test_backward_notes.py:{line} " in note and "backward" in note


def test_other_errors_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = smelt.compile(lambda x: (x * x).sin().sum())
    x = torch.nn.Parameter(torch.randn(3))
    loss = compiled(x)
    x.data = torch.randn(3, 3)
    with pytest.raises(Exception) as found:
        loss.backward()
    assert not getattr(found.value, "__notes__", [])
