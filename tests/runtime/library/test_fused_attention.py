"""The fused attention kernels are called as their prims say: on a GPU, and on the CPU on kernels of the tests' own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.base.torch_c import below_autograd
from smelt.graph.ir.meta import meta_of
from smelt.prims.ops import PRIMS
from smelt.runtime.library.externs import extern, spec_of

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CASES = {
    "flash": (False, False, None), "flash causal": (False, True, 0.3), "efficient": (False, True, None),
    "efficient with a bias": (True, False, 0.3), "cudnn": (False, True, 0.3), "cudnn with a bias": (True, False, None),
}  # fmt: skip
"""Kind -> bias, causal, scale."""


def _flash(q: Any, k: Any, v: Any, dropout: float = 0.0, causal: bool = False, *, scale: Any = None) -> Any:
    assert not dropout
    nothing = torch.empty(0)
    lengths = q.shape[2], k.shape[2]
    return (*PRIMS["attention_flash"](q, k, v, causal, scale), nothing, nothing, *lengths, nothing, nothing, nothing)


def _flash_backward(g: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, *rest: Any, scale: Any = None) -> Any:
    no_q, no_k, many_q, many_k, dropout, causal, *numbers = rest
    assert no_q is no_k is None and (many_q, many_k) == (q.shape[2], k.shape[2]) and not dropout and len(numbers) == 2
    return PRIMS["attention_flash_backward"](g, q, k, v, out, sums, causal, scale)


def _efficient(
    q: Any, k: Any, v: Any, bias: Any, sums: bool, dropout: float = 0.0, causal: bool = False, *, scale: Any = None
) -> Any:
    assert not dropout
    nothing = torch.empty(0)
    return (*PRIMS["attention_efficient"](q, k, v, bias, sums, causal, scale), nothing, nothing)


def _efficient_backward(
    g: Any, q: Any, k: Any, v: Any, bias: Any, out: Any, sums: Any, *rest: Any, scale: Any = None
) -> Any:
    _, _, dropout, mask, causal = (*rest, False)[:5]
    assert not dropout
    found = PRIMS["attention_efficient_backward"](g, q, k, v, bias, out, sums, tuple(mask), causal, scale)
    return tuple(torch.empty(0) if one is None else one for one in found)


def _cudnn(
    q: Any, k: Any, v: Any, bias: Any, sums: bool, dropout: float = 0.0, causal: bool = False, *, scale: Any = None
) -> Any:
    assert not dropout
    nothing, lengths = torch.empty(0), (q.shape[2], k.shape[2])
    out, found = PRIMS["attention_cudnn"](q, k, v, bias, True, causal, scale)
    return out, found if sums else nothing[None], nothing, nothing, *lengths, nothing, nothing, nothing


def _cudnn_backward(g: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, *rest: Any, scale: Any = None) -> Any:
    _, _, bias, no_q, no_k, many_q, many_k, dropout, causal = rest
    assert no_q is no_k is None and (many_q, many_k) == (q.shape[2], k.shape[2]) and not dropout
    return PRIMS["attention_cudnn_backward"](g, q, k, v, out, sums, bias, causal, scale)


KERNELS: dict[str, Callable[..., Any]] = {
    "flash": _flash, "flash_attention_backward": _flash_backward, "efficient": _efficient,
    "efficient_attention_backward": _efficient_backward, "cudnn": _cudnn, "cudnn_attention_backward": _cudnn_backward,
}  # fmt: skip


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    """Kernels of the CPU for the operators that have none there."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in KERNELS.items():
        full = name if name.endswith("backward") else f"{name}_attention"
        library.impl(f"_scaled_dot_product_{full}", kernel, "CPU")
    yield
    library._destroy()


def tensors(device: str, biased: bool, keys: int = 24) -> tuple[Tensor, ...]:
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    shapes = (2, 3, 16, 8), (2, 3, keys, 8), (2, 3, keys, 8), (2, 3, 16, 8)
    q, k, v, grad = (torch.randn(shape, device=device, dtype=dtype) for shape in shapes)
    bias = torch.randn(2, 3, 16, keys, device=device, dtype=dtype) if biased else None
    return q, k, v, grad, bias


def called(name: str, *args: Any) -> tuple[Any, ...]:
    """The results of the external kernel, which have what the prim's meta rule says."""
    prim = PRIMS[name]
    named = dict(zip(prim.parameters, args, strict=True))
    given = {p: x for p, x in named.items() if isinstance(x, Tensor) or p == "bias"}
    metas = prim.meta(*(meta_of(x) if isinstance(x, Tensor) else x for x in args))
    kernel = extern(name, {p: x for p, x in named.items() if p not in given}, list(given.values()), list(metas))
    with torch.no_grad(), below_autograd():
        found = kernel(*given.values())
    for got, meta in zip(found, metas, strict=True):
        assert got is meta is None or spec_of(got) == spec_of(meta)
    assert kernel.chosen == "aten"
    return found


def same(found: tuple[Any, ...], wanted: tuple[Any, ...], what: str) -> None:
    for number, (got, want) in enumerate(zip(found, wanted, strict=True)):
        if not got is want is None:
            told = f"{what}, result {number}: {{}}".format
            torch.testing.assert_close(got.float(), want.float(), rtol=0.05, atol=0.05, msg=told)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_kernels_compute_what_the_prims_do(case: str, device: str) -> None:
    kind, (biased, causal, scale) = case.split()[0], CASES[case]
    # Eager takes flash for causal attention of as many queries as keys alone: its kernel counts the diagonal of others
    # from the last key, and everybody else from the first.
    q, k, v, grad, bias = tensors(device, biased, keys=16 if kind == "flash" and causal else 24)
    name, more = f"attention_{kind}", (() if kind == "flash" else (bias, True))
    args = (q, k, v, *more, causal, scale)
    out, sums = called(name, *args)
    want, want_sums = PRIMS[name](*args)
    same((out, sums.flatten(2)[..., :16]), (want, want_sums.flatten(2)[..., :16]), "forward")
    mask = (True, True, False, biased)
    back = {
        "flash": (out, sums),
        "efficient": (bias, out, sums, mask),
        "cudnn": (out, sums, bias),
    }[kind]
    rest = (grad, q, k, v, *back, causal, scale)
    same(called(f"{name}_backward", *rest), PRIMS[f"{name}_backward"](*rest), "backward")


class Clock:
    """Times nothing: all candidates take equally long."""

    def recording(self) -> bool:
        return False

    def time(self, run: Callable[[], object]) -> float:
        run()
        return 1.0

    def name(self) -> str:
        return "a clock"


def candidates(name: str, device: str, *args: Any) -> dict[str, tuple[Any, ...]]:
    """The results of every candidate that there is under max-autotune, and of the kernel that has chosen one."""
    prim = PRIMS[name]
    named = dict(zip(prim.parameters, args, strict=True))
    given = {p: x for p, x in named.items() if isinstance(x, Tensor) or p == "bias"}
    metas = prim.meta(*(meta_of(x) if isinstance(x, Tensor) else x for x in args))
    params = {p: x for p, x in named.items() if p not in given}
    bind = functools.partial(extern, name, params, list(given.values()), list(metas), device=torch.device(device))
    kernel, found = bind(clock=Clock()), {}
    with torch.no_grad(), below_autograd():
        for candidate in kernel.candidates:
            alone = bind(clock=Clock())
            alone.candidates = [candidate]
            found[candidate.name] = alone(*given.values())
        found["chosen"] = kernel(*given.values())
    assert kernel.chosen in found
    for results in found.values():
        for got, meta in zip(results, metas, strict=True):
            assert got is meta is None or spec_of(got) == spec_of(meta)
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
def test_each_kernel_may_stand_in_anothers_place(case: str, device: str) -> None:
    """Whatever kind of kernel has made the logsumexp, and however it is stored, all backwards can read it."""
    kind, (biased, causal, scale) = case.split()[0], CASES[case]
    q, k, v, grad, bias = (
        None if x is None else x.to(torch.bfloat16) for x in tensors(device, biased, keys=16 if causal else 24)
    )
    name, more = f"attention_{kind}", (() if kind == "flash" else (bias, True))
    args = (q, k, v, *more, causal, scale)
    want, want_sums = PRIMS[name](*args)
    found = candidates(name, device, *args)
    others = {"cudnn", "efficient"} if biased else {"flash", "cudnn", "efficient", "tiled"}
    assert found.keys() == (others - {kind}) | {"aten", "chosen"}
    mask = (True, True, False, False)
    for maker, (out, sums) in found.items():
        assert sums.shape == want_sums.shape, maker
        rows = sums.flatten(2)[..., :16], want_sums.flatten(2)[..., :16]
        same((out, rows[0]), (want, rows[1]), f"forward by {maker}")
        back = {"flash": (out, sums), "efficient": (bias, out, sums, mask), "cudnn": (out, sums, bias)}[kind]
        rest = (grad, q, k, v, *back, causal, scale)
        wanted = PRIMS[f"{name}_backward"](*rest)
        for reader, gradients in candidates(f"{name}_backward", device, *rest).items():
            same(tuple(gradients), wanted, f"forward by {maker}, backward by {reader}")


def test_nothing_is_timed_while_a_stream_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, _, _ = (None if x is None else x.to(torch.bfloat16) for x in tensors("cpu", False))
    metas = PRIMS["attention_flash"].meta(meta_of(q), meta_of(k), meta_of(v), False, None)
    clock = Clock()
    params = {"causal": False, "scale": None}
    kernel = extern("attention_flash", params, [q, k, v], list(metas), device=torch.device("cpu"), clock=clock)
    monkeypatch.setattr(clock, "recording", lambda: True)
    with torch.no_grad(), below_autograd():
        kernel(q, k, v)
        assert kernel.chosen is None
        monkeypatch.setattr(clock, "recording", lambda: False)
        kernel(q, k, v)
    assert kernel.chosen is not None


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_attention_under_max_autotune(mode: str) -> None:
    """A training step whose attention is chosen by time is as exact as eager's."""
    torch.manual_seed(0)
    smelt.reset()
    q, k, v = (torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))

    def gradients(function: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(dtype).requires_grad_() for x in (q, k, v)]
        out = function(*leaves)
        out.square().sum().backward()
        return [out.detach(), *(x.grad for x in leaves)]

    attend = torch.nn.functional.scaled_dot_product_attention
    exact, eager = gradients(attend, torch.float64), gradients(attend, torch.bfloat16)
    compiled = smelt.compile(lambda q, k, v: attend(q, k, v), mode=mode, fullgraph=True)
    for _ in range(4):
        found = gradients(compiled, torch.bfloat16)
        for got, want, right in zip(found, eager, exact, strict=True):
            error, usual = (got - right).abs().max(), (want - right).abs().max()
            assert error <= 2 * usual + 1e-3, (error, usual)
    chosen = {name.partition(":")[0] for name in smelt.stats()["kernel_choices"]}
    assert len(chosen) == 2 and all(name.startswith("attention_") for name in chosen)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(2, 1, 16, 24), (1, 3, 1, 24), (1, 1, 1, 24)])
@pytest.mark.parametrize("kind", ["efficient", "cudnn"])
def test_a_bias_of_many_heads(kind: str, shape: tuple[int, ...], device: str) -> None:
    q, k, v, grad, _ = tensors(device, False)
    name, bias = f"attention_{kind}", torch.randn(shape, device=device, dtype=q.dtype)
    args = (q, k, v, bias, True, False, 0.3)
    (out, sums), (want, _) = called(name, *args), PRIMS[name](*args)
    same((out,), (want,), "forward")
    back = (bias, out, sums, (True, True, True, False)) if kind == "efficient" else (out, sums, bias)
    rest = (grad, q, k, v, *back, False, 0.3)
    same(called(f"{name}_backward", *rest), PRIMS[f"{name}_backward"](*rest), "backward")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["efficient", "cudnn"])
def test_unused_sums(kind: str, device: str) -> None:
    q, k, v, _, _ = tensors(device, False)
    args = (q, k, v, None, False, False, None)
    out, sums = called(f"attention_{kind}", *args)
    assert not sums.numel()
    same((out,), PRIMS[f"attention_{kind}"](*args)[:1], "without sums")
