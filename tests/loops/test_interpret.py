"""smelt/loops/interpret.py: the oracle itself, on hand-written nodes, against numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from smelt.base.errors import CompileError
from smelt.graph.ir.meta import TensorMeta, contiguous_stride
from smelt.loops.interpret import Interpreter, interpret, laid_out, run_node, scattered
from smelt.loops.ir import (
    REFUSE,
    Condition,
    Constant,
    Extern,
    Input,
    Item,
    LoopProgram,
    Output,
    Pointwise,
    Reduction,
    Ref,
    Scatter,
)  # fmt: skip
from smelt.shapes.assumptions import Assumptions
from smelt.shapes.expr import constant
from smelt.shapes.size import as_symbol

X = torch.arange(12.0).reshape(3, 4)


def meta(*shape: Any, dtype: torch.dtype = torch.float32, stride: Sequence[Any] | None = None) -> TensorMeta:
    return TensorMeta(shape, dtype, tuple(stride or contiguous_stride(shape)), torch.device("cpu"))


def element(
    shape: tuple[Any, ...], body: Any, values: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32
) -> Any:
    return run_node(Pointwise("p", meta(*shape, dtype=dtype), tuple(values), body, "test"), values, {})


def test_index_expressions_over_the_space() -> None:
    space = Interpreter({}, (3, 1, 4), {})
    i, one, j = space.index
    got = space.number(i * 5 - j * 2 + 1)
    rows, columns = np.mgrid[:3, :4]
    assert got.dtype is torch.int64 and got.shape == (3, 1, 4)
    np.testing.assert_array_equal(got[:, 0], rows * 5 - columns * 2 + 1)
    np.testing.assert_array_equal(space.number((i * 4 + j) // 3 % 2)[:, 0], (rows * 4 + columns) // 3 % 2)
    assert space.number(one).eq(0).all() and space.number(constant(7)).eq(7).all()


@pytest.mark.parametrize("stride", [(4, 1), (1, 3), (8, 2), (0, 1)])
def test_loads_by_strides_and_by_indices(stride: tuple[int, int]) -> None:
    x = torch.arange(24.0).as_strided((3, 4), stride, 1)
    cases = {
        "as it is": ((3, 4), lambda i: (i[0], i[1]), x),
        "transposed": ((4, 3), lambda i: (i[1], i[0]), x.T),
        "every second, from the first": ((3, 2), lambda i: (i[0], i[1] * 2 + 1), x[:, 1::2]),
        "backwards": ((3, 4), lambda i: (i[0], 3 - i[1]), x.flip(1)),
        "one row for all": ((2, 4), lambda i: (constant(2), i[1]), x[2].expand(2, 4)),
        "a diagonal": ((3,), lambda i: (i[0], i[0]), x.diagonal()),
        "divided": ((12,), lambda i: (i[0] // 4, i[0] % 4), x.reshape(12)),
        "nothing": ((0, 4), lambda i: (i[0], i[1]), x[:0]),
    }
    for name, (shape, place, want) in cases.items():
        got = element(shape, lambda ops, i: ops.load("x", place(i)), {"x": x})  # noqa: B023
        assert torch.equal(got, want), name


def test_loads_of_what_has_no_dimensions_or_no_elements() -> None:
    assert torch.equal(
        element((2, 3), lambda ops, i: ops.load("x", ()), {"x": torch.tensor(5.0)}), torch.full((2, 3), 5.0)
    )
    none = torch.zeros(0, 4)
    assert element((0, 4), lambda ops, i: ops.load("x", i), {"x": none}).shape == (0, 4)

    def padded(ops: Any, i: Any) -> Any:
        behind = [Condition(i[0], 2, None)]
        return ops.masked(behind, lambda: ops.load("x", (i[0] - 2,)), ops.constant(1.5, torch.float32))

    assert element((2,), padded, {"x": torch.zeros(0)}).tolist() == [1.5, 1.5]


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("low", [None, 0, 1, 5])
@pytest.mark.parametrize("high", [None, 4, 7])
def test_elements_outside_of_a_condition_are_not_read(low: int | None, high: int | None, step: int) -> None:
    """The steps count from the lower bound; the places of the others may lie outside of the tensor."""
    first, last = low or 0, 8 if high is None else high
    inside = [n for n in range(first, min(last, 8), step)]
    x = torch.arange(100.0, 100 + len(inside))
    condition = Condition(None, low, high, step)

    def body(ops: Any, i: Any) -> Any:
        here = Condition(i[0], condition.low, condition.high, condition.step)
        return ops.masked([here], lambda: ops.load("x", ((i[0] - first) // step,)), ops.constant(-1, torch.float32))

    got = element((8,), body, {"x": x})
    want = [100.0 + inside.index(n) if n in inside else -1.0 for n in range(8)]
    assert got.tolist() == want


def test_all_conditions_have_to_hold_and_masks_nest() -> None:
    def body(ops: Any, i: Any) -> Any:
        def inner() -> Any:
            here, other = [Condition(i[1], 1, 3)], ops.constant(-1, torch.float32)
            return ops.masked(here, lambda: ops.load("x", (i[0] - 1, i[1] - 1)), other)

        return ops.masked([Condition(i[0], 1, None), Condition(i[0], None, 3)], inner, ops.constant(-2, torch.float32))

    got = element((4, 4), body, {"x": X[:2, :2]})
    assert got.tolist() == [[-2] * 4, [-1, 0, 1, -1], [-1, 4, 5, -1], [-2] * 4]


def test_indirect_indices_wrap_only_where_they_may_be_negative() -> None:
    places = torch.tensor([2, -1, 0, -3], dtype=torch.int32)

    def read(wrap: bool) -> Any:
        return lambda ops, i: ops.load("x", (ops.indirect(ops.load("p", i), 3, wrap), constant(1)))

    assert element((4,), read(True), {"x": X, "p": places}).tolist() == [9, 9, 1, 1]
    assert element((2,), read(False), {"x": X, "p": places[::2]}).tolist() == [9, 1]


def test_operators_conversions_and_refusals() -> None:
    wrong = torch.tensor([False, True, False, False])

    def body(refused: bool) -> Any:
        def element(ops: Any, i: Any) -> Any:
            x = ops.load("x", (constant(1), i[0]))
            half = ops.apply("mul", torch.float32, x, ops.constant(0.5, torch.float32))
            checked = ops.apply(f"{REFUSE}1", torch.float32, half, ops.load("w", i)) if refused else half
            return ops.convert(checked, torch.float32, torch.int32)

        return element

    assert element((4,), body(False), {"x": X, "w": wrong}, torch.int32).tolist() == [2, 2, 3, 3]
    assert element((4,), body(True), {"x": X, "w": wrong & False}, torch.int32).tolist() == [2, 2, 3, 3]
    with pytest.raises(IndexError, match="out of range"):
        element((4,), body(True), {"x": X, "w": wrong}, torch.int32)


@pytest.mark.parametrize("kind", ["sum", "amax", "amin", "prod", "any", "all", "argmax"])
def test_a_fold_ignores_elements_past_the_end(kind: str) -> None:
    """Seven elements as two rows of four: the eighth is none."""
    truth = kind in ("any", "all")
    x = (
        torch.tensor([True] * 7)
        if kind == "all"
        else torch.zeros(7, dtype=torch.bool)
        if truth
        else -1 - torch.arange(7.0)
    )
    whole, dtype = (meta(dtype=x.dtype), x.dtype)
    if kind == "argmax":
        whole = meta(2, dtype=torch.int64)
    if kind == "amin":
        x = -x
    node = Reduction(
        "r", whole, ("x",), lambda ops, i: ops.load("x", (i[0] * 4 + i[1],)), kind, (2, 4),
        (1,) if kind == "argmax" else (0, 1), dtype, (0, 1, 7),
    )  # fmt: skip
    got = run_node(node, {"x": x}, {})
    want = {"sum": -28, "amax": -1, "amin": 1, "prod": -5040, "any": False, "all": True, "argmax": [0, 0]}
    assert got.tolist() == want[kind]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.int64])
def test_the_largest_and_the_smallest_of_what_is_left(dtype: torch.dtype) -> None:
    """What is left out loses to every number of the dtype, the last of all included."""
    for kind in ("amax", "amin"):
        info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        worst = info.min if kind == "amax" else info.max
        x = torch.full((3,), worst, dtype=dtype)
        node = Reduction(
            "r",
            meta(dtype=dtype),
            ("x",),
            lambda ops, i: ops.load("x", (i[0] * 2 + i[1],)),
            kind,
            (2, 2),
            (0, 1),
            dtype,
            (0, 1, 3),
        )
        assert run_node(node, {"x": x}, {}).item() == worst


@pytest.mark.parametrize("accumulate", [True, False])
def test_scatters_over_a_base(accumulate: bool) -> None:
    base, places, values = (
        np.arange(6.0).reshape(2, 3),
        np.array([[0, 2], [5, 1]]),
        np.array([[10.0, 20.0], [30.0, 40.0]]),
    )
    if accumulate:
        places[1, 1] = 2
    node = Scatter(
        "s", meta(2, 3), ("x", "p", "v"), lambda ops, i: ops.load("x", i), (2, 2), lambda ops, i: ops.load("v", i),
        lambda ops, i: ((flat := ops.indirect(ops.load("p", i), 6, False)) // 3, flat % 3), accumulate,
    )  # fmt: skip
    x = torch.tensor(base, dtype=torch.float32)
    given = {"x": x, "p": torch.from_numpy(places), "v": torch.tensor(values, dtype=torch.float32)}
    want = base.reshape(-1).copy()
    np.add.at(want, places, values) if accumulate else want.__setitem__(places, values)
    np.testing.assert_array_equal(run_node(node, given, {}), want.reshape(2, 3))
    assert torch.equal(x, torch.arange(6.0).reshape(2, 3)), "the base stays as it was"
    np.testing.assert_array_equal(scattered(node, x.T.contiguous().T, given, {}), want.reshape(2, 3))


@pytest.mark.parametrize("stride", [(4, 1), (1, 3), (8, 2), (0, 1), (5, 1)])
def test_results_have_the_strides_that_are_asked_for(stride: tuple[int, int]) -> None:
    value = X[:1].expand(3, 4) if stride[0] == 0 else X
    got = laid_out(value, meta(3, 4, stride=stride))
    assert got.stride() == stride and torch.equal(got, value) and got.data_ptr() != value.data_ptr()
    for shape in ((), (0, 4), (1,)):
        assert torch.equal(laid_out(torch.ones(shape), meta(*shape)), torch.ones(shape))


def test_calls_items_constants_and_numbers() -> None:
    known = Assumptions()
    n = known.symbol(4)
    nodes = [
        Input("x", meta(n, 2)),
        Constant("c", meta(2), torch.tensor([3.0, 4.0])),
        Extern(
            "call",
            (meta(n, 2), meta(2)),
            ("x", "c"),
            lambda a, k, b: (a[0] * k, b + k),
            ([Ref("x")], n),
            {"b": Ref("c")},
        ),
        Item("first", meta(n, 2), ("call",), 0),
        Item("second", meta(2), ("call",), 1),
    ]
    outputs = [
        Output("second", meta(2)), Output("first", meta(n, 2, stride=(1, n))), Output(None, None),
        Output(None, None, n * 2 + 1), Output(None, None, 5),
    ]  # fmt: skip
    program = LoopProgram({node.name: node for node in nodes}, outputs, ["x"], [as_symbol(n)])
    x = torch.randn(3, 2)
    second, first, *numbers = interpret(program, [x, 3])
    assert second.tolist() == [6.0, 7.0] and torch.equal(first, x * 3) and first.stride() == (1, 3)
    assert numbers == [None, 7, 5] and not known.assumed


def test_inputs_are_counted_and_other_nodes_refused() -> None:
    program = LoopProgram({"x": Input("x", meta(3))}, [], ["x"])
    with pytest.raises(ValueError, match="zip"):
        interpret(program, [torch.zeros(3), torch.zeros(3)])
    with pytest.raises(CompileError, match="interpret: node"):
        run_node(Input("x", meta(3)), {}, {})
