"""Operators on "cuda" are decomposed as eager's CUDA kernels compute them. Graphs need no GPU."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from smelt.base.options import Options
from smelt.codegen.triton.host import render_triton
from smelt.graph.ir.meta import TensorMeta, contiguous_stride
from smelt.loops.lower import lower
from smelt.prims.decompose import decompose
from smelt.schedule.machine import GPU
from smelt.schedule.plan import schedule

aten = torch.ops.aten
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


def value(*shape: int, dtype: torch.dtype = torch.float32, device: torch.device = CUDA) -> TensorMeta:
    return TensorMeta(shape, dtype, contiguous_stride(shape), device)


def prims(op: Any, out: Any, *args: Any, **kwargs: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """(name, arguments) of the prims of one call."""
    return [(node.target.name, node.args) for node in graph(op, out, *args, **kwargs).graph.nodes if prim(node)]


def prim(node: fx.Node) -> bool:
    return node.op == "call_function"


def graph(op: Any, out: Any, *args: Any, **kwargs: Any) -> fx.GraphModule:
    made = fx.Graph()

    def place(x: Any) -> Any:
        if isinstance(x, list):
            return [place(each) for each in x]
        if not isinstance(x, TensorMeta):
            return x
        node = made.placeholder(f"x{len(made.nodes)}")
        node.meta["val"] = x
        return node

    call = made.call_function(op, tuple(map(place, args)), {k: place(v) for k, v in kwargs.items()})
    call.meta["val"] = out
    if isinstance(out, list):
        call = made.call_function(operator.getitem, (call, 0))
        call.meta["val"] = out[0]
    made.output((call,))
    return decompose(fx.GraphModule(torch.nn.Module(), made), Options())


def names(*args: Any, **kwargs: Any) -> list[str]:
    return [name for name, _ in prims(*args, **kwargs) if name not in ("convert", "broadcast_in_dim", "to_device")]


X, LOW = value(8), value(8, dtype=torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_number_divides_by_its_reciprocal(dtype: torch.dtype) -> None:
    """In the dtype of arithmetic: the reciprocal is rounded to it."""
    x = value(8, dtype=dtype)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    for number in (0.1, 257, -0.0):
        made = [(name, args) for name, args in prims(aten.div.Tensor, x, x, number) if name != "convert"]
        ((name, (_, inverse)),) = made
        assert name == "mul" and inverse == (1 / torch.tensor(number, dtype=wide)).item()


def test_a_mean_multiplies_by_the_rounded_inverse_of_its_count() -> None:
    def made(x: TensorMeta, out: TensorMeta) -> list[tuple[str, tuple[Any, ...]]]:
        return [(name, args) for name, args in prims(aten.mean.dim, out, x, [-1]) if name != "convert"]

    for dtype, wide in (
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float64, torch.float64),
    ):
        (first, _), (second, (_, factor)) = made(value(5, 7, dtype=dtype), value(5, dtype=dtype))
        assert (first, second) == ("sum", "mul") and factor == (torch.ones((), dtype=wide) / 7).item()
    on_cpu = made(value(5, 7, device=CPU), value(5, device=CPU))
    assert [name for name, _ in on_cpu] == ["sum", "div"]


def test_so_does_a_tensor_of_the_cpu_without_dimensions() -> None:
    assert names(aten.div.Tensor, X, X, value(device=CPU)) == ["reciprocal", "mul"]
    assert names(aten.true_divide.Tensor, X, X, value(dtype=torch.float64, device=CPU)) == ["reciprocal", "mul"]
    assert names(aten.div.Tensor, X, value(8, dtype=torch.int32), 3) == ["mul"]


def test_other_quotients_are_divided() -> None:
    assert names(aten.div.Tensor, X, X, value()) == ["div"]
    assert names(aten.div.Tensor, X, X, X) == ["div"]
    assert names(aten.div.Tensor, value(8, device=CPU), value(8, device=CPU), 0.1) == ["div"]
    assert names(aten.div.Tensor_mode, X, X, 0.1, rounding_mode="floor") == ["floor_div"]


def test_kernels_of_lists_divide_by_the_number_itself() -> None:
    assert names(aten._foreach_div.Scalar, [X], [X], 0.1) == ["div"]
    assert names(aten._foreach_add.List, [X], [X], [X], alpha=0.1) == ["fma"]


def test_a_quotient_of_low_precision_is_rounded_before_it_is_truncated() -> None:
    for other in (LOW, value(dtype=torch.bfloat16)):
        made = [name for name, _ in prims(aten.div.Tensor_mode, LOW, LOW, other, rounding_mode="trunc")]
        assert made[made.index("div") + 1 : made.index("trunc")] == ["convert", "convert"]
    assert names(aten.div.Tensor_mode, LOW, LOW, 0.1, rounding_mode="trunc") == ["mul", "trunc"]
    assert names(aten.div.Tensor_mode, X, X, X, rounding_mode="trunc") in (["trunc_div"], ["div", "trunc"])


@pytest.mark.parametrize("x", [X, LOW, value(8, dtype=torch.float64)])
def test_a_product_and_a_sum_of_one_operator_round_once(x: TensorMeta) -> None:
    assert names(aten.add.Tensor, x, x, x, alpha=0.1) == ["fma"]
    assert names(aten.sub.Tensor, x, x, x, alpha=0.1) == ["fma"]
    assert names(aten.rsub.Scalar, x, x, 2.0, 0.1) == ["fma"]
    assert names(aten.lerp.Scalar, x, x, x, 0.1) == ["sub", "fma"]
    assert names(aten.lerp.Scalar, x, x, x, 0.7) == ["sub", "fma"]
    assert names(aten.lerp.Tensor, x, x, x, x).count("fma") == 2
    assert names(aten.addcmul.default, x, x, x, x, value=0.3) == ["mul", "fma"]
    assert names(aten.addcdiv.default, x, x, x, x, value=0.3) == ["div", "fma"]


def test_of_two_operators_not() -> None:
    assert names(aten.add.Tensor, X, X, X) == ["add"]
    assert names(aten.addcmul.default, X, X, X, X) == ["mul", "add"]
    whole = value(8, dtype=torch.int32)
    assert names(aten.add.Tensor, whole, whole, whole, alpha=3) == ["mul", "add"]


def test_kernels_of_the_cpu_round_once_as_well() -> None:
    near = value(8, device=CPU)
    assert names(aten.add.Tensor, near, near, near, alpha=0.1) == ["fma"]
    assert names(aten.addcmul.default, near, near, near, near) == ["fma"]
    assert names(aten.addcdiv.default, near, near, near, near) == ["div", "add"]


def test_a_weight_is_rounded_where_it_is_a_tensor() -> None:
    def rounds(op: Any, weight: TensorMeta) -> bool:
        made = prims(op, LOW, LOW, LOW, weight)[:-1]
        return ("convert", torch.bfloat16) in [(name, args[-1]) for name, args in made]

    assert rounds(aten.lerp.Tensor, value(device=CPU)) and not rounds(aten.lerp.Scalar, value(device=CPU))


def test_slopes_of_logits_at_the_ends() -> None:
    assert "eq" not in names(aten.logit_backward.default, X, X, X)
    near = value(8, device=CPU)
    assert "eq" in names(aten.logit_backward.default, near, near, near)


def test_casts_to_small_integers_keep_the_low_bits_of_32() -> None:
    for source in (torch.float32, torch.float64, torch.float16):
        for target in (torch.int8, torch.int16):
            made = graph(aten._to_copy.default, value(8, dtype=target), value(8, dtype=source), dtype=target)
            (kernel,) = render_triton(schedule(lower(made), Options(target="triton"), None, GPU), CPU).kernels
            assert f".to(tl.int32).to(tl.{str(target)[6:]})" in kernel.source


def test_a_kernel_that_distinguishes_subnormals_from_0_keeps_them() -> None:
    x = value(8)
    made = {
        op: graph(op, x, x, x) for op in (aten.fmod.Tensor, aten.remainder.Tensor, aten.atan2.default, aten.mul.Tensor)
    }
    kernels = {
        op: render_triton(schedule(lower(gm), Options(target="triton"), None, GPU), CPU).kernels[0]
        for op, gm in made.items()
    }
    assert [kernel.flushes for kernel in kernels.values()] == [False, False, False, True]
