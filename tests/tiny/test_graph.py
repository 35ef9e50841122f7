"""What a graph must hold, and the errors of graphs that do not."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from smelt.tiny.graph import MAX_BIAS, Clamp, Conv, GraphError, Int8Graph, Parameter, Tensor, updated_channels


def small(**changes: object) -> Int8Graph:
    """A convolution and a clamp; `changes` are of the convolution."""
    weight = Parameter("w", np.ones((4, 3, 3, 2), np.int8), np.full(4, 0.5, np.float32))
    conv = Conv("conv", "x", "y", weight, Parameter("b", np.zeros(4, np.int32)), (3, 3), 2, (1, 1))
    tensors = [
        Tensor("x", (5, 6, 2), scale=0.1),
        Tensor("y", (3, 3, 4), scale=0.2, zero=-5),
        Tensor("z", (3, 3, 4), scale=0.2, zero=-5),
    ]
    operators = (dataclasses.replace(conv, **changes), Clamp("relu", "y", "z", -5, 127))  # type: ignore[arg-type]
    return Int8Graph("small", {t.name: t for t in tensors}, operators, "x", "z")


def test_a_graph_that_holds_the_rules() -> None:
    small().verify()
    assert small().macs() == 3 * 3 * 4 * 9 * 2
    assert [layer.name for layer in small().layers] == ["conv"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"stride": 1}, r"its result is \(5, 6, 4\)"),
        ({"x": "z"}, "nothing before it makes"),
        ({"low": 5, "high": 5}, "bounded by 5 and 5"),
        ({"weight": Parameter("w", np.ones((4, 3, 3, 1), np.int8), np.ones(4, np.float32))}, "its weights are"),
        ({"weight": Parameter("w", np.ones((4, 3, 3, 2), np.int8), np.zeros(4, np.float32))}, "not positive"),
        ({"weight": Parameter("w", np.ones((4, 3, 3, 2), np.int8))}, "need a float32 scale"),
        ({"bias": Parameter("b", np.full(4, MAX_BIAS + 1, np.int32))}, "its bias leaves the range"),
        ({"bias": Parameter("b", np.zeros(4, np.int64))}, "not int32"),
    ],
)
def test_a_broken_rule_is_an_error(changes: dict[str, object], told: str) -> None:
    with pytest.raises(GraphError, match=told):
        small(**changes).verify()


def test_tensors_with_impossible_scales_are_refused() -> None:
    graph = small()
    graph.tensors["y"] = Tensor("y", (3, 3, 4), scale=float("nan"))
    with pytest.raises(GraphError, match="scale nan"):
        graph.verify()


def test_parameters_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        small().layers[0].weight.data[0] = 1


@pytest.mark.parametrize(("ratio", "count"), [(1, 48), (Fraction(1, 4), 12), (1 / 3, 16), (0.001, 1), (0.51, 24)])
def test_ratios_of_a_scheme_count_channels(ratio: float, count: int) -> None:
    assert updated_channels(48, ratio) == count
