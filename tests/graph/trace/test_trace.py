"""Trace tensors answer as real tensors do, and refuse to answer what only values could tell."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from smelt.base.errors import Unsupported
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.trace.trace import DataDependent, TraceMode, TraceTensor, argument, as_traced, trace_like

aten = torch.ops.aten


def example() -> torch.Tensor:
    return torch.linspace(0.1, 1, 24).reshape(2, 3, 4)


def image() -> torch.Tensor:
    return torch.rand(2, 4, 6, 6).to(memory_format=torch.channels_last)


SAME: dict[str, tuple[Callable[..., object], Callable[[], torch.Tensor]]] = {
    "promotion": (lambda x: (x + 1, x.int() + 1.5, x.int() / 2, x.half() + x, x > 0), example),
    "views": (lambda x: (x[0], x.t() if x.dim() == 2 else x.mT, x.chunk(2, 2), x.expand(5, 2, 3, 4)), example),
    "reductions": (lambda x: (x.sum(), x.mean(1), x.max(2), x.argmax(), x.var((0, 1), keepdim=True)), example),
    "products": (lambda x: (x @ x.mT, F.linear(x, x[0]), torch.einsum("abc,adc->abd", x, x)), example),
    "sorts": (lambda x: (x.sort(1, descending=True), x.topk(2), x.cumsum(-1)), example),
    "in place": (lambda x: (x.add_(1), x.t_() if x.dim() == 2 else x.transpose_(0, 1), x.mul(2)), example),
    "convolution": (lambda x: F.conv2d(x, torch.zeros(3, 4, 3, 3)), image),
    "depthwise": (lambda x: F.conv2d(x, torch.zeros(4, 1, 3, 3), groups=4), image),
    "transposed": (lambda x: F.conv_transpose2d(x, torch.zeros(4, 3, 2, 2)), image),
    "pools": (lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 3, 1), F.adaptive_avg_pool2d(x, 2)), image),
    "resize": (lambda x: (F.interpolate(x, scale_factor=2.0), F.pixel_shuffle(x, 2)), image),
    "pad": (lambda x: (F.pad(x, (1, 1)), F.pad(x, (1, 1, 1, 1), mode="reflect")), image),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), image),
    "batch norm bf16": (
        lambda x: aten._native_batch_norm_legit.no_stats(x.bfloat16(), None, None, True, 0.1, 1e-5),
        image,
    ),
    "batch norm eval": (lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4)), image),
    "group norm": (lambda x: F.group_norm(x.bfloat16(), 2), image),
    "layer norm": (lambda x: F.layer_norm(x, (6,)), image),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), image),
    "softmax": (lambda x: (F.softmax(x, 1), F.log_softmax(x.half(), -1, dtype=torch.float32)), image),
}


def flat(value: object) -> list[object]:
    if isinstance(value, (tuple, list)):
        return [v for part in value for v in flat(part)]
    return [value]


@pytest.mark.parametrize("name", SAME)
def test_metadata_is_that_of_real_tensors(name: str) -> None:
    fn, make = SAME[name]
    with TraceMode():
        traced = flat(fn(trace_like(make())))
    for real, trace in zip(flat(fn(make())), traced, strict=True):
        assert isinstance(trace, TraceTensor)
        assert (trace.shape, trace.dtype, trace.device) == (real.shape, real.dtype, real.device)
        assert trace.stride() == real.stride()


def test_a_second_answer_is_remembered_but_not_shared() -> None:
    x = trace_like(example())
    a, b = x.exp(), x.exp()
    assert a.storage_view.layout is b.storage_view.layout and a.storage_view.storage is not b.storage_view.storage


def test_views_share_a_storage_and_writes_return_the_tensor() -> None:
    x = trace_like(example())
    assert x[0].storage_view.storage is x.storage_view.storage
    assert x.mul(2).storage_view.storage is not x.storage_view.storage
    assert x.add_(1) is x
    assert x.detach().storage_view.storage is x.storage_view.storage


def test_creation_needs_the_mode() -> None:
    with TraceMode():
        made = [torch.zeros(2), torch.arange(3), torch.tensor([1.0]), torch.full((2,), 1), torch.eye(2), torch.rand(2)]
    assert all(type(t) is TraceTensor for t in made)
    assert type(torch.zeros(2)) is torch.Tensor


def test_recipes_are_taken_apart_without_autograd() -> None:
    x, w = trace_like(torch.zeros(2, 3)), trace_like(torch.zeros(4, 3))
    with torch.inference_mode(), TraceMode():
        assert F.linear(x, w).shape == (2, 4)


def test_autograd_runs_on_trace_tensors() -> None:
    x = trace_like(torch.zeros(2, 3, requires_grad=True))
    y = (x * 2).sum()
    (grad,) = torch.autograd.grad(y, x)
    assert type(grad) is TraceTensor and grad.shape == (2, 3)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: int(x[0, 0, 0]),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: torch.equal(x, x),
        lambda x: torch.masked_select(x, x > 0),
    ],
)
def test_values_are_refused(read: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(DataDependent, match="needs the values of a tensor"):
        read(trace_like(example()))


def test_constants_have_known_values() -> None:
    with TraceMode():
        assert torch.nn.functional.relu(torch.zeros(2)).shape == (2,)


def test_other_layouts_are_refused() -> None:
    with pytest.raises(Unsupported, match="mkldnn"):
        trace_like(torch.eye(2).to_mkldnn())
    with pytest.raises(Unsupported, match="conjugate"):
        trace_like(torch.zeros(2, dtype=torch.complex64).conj())


def test_sparse_tensors_are_known_by_their_kind() -> None:
    for real in (torch.eye(4).to_sparse(), torch.ones(4, 4, 2).to_sparse(1), torch.eye(4).to_sparse_bsr((2, 2))):
        x = trace_like(real.requires_grad_())
        assert (x.layout, x.shape, x.dtype, x.device) == (real.layout, real.shape, real.dtype, real.device)
        assert x.requires_grad and (x.sparse_dim(), x.dense_dim()) == (real.sparse_dim(), real.dense_dim())
        assert x.to_dense().shape == real.shape and x.to_dense().requires_grad


def test_trace_like_metadata() -> None:
    meta = TensorMeta((2, 3), torch.bfloat16, (1, 2), torch.device("cpu"), True)
    x = trace_like(meta)
    assert x.requires_grad and x.is_leaf and x.stride() == (1, 2) and x.dtype is torch.bfloat16
    assert not trace_like(meta, requires_grad=False).requires_grad
    assert repr(x) == "TraceTensor(bfloat16[2, 3] stride [1, 2], requires_grad)"


def test_argument_finds_positional_keyword_and_default() -> None:
    op = aten.sum.dim_IntList
    assert argument(op, ("x", [1]), {}, "dim") == [1]
    assert argument(op, ("x", [1]), {"keepdim": True}, "keepdim") is True
    assert argument(op, ("x", [1]), {}, "keepdim") is False
    with pytest.raises(KeyError):
        argument(op, (), {}, "nothing")


def test_no_compiler_of_torch_is_loaded_by_the_mode() -> None:
    assert TraceMode.__torch_dispatch__.__qualname__ == "TraceMode.__torch_dispatch__"


def test_fresh_memory_with_gaps_or_overlaps() -> None:
    with TraceMode():
        for shape, stride in (((5,), (4,)), ((3, 2, 2), (1, 2, 3)), ((2, 3), (1, 2))):
            assert torch.empty_strided(shape, stride).stride() == stride
            assert torch.zeros(2).new_empty_strided(shape, stride).stride() == stride


def test_resize_within_the_memory() -> None:
    x = trace_like(torch.zeros(4, 5))
    y = x[1:]
    y.resize_(3, 2)
    assert (y.shape, y.stride(), y.storage_offset()) == ((3, 2), (2, 1), 5)
    assert y.storage_view.storage is x.storage_view.storage
    with pytest.raises(Unsupported, match="beyond"):
        y.resize_(16)


def test_a_result_that_nothing_is_known_of_is_refused() -> None:
    assert trace_like(torch.zeros(2, 2)).to_sparse().layout is torch.sparse_coo
    with pytest.raises(Unsupported, match="to_mkldnn"):
        trace_like(torch.zeros(2, 2)).to_mkldnn()


def test_arguments_are_looked_through_without_cycles() -> None:
    """This runs for each operator: what only the collector could free would stay until a compilation has ended."""
    args, kwargs = as_traced((1, [2.0, torch.ones(2)]), {"a": torch.ones(3), "b": None}, None)
    assert type(args[1][1]) is TraceTensor and args[0] == 1 and type(kwargs["a"]) is TraceTensor
    while gc.collect():
        pass  # finalizers of earlier tests leave garbage of their own
    gc.disable()
    try:
        for _ in range(10):
            as_traced((1, [2.0, (3,)]), {"a": None}, None)
        assert gc.collect() == 0
    finally:
        gc.enable()
