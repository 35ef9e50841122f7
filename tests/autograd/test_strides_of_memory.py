"""Operators whose results depend on how their operands lie in memory: values, gradients and strides are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt

BACKENDS = ["aot_eager", "smelt"]
LAYOUTS: dict[str, Callable[[int], Tensor]] = {
    "gaps": lambda n: torch.randn(n, n + 3)[:, :n],
    "steps": lambda n: torch.randn(2 * n, 2 * n)[::2, ::2],
    "transposed": lambda n: torch.randn(n, n).t(),
    "transposed with gaps": lambda n: torch.randn(n, n + 3)[:, :n].t(),
    "in the middle": lambda n: torch.randn(n + 5, n + 5)[2 : n + 2, 3 : n + 3],
    "expanded": lambda n: torch.randn(n, 1).expand(n, n),
}


def check(f: Callable[..., Tensor], *args: Any, backend: str) -> None:
    leaves = [[a.detach().requires_grad_() if a.is_floating_point() else a for a in args] for _ in range(2)]
    results = []
    for run, own in zip((f, smelt.compile(f, backend=backend)), leaves, strict=True):
        out = run(*own)
        out.backward(torch.linspace(-1, 2, out.numel()).view(out.shape))
        results.append(out)
    expected, found = results
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    for a, b in zip(*leaves, strict=True):
        torch.testing.assert_close(b.grad, a.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_group_norm_reads_weight_and_bias_in_their_layout(backend: str) -> None:
    weight, bias = torch.randn(12)[::2], torch.randn(6, 2)[:, 1]
    check(lambda x, w, b: F.group_norm(x, 2, w, b), torch.randn(2, 6, 7)[..., ::2], weight, bias, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_distances_of_rows(backend: str, layout: str) -> None:
    check(lambda x: F.pdist(x * 2), LAYOUTS[layout](5), backend=backend)
    check(F.pdist, LAYOUTS[layout](6), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "expanded"])
def test_as_strided_reads_the_storage(backend: str, layout: str) -> None:
    """Also beside the argument, where the graph ends."""
    x = LAYOUTS[layout](8)
    check(lambda x: torch.as_strided_copy(x, (3,), (2,), x.storage_offset() + 1), x, backend=backend)
    check(lambda x: x.as_strided((3,), (2,), x.storage_offset() + 1) * 2, x, backend=backend)
    check(lambda x: x.as_strided((2, 2), (1, 4)) * 2, x, backend=backend)
    check(lambda x: x[1:] + 1, x, backend=backend)  # a later program of this process


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_copy_of_an_input_with_gaps_is_dense(backend: str) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        copy = y.clone()
        assert copy.stride() == (5, 1)
        return torch.stack([x / (y.abs() + 0.5), copy])

    def both(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x / (y.abs() + 0.5), y.clone()

    check(f, torch.randn(3, 5), torch.randn(3, 8)[:, :5], backend=backend)
    x, y = torch.randn(3, 5), torch.randn(3, 8)[:, :5].requires_grad_()
    for a, b in zip(smelt.compile(both, backend=backend)(x, y), both(x, y), strict=True):
        assert torch.equal(a, b) and a.stride() == b.stride()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_written_view_is_in_a_copy_of_the_memory(layout: str) -> None:
    for f, shape in (
        (lambda x, s: torch.select_scatter(x, s, 0, 3), (8,)),
        (lambda x, s: torch.slice_scatter(x, s, 0, 3, 5), (2, 8)),
        (lambda x, s: torch.diagonal_scatter(x, s), (8,)),
    ):
        check(f, LAYOUTS[layout](8), torch.randn(shape), backend="aot_eager")


@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_of_draws_and_of_normalized_images(backend: str) -> None:
    def draws(mean: Tensor, std: Tensor) -> tuple[Tensor, ...]:
        return torch.normal(mean, std), torch.normal(mean, 1.0), torch.normal(0.0, std)

    given = torch.randn(4, 2, 3).transpose(0, 2), torch.rand(4, 2, 3).transpose(0, 2)
    for a, b in zip(smelt.compile(draws, backend=backend)(*given), draws(*given), strict=True):
        assert a.stride() == b.stride()
    mean, var = torch.randn(8), torch.rand(8)
    for x in (torch.randn(5, 10, 1, 8).permute(0, 3, 2, 1), torch.randn(2, 8, 10, 10).transpose(2, 3)):
        for training in (True, False):  # outputs only: of the first, eager's gradients are wrong against float64
            found, expected = (
                run(x, mean.clone(), var.clone(), training=training)
                for run in (smelt.compile(F.batch_norm, backend=backend), F.batch_norm)
            )
            torch.testing.assert_close(found, expected)
            assert found.stride() == expected.stride()


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "slice": lambda v: v[:, :2] * 2,
    "steps": lambda v: v[::2, 1:] + 1,
    "windows": lambda v: v.unfold(1, 2, 1) * 2,
    "first": lambda v: v - v[:, :1],
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_a_result_whose_order_the_caller_is_promised(name: str, dynamic: bool) -> None:
    """The order of a result of overlapping rows is set last, when views of it are recorded already."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        v = x * 2
        return VIEWS[name](v), v

    compiled = smelt.compile(f, dynamic=dynamic)
    for shape, stride in [((4, 7), (1, 1)), ((5, 4), (1, 1)), ((4, 7), (1, 4))]:
        x = torch.randn(60).as_strided(shape, stride)
        for want, got in zip(f(x), compiled(x), strict=True):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()


REPEATS: dict[str, Callable[[Tensor], Tensor]] = {
    "repeat": lambda v: v.repeat(2, *[1] * (v.dim() - 1)),
    "tile": lambda v: v.tile(2),
    "interleave": lambda v: v.repeat_interleave(2, -1),
    "view of an interleave": lambda v: v.repeat_interleave(2, -1).expand(2, *v.shape[:-1], 2 * v.shape[-1]),
    "contiguous": lambda v: v.expand(3, *v.shape).contiguous(),
    "copy": lambda v: torch.empty_like(v.expand(2, *v.shape)).copy_(v),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", REPEATS)
def test_repeats_of_a_result_are_memory_of_their_own(name: str, dynamic: bool) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        v = x.sin().log_softmax(0)
        return REPEATS[name](v), v

    compiled = smelt.compile(f, dynamic=dynamic)
    one = torch.randn(2)
    for x in [one[::2], one[1:], torch.randn(3, 3, 31).transpose(1, 2), torch.randn(4, 6)[:, ::2], torch.randn(3, 1)]:
        for want, got in zip(f(x), compiled(x), strict=True):
            torch.testing.assert_close(got, want)
            assert got.stride() == want.stride()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", ["mse_loss", "smooth_l1_loss", "huber_loss", "l1_loss"])
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_losses_of_operands_that_repeat(name: str, dtype: torch.dtype, dynamic: bool) -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        made: Tensor = getattr(torch.nn.functional, name)(x, y, reduction="none")
        return made

    compiled = smelt.compile(f, dynamic=dynamic)
    for n in (7, 5):
        x, y = torch.randn(n, n).t().to(dtype), torch.randn(n).to(dtype)
        for pair in ((x, y), (y, x), (x, x)):
            got, want = compiled(*pair), f(*pair)
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want, rtol=3e-3, atol=1e-3)  # eager rounds to fp16 twice
