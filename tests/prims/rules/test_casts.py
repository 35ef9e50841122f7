"""Casts, copies, and operators that are the value itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from smelt.graph.ir.meta import TensorMeta
from smelt.prims import ops
from smelt.prims.registry import DECOMPOSITIONS, Lowering
from smelt.prims.rules import casts
from tests.prims.aten_check import check
from tests.prims.prim_check import emitted, names

aten = torch.ops.aten
DTYPES = [torch.bool, torch.int8, torch.uint8, torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("source", DTYPES, ids=str)
@pytest.mark.parametrize("to", DTYPES, ids=str)
def test_casts(source: torch.dtype, to: torch.dtype) -> None:
    for x in (torch.tensor([0.0, 1.0, 2.75, 100.4]).to(source), torch.tensor(3.5).to(source), torch.ones(0).to(source)):
        prims = check(aten._to_copy.default, x, dtype=to)
        assert names(prims) == ([] if source is to else ["convert"]) or "clone" in names(prims)
        if source.is_floating_point and to.is_floating_point:
            continue
        check(aten.copy.default, torch.zeros(2, *x.shape).to(to), x)


@pytest.mark.parametrize(
    "name",
    [
        "alias",
        "alias_copy",
        "detach",
        "lift_fresh",
        "lift_fresh_copy",
        "contiguous",
        "positive",
        "lift",
        "clone",
        "conj",
    ],
)
def test_the_value_itself(name: str) -> None:
    """The graph's copy is that of the output: it must not be the input's memory."""
    x = torch.randn(3, 4)
    assert set(names(check(getattr(aten, name).default, x))) <= {"clone"}
    assert set(names(check(getattr(aten, name).default, torch.tensor(2)))) <= {"clone"}


def test_signs_that_have_not_been_taken() -> None:
    for op in (aten.resolve_conj.default, aten.resolve_neg.default):
        assert set(names(check(op, torch.randn(3)))) <= {"clone"}


def rule(op: Any, *args: Any, out: torch.Tensor, **kwargs: Any) -> list[str]:
    gm, _ = emitted(lambda p, *nodes: DECOMPOSITIONS[op](p, *nodes, **kwargs), *args, out=out)
    return names(gm)


def test_a_copy_in_another_order() -> None:
    """A clone is a value's copy only where an operator sees strides and wants others."""
    x, turned = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert rule(aten.clone.default, x, out=turned) == []
    assert rule(aten.clone.default, x, out=turned, memory_format=torch.channels_last) == ["clone"]
    assert rule(aten.clone.default, x, out=x, memory_format=torch.contiguous_format) == []
    one = torch.randn(2, 1, 4, 5)
    both = one.to(memory_format=torch.channels_last)  # the strides of a size of 1 say nothing
    assert rule(aten.clone.default, one, out=both, memory_format=torch.channels_last) == []
    gm, _ = emitted(lambda p, n: casts.clone(p, n, memory_format=torch.channels_last), x, out=turned)
    (copy,) = (n for n in gm.graph.nodes if n.target is ops.clone)
    assert copy.meta["val"].stride == turned.stride()


def test_devices() -> None:
    """What a GPU can convert is converted there."""
    cuda = torch.device("cuda", 0)
    for source, to, want in (
        ("cpu", cuda, ["to_device", "convert"]),
        (cuda, torch.device("cpu"), ["convert", "to_device"]),
        (cuda, cuda, ["convert"]),
        ("cpu", torch.device("cpu"), ["convert"]),
    ):
        p = Lowering(fx.Graph())
        node = p.graph.placeholder("x")
        node.meta["val"] = TensorMeta((3,), torch.float64, (1,), torch.device(source))
        p.result = TensorMeta((3,), torch.float32, (1,), to)
        casts.to_copy(p, node)
        found = [n.target.name for n in p.graph.nodes if n.op == "call_function"]
        assert found == want
        like = p.graph.placeholder("y")
        like.meta["val"] = p.result
        assert (casts.copy(p, like, node) is NotImplemented) == (torch.device(source) != to)


def test_autocast() -> None:
    x = torch.randn(3)
    check(aten._autocast_to_reduced_precision.default, x, False, True, torch.float16, torch.bfloat16)
    check(aten._autocast_to_full_precision.default, x.bfloat16(), False, True)
    check(aten._autocast_to_full_precision.default, x.double(), False, True)


@pytest.mark.parametrize("value", [True, 3, 2.5, float("nan")])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32, torch.bfloat16], ids=str)
def test_scalars(value: float, dtype: torch.dtype) -> None:
    if value != value and not dtype.is_floating_point:
        return
    assert names(check(aten.scalar_tensor.default, value, dtype=dtype)) == ["full"]
