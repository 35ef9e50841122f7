"""smelt/loops/registry.py: how lowerings are entered, and the two forms of nodes that most of them make."""

from __future__ import annotations

import pytest
import torch

from smelt.graph.ir.meta import TensorMeta, contiguous_stride
from smelt.loops import registry
from smelt.loops.registry import Operand, lowering, pointwise, view
from smelt.shapes.expr import Var, variable


def meta(*shape: int) -> TensorMeta:
    return TensorMeta(shape, torch.float32, contiguous_stride(shape), torch.device("cpu"))


class Loads:
    """A handler that keeps what is loaded."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def load(self, name: str, index: tuple[object, ...]) -> str:
        self.found.append((name, ", ".join(map(str, index))))
        return name


def test_a_lowering_is_entered_under_each_name_and_stays_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "LOWERINGS", {"old": len})

    @lowering("one", "other")
    def double(n: int) -> int:
        return 2 * n

    assert registry.LOWERINGS == {"old": len, "one": double, "other": double} and double(4) == 8
    lowering("old")(double)
    assert registry.LOWERINGS["old"] is double


def test_an_operand_that_is_read_twice_is_one_input() -> None:
    x, y = Operand("x", meta(2, 3)), Operand("y", meta(2, 3))
    made = pointwise("p", meta(2, 3), [y, x, y], lambda ops, index: None, "mul")
    assert (made.name, made.inputs, made.op, made.view) == ("p", ("y", "x"), "mul", False)
    assert x.shape == (2, 3) and made.meta == meta(2, 3)
    assert pointwise("p", meta(), [], lambda ops, index: None, "full").inputs == ()


def test_a_view_is_one_load_at_another_index() -> None:
    i, j = (variable(Var(name, 4)) for name in "ij")
    made = view("v", meta(4, 4), Operand("x", meta(4, 4)), lambda index: (index[1], index[0] + 2), "permute")
    ops = Loads()
    assert made.body(ops, (i, j)) == "x" and ops.found == [("x", "j, i + 2")]
    assert made.view and made.inputs == ("x",) and (made.op, made.meta.shape) == ("permute", (4, 4))
