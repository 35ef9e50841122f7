"""Entering decompositions, and what a Lowering gives them: pointwise as eager computes, dims, checks, streams."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import fx

from smelt.abi.faults import NOT_IN_UNIT
from smelt.base.errors import CompileError
from smelt.graph.ir.meta import TensorMeta, meta_of
from smelt.prims import registry
from smelt.prims.registry import Lowering
from smelt.shapes.assumptions import Assumptions
from tests.prims.prim_check import emitted, evaluated, names

aten = torch.ops.aten
CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def test_an_operator_is_entered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for table, enter in (("DECOMPOSITIONS", registry.decomposition), ("COMPLEX", registry.complex_decomposition)):
        known: dict[Any, Any] = {}
        monkeypatch.setattr(registry, table, known)

        def rule(p: Lowering, x: fx.Node) -> fx.Node:
            return x

        assert enter(aten.sin.default, aten.cos.default)(rule) is rule
        assert known == {aten.sin.default: rule, aten.cos.default: rule}
        assert enter(aten.sin.default)(rule) is rule  # the same again
        with pytest.raises(ValueError, match="aten.cos.default has two decompositions"):
            enter(aten.tan.default, aten.cos.default)(lambda p, x: x)


def test_operators_of_any_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ANY_DTYPE", set())
    registry.any_dtype(aten.sin.default, aten.cos.default)
    assert registry.ANY_DTYPE == {aten.sin.default, aten.cos.default}


def node_of(meta: TensorMeta) -> fx.Node:
    node = fx.Graph().placeholder("x")
    node.meta["val"] = meta
    return node


def lowering(out: Any) -> Lowering:
    p = Lowering(fx.Graph())
    p.result = out
    return p


# -- pointwise


DTYPES = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("a", DTYPES, ids=str)
@pytest.mark.parametrize("b", DTYPES, ids=str)
def test_operands_are_promoted_as_eager_promotes_them(a: torch.dtype, b: torch.dtype) -> None:
    x, y = torch.tensor([[1.5], [0.0], [1.0]]).to(a), torch.tensor([1.25, 3.0]).to(b)
    for left, right in ((x, y), (x, y[0]), (x[0, 0], y), (x, 1), (x, 0.5), (True, y)):
        want = torch.where(torch.tensor(True), left, right)  # the left one, promoted and spread
        got = evaluated(lambda p, x, y: p.pointwise(lambda u, v: first(p, u, v), x, y), left, right, out=want)
        assert got.dtype is want.dtype and torch.equal(got, want)


def first(p: Lowering, u: Any, v: Any) -> fx.Node:
    one = u if isinstance(u, fx.Node) else v
    return p.where(p.eq(one, one), u, v)


def test_low_precision_is_computed_wide_and_rounded_once() -> None:
    x, y = torch.rand(50).bfloat16(), torch.rand(50).bfloat16()
    got = evaluated(lambda p, x, y: p.pointwise(lambda a, b: p.add(p.mul(a, b), b), x, y), x, y, out=x)
    assert torch.equal(got, (x.float() * y.float() + y.float()).bfloat16())
    assert not torch.equal(got, x * y + y)


@pytest.mark.parametrize("unrounded", [False, True])
def test_numbers_beside_low_precision(unrounded: bool) -> None:
    """0.1 is no number of bfloat16: where it is rounded, its neighbour there is equal to it."""
    x, places = torch.tensor([0.1]).bfloat16(), (1,) if unrounded else ()
    for number in (0.1, torch.tensor(0.1, dtype=torch.float64)):
        got = evaluated(
            lambda p, x, n: p.pointwise(lambda a, b: p.eq(a, b), x, n, unrounded=places), x, number, out=x > 0
        )
        assert got.item() is not unrounded
    one = torch.tensor([0.1], dtype=torch.float64)  # has dimensions: it is promoted, so nothing is rounded
    got = evaluated(lambda p, x, n: p.pointwise(lambda a, b: p.eq(a, b), x, n, unrounded=places), x, one, out=x > 0)
    assert not got.item()


def test_unrounded_operand_on_gpu_may_differ_from_the_rounded_one() -> None:
    for device, count in ((CPU, 0), (CUDA, 1)):
        p = Lowering(fx.Graph())
        x = p.graph.placeholder("x")
        x.meta["val"] = TensorMeta((3,), torch.bfloat16, (1,), device)
        p.result = x.meta["val"]
        y = p.pointwise(lambda a, n: p.mul(a, n), x, 0.1, unrounded_on_gpu=(1,))  # noqa: B023
        (product,) = (n for n in p.graph.nodes if getattr(n.target, "name", "") == "mul")
        assert (product.args[1] == 0.1) == bool(count) and registry.dtype_of(y) is torch.bfloat16


def test_numbers_alone_become_a_tensor() -> None:
    got = evaluated(lambda p: p.pointwise(lambda a, b: p.div(a, b), 8, 3, dtype=torch.float32), out=torch.tensor(8 / 3))
    torch.testing.assert_close(got, torch.tensor(8 / 3))


def test_which_operands_eager_takes_as_numbers() -> None:
    on_cpu, on_gpu = lowering(meta_of(torch.ones(3))), lowering(TensorMeta((3,), torch.float32, (1,), CUDA))
    scalar = node_of(meta_of(torch.tensor(2.0)))
    for p in (on_cpu, on_gpu):
        assert p.is_number(2) and not p.is_number(node_of(meta_of(torch.ones(1))))
    assert on_cpu.is_number(scalar) and not on_gpu.is_number(scalar)
    on_gpu.of_cpu.add(scalar)
    assert on_gpu.is_number(scalar)


# -- other questions


def test_the_first_result() -> None:
    one, two = meta_of(torch.ones(2)), meta_of(torch.ones(3))
    assert lowering(one).out is one and lowering((one, two)).out is one and lowering([two, one]).out is two


def test_streams_depend_on_the_position_of_the_node_alone() -> None:
    p, found = lowering(None), []
    assert not p.eager_rng and Lowering(fx.Graph(), eager_rng=True).eager_rng
    for place in (0, 3, 0, 3, 3):
        p.scope = {"random": place}
        found.append(p.next_stream())
    assert found == [0, 768, 1, 769, 770] and len(set(found)) == 5
    p.scope = {}
    assert p.next_stream() == 2


@pytest.mark.parametrize(
    ("shape", "dims", "want"),
    [
        ((2, 3, 4), None, (0, 1, 2)),
        ((2, 3, 4), (), (0, 1, 2)),
        ((2, 3, 4), -1, (2,)),
        ((2, 3, 4), 0, (0,)),
        ((2, 3, 4), [2, -3], (0, 2)),
        ((2, 3, 4), (1, -2), (1,)),
        ((), (0,), ()),
        ((), -1, ()),
        ((), None, ()),
    ],
)
def test_dims_of(shape: tuple[int, ...], dims: Any, want: tuple[int, ...]) -> None:
    assert lowering(None).dims_of(node_of(meta_of(torch.ones(shape))), dims) == want


def test_numbers_within_a_range() -> None:
    def both(p: Lowering, x: fx.Node) -> fx.Node:
        return p.within(x, 0.0, 1.0, NOT_IN_UNIT)

    def below(p: Lowering, x: fx.Node) -> fx.Node:
        return p.within(x, 0.0, None, NOT_IN_UNIT)

    good = torch.tensor([0.0, 0.5, 1.0])
    assert torch.equal(evaluated(both, good), good) and torch.equal(evaluated(below, good + 5), good + 5)
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(RuntimeError, match="between 0 and 1"):
            evaluated(both, torch.tensor([0.5, wrong]))
    for wrong in (-0.1, math.nan):
        with pytest.raises(RuntimeError, match="between 0 and 1"):
            evaluated(below, torch.tensor([0.5, wrong]))


def test_widening() -> None:
    for dtype, wide in ((torch.bfloat16, torch.float32), (torch.float16, torch.float32)):
        gm, _ = emitted(lambda p, x: p.widen(x), torch.ones(2, dtype=dtype))
        assert names(gm) == ["convert"] and registry.dtype_of(gm.graph.output_node().args[0]) is wide
    for dtype in (torch.float64, torch.int8, torch.bool):
        assert names(emitted(lambda p, x: p.widen(x), torch.ones(2, dtype=dtype))[0]) == []


def test_shapes_without_elements() -> None:
    n = Assumptions().symbol(4)
    assert registry.is_empty((3, 0)) and not registry.is_empty(()) and not registry.is_empty((1, n))
    assert registry.is_empty((n, 0))


def test_counts_as_floats() -> None:
    n = Assumptions().symbol(4)
    assert type(registry.as_float(3)) is float and registry.as_float(3) == 3 and registry.as_float(n) is n


def test_common_shapes() -> None:
    nodes = [node_of(meta_of(torch.ones(shape))) for shape in ((3, 1), (4,), ())]
    assert registry.common_shape(*nodes) == (3, 4)
    with pytest.raises(CompileError, match="do not broadcast"):
        registry.common_shape(nodes[1], node_of(meta_of(torch.ones(3))))


def test_of_a_value() -> None:
    node = node_of(TensorMeta((2, 3), torch.int16, (3, 1), CUDA))
    assert (registry.shape_of(node), registry.dtype_of(node)) == ((2, 3), torch.int16)
    assert (registry.device_of(node), registry.rank_of(node)) == (CUDA, 2)
