"""Convolutions: every implementation gives ATen's result in the strides that were asked for."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from smelt.runtime.library.externs import ExternKernel, extern

NAMES = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")


def parameters(**changes: Any) -> dict[str, Any]:
    plain = dict(stride=(1, 1), padding=(0, 0), dilation=(1, 1), transposed=False, output_padding=(0, 0), groups=1)
    return plain | changes


CASES = {
    "3x3": ((2, 8, 10, 12), (16, 8, 3, 3), parameters(padding=(1, 1))),
    "strided": ((2, 3, 17, 17), (8, 3, 7, 7), parameters(stride=(2, 2), padding=(3, 3))),
    "1x1": ((3, 24, 7, 9), (40, 24, 1, 1), parameters()),
    "1x1 one image": ((1, 24, 7, 9), (40, 24, 1, 1), parameters()),
    "1x1 one place": ((5, 24, 1, 1), (40, 24, 1, 1), parameters()),
    "1x1 strided": ((2, 8, 8, 8), (4, 8, 1, 1), parameters(stride=(2, 2))),
    "grouped": ((2, 8, 9, 9), (8, 1, 3, 3), parameters(groups=8)),
    "transposed": ((2, 8, 6, 6), (8, 4, 2, 2), parameters(stride=(2, 2), transposed=True)),
    "patches": ((2, 3, 12, 20), (8, 3, 4, 5), parameters(stride=(4, 5))),
    "patches of one image": ((1, 3, 8, 8), (8, 3, 4, 4), parameters(stride=(4, 4))),
    "patches in a row": (
        (2, 6, 20),
        (5, 6, 4),
        {k: v[:1] if isinstance(v, tuple) else v for k, v in parameters(stride=(4, 4)).items()},
    ),
    "windows with a rest": ((2, 3, 9, 9), (8, 3, 4, 4), parameters(stride=(4, 4))),
    "one dimension": (
        (2, 6, 20),
        (5, 6, 1),
        {k: v[:1] if isinstance(v, tuple) else v for k, v in parameters().items()},
    ),
}


def in_order(tensor: torch.Tensor, order: str) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if order == "last" and tensor.dim() == 4 else tensor


def each(kernel: ExternKernel, *tensors: Any) -> list[tuple[str, Any]]:
    """Results of every candidate, then of the bound kernel."""
    bound = kernel(*tensors)
    return [(c.name, c.call(*tensors)) for c in kernel.candidates] + [("bound", bound)]


@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_convolution(case: str, order: str, with_bias: bool) -> None:
    x_shape, w_shape, params = CASES[case]
    x, w = in_order(torch.randn(x_shape), order), torch.randn(w_shape)
    channels = w_shape[1] * params["groups"] if params["transposed"] else w_shape[0]
    bias = torch.randn(channels) if with_bias else None
    want = torch.convolution(x, w, bias, *(params[name] for name in NAMES))
    kernel = extern("convolution", params, [x, w, bias], [want])
    for name, got in each(kernel, x, w, bias):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}")
    assert kernel(x, w, bias).stride() == want.stride()
    assert ("patches" in [c.name for c in kernel.candidates]) == case.startswith("patches")
    out = torch.empty_like(want)
    kernel.into(out, x, w, bias)
    torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mask", [m for m in itertools.product((True, False), repeat=3) if any(m)], ids=str)
def test_convolution_backward(case: str, order: str, mask: tuple[bool, bool, bool]) -> None:
    x_shape, w_shape, params = CASES[case]
    x, w = in_order(torch.randn(x_shape), order), torch.randn(w_shape)
    y = torch.convolution(x, w, None, *(params[name] for name in NAMES))
    grad = torch.randn_like(y)
    bias_shape = (y.shape[1],)
    want = torch.ops.aten.convolution_backward(grad, x, w, bias_shape, *(params[n] for n in NAMES), list(mask))
    outputs = [t for t, wanted in zip(want, mask, strict=True) if wanted]
    kernel = extern("convolution_backward", params | {"bias_shape": bias_shape, "mask": mask}, [grad, x, w], outputs)
    for name, got in each(kernel, grad, x, w):
        for result, expected, wanted in zip(got, want, mask, strict=True):
            assert (result is not None) == wanted
            if wanted:
                message = f"{case} {order} {name}"
                torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-3, msg=lambda t, m=message: f"{m}: {t}")
    for result, expected in zip([t for t in kernel(grad, x, w) if t is not None], outputs, strict=True):
        sizes = zip(result.shape, result.stride(), expected.stride(), strict=True)
        assert all(size == 1 or a == b for size, a, b in sizes)


def test_pointwise_product_is_offered_for_float32_only() -> None:
    x, w = torch.randn(2, 8, 4, 4), torch.randn(6, 8, 1, 1)
    names = [c.name for c in extern("convolution", parameters(), [x, w, None], [torch.empty(2, 6, 4, 4)]).candidates]
    assert "own" in names
    x, w = x.bfloat16(), w.bfloat16()
    out = torch.empty(2, 6, 4, 4, dtype=torch.bfloat16)
    assert "own" not in [c.name for c in extern("convolution", parameters(), [x, w, None], [out]).candidates]


def test_no_images_at_all() -> None:
    x, w, grad = torch.randn(0, 8, 4, 4), torch.randn(6, 8, 1, 1), torch.randn(0, 6, 4, 4)
    params = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "transposed": False, "output_padding": (0, 0)}
    params |= {"groups": 1}
    assert extern("convolution", params, [x, w, None], [grad])(x, w).shape == (0, 6, 4, 4)
    params |= {"bias_shape": (6,), "mask": (True, True, True)}
    dx, dw, db = extern("convolution_backward", params, [grad, x, w], [x, w, torch.empty(6)])(grad, x, w)
    assert dx.shape == x.shape and torch.equal(dw, torch.zeros_like(w)) and torch.equal(db, torch.zeros(6))


OVERRUN = """
import torch
from smelt.runtime.library.externs import extern

params = {"stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "transposed": False, "output_padding": (0, 0)}
params |= {"groups": 1, "bias_shape": (64,), "mask": (True, True, False)}
for order in (torch.contiguous_format, torch.channels_last):
    for _ in range(10):
        x, w = torch.randn(2, 3, 64, 64).contiguous(memory_format=order), torch.randn(64, 3, 1, 1)
        grad = torch.randn(2, 64, 32, 32).contiguous(memory_format=order)
        kernel = extern("convolution_backward", params, [grad, x, w], [x, w])
        want = torch.ops.aten.convolution_backward(
            grad.contiguous(), x.contiguous(), w, [64], *list(params.values())[:6], [True, True, False]
        )
        for candidate in kernel.candidates:
            for got, expected in zip(candidate.call(grad, x, w), want[:2]):
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)
print("fine")
"""


def test_a_gradient_that_onednn_writes_beyond_its_memory() -> None:
    """Eager dies of a corrupt heap with images in channels-last order; so do processes, hence one of its own."""
    environment = os.environ | {"GLIBC_TUNABLES": "glibc.malloc.check=3", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", OVERRUN], env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr[-2000:]
