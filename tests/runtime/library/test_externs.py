"""Binding operations: results, layouts, writing in place, choices by time, errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from smelt.base.errors import CompileError
from smelt.runtime import memory
from smelt.runtime.library.externs import EXTERNS, Candidate, ExternKernel, Spec, extern, spec_of
from smelt.runtime.library.fallback import Slot
from smelt.runtime.tune import forget


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    forget()


def test_spec_of_everything_that_describes_a_tensor() -> None:
    tensor = torch.empty(2, 3)
    spec = Spec((2, 3), (3, 1), torch.float32)
    meta = SimpleNamespace(shape=(2, 3), stride=(3, 1), dtype=torch.float32)
    assert spec_of(tensor) == spec_of(meta) == spec_of(((2, 3), (3, 1), "float32")) == spec_of(spec) == spec
    assert spec_of(None) is None
    assert str(spec) == "float32[2, 3]:[3, 1]"


def test_results_take_the_strides_that_were_asked_for() -> None:
    a = torch.randn(4, 6)
    wanted = Spec((4, 6), (1, 4), torch.float32)
    kernel = extern("cumsum", {"dim": 1}, [a], [wanted])
    for _ in range(2):
        result = kernel(a)
        assert result.stride() == (1, 4)
        torch.testing.assert_close(result, a.cumsum(1))


def test_strides_of_size_one_dimensions_are_those_that_were_asked_for() -> None:
    x = torch.randn(3, 4, 1, 1)
    kernel = extern("aten.sin.default", {}, [x], [Spec((3, 4, 1, 1), (4, 1, 4, 4), torch.float32)])
    for _ in range(2):
        result = kernel(x)
        assert result.stride() == (4, 1, 4, 4) and torch.equal(result, x.sin())


def test_results_that_wait_to_be_conjugated_or_negated_are_computed() -> None:
    for lazy in (torch.conj, lambda x: torch.conj(x).imag):
        a = torch.randn(3, 4, dtype=torch.complex64)
        wanted = lazy(a)
        kernel = ExternKernel("lazy", [Candidate("lazy", lazy)], [Spec((3, 4), wanted.stride(), wanted.dtype)], "lazy")
        for _ in range(2):
            result = kernel(a)
            assert not result.is_conj() and not result.is_neg() and result.equal(wanted)


def test_a_first_result_in_other_strides_is_drawn_once() -> None:
    x = torch.zeros(3, 4)
    kernel = extern("aten.bernoulli.p", {"args": (Slot(0), 0.5)}, [x], [Spec((3, 4), (1, 3), torch.float32)])
    torch.manual_seed(0)
    got = kernel(x), kernel(x)
    torch.manual_seed(0)
    assert all(torch.equal(g, torch.bernoulli(x, 0.5)) for g in got)


@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_gradients_of_pools(ceil: bool, last: bool) -> None:
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(2, 3, 8, 6).contiguous(memory_format=layout).requires_grad_()
    sizes = {"kernel": (3, 2), "stride": (2, 2), "padding": (1, 1)}
    top, places = torch.nn.functional.max_pool2d(x, *sizes.values(), 1, ceil, return_indices=True)
    mean = torch.nn.functional.avg_pool2d(x, *sizes.values(), ceil)
    for pooled, inputs, more in (
        (top, [places], {"dilation": (1, 1)}),
        (mean, [], {"ceil": ceil, "count_padding": True, "divisor": None}),
    ):
        grad = torch.randn_like(pooled)
        (want,) = torch.autograd.grad(pooled, x, grad)
        name = "avg_pool2d_backward" if not inputs else "max_pool2d_backward"
        got = extern(name, sizes | more, [grad, *inputs], [want])(grad, *inputs)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride() == x.stride()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("last", [False, True])
def test_gradient_of_overlapping_windows_on_a_gpu(last: bool) -> None:
    """PyTorch's own kernel for channels last is wrong there."""
    sizes = {
        "kernel": (3, 3),
        "stride": (2, 2),
        "padding": (1, 1),
        "ceil": False,
        "count_padding": True,
        "divisor": None,
    }
    x = torch.randn(32, 512, 14, 14, dtype=torch.float64, requires_grad=True)
    pooled = torch.nn.functional.avg_pool2d(x, 3, 2, 1)
    grad = torch.randn_like(pooled)
    (want,) = torch.autograd.grad(pooled, x, grad)
    layout = torch.channels_last if last else torch.contiguous_format
    want = want.float().cuda().contiguous(memory_format=layout)
    given = grad.float().cuda()
    got = extern("avg_pool2d_backward", {"shape": tuple(x.shape), **sizes}, [given], [want])(given)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gradient_of_overlapping_windows_of_one_row_on_a_gpu() -> None:
    """Where sizes are 1 the steps of both layouts fit, and PyTorch takes its kernel for channels last."""
    sizes = {"kernel": (1, 7), "stride": (1, 3), "padding": (0, 2), "ceil": False, "count_padding": True}
    x = torch.randn(1, 1, 1, 9, dtype=torch.float64, requires_grad=True)
    pooled = torch.nn.functional.avg_pool2d(x, (1, 7), (1, 3), (0, 2))
    grad = torch.randn_like(pooled)
    (want,) = torch.autograd.grad(pooled, x, grad)
    want = torch.empty_strided(x.shape, (9, 1, 9, 1), device="cuda").copy_(want)
    given = grad.float().cuda()
    got = extern("avg_pool2d_backward", {"shape": tuple(x.shape), "divisor": None, **sizes}, [given], [want])(given)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()


def test_several_results() -> None:
    x = torch.randn(5, 7)
    values, indices = torch.sort(x, dim=0, descending=True)
    kernel = extern("sort", {"dim": 0, "descending": True, "stable": False}, [x], [values, indices])
    got = kernel(x)
    assert torch.equal(got[0], values) and torch.equal(got[1], indices)
    assert not kernel.supports_out
    with pytest.raises(TypeError, match="2 results"):
        kernel.into(values, x)


def test_into_without_an_own_out_form_copies() -> None:
    x = torch.randn(3, 8)
    out = torch.empty(3, 8)
    kernel = extern("cumprod", {"dim": -1}, [x], [out])
    assert kernel.supports_out
    kernel.into(out, x)
    torch.testing.assert_close(out, x.cumprod(-1))


def test_first_call_decides_and_later_ones_run_the_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def factory(params, inputs, outputs):
        def run(name: str, turns: int):
            def call(x: torch.Tensor) -> torch.Tensor:
                calls.append(name)
                for _ in range(turns):
                    y = x @ x
                return y

            return Candidate(name, call)

        return [run("long", 40), run("short", 1)]

    monkeypatch.setitem(EXTERNS, "both", factory)
    x = torch.randn(100, 100)
    kernel = extern("both", {}, [x], [x])
    assert kernel.chosen is None
    kernel(x)
    assert kernel.chosen == "short" and "short" in repr(kernel)
    calls.clear()
    kernel(x)
    assert calls == ["short"]
    again = extern("both", {}, [x], [x])
    calls.clear()
    again(x)
    assert calls == ["short"]
    assert extern("both", {}, [x], [x], only="long").candidates[0].name == "long"


def test_candidates_do_not_hold_several_large_results(monkeypatch: pytest.MonkeyPatch) -> None:
    side = 2048  # 16 MiB
    kept: list[int] = []

    def own(x: torch.Tensor) -> torch.Tensor:
        return memory.empty_strided((side, side), (side, 1), torch.float32).copy_(x)

    def other(x: torch.Tensor) -> torch.Tensor:
        kept.append(memory.report()["resident"])
        return x.clone()

    monkeypatch.setitem(EXTERNS, "large", lambda *_: [Candidate("own", own), Candidate("other", other)])
    x = torch.randn(side, side)
    memory.trim()
    before = memory.report()["resident"]
    assert torch.equal(extern("large", {}, [x], [x])(x), x)
    assert kept and max(kept) < before + x.nbytes


def test_any_aten_overload() -> None:
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    kernel = extern("aten.add.Tensor", {"args": (Slot(0), Slot(1)), "kwargs": {"alpha": 3}}, [x, y], [x])
    torch.testing.assert_close(kernel(x, y), x + 3 * y)
    kernel = extern("aten.cat.default", {"args": ([Slot(1), Slot(0)], 1)}, [x, y], [torch.empty(4, 10)])
    assert torch.equal(kernel(x, y), torch.cat([y, x], 1))
    assert torch.equal(extern("aten.sin.default", {}, [x], [x])(x), x.sin())


def test_unknown_operations() -> None:
    with pytest.raises(CompileError, match="no external kernel"):
        extern("frobnicate", {}, [], [])
    with pytest.raises(CompileError, match="no operator"):
        extern("aten.frobnicate.default", {}, [], [])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_pair(causal: bool, masked: bool) -> None:
    if causal and masked:
        pytest.skip("not a combination that the operator takes")
    q, k, v = (torch.randn(2, 3, 16, 8, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, 1, 16, 16) if masked else None
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, bias, is_causal=causal)
    grad = torch.randn_like(want)
    gradients = torch.autograd.grad(want, (q, k, v), grad)
    params = {"dropout": 0.0, "causal": causal, "scale": None}
    sums = Spec((2, 3, 16), (48, 1, 3), torch.float32)
    plain = [t.detach() for t in (q, k, v)]
    out, logsumexp = extern("attention_cpu", params, [*plain, bias], [want, sums])(*plain, bias)
    torch.testing.assert_close(out, want.detach())
    kernel = extern("attention_cpu_backward", params, [grad, *plain, out, sums, bias], list(gradients))
    for got, expected in zip(kernel(grad, *plain, out, logsumexp, bias), gradients, strict=True):
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()


def test_pooling_and_topk() -> None:
    x = torch.randn(2, 3, 9, 9)
    window = {"kernel": (3, 3), "stride": (2, 2), "padding": (1, 1), "ceil": False}
    values, places = torch.nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True)
    got = extern("max_pool2d", window | {"dilation": (1, 1)}, [x], [values, places])(x)
    assert torch.equal(got[0], values) and torch.equal(got[1], places)
    mean = torch.nn.functional.avg_pool2d(x, 3, 2, 1)
    kernel = extern("avg_pool2d", window | {"count_padding": True, "divisor": None}, [x], [mean])
    torch.testing.assert_close(kernel(x), mean)
    top = torch.topk(x, 4, -1)
    got = extern("topk", {"k": 4, "dim": -1, "largest": True, "ordered": True}, [x], list(top))(x)
    assert torch.equal(got[0], top.values)
