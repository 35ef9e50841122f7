"""Depthwise convolutions by kernels of our own, under Triton's interpreter or on a GPU, against eager's in float64."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from smelt.base.torch_c import below_autograd
from smelt.runtime.library import depthwise
from smelt.runtime.library.depthwise import DepthwiseKernel, Shape, forward_kernel, input_kernel, weight_kernels
from smelt.runtime.library.externs import Spec, extern
from smelt.runtime.triton.build import build
from smelt.runtime.tuned import DEPTHWISE

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("triton_device")
DEVICE = "cpu"


@dataclass(frozen=True)
class Case:
    """One convolution; `times`: channels made of each."""

    images: tuple[int, int, int, int]
    window: tuple[int, int] = (3, 3)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    times: int = 1
    bias: bool = False
    dtype: torch.dtype = torch.float32

    def params(self) -> dict[str, Any]:
        place = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return place | {"transposed": False, "output_padding": (0, 0), "groups": self.images[1]}

    @property
    def geometry(self) -> tuple[Any, ...]:
        return (self.stride, self.padding, self.dilation, False, (0, 0), self.images[1])


CASES = {
    "3x3": Case((2, 16, 7, 9)),
    "3x3 strided": Case((2, 16, 9, 8), stride=(2, 2), bias=True),
    "5x5": Case((2, 8, 6, 7), (5, 5), padding=(2, 2), dtype=torch.float16),
    "5x5 strided": Case((2, 24, 7, 10), (5, 5), (2, 2), (2, 2), dtype=torch.bfloat16, bias=True),
    "7x7": Case((1, 8, 7, 8), (7, 7), padding=(3, 3), dtype=torch.bfloat16),
    "no padding": Case((2, 4, 5, 6), padding=(0, 0)),
    "more padding than the window": Case((1, 4, 3, 4), padding=(4, 3)),
    "dilated": Case((2, 8, 9, 8), dilation=(2, 3), padding=(2, 2)),
    "dilated and strided": Case((2, 6, 11, 10), stride=(2, 2), dilation=(2, 2), padding=(2, 1), bias=True),
    "dilated as strided leaves it": Case((1, 4, 13, 13), stride=(3, 3), dilation=(4, 4)),
    "not square": Case((2, 6, 10, 8), (5, 3), (2, 1), (2, 1), (1, 2)),
    "two of each channel": Case((2, 8, 6, 9), (3, 5), (1, 2), (0, 3), (2, 1), times=2, bias=True),
    "three of each channel": Case((1, 4, 8, 8), stride=(2, 2), times=3, dtype=torch.float16),
    "one column": Case((2, 5, 7, 1), (7, 1), (3, 1), (3, 0)),
    "1x1": Case((2, 8, 4, 5), (1, 1), (2, 2), (0, 0)),
    "many rows": Case((1, 4, 40, 6)),
}


@dataclass
class Operands:
    """Of a case: channels last, w by element of the window."""

    x: Tensor
    w: Tensor
    bias: Tensor | None
    grad: Tensor


def operands(case: Case) -> Operands:
    def images(shape: Any) -> Tensor:
        return torch.randn(shape, device=DEVICE).to(case.dtype).contiguous(memory_format=torch.channels_last)

    x, channels = images(case.images), case.images[1] * case.times
    w = torch.randn(*case.window, 1, channels, device=DEVICE).to(case.dtype).permute(3, 2, 0, 1)
    bias = torch.randn(channels, device=DEVICE).to(case.dtype) if case.bias else None
    made = torch.convolution(x.double(), w.double(), None, *case.geometry)
    return Operands(x, w, bias, images(made.shape))


def forward(case: Case, given: Operands) -> Tensor:
    kernel = extern(
        "convolution", case.params(), [given.x, given.w, given.bias], [given.grad], device=torch.device(DEVICE)
    )
    assert [c.name for c in kernel.candidates] == ["depthwise"]
    with torch.no_grad(), below_autograd():
        found = kernel(given.x, given.w, given.bias)
        into = torch.empty_like(found)
        kernel.into(into, given.x, given.w, given.bias)
    assert torch.equal(found, into) and found.stride() == given.grad.stride()
    return found


def backward(case: Case, given: Operands, mask: tuple[bool, bool, bool] = (True, True, False)) -> tuple[Any, ...]:
    weight = torch.empty(given.w.shape, device=DEVICE, dtype=case.dtype)
    wanted = [t for t, one in zip((given.x, weight, given.w[:, 0, 0, 0]), mask, strict=True) if one]
    params = case.params() | {"bias_shape": given.w.shape[:1], "mask": mask}
    kernel = extern("convolution_backward", params, [given.grad, given.x, given.w], wanted, device=torch.device(DEVICE))
    assert [c.name for c in kernel.candidates] == ["depthwise"]
    with torch.no_grad(), below_autograd():
        found = kernel(given.grad, given.x, given.w)
    assert [t is not None for t in found] == list(mask)
    if mask[1]:
        assert found[1].stride() == weight.stride()
    return found


def expected(case: Case, given: Operands) -> tuple[Tensor, Tensor, Tensor]:
    x, w, grad = (t.double() for t in (given.x, given.w, given.grad))
    out = torch.convolution(x, w, None if given.bias is None else given.bias.double(), *case.geometry)
    dx, dw, _ = torch.ops.aten.convolution_backward(grad, x, w, None, *case.geometry, [True, True, False])
    return out, dx, dw


def close(found: Tensor, want: Tensor) -> None:
    """Rounded once: half of the last place, and what float32 sums lose."""
    error = {torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}[found.dtype]
    torch.testing.assert_close(found.double(), want, rtol=error, atol=2e-6 * float(want.abs().max()) + 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str) -> None:
    case = CASES[name]
    given = operands(case)
    out, dx, dw = expected(case, given)
    close(forward(case, given), out)
    by_x, by_w, _ = backward(case, given)
    close(by_x, dx)
    close(by_w, dw)


@pytest.mark.parametrize("mask", [(True, False, False), (False, True, False), (True, True, True)], ids=str)
def test_only_the_gradients_that_are_wanted(mask: tuple[bool, bool, bool]) -> None:
    case = CASES["3x3 strided"]
    given = operands(case)
    wants = (*expected(case, given)[1:], given.grad.double().sum((0, 2, 3)))
    for got, want in zip(backward(case, given, mask), wants, strict=True):
        assert got is None or torch.allclose(got.double(), want, rtol=1e-5, atol=1e-5)


def test_weights_as_they_come() -> None:
    case = CASES["5x5"]
    given = operands(case)
    want = forward(case, given), *backward(case, given)[:2]
    given.w = given.w.contiguous()
    for one, other in zip((forward(case, given), *backward(case, given)[:2]), want, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("moved", ["", "x", "w", "bias", "grad", "x w bias grad"])
@pytest.mark.parametrize("name", ["3x3 strided", "5x5 strided"])
def test_memory_that_begins_anywhere(monkeypatch: pytest.MonkeyPatch, name: str, moved: str) -> None:
    """Kernels are given copies that begin with words, of what does not."""
    given_to: list[int] = []
    run = depthwise.Bound.__call__

    def looked(self: depthwise.Bound, tensors: Any) -> None:
        given_to.extend(t.data_ptr() for t in tensors)
        run(self, tensors)

    monkeypatch.setattr(depthwise.Bound, "__call__", looked)
    case = CASES[name]
    given = operands(case)
    want = expected(case, given)
    for one in moved.split():
        old = getattr(given, one)
        room = torch.empty(old.numel() + 1, device=DEVICE, dtype=old.dtype)
        setattr(given, one, room[1:].as_strided(old.shape, old.stride(), 1).copy_(old))
    for got, wanted in zip((forward(case, given), *backward(case, given)[:2]), want, strict=True):
        close(got, wanted)
    assert all(pointer % 16 == 0 for pointer in given_to)
    for one in {"x", "w", "bias", "grad"} - set(moved.split()):
        assert getattr(given, one).data_ptr() in given_to


@pytest.mark.parametrize(("programs", "steps"), [(1, 100), (1000, 1)])
def test_rows_are_shared_out_and_added_up(monkeypatch: pytest.MonkeyPatch, programs: int, steps: int) -> None:
    """Few programs walk many images each; many have a few rows. Equal calls give equal bits."""
    monkeypatch.setattr(depthwise, "DEPTHWISE", replace(DEPTHWISE, weight_programs=programs, min_rows=steps))
    for case in (Case((5, 16, 12, 16)), Case((3, 8, 9, 8), stride=(2, 1), padding=(0, 2)), CASES["dilated"]):
        given = operands(case)
        mask = (False, True, False)
        got = backward(case, given, mask)[1]
        close(got, expected(case, given)[2])
        assert torch.equal(got, backward(case, given, mask)[1])


def test_elements_in_no_window_are_not_read() -> None:
    case = Case((1, 4, 8, 8), stride=(2, 2), padding=(0, 0))
    given = operands(case)
    given.x[:, :, 7], given.x[:, :, :, 7] = torch.nan, torch.inf
    out, _, dw = expected(case, given)
    close(forward(case, given), out)
    close(backward(case, given)[1], dw)


def candidates(case: Case, x: Tensor, w: Tensor, device: torch.device | None, **changes: Any) -> list[str]:
    params = case.params() | changes
    geometry = [params[n] for n in ("stride", "padding", "dilation", "transposed", "output_padding", "groups")]
    out = torch.convolution(x.float(), w.float(), None, *geometry).to(x.dtype)
    return [c.name for c in extern("convolution", params, [x, w, None], [out], device=device).candidates]


def test_others_are_the_librarys() -> None:
    case, device = CASES["3x3"], torch.device(DEVICE)
    given = operands(case)
    x, w = given.x, given.w
    assert candidates(case, x, w, device) == ["depthwise"]
    assert "depthwise" not in candidates(case, x, w, None)  # programs for a CPU
    assert "depthwise" not in candidates(case, x.contiguous(), w, device)
    assert "depthwise" not in candidates(case, x.double(), w.double(), device)
    assert "depthwise" not in candidates(case, x, w, device, transposed=True)
    assert "depthwise" not in candidates(case, x, torch.randn(16, 2, 3, 3, device=DEVICE), device, groups=8)
    wide = torch.randn(16, 1, 12, 12, device=DEVICE)
    assert "depthwise" not in candidates(case, x, wide, device, padding=(8, 8))


def kernels_of(dtype: torch.dtype, channels: int, size: int, window: int, stride: int) -> list[DepthwiseKernel]:
    """The kernels of a layer of a usual model, with the batch that its figures are given for."""
    made = -(-size // stride)

    def images(side: int) -> Spec:
        return Spec((64, channels, side, side), (side * side * channels, 1, side * channels, channels), dtype)

    w = Spec((channels, 1, window, window), (1, 1, window * channels, channels), dtype)
    case = Case((64, channels, size, size), (window,) * 2, (stride,) * 2, (window // 2,) * 2)
    shape = Shape(case.params(), images(size), w, images(made))
    gradient = Spec(w.shape, (window * window, window * window, window, 1), dtype)
    return [forward_kernel(shape, False), input_kernel(shape), *weight_kernels(shape, gradient)[:2]]


LAYERS = [
    (torch.bfloat16, 16, 112, 3, 1),
    (torch.bfloat16, 72, 56, 5, 2),
    (torch.bfloat16, 184, 14, 3, 1),
    (torch.bfloat16, 128, 56, 7, 1),
    (torch.float32, 120, 28, 5, 1),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_kernels_fit_a_gpu(layer: tuple[Any, ...], tmp_path: Path) -> None:
    """Built for compute capability 9.0: several programs fit a multiprocessor, none spills, images are read wide."""
    import triton

    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    kernels = kernels_of(*layer)
    sources = [kernel.source() for kernel in kernels]
    for kernel, started in zip(kernels, [build(source, source.configs[0], 90) for source in sources], strict=True):
        cubin = started.result()
        file = tmp_path / f"{cubin.name}.cubin"
        file.write_bytes(cubin.image)
        command = [tools / "cuobjdump", "--dump-resource-usage", "--dump-sass", file]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        registers, stack = (int(re.search(rf"{kind}:(\d+)", told).group(1)) for kind in ("REG", "STACK"))
        assert registers * cubin.threads * 2 <= 65536 and stack == 0
        if kernel.name in ("forward", "input"):
            assert set(re.findall(r"LDG\.E[.\w]*", told)) == {"LDG.E.128"}


def test_images_share_their_kernels() -> None:
    """Sizes are arguments, channels too: in vectors."""
    small, large = kernels_of(torch.bfloat16, 480, 14, 3, 1), kernels_of(torch.bfloat16, 184, 112, 3, 1)
    for one, other in zip(small, large, strict=True):
        assert one.source() == other.source() and one.numbers != other.numbers


def test_large_images_are_the_librarys() -> None:
    case = Case((1, 64, 8192, 8192), (3, 3))
    x = Spec(case.images, (64 << 26, 1, 64 << 13, 64), torch.bfloat16)
    w = Spec((64, 1, 3, 3), (1, 1, 192, 64), torch.bfloat16)
    assert not depthwise.fits(case.params(), x, w, x)
    half = Spec((1, 64, 4096, 4096), (64 << 24, 1, 64 << 12, 64), torch.bfloat16)
    assert depthwise.fits(Case(half.shape).params(), half, w, half)
