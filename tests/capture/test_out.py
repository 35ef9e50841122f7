"""`out=`: of operators that make tensors, of recipes, in the type of the result, of any shape and layout."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

Call = Callable[..., Any]
a, b = torch.arange(1.0, 13.0).view(3, 4) / 7, torch.arange(12.0, 0.0, -1.0).view(3, 4) / 5
positive = torch.eye(3) * 3 + 0.5

ONE: dict[str, Call] = {
    "arange": lambda out: torch.arange(4, out=out),
    "arange_step": lambda out: torch.arange(1, 9, 2, out=out),
    "linspace": lambda out: torch.linspace(0, 1, 4, out=out),
    "logspace": lambda out: torch.logspace(0, 1, 4, out=out),
    "zeros": lambda out: torch.zeros(3, 4, out=out),
    "ones": lambda out: torch.ones((3, 4), out=out),
    "full": lambda out: torch.full((3, 4), 2.5, out=out),
    "eye": lambda out: torch.eye(3, 4, out=out),
    "rand": lambda out: torch.rand(3, 4, out=out),
    "randn": lambda out: torch.randn(3, 4, out=out),
    "randint": lambda out: torch.randint(5, (3, 4), out=out),
    "randint_from": lambda out: torch.randint(-3, 5, (3, 4), out=out),
    "randperm": lambda out: torch.randperm(4, out=out),
    "softmax": lambda out: torch.softmax(a, 0, out=out),
    "log_softmax": lambda out: torch.log_softmax(a, 1, out=out),
    "conj": lambda out: torch.conj_physical(a, out=out),
    "sum": lambda out: torch.sum(a, 0, out=out),
    "mean": lambda out: torch.mean(a, 1, out=out),
    "prod": lambda out: torch.prod(a, 1, out=out),
    "nansum": lambda out: torch.nansum(a, 1, out=out),
    "cumsum": lambda out: torch.cumsum(a, 1, out=out),
    "cumprod": lambda out: torch.cumprod(a, 0, out=out),
    "kron": lambda out: torch.kron(a[:2, :1], b[:1], out=out),
    "rank": lambda out: torch.linalg.matrix_rank(positive, out=out),
    "cross": lambda out: torch.cross(a[:, :3], b[:, :3], dim=1, out=out),
    "solve": lambda out: torch.linalg.solve(positive, a[:, :3], out=out),
    "triangle": lambda out: torch.linalg.solve_triangular(positive, a, upper=True, out=out),
    "add": lambda out: torch.add(a, b, out=out),
    "mm": lambda out: torch.mm(a, b.t(), out=out),
    "frequencies": lambda out: torch.fft.fftfreq(5, out=out),
    "cholesky": lambda out: torch.linalg.cholesky(positive, out=out),
}
SEVERAL: dict[str, Call] = {
    "max": lambda out: torch.max(a, 0, out=out),
    "sort": lambda out: torch.sort(a, out=out),
    "aminmax": lambda out: torch.aminmax(a, dim=0, out=out),
    "svd": lambda out: torch.svd(a, out=out),
    "slogdet": lambda out: torch.linalg.slogdet(positive, out=out),
}
OUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "right": lambda t: torch.zeros(t.shape, dtype=t.dtype),
    "empty": lambda t: torch.zeros(0, dtype=t.dtype),
    "other": lambda t: torch.zeros((3, 5), dtype=t.dtype),
    "large": lambda t: torch.zeros((7, 5, 3), dtype=t.dtype),
    "number": lambda t: torch.zeros((), dtype=t.dtype),
    "int32": lambda t: torch.zeros(t.shape, dtype=torch.int32),
    "double": lambda t: torch.zeros(t.shape, dtype=torch.float64),
    "steps": lambda t: torch.zeros((*t.shape, 2), dtype=t.dtype)[..., 1],
    "turned": lambda t: torch.zeros(t.shape[::-1], dtype=t.dtype).permute(*range(t.ndim)[::-1]) if t.ndim else t * 0,
    "row": lambda t: torch.zeros((3, *t.shape), dtype=t.dtype)[1],
    "leaf": lambda t: torch.zeros(t.shape, dtype=t.dtype, requires_grad=t.is_floating_point()),
}


def outcome(f: Call, outs: Any) -> Any:
    """What a call gives, leaves in the memory of its `out=` and says, or its error."""
    torch.manual_seed(3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            made = f(outs)
        except RuntimeError as error:
            return type(error), str(error).splitlines()[0]
    held = [outs] if isinstance(outs, torch.Tensor) else list(outs)
    given = [made] if isinstance(made, torch.Tensor) else list(made)
    whole = [t if t._base is None else t._base for t in held]
    shown = [(t.dtype, t.shape, t.stride(), t.requires_grad) for t in held]
    return shown, [any(g is t for t in held) for g in given], held + whole, sorted({str(w.message)[:60] for w in said})


def agree(f: Call, fresh: Callable[[], Any]) -> None:
    want, got = outcome(f, fresh()), outcome(smelt.compile(f, options={"eager_rng": True}), fresh())
    assert len(got) == len(want), (got, want)
    if len(want) == 2:
        assert got == want
        return
    assert (got[0], got[1], got[3]) == (want[0], want[1], want[3])
    for x, y in zip(got[2], want[2], strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("out", OUTS)
@pytest.mark.parametrize("name", ONE)
def test_one_result(name: str, out: str) -> None:
    if (name, out) == ("frequencies", "steps"):
        pytest.skip("eager's own values are wrong there")
    f = ONE[name]
    like = f(None)
    agree(lambda outs: f(outs), lambda: OUTS[out](like))


@pytest.mark.parametrize("out", [name for name in OUTS if name != "leaf"])
@pytest.mark.parametrize("name", SEVERAL)
def test_several_results(name: str, out: str) -> None:
    f = SEVERAL[name]
    like = f(None)
    agree(lambda outs: f(outs), lambda: tuple(map(OUTS[out], like)))


@pytest.mark.parametrize("shape", [(0,), (3, 4)])
@pytest.mark.parametrize("name", [name for name in ONE if "rand" not in name])
def test_out_that_the_function_makes(name: str, shape: tuple[int, ...]) -> None:
    f = ONE[name]
    like = f(None)

    def made() -> tuple[torch.Tensor, ...]:
        out = torch.zeros(like.shape if shape[0] else shape, dtype=like.dtype)
        whole = torch.zeros((2, *like.shape), dtype=like.dtype)
        f(out)
        f(whole[1])
        return out, out + 1, whole, whole * 2

    for x, y in zip(smelt.compile(made)(), made(), strict=True):
        torch.testing.assert_close(x, y)
        assert x.stride() == y.stride()


TURNED: dict[str, Call] = {
    "add": lambda x, y, out: torch.add(x, 1, out=out),
    "mul": lambda x, y, out: torch.mul(x, y, out=out),
    "compare": lambda x, y, out: torch.gt(x, y, out=out),
    "where": lambda x, y, out: torch.where(x > 1, x, y, out=out),
    "gelu": lambda x, y, out: torch.ops.aten.gelu.out(x, out=out),
    "threshold": lambda x, y, out: torch.ops.aten.softshrink.out(x, 0.1, out=out),
    "whole": lambda x, y, out: torch.floor_divide(x, y, out=out),
    "complex": lambda x, y, out: torch.complex(x, y, out=out),
    "polar": lambda x, y, out: torch.polar(x, y, out=out),
    "inverse": lambda x, y, out: torch.cholesky_inverse(positive.expand(*x.shape[:-2], 3, 3).mT.clone(), out=out),
    "sum": lambda x, y, out: torch.sum(x, -1, keepdim=True, out=out),
    "joined": lambda x, y, out: torch.cat([x, y], out=out),
    "softmax": lambda x, y, out: torch.softmax(x, 0, out=out),
    "frequencies": lambda x, y, out: torch.fft.fft(x, out=out),
    "sorted": lambda x, y, out: torch.cumsum(x, 0, out=out),
}
LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "turned": lambda: torch.rand(4, 3).t(),
    "gaps": lambda: torch.rand(3, 8)[:, ::2],
    "channels last": lambda: torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "permuted": lambda: torch.rand(3, 4, 5).permute(1, 2, 0),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TURNED)
def test_out_without_elements_is_laid_out_as_the_result(name: str, layout: str, dynamic: bool | None) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.empty(0, dtype=dtype)
        TURNED[name](x, y, out)
        return out, out * 2

    x, y = LAYOUTS[layout](), LAYOUTS[layout]() + 0.5
    complexes = name in ("complex", "polar", "frequencies")
    dtype = torch.bool if name == "compare" else torch.complex64 if complexes else torch.float32
    for got, want in zip(smelt.compile(f, dynamic=dynamic)(x, y), f(x, y), strict=True):
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()


def test_operators_that_make_tensors_stay_in_the_graph() -> None:
    @smelt.compile(fullgraph=True)
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        torch.arange(4, out=x)
        torch.softmax(x, 0, out=y)
        torch.full((4,), 2.5, out=x)
        return x + y

    x, y = torch.zeros(4), torch.zeros(4)
    out = f(x, y)
    want = torch.softmax(torch.arange(4.0), 0)
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(out, want + 2.5)
    assert x.tolist() == [2.5] * 4


def test_a_result_without_a_derivative_fails_in_its_backward() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(3, 4)
        torch.softmax(x, 0, out=out)
        return out

    for call in (f, smelt.compile(f)):
        out = call(a.clone().requires_grad_())
        torch.testing.assert_close(out.detach(), torch.softmax(a, 0))
        with pytest.raises(RuntimeError, match="derivative for aten::softmax is not implemented"):
            out.sum().backward()


@pytest.mark.parametrize("name", ["add", "mm", "sum"])
def test_operands_that_require_gradients(name: str) -> None:
    calls: dict[str, Callable[..., Any]] = {
        "add": torch.add,
        "mm": torch.mm,
        "sum": lambda x, _, out: torch.sum(x, 0, out=out),
    }
    call = calls[name]

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(call(x, y, out=None).detach())
        with torch.no_grad():
            call(x, y, out=out)
        return out * x.sum()

    def refused(x: torch.Tensor, y: torch.Tensor) -> Any:
        return call(x, y, out=torch.zeros(3, 3))

    square = a[:, :3].contiguous()
    x, y = square.clone().requires_grad_(), square.clone().requires_grad_()
    torch.testing.assert_close(smelt.compile(f)(x, y), f(x, y))
    with pytest.raises(RuntimeError, match="out=... arguments don't support automatic differentiation"):
        smelt.compile(refused)(x, y)


def test_several_results_stay_in_the_graph() -> None:
    @smelt.compile(fullgraph=True)
    def f(x: torch.Tensor, values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        torch.max(x, 0, out=(values, places))
        low, where = torch.empty(0), torch.empty(0, dtype=torch.int64)
        torch.sort(x, out=(low, where))
        return low + where

    values, places = torch.zeros(4), torch.zeros(4, dtype=torch.int64)
    torch.testing.assert_close(f(a, values, places), sum(torch.sort(a)))
    torch.testing.assert_close((values, places), tuple(torch.max(a, 0)))
