"""Strides that eager gives results of operands in unusual layouts: the answers against the operators themselves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt.graph.ir.meta import TensorMeta, channels_last_stride, contiguous_stride
from smelt.graph.ir.storage_view import Layout
from smelt.graph.meta_rules.infer import infer_meta
from smelt.graph.trace.trace import trace_like

aten = torch.ops.aten


def in_layouts(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """Each order of dimensions, and a gap behind each row."""
    for order in itertools.permutations(range(values.ndim)):
        yield values.permute(order).contiguous().permute([order.index(d) for d in range(values.ndim)])
    wide = torch.zeros(*values.shape[:-1], values.shape[-1] + 2)
    yield wide[..., : values.shape[-1]]


def traced(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return trace_like(value, requires_grad=False)
    return [traced(v) for v in value] if isinstance(value, list) else value


def check(op: Any, *args: Any) -> None:
    real, answer = op(*args), infer_meta(op, tuple(map(traced, args)), {})
    pairs = zip(answer, real, strict=True) if isinstance(real, (tuple, list)) else [(answer, real)]
    for layout, result in pairs:
        assert isinstance(layout, Layout)
        assert (layout.val.shape, layout.val.dtype) == (tuple(result.shape), result.dtype)
        assert layout.val.stride == result.stride() or not result.numel(), (op, [getattr(a, "shape", a) for a in args])


@pytest.mark.parametrize("shape", [(2, 4, 3, 5), (1, 4, 3, 5), (2, 4, 1, 3), (1, 2, 4, 1), (4, 3), (2, 4, 3)])
def test_operators(shape: tuple[int, ...]) -> None:
    plain = torch.rand(shape) + 0.1
    for x in in_layouts(plain):
        check(aten.log_sigmoid_forward.default, x)
        check(aten.log_sigmoid_backward.default, x, plain, plain)
        check(aten.pow.Scalar, 2.0, x)
        check(aten.ldexp.Tensor, x[:1], x)
        check(aten.exp.default, x)
        check(aten.mul.Tensor, x, x)
        check(aten.threshold_backward.default, x, plain, 0)
        check(aten.hardtanh_backward.default, x, plain, 0.0, 1.0)
        for mask in in_layouts(plain):
            check(aten.native_dropout_backward.default, x, mask > 0.5, 2.0)
        if len(shape) > 2:
            for groups in {1, 2, shape[1]}:
                check(aten.channel_shuffle.default, x, groups)
        for dim in range(len(shape) + 1):
            check(aten.stack.default, [x, x], dim)
        for dim in range(len(shape)):
            check(aten.cat.default, [x, x], dim)
            for index in (torch.tensor([0, 0]), torch.tensor([[0], [0]]), torch.tensor(0)):
                check(aten.index.Tensor, x, [None] * dim + [index])
        check(aten.index.Tensor, x, [torch.tensor([0]), torch.tensor([[0], [0]])])
        if len(shape) == 4 and 1 not in shape:
            check(aten.replication_pad2d.default, x, [1, 0, 0, 1])
            check(aten.native_batch_norm.default, x, None, None, None, None, True, 0.1, 1e-5)


OPEN = [
    ((1, 5), (1, 1)), ((5, 1), (1, 5)), ((5, 1), (7, 9)), ((1, 5), (9, 1)), ((2, 1, 3), (3, 99, 1)),
    ((2, 1, 3), (1, 1, 2)), ((1, 1), (7, 9)),
    ((3, 1, 1, 2), (2, 9, 7, 1)), ((1, 3, 2), (1, 2, 1)), ((2, 1, 3, 3), (9, 1, 3, 1)), ((1,), (7,)),
    ((1, 3, 1, 1), (3, 1, 1, 1)), ((0, 3), (1, 1)), ((2, 3), (5, 1)), ((4, 1), (0, 1)),
]  # fmt: skip
"""Sizes and strides of operands whose dimensions of size 1 have strides that lead nowhere."""
NUMBERS = [
    aten.gt.Scalar, aten.eq.Scalar, aten.rsub.Scalar, aten.remainder.Scalar, aten.fmod.Scalar, aten.add.Scalar,
    aten.copysign.Scalar, aten.pow.Tensor_Scalar, aten.mul.Tensor, aten.div.Tensor, aten.clamp_min.default,
    aten.float_power.Tensor_Scalar, aten.xlogy.Scalar_Other,
]  # fmt: skip
ALONE = [
    aten.exp.default, aten.neg.default, aten.nan_to_num.default, aten.deg2rad.default, aten.hardtanh.default,
    aten.clone.default, aten.sqrt.default, aten.empty_like.default, aten.relu.default,
]  # fmt: skip


@pytest.mark.parametrize(("shape", "stride"), OPEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_strides_of_dimensions_of_size_1(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (torch.rand(200) * 9 + 1).to(dtype).as_strided(shape, stride)
    for op in NUMBERS:
        check(op, x, 2)
    for op in ALONE:
        check(op, x)
    check(aten.mul.Tensor, x, x)
    check(aten.where.self, x > 2, x, x)
    check(aten.frexp.Tensor, x.float())
    check(aten.lerp.Scalar, x.float(), x.float(), 0.5)
    check(aten._prelu_kernel.default, x.float(), x.float())


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions(rank: int, dtype: torch.dtype, transposed: bool) -> None:
    last = (0, *range(2, rank + 2), 1)
    for batch, channels, kernel in itertools.product((1, 2), (1, 3), (1, 3)):
        x, w = torch.rand(batch, channels, *[6] * rank), torch.rand(channels, channels, *[kernel] * rank)
        for image, weight in itertools.product((False, True), repeat=2):
            back = [last.index(d) for d in range(rank + 2)]
            a = x.permute(last).contiguous().permute(back) if image else x
            b = w.permute(last).contiguous().permute(back) if weight else w
            how = ([1] * rank, [kernel // 2] * rank, [1] * rank, transposed, [0] * rank, 1)
            check(aten.convolution.default, a.to(dtype), b.to(dtype), None, *how)


def on_cuda(shape: tuple[int, ...], last: bool, dtype: torch.dtype) -> Any:
    stride = channels_last_stride(shape) if last else contiguous_stride(shape)
    return trace_like(TensorMeta(shape, dtype, stride, torch.device("cuda", 0)), requires_grad=False)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_convolutions_on_a_gpu(rank: int, dtype: torch.dtype) -> None:
    """cuDNN answers in channels last where the images or the weights are; it has no such kernels for float64."""
    for image, weight in itertools.product((False, True), repeat=2):
        x, w = on_cuda((2, 3, *[8] * rank), image, dtype), on_cuda((4, 3, *[3] * rank), weight, dtype)
        how = ([1] * rank, [1] * rank, [1] * rank, False, [0] * rank, 1)
        found = infer_meta(aten.convolution.default, (x, w, None, *how), {})
        last = (image or weight) and dtype is not torch.float64
        shape = (2, 4, *[8] * rank)
        assert found.val.stride == (channels_last_stride(shape) if last else contiguous_stride(shape))
        grads = infer_meta(
            aten.convolution_backward.default, (on_cuda(shape, last, dtype), x, w, [4], *how, [True] * 3), {}
        )
        for grad in grads[:2]:
            whole = grad.val.shape
            assert grad.val.stride == (channels_last_stride(whole) if last else contiguous_stride(whole))


@pytest.mark.parametrize("op", [aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default])
@pytest.mark.parametrize("reduction", [0, 1])
def test_the_gradient_of_a_loss_has_the_dtype_of_its_input(op: Any, reduction: int) -> None:
    if torch.__version__ < "2.13" and op is aten.mse_loss_backward.default:
        pytest.skip("PyTorch refuses other dtypes than float32 there")
    rest = (reduction,) if op is aten.mse_loss_backward.default else (reduction, 1.0)
    plain = torch.rand(2, 4, 3)
    for first, second, third in itertools.product((torch.float32, torch.float16, torch.bfloat16), repeat=3):
        gradient = (plain if reduction == 0 else plain.sum()).to(first)
        for x in in_layouts(plain):
            check(op, gradient, x.to(second), plain.to(third), *rest)
        check(op, gradient, plain[:1].to(second).expand(2, 4, 3), plain.to(third), *rest)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.bfloat16])
def test_gradients_of_dropout_of_whole_numbers_are_floating_point(dtype: torch.dtype) -> None:
    def fn(grad: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.native_dropout_backward(grad, mask, 2.5)

    grad, mask = torch.arange(6).view(2, 3).to(dtype), torch.tensor([[True, False, True]] * 2)
    made, expected = smelt.compile(fn)(grad, mask), fn(grad, mask)
    assert made.dtype is expected.dtype
    assert torch.equal(made, expected)


@pytest.mark.parametrize("shape", [(2, 1, 4, 4), (2, 3, 1, 1), (1, 3, 4, 1), (0, 3, 4, 4)])
def test_resampling_with_sizes_of_0_and_1(shape: tuple[int, ...]) -> None:
    last = torch.rand(shape).to(memory_format=torch.channels_last)
    for x in (torch.rand(shape), last, last.transpose(2, 3), torch.rand(*shape[:3], shape[3] + 2)[..., : shape[3]]):
        check(aten.upsample_nearest2d.default, x, [2, 3])
        check(aten._upsample_nearest_exact2d.default, x, [1, 2])
        if 0 not in shape:
            check(aten.upsample_bilinear2d.default, x, [3, 1], True)
            check(aten.upsample_trilinear3d.default, x[..., None], [2, 1, 3], True)
            for grid in (torch.rand(shape[0], 3, 1, 2), torch.rand(2, 1, 3, shape[0]).permute(3, 2, 1, 0)):
                check(aten.grid_sampler_2d.default, x, grid, 0, 0, True)


def test_no_example_is_made_of_a_workspace() -> None:
    """The workspace of a training step of an LSTM is opaque memory, here empty: run on one, the process ended."""
    lstm = torch.nn.LSTM(8, 16)
    x = torch.randn(5, 2, 8, requires_grad=True)
    expected = torch.autograd.grad(lstm(x)[0].sum(), [x, *lstm.parameters()])
    torch.testing.assert_close(torch.autograd.grad(smelt.compile(lstm)(x)[0].sum(), [x, *lstm.parameters()]), expected)
