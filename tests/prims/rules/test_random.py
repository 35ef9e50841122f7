"""Random operators: functions of the seed and of streams of their own, with the moments that they promise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import fx

from smelt.base.options import Options
from smelt.graph.ir.meta import meta_of
from smelt.prims.decompose import decompose, fallbacks
from smelt.prims.random_bits import uniform
from smelt.prims.registry import DECOMPOSITIONS, Lowering
from tests.prims.aten_check import CheckedInterpreter, aten_graph, check

aten = torch.ops.aten
N = 4000
X = torch.zeros(N, dtype=torch.float64)


def drawn(op: Any, *args: Any, seed: int = 1234, **kwargs: Any) -> Any:
    """The (first) result of the decomposed operator for a seed."""
    gm, inputs = aten_graph(op, args, kwargs, op(*args, **kwargs))
    assert fallbacks(decompose(gm, Options(eager_rng=True)))
    prims = decompose(gm, Options())
    assert not fallbacks(prims)
    result = CheckedInterpreter(prims).run(*inputs[:-1], torch.tensor(seed))
    assert not torch.equal(result[0], CheckedInterpreter(prims).run(*inputs[:-1], torch.tensor(seed + 1))[0])
    return result if len(result) > 1 else result[0]


def moments(x: torch.Tensor, mean: float, deviation: float) -> None:
    """Of N numbers they are that near to the promised ones, within five of their own deviations."""
    x = x.double()
    assert abs(x.mean().item() - mean) < 5 * deviation / math.sqrt(x.numel())
    assert abs(x.std().item() - deviation) < 0.1 * deviation


FLOATS = pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)


@FLOATS
def test_uniform(dtype: torch.dtype) -> None:
    flat = 1 / math.sqrt(12)
    for got in (drawn(aten.rand.default, [N], dtype=dtype), drawn(aten.rand_like.default, X.to(dtype))):
        assert got.dtype is dtype and 0 <= got.min() and got.max() < 1
        moments(got, 0.5, flat)
    got = drawn(aten.uniform.default, X.to(dtype), -2.0, 4.0)
    moments(got, 1.0, 6 * flat)
    assert -2 <= got.min() and got.max() <= 4
    assert torch.equal(drawn(aten.rand.default, [5]), uniform(torch.tensor(1234), 0, (5,)))


@FLOATS
def test_normal(dtype: torch.dtype) -> None:
    for got in (drawn(aten.randn.default, [N], dtype=dtype), drawn(aten.randn_like.default, X.to(dtype))):
        assert got.dtype is dtype
        moments(got, 0.0, 1.0)
        assert abs((got.double() ** 3).mean().item()) < 0.3 and abs((got.double() ** 4).mean().item() - 3) < 0.6
    moments(drawn(aten.normal_functional.default, X.to(dtype), 3.0, 0.5), 3.0, 0.5)


def test_exponential() -> None:
    got = drawn(aten.exponential.default, X, 2.0)
    moments(got, 0.5, 0.5)
    assert got.min() > 0


@pytest.mark.parametrize("chance", [0.0, 0.25, 1.0])
def test_bernoulli(chance: float) -> None:
    probabilities = torch.full((N,), chance, dtype=torch.float64)
    if chance in (0.0, 1.0):  # no seed changes it
        for op, args in ((aten.bernoulli.p, (X, chance)), (aten.bernoulli.default, (probabilities,))):
            prims = check(op, *args)
            assert set(prims(args[0], torch.tensor(7))[0].tolist()) == {chance}
        return
    for got in (drawn(aten.bernoulli.p, X, chance), drawn(aten.bernoulli.default, probabilities)):
        assert set(got.tolist()) == {0.0, 1.0}
        moments(got, chance, math.sqrt(chance * (1 - chance)))
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(RuntimeError, match="p_in"):
            check(aten.bernoulli.default, probabilities)(torch.tensor([wrong]).double().expand(N), torch.tensor(1))


@pytest.mark.parametrize(("low", "high"), [(0, 6), (-3, 4), (0, 1), (10, 10 + 2**24)])
def test_whole_numbers(low: int, high: int) -> None:
    like = torch.zeros(N, dtype=torch.int64)
    calls = [(aten.randint.low, (low, high, [N])), (aten.randint_like.low_dtype, (like, low, high))]
    calls += [(aten.randint.default, (high, [N])), (aten.randint_like.default, (like, high))] if low == 0 else []
    for op, args in calls:
        if high - low == 1:
            continue
        got = drawn(op, *args)
        assert got.dtype is torch.int64 and low <= got.min() and got.max() < high
        moments(got, (low + high - 1) / 2, math.sqrt(((high - low) ** 2 - 1) / 12))
        if high - low < 10:
            assert set(got.tolist()) == set(range(low, high))


def test_more_whole_numbers_than_digits_stay() -> None:
    check(aten.randint.low, 0, 2**24 + 1, [3], fallback=True)


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("train", [True, False, None])
def test_dropout(rate: float, train: bool | None) -> None:
    x = torch.rand(N) + 0.5
    if train is False or rate in (0.0, 1.0):
        check(aten.native_dropout.default, x, rate, train)
        prims = check(aten.native_dropout.default, torch.tensor([math.nan, math.inf]), rate, train)
        out = prims(torch.tensor([math.nan, 1.0]), torch.tensor(3))[0]
        assert out[0].isnan() and out[1].item() == (0.0 if rate == 1 and train is not False else 1.0)
        return
    out, mask = drawn(aten.native_dropout.default, x, rate, train)
    torch.testing.assert_close(out, torch.where(mask, x / (1 - rate), 0.0))
    moments(mask, 1 - rate, math.sqrt(rate * (1 - rate)))


def test_gradient_of_dropout() -> None:
    mask = torch.tensor([True, False, False])
    g = torch.tensor([1.5, 2.0, math.nan])
    check(aten.native_dropout_backward.default, g, mask, 2.0)
    check(aten.native_dropout_backward.default, g.bfloat16(), mask, 1.3)


def test_a_generator_of_its_own_stays() -> None:
    p = Lowering(fx.Graph())
    node, seed = p.graph.placeholder("x"), p.graph.placeholder("seed")
    node.meta["val"] = p.result = meta_of(X)
    seed.meta["val"] = meta_of(torch.tensor(1))
    p.seeds[p.out.device] = seed
    for op in (
        aten.bernoulli.p,
        aten.bernoulli.default,
        aten.uniform.default,
        aten.normal_functional.default,
        aten.exponential.default,
    ):
        assert DECOMPOSITIONS[op](p, node, generator=torch.Generator()) is NotImplemented
        assert DECOMPOSITIONS[op](p, node, generator=None) is not NotImplemented
