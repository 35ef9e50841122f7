"""Products as templates on a real GPU: right, chosen by time, remembered by the next process, and recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import smelt
from smelt.base.store import store
from smelt.runtime.triton import products as triton_products

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

ROUNDING = {torch.float32: 1e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}


def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b)) + r


def summed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    """Of 16 bits, too, a product that a template may compute: with a bias of its own the library adds it."""
    return F.gelu(F.linear(x, w)) + b + r


def given(m: int, k: int, n: int, dtype: torch.dtype) -> list[torch.Tensor]:
    shapes = (m, k), (n, k), (n,), (m, n)
    return [torch.randn(*shape, device="cuda", dtype=dtype).requires_grad_() for shape in shapes]


def step(f, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    out = f(*tensors)
    return [out.detach(), *torch.autograd.grad(out, tensors, torch.ones_like(out))]


def check(f, tensors: list[torch.Tensor], calls: int = 3, want: Callable[..., torch.Tensor] = layer) -> None:
    """Results and gradients of some calls within twice eager's own error against float64, and a rounding."""
    exact = step(want, [x.detach().double().requires_grad_() for x in tensors])
    eager = step(want, tensors)
    for _ in range(calls):
        for g, e, w in zip(step(f, tensors), eager, exact, strict=True):
            norm = w.norm()
            mine, theirs = (g.double() - w).norm() / norm, (e.double() - w).norm() / norm
            assert mine <= 2 * theirs + ROUNDING[g.dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [(512, 256, 384), (100, 333, 77), (64, 4096, 64)])
def test_templates_are_right(dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    f = smelt.compile(layer, options={"gemm": "template", "cuda_graphs": False})
    check(f, given(*sizes, dtype))
    assert set(smelt.stats()["product_choices"]) == {"template"}


def test_a_batch_and_sizes_that_change() -> None:
    f = smelt.compile(lambda a, b, c: torch.relu(a @ b + c), dynamic=True, options={"gemm": "template"})
    for batch, m, k, n in ((3, 100, 64, 80), (5, 33, 100, 17), (2, 256, 128, 64)):
        a, b, c = (torch.randn(batch, *s, device="cuda", dtype=torch.float16) for s in ((m, k), (k, n), (m, n)))
        want = torch.relu(a.double() @ b.double() + c.double())
        torch.testing.assert_close(f(a, b, c).double(), want, rtol=1e-2, atol=1e-2 * k**0.5)


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_a_choice_is_made_by_time(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    triton_products.forget()
    check(smelt.compile(summed, mode=mode), given(512, 256, 384, torch.bfloat16), calls=5, want=summed)
    choices = smelt.stats()["product_choices"]
    assert set(choices) <= {"library", "template"} and sum(choices.values()) == 1  # not of gradients
    assert len(list((store().root / "triton-product").rglob("*.txt"))) == 1


SCRIPT = """
import torch, torch.nn.functional as F, smelt, sys
from smelt.runtime.triton import products as triton_products, tune as triton_tune
if sys.argv[1] == "again":
    def race(*_):
        raise AssertionError("timed again")
    triton_tune.race = triton_products.race = race
x, w = torch.ones(512, 256, device="cuda"), torch.ones(384, 256, device="cuda")
f = smelt.compile(lambda x, w: F.relu(F.linear(x, w)) + 1, mode="max-autotune-no-cudagraphs")
assert float((f(x, w) - 257).abs().max()) == 0
print(smelt.stats()["product_choices"])
"""


def test_the_next_process_knows_the_choice(tmp_path: Path) -> None:
    environment = {**os.environ, "SMELT_CACHE_DIR": str(tmp_path), "SMELT_STRICT": "1"}
    said = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT, which], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for which in ("first", "again")
    ]
    assert said[0] == said[1] != ""


def test_rounding_follows_the_switch() -> None:
    x, w = torch.randn(256, 512, device="cuda"), torch.randn(512, 256, device="cuda")
    f = smelt.compile(torch.mm, options={"gemm": "template"})
    want = x.double() @ w.double()
    before = torch.backends.cuda.matmul.fp32_precision
    errors = {}
    try:
        for value in ("ieee", "tf32"):
            torch.backends.cuda.matmul.fp32_precision = value
            errors[value] = float((f(x, w) - want).norm() / want.norm())
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert errors["ieee"] < 1e-6 < 1e-4 < errors["tf32"] < 1e-2


@pytest.fixture
def exact() -> Iterator[None]:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


def test_large_products_of_float32_are_split(exact: None) -> None:
    tensors = given(4096, 768, 1024, torch.float32)
    check(smelt.compile(layer), tensors)
    choices = smelt.stats()["product_choices"]
    assert choices["template"] >= 1 and sum(choices.values()) == 2  # forward, and the gradient of the input
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    smelt.reset()
    step(smelt.compile(layer), tensors)
    assert not smelt.stats().get("product_choices")


@pytest.mark.parametrize("transposed", [True, False])
def test_split_products_of_numbers_that_are_not_finite(exact: None, transposed: bool) -> None:
    f = smelt.compile((lambda a, b: a @ b.T) if transposed else torch.mm, options={"gemm": "template"})
    a, b = torch.ones(128, 64, device="cuda"), torch.eye(64, device="cuda") + 1
    a[0, 0], a[1, 1], a[2, 2], a[3, 3], a[4, 4] = torch.inf, -torch.inf, torch.nan, 3e38, 1e-42
    b[5, 5] = torch.inf
    want = a @ b.T if transposed else a @ b
    assert torch.equal(f(a, b).isnan(), want.isnan())
    torch.testing.assert_close(f(a, b), want, equal_nan=True)
