"""The native gradient of depthwise convolutions by their weight against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import smelt
from smelt.runtime import _native
from smelt.runtime.library.depthwise_cpu import MAX_TAPS, fits
from smelt.runtime.library.externs import extern, spec_of

LAST = torch.channels_last
BACKWARD = torch.ops.aten.convolution_backward.default


class Case:
    """A convolution of random values: `x` and `w`, the gradient `grad` by its result, its `params`."""

    def __init__(
        self,
        images: tuple[int, int, int, int],
        window: tuple[int, int] = (3, 3),
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
        mask: tuple[bool, bool, bool] = (False, True, False),
    ) -> None:
        channels = images[1]
        self.params: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "transposed": False}
        self.params |= {"output_padding": (0, 0), "groups": channels, "bias_shape": (channels,), "mask": mask}
        self.x = last(torch.randn(images))
        self.w = torch.randn(channels, 1, *window)
        self.grad = last(torch.randn_like(torch.conv2d(self.x, self.w, None, stride, padding, dilation, channels)))
        self.geometry = (stride, padding, dilation, False, (0, 0), channels)

    def check(self, *names: str) -> None:
        """Every candidate; they are "depthwise" alone, or `names`."""
        mask = self.params["mask"]
        tensors = (self.grad, self.x, self.w)
        wanted = BACKWARD(*(t.double() for t in tensors), (len(self.w),), *self.geometry, mask)
        made = [t.float() for t, asked in zip(wanted, mask, strict=True) if asked]
        for name in names or ("depthwise",):
            kernel = extern("convolution_backward", self.params, list(tensors), made, only=name)
            assert [c.name for c in kernel.candidates] == [name]
            for got, right, asked in zip(kernel(*tensors), wanted, mask, strict=True):
                assert (got is not None) is asked
                if asked:
                    torch.testing.assert_close(got.double(), right, rtol=1e-5, atol=2e-6 * float(right.abs().max()))


def last(images: torch.Tensor) -> torch.Tensor:
    """The images with neighbouring channels, also where one of their sizes is one."""
    return images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


@pytest.mark.parametrize("channels", [2, 3, 4, 7, 8, 11, 16, 17, 31, 32, 33, 40, 72])
def test_any_number_of_channels(kind: str, channels: int) -> None:
    torch.manual_seed(channels)
    Case((2, channels, 6, 5)).check()


@pytest.mark.parametrize("window", [(1, 1), (1, 7), (7, 1), (2, 4), (5, 5), (6, 3), (8, 8), (11, 11), (3, 15)])
def test_any_window(kind: str, window: tuple[int, int]) -> None:
    torch.manual_seed(0)
    Case((2, 35, 12, 16), window, padding=(window[0] // 2, window[1] // 2)).check()


@settings(max_examples=100, deadline=None)
@given(
    images=st.tuples(st.integers(1, 3), st.integers(2, 70), st.integers(1, 12), st.integers(1, 12)),
    window=st.tuples(st.integers(1, 5), st.integers(1, 9)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(4, 6), st.integers(8, 9)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
def test_any_geometry(**sizes: Any) -> None:
    """Padding beyond half a window: some windows meet no image at all."""
    torch.manual_seed(0)
    Case(**sizes).check()


@pytest.mark.parametrize("threads", [1, 2, 5, 24])
@pytest.mark.parametrize("images", [(3, 16, 40, 24), (1, 200, 9, 9), (2, 40, 4, 160)])
def test_threads(threads: int, images: tuple[int, int, int, int]) -> None:
    """Few channels for the threads: images are shared out too."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(0)
        Case(images).check()
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("mask", [(True, True, True), (True, True, False), (False, True, True)])
def test_the_other_gradients_come_with_it(mask: tuple[bool, bool, bool]) -> None:
    torch.manual_seed(0)
    Case((2, 24, 7, 7), mask=mask).check()


@pytest.mark.parametrize("mask", [(True, True, True), (True, True, False), (False, True, True)])
@pytest.mark.parametrize("order", ["plain", "grad", "x"])
def test_other_orders_of_memory(mask: tuple[bool, bool, bool], order: str) -> None:
    torch.manual_seed(0)
    case = Case((2, 24, 7, 6), stride=(2, 1), mask=mask)
    if order != "grad":
        case.x = case.x.contiguous()
    if order != "x":
        case.grad = case.grad.contiguous()
    case.check("aten", "depthwise", *(["channels_last"] if mask[0] else []))
    kernel = extern(
        "convolution_backward", case.params, [case.grad, case.x, case.w], [case.x, case.w, case.w[:, 0, 0, 0]]
    )
    assert len(kernel.candidates) == 2 + mask[0]
    one = Case((2, 24, 7, 6), (1, 1), stride=(2, 1), padding=(0, 0), mask=mask)
    one.x = one.x.contiguous()
    one.check("depthwise", *(["channels_last"] if mask[0] else []))


def test_rows_and_images_apart() -> None:
    """Images that are windows onto larger ones."""
    torch.manual_seed(0)
    case = Case((2, 24, 6, 7))
    case.x = last(torch.randn(4, 30, 9, 14))[::2, :24, 1:7, ::2]
    case.grad = last(torch.randn(2, 26, 6, 9))[:, 2:, :, 2:]
    case.check()


def test_padding_is_not_read() -> None:
    """What lies around a window onto an image is not its own."""
    torch.manual_seed(0)
    case, around = Case((1, 32, 5, 5)), torch.full((1, 32, 9, 9), float("nan"))
    around = last(around)
    around[:, :, 2:7, 2:7] = case.x
    case.x = around[:, :, 2:7, 2:7]
    case.check()


def test_long_sums_are_as_exact_as_short_ones() -> None:
    ones, images = torch.ones(16, 1, 1, 1), last(torch.full((1, 16, 3000, 700), 1.1))
    params = Case((1, 16, 2, 2), (1, 1), padding=(0, 0)).params
    kernel = extern("convolution_backward", params, [images, images, ones], [ones])
    torch.testing.assert_close(kernel(images, images, ones)[1], ones * (1.1 * 1.1 * 3000 * 700), rtol=1e-5, atol=0)


def test_unsupported_types_windows_and_parameters_do_not_fit() -> None:
    case = Case((2, 24, 7, 7))
    params, (grad, x, w) = case.params, [spec_of(t) for t in (case.grad, case.x, case.w)]
    assert grad is not None and x is not None and w is not None and fits(params, grad, x, w)
    double, large = spec_of(case.x.double()), spec_of(torch.empty(24, 1, 11, 12))
    assert double is not None and large is not None and 11 * 12 > MAX_TAPS
    assert not fits(params, grad, double, w) and not fits(params, grad, x, large)
    assert not fits(params | {"groups": 12}, grad, x, w) and not fits(params | {"transposed": True}, grad, x, w)


@pytest.mark.parametrize("window", [1, 3])
def test_a_gpu_does_not_get_it(window: int) -> None:
    """Whatever the order of memory and the window: what its own kernels refuse is ATen's."""
    case = Case((2, 24, 7, 7), (window, window), padding=(window // 2, window // 2))
    for x, grad in ((case.x.contiguous(), case.grad), (case.x.contiguous(), case.grad.contiguous())):
        kernel = extern(
            "convolution_backward",
            case.params,
            [grad, x, case.w],
            [case.w],
            only="aten",
            device=torch.device("cuda", 0),
        )
        assert [c.name for c in kernel.candidates] == ["aten"]


def test_a_wrong_call_is_an_error() -> None:
    x = torch.empty(1)
    with pytest.raises(TypeError, match="sizes, out, grad, x"):
        _native.depthwise_weight(b"", x, x, x)


def test_a_model_takes_it() -> None:
    torch.manual_seed(0)
    conv = torch.nn.Conv2d(24, 24, 5, 2, 2, groups=24).to(memory_format=LAST)
    x = torch.randn(2, 24, 15, 15).to(memory_format=LAST)
    conv(x).relu().square().sum().backward()
    assert conv.weight.grad is not None
    right, conv.weight.grad = conv.weight.grad, None
    step = smelt.compile(lambda x: conv(x).relu().square().sum())
    step(x).backward()
    torch.testing.assert_close(conv.weight.grad, right, rtol=1e-4, atol=1e-3)
    assert conv.weight.grad.stride() == right.stride()
