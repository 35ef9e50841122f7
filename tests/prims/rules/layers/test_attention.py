"""Which kernel a call of CUDA's attention becomes: the library's, our own, or none. Graphs need no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx

from smelt.graph.ir.meta import TensorMeta, contiguous_stride
from smelt.prims import ops
from smelt.prims.registry import ANY_DTYPE, DECOMPOSITIONS, LIBRARY, Lowering
from smelt.prims.rules.layers import attention

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> TensorMeta:
    return TensorMeta(shape, dtype, contiguous_stride(shape), CUDA)


SHAPE, SCORES = (2, 3, 8, 16), (2, 3, 8, 8)
NUMBER = meta(dtype=torch.int64)


class Call:
    """A call with operands of `dtype`, under a Lowering that has a seed for the device."""

    def __init__(self, dtype: torch.dtype = torch.float32, width: int = 16, length: int = 8) -> None:
        self.p = Lowering(fx.Graph())
        shape, rows = (*SHAPE[:3], width), (2, 3, length, width)
        self.q = self.value(meta(*shape, dtype=dtype))
        self.k, self.v = (self.value(meta(*rows, dtype=dtype)) for _ in range(2))
        self.seed = self.value(NUMBER)
        self.p.seeds[CUDA] = self.seed
        self.out, self.sums = meta(*shape, dtype=dtype), meta(2, 3, 32)

    def value(self, val: TensorMeta) -> fx.Node:
        node = self.p.graph.placeholder(f"x{len(self.p.graph.nodes)}")
        node.meta["val"] = val
        return node

    def efficient(self, bias: fx.Node | None = None, dropout: float = 0.0, **how: Any) -> Any:
        self.p.result = (self.out, self.sums, NUMBER, NUMBER)
        rule = DECOMPOSITIONS[aten._scaled_dot_product_efficient_attention.default]
        return rule(self.p, self.q, self.k, self.v, bias, True, dropout, **how)

    def kernels(self) -> list[fx.Node]:
        """The attention kernels, with their arguments by name."""
        return [n for n in self.p.graph.nodes if "attention" in str(n.target)]

    def given(self) -> dict[str, Any]:
        (node,) = self.kernels()
        return {"kernel": node.target.name, **dict(zip(node.target.parameters, node.args, strict=True))}


@pytest.fixture(params=["ieee", "tf32"])
def precision(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(attention, "products_round_to_tf32", lambda: request.param == "tf32")
    yield request.param


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)


@DTYPES
def test_our_own_kernel_where_products_round_to_tf32(dtype: torch.dtype, precision: str) -> None:
    call = Call(dtype)
    out, sums, seed, offset = call.efficient(causal=True, scale=0.3)
    given = call.given()
    own = dtype is torch.float32 and precision == "tf32"
    assert given["kernel"] == ("attention_tiled" if own else "attention_efficient")
    assert given["causal"] is True and given["scale"] == 0.3 and given["sums"] is True
    assert out.meta["val"] == call.out and sums.meta["val"].shape in ((2, 3, 32), (2, 3, 8), (2, 3, 8, 1))
    assert {seed.target, offset.target} == {ops.full}  # nobody reads them
    if own:
        assert (given["seed"], given["dropout"], given["stream"], given["precision"]) == (None, 0.0, 0, "tf32")


@pytest.mark.parametrize("width", [0, 1, 128, 129])
def test_how_wide_heads_of_our_own_kernel_are(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "products_round_to_tf32", lambda: True)
    call = Call(width=width)
    call.efficient()
    assert call.given()["kernel"] == ("attention_tiled" if width in (1, 128) else "attention_efficient")


@DTYPES
def test_weights_that_are_dropped_are_drawn_from_the_graph_s_seed(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "products_round_to_tf32", lambda: True)
    call = Call(dtype)
    call.p.scope = {"random": 2}
    _, _, seed, offset = call.efficient(dropout=0.25)
    given = call.given()
    assert given["kernel"] == "attention_tiled" and given["seed"] is seed is call.seed
    assert (given["dropout"], given["stream"], given["precision"]) == (0.25, 512, "tf32")
    assert offset.target is ops.full and offset.args[1] == 512


@pytest.mark.parametrize("why", ["no seed", "eager_rng", "all dropped", "wide"])
def test_otherwise_torch_drops_them(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "products_round_to_tf32", lambda: True)
    call = Call(width=200 if why == "wide" else 16)
    if why == "no seed":
        call.p.seeds.clear()
    call.p.eager_rng = why == "eager_rng"
    rate = 1.0 if why == "all dropped" else 0.25
    assert call.efficient(dropout=rate) is NotImplemented
    zeros = call.p.full(SCORES, 0.0, torch.float32, CUDA)  # a mask of nothing is left out
    call.efficient(zeros, dropout=rate)
    (node,) = call.kernels()
    assert node.target is aten._scaled_dot_product_efficient_attention.default
    assert node.args[3:] == (None, True, rate, False)


# -- the bias


def test_zeros_are_no_bias() -> None:
    call = Call()
    p = call.p
    assert attention._without_constant_zero(p.full(SCORES, 0.0, torch.float32, CUDA)) is None
    one = p.full(SCORES, 1.0, torch.float32, CUDA)
    assert attention._without_constant_zero(one) is one and attention._without_constant_zero(None) is None


@pytest.mark.parametrize(("stride", "copied"), [((192, 64, 8, 1), False), ((192, 64, 1, 8), True)])
def test_rows_of_a_bias_are_contiguous(stride: tuple[int, ...], copied: bool) -> None:
    call = Call()
    bias = call.value(replace(meta(*SCORES), stride=stride))
    got = attention._contiguous_rows(call.p, bias)
    assert (got is not bias) == copied and got.meta["val"].stride == (192, 64, 8, 1)
    one = call.value(replace(meta(2, 3, 8, 1), stride=(24, 8, 1, 8)))
    assert attention._contiguous_rows(call.p, one) is one and attention._contiguous_rows(call.p, None) is None


def test_rows_that_repeat_are_copied_before_they_do() -> None:
    call = Call()
    table = call.value(replace(meta(8, 8), stride=(1, 8)))
    spread = call.p.broadcast_in_dim(table, SCORES, (2, 3))
    got = attention._contiguous_rows(call.p, spread)
    assert got.target is ops.broadcast_in_dim and got.args[0].target is ops.clone
    assert got.args[0].meta["val"].stride == (8, 1) and got.args[1:] == (SCORES, (2, 3))
    dense = call.p.broadcast_in_dim(call.value(meta(8, 8)), SCORES, (2, 3))
    assert attention._contiguous_rows(call.p, dense) is dense
    column = call.p.broadcast_in_dim(call.value(replace(meta(2, 3), stride=(1, 2))), SCORES, (0, 1))
    assert attention._contiguous_rows(call.p, column) is column  # its last dimension repeats


@pytest.mark.parametrize(
    ("shape", "dims", "want"),
    [
        ((8, 8), (2, 3), (1, 1, 8, 8)),
        ((3, 8, 8), (1, 2, 3), (1, 3, 8, 8)),
        ((2, 1, 1, 8), (0, 1, 2, 3), (2, 1, 1, 8)),
        ((2, 3), (0, 1), None),
        ((8, 1), (2, 3), None),
    ],
)
def test_a_bias_is_read_again_and_again(shape: tuple[int, ...], dims: tuple[int, ...], want: Any) -> None:
    call = Call()
    spread = call.p.broadcast_in_dim(call.value(meta(*shape)), SCORES, dims)
    got = attention._unbroadcast(call.p, spread)
    assert got is spread if want is None else got.meta["val"].shape == want
    assert attention._unbroadcast(call.p, None) is None


def test_rows_that_begin_between_words_are_spread() -> None:
    call = Call(length=6)
    spread = call.p.broadcast_in_dim(call.value(meta(8, 6)), (2, 3, 8, 6), (2, 3))
    assert attention._unbroadcast(call.p, spread) is spread  # 24 bytes are no multiple of 16
    assert attention.BIAS_ROW_ALIGNMENT_BYTES == 16


# -- backward


def backward(call: Call, bias: fx.Node | None, dropout: float, mask: list[bool], seed: fx.Node, offset: fx.Node) -> Any:
    p = call.p
    grads = [call.q.meta["val"], call.k.meta["val"], call.v.meta["val"], meta(*SCORES) if mask[3] else None]
    p.result = tuple(grads)
    rule = DECOMPOSITIONS[aten._scaled_dot_product_efficient_attention_backward.default]
    out, sums = call.value(call.out), call.value(call.sums)
    return rule(
        p, call.value(call.out), call.q, call.k, call.v, bias, out, sums, seed, offset, dropout, mask, False, scale=0.3
    )


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("of_bias", [False, True])
def test_forward_and_backward_decide_alike(dropout: float, of_bias: bool, precision: str) -> None:
    call = Call()
    bias = call.value(meta(*SCORES))
    result = call.efficient(bias, dropout=dropout)
    own = precision == "tf32"
    if result is NotImplemented:
        assert dropout and not own
        assert backward(call, bias, dropout, [True] * 3 + [of_bias], call.seed, call.seed) is NotImplemented
        return
    assert call.given()["kernel"] == ("attention_tiled" if own else "attention_efficient")
    (forward,) = call.kernels()
    found = backward(call, bias, dropout, [True] * 3 + [of_bias], *result[2:])
    _, node = call.kernels()
    given = dict(zip(node.target.parameters, node.args, strict=True))
    assert node.target.name == f"{forward.target.name}_backward"
    assert given["mask"] == (True, True, True, of_bias) and given["scale"] == 0.3 and given["bias"] is bias
    assert [g is not None for g in found] == [True, True, True, of_bias]
    if own:
        told = dict(zip(forward.target.parameters, forward.args, strict=True))
        assert all(given[name] == told[name] for name in ("dropout", "stream", "seed", "precision"))


def test_a_seed_of_torch_s_own_kernel_stays_its(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "products_round_to_tf32", lambda: True)
    call = Call()
    other = call.value(NUMBER)
    assert backward(call, None, 0.25, [True, True, True, False], other, other) is NotImplemented


# -- the other two kernels


@pytest.mark.parametrize("refused", [{}, {"dropout": 0.1}, {"debug": True}])
def test_flash_and_cudnn_without_dropout(refused: dict[str, Any]) -> None:
    for name, arguments, count in (("flash", (), 9), ("cudnn", (None, True), 9)):
        call = Call(torch.bfloat16)
        call.p.result = (call.out, meta(2, 3, 8), *([None] * (count - 2)))
        rule = DECOMPOSITIONS[getattr(aten, f"_scaled_dot_product_{name}_attention").default]
        got = rule(call.p, call.q, call.k, call.v, *arguments, causal=True, scale=0.5, **refused)
        if refused:
            assert got is NotImplemented and not call.kernels()
        else:
            given = call.given()
            assert given["kernel"] == f"attention_{name}" and given["causal"] is True and given["scale"] == 0.5
            assert len(got) == count and got[2:] == (None,) * (count - 2)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("ragged", [False, True])
def test_their_gradients(dropout: float, ragged: bool) -> None:
    for name in ("flash", "cudnn"):
        call = Call(torch.bfloat16)
        call.p.result = (call.out, call.k.meta["val"], call.v.meta["val"])
        first = call.value(NUMBER) if ragged else None
        g, out, sums = call.value(call.out), call.value(call.out), call.value(meta(2, 3, 8))
        if name == "flash":
            rest = (first, None, 8, 8, dropout, True, call.seed, call.seed)
        else:
            rest = (call.seed, call.seed, None, None, first, 8, 8, dropout, True)
        rule = DECOMPOSITIONS[getattr(aten, f"_scaled_dot_product_{name}_attention_backward").default]
        got = rule(call.p, g, call.q, call.k, call.v, out, sums, *rest, scale=0.5)
        if dropout or ragged:
            assert got is NotImplemented
        else:
            given = call.given()
            assert given["kernel"] == f"attention_{name}_backward" and given["causal"] is True
            assert [x.meta["val"] for x in got] == list(call.p.result)


def test_they_may_stay() -> None:
    for name in ("flash", "efficient", "cudnn"):
        for way in ("", "_backward"):
            assert getattr(aten, f"_scaled_dot_product_{name}_attention{way}").default in LIBRARY
    assert aten._scaled_dot_product_flash_attention.default in ANY_DTYPE
