"""Small programs through the joint trace, against eager: values, gradients, aliasing, writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.autograd.compare import check, nonleaf


def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 12).reshape(3, 4)


def w() -> torch.Tensor:
    return torch.linspace(0.5, 2, 12).reshape(3, 4).requires_grad_()


def shared_view() -> list[torch.Tensor]:
    base = x()
    return [base, base[1]]


def disjoint_views() -> list[torch.Tensor]:
    base = x()
    return [base[:1], base[1:], base.view(-1)[:0]]


def overlapping_parts() -> list[torch.Tensor]:
    base = x()
    return [base, base[:2], base[1:].t()]


def twice(make: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    t = make()
    return [t, t]


def add_to(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.add_(y)


def history_of_quiet_view(a: torch.Tensor, w: torch.Tensor) -> Any:
    with torch.no_grad():
        v = a.detach().view(torch.int32).view(torch.float32)
    v.add_(w.sum())  # no view for autograd, as whole numbers have no gradients
    return v


def parts_of_written(a: torch.Tensor, w: torch.Tensor) -> Any:
    v = a.detach()
    v.copy_(w)
    return *v.unbind(), v


def columns_of_turned(w: torch.Tensor) -> Any:
    y = w * 2
    y.t_()
    return y.unbind()[1:]


def column_of_turned(w: torch.Tensor) -> Any:
    y = w * 2
    y.unsqueeze_(1)
    return y.unbind(2)[3]


def views_of_result(w: torch.Tensor) -> Any:
    y = w * 2
    return y[0], y[1], y.t()


def base_and_view(w: torch.Tensor) -> Any:
    y = w * 2
    return y, y.view(4, 3), y


def write_through_view(w: torch.Tensor) -> Any:
    y = w.clone()
    y[0].mul_(2)
    y.t()[1:].add_(1)
    y.view(-1)[::2].zero_()
    return y


def write_after_view(w: torch.Tensor) -> Any:
    y = w * 1
    v = y[1]
    y.mul_(3)
    return v * 2, y


def batch_statistics(mean: torch.Tensor, var: torch.Tensor, count: torch.Tensor, w: torch.Tensor) -> Any:
    count.add_(1)
    data = torch.linspace(0, 1, 48).reshape(2, 3, 4, 2)
    return F.batch_norm(data * w[0, 0], mean, var, training=True)


def without_grad_inside(w: torch.Tensor, x: torch.Tensor) -> Any:
    y = w * x
    with torch.no_grad():
        z = y * w
        frozen = y.sum()
    return y * z, z, frozen


def detached(w: torch.Tensor) -> Any:
    y = w.exp()
    return y, y.detach(), (y.detach() * w)


def integers(w: torch.Tensor) -> Any:
    values, indices = w.sort(dim=1)
    return values, indices, w.argmax(), w > 1


def write_with_grad(buffer: torch.Tensor, w: torch.Tensor) -> Any:
    buffer.mul_(w)
    return buffer.sum()


def write_without_grad(w: torch.Tensor) -> Any:
    y = w * 2
    with torch.no_grad():
        w.mul_(0.5)
    return y + w


def swap(a: torch.Tensor, b: torch.Tensor) -> Any:
    keep = a.clone()
    a.copy_(b)
    b.copy_(keep)
    return a + b


def created(w: torch.Tensor) -> Any:
    a = torch.arange(4.0)
    b = torch.zeros(3, 4)
    b[1] = a
    c = torch.tensor([1.0, 2.0, 3.0])
    c[0] = 7
    return w * b + c[:, None] + torch.ones(4), c, torch.full((2,), 3)


def in_place_math(w: torch.Tensor) -> Any:
    y = w + 1
    y += w
    y *= 2
    y.clamp_(max=8).sin_()
    y[:, 1] = w[:, 0]
    y[y > 2] = 0.5
    y.masked_fill_(w > 1.5, 3.0)
    return y


def whole_shape_changes(w: torch.Tensor) -> Any:
    y = w * 1
    y.t_()
    y.unsqueeze_(0)
    y.mul_(2)
    return y.squeeze_(0), y.transpose_(0, 1)


def out_arguments(x: torch.Tensor) -> Any:
    out = torch.empty(3, 4)
    torch.add(x, 1, out=out)
    grown = torch.empty(0)
    torch.mul(x, 2, out=grown)
    return out, grown


def chunks(w: torch.Tensor) -> Any:
    q, k = (w * 2).chunk(2, dim=1)
    return q, k, q @ k.t()


def expanded(w: torch.Tensor) -> Any:
    return w.sum().expand(3, 2), w[0].expand(5, 4)


def strided(w: torch.Tensor) -> Any:
    y = w * 1
    y.as_strided((2, 2), (4, 2), 1).mul_(5)
    return y, y.as_strided((3,), (3,), 0), y.unfold(1, 2, 1).sum()


def scatter_ops(w: torch.Tensor) -> Any:
    y = torch.zeros(3, 4)
    y.scatter_(1, torch.tensor([[0], [1], [2]]), w[:, :1])
    y.index_add_(0, torch.tensor([0, 2]), w[:2])
    y.index_put_((torch.tensor([1]), torch.tensor([1])), w[0, :1], accumulate=True)
    y.diagonal().add_(w.diagonal())
    return y


def complex_parts(w: torch.Tensor) -> Any:
    z = torch.complex(w, w * 2)
    return (z * z.conj()).real, torch.view_as_real(z)


def random_ops(w: torch.Tensor) -> Any:
    y = F.dropout(w, 0.3)
    noise = torch.randn(3, 4)
    noise.uniform_(-1, 1)
    return y, noise + torch.rand_like(w), w * torch.randn(4)


def unused(w: torch.Tensor, v: torch.Tensor, x: torch.Tensor) -> Any:
    return w * 2 + x


def none_output(w: torch.Tensor) -> Any:
    return w * 2, None, 3


def slice_steps(w: torch.Tensor) -> Any:
    y = w.clone()
    y[::2, 1:].mul_(2)
    a, b, c = y.unbind(0)
    return a * c, y.narrow(1, 1, 2), y.squeeze(), y[-1, -2:]


def low_precision(x: torch.Tensor, w: torch.Tensor) -> Any:
    h = x.half()
    h.add_(w.detach())
    return h, (w.bfloat16() * 2).float()


def view_then_write_input(x: torch.Tensor) -> Any:
    v = x.view(4, 3)
    v.add_(1)
    x[0] = 9
    return v[1], x.t(), x


def inner_leaf(x: torch.Tensor) -> Any:
    y = (x * 2).detach().requires_grad_()
    return y * 3


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "plain": (lambda w, x: (w * x).sum(), lambda: [w(), x()]),
    "input_written": (add_to, lambda: [x(), x()]),
    "input_written_needs_grad": (add_to, lambda: [nonleaf(x()), w()]),
    "buffer_gets_grad": (write_with_grad, lambda: [x(), w()]),
    "nonleaf_gets_grad": (write_with_grad, lambda: [nonleaf(x()), w()]),
    "leaf_written_without_grad": (write_without_grad, lambda: [w()]),
    "nonleaf_written_without_grad": (write_without_grad, lambda: [nonleaf(x())]),
    "swap": (swap, lambda: [x(), x() * 2]),
    "swap_with_grad": (swap, lambda: [nonleaf(x()), nonleaf(x() * 2)]),
    "same_input_twice": (lambda a, b: a * b, lambda: twice(w)),
    "same_input_written": (lambda a, b: (a.add_(1), b * 2), lambda: twice(x)),
    "detached_and_its_base": (lambda a: ((v := a.clone()).detach(), v, v.flatten()), lambda: [w()]),
    "inputs_overlap": (lambda a, b: (a * 2, b * 2), shared_view),
    "overlap_written": (lambda a, b: (a.mul_(2).sum(), b * 2), shared_view),
    "overlap_view_written": (lambda a, b: (b.mul_(2).sum(), a * 2, b), shared_view),
    "disjoint_views_written": (lambda a, b, c: (a.mul_(2), b.add_(a), c), disjoint_views),
    "three_overlap": (lambda a, b, c: (c.add_(1).sum(), b.mul_(3), a * 2), overlapping_parts),
    "output_is_input": (lambda w, x: (w, x, w * x), lambda: [w(), x()]),
    "output_views_input": (lambda w, x: (w.t(), x[1:], w.view(-1)), lambda: [w(), x()]),
    "output_twice": (lambda w: (lambda y: (y, y))(w * 2), lambda: [w()]),
    "equal_outputs": (lambda w: (w * 2, w * 2), lambda: [w()]),
    "clone_of_input": (lambda w, x: (w.clone(), x.clone(), x.contiguous()), lambda: [w(), x()]),
    "views_of_result": (views_of_result, lambda: [w()]),
    "views_of_result_no_grad": (views_of_result, lambda: [x()]),
    "base_and_view": (base_and_view, lambda: [w()]),
    "write_through_view": (write_through_view, lambda: [w()]),
    "write_through_view_nonleaf": (write_through_view, lambda: [nonleaf(x())]),
    "write_after_view": (write_after_view, lambda: [w()]),
    "batch_statistics": (
        batch_statistics,
        lambda: [torch.zeros(3), torch.ones(3), torch.tensor(0), w()],
    ),
    "no_grad_inside": (without_grad_inside, lambda: [w(), x()]),
    "detach": (detached, lambda: [w()]),
    "integers": (integers, lambda: [w()]),
    "created": (created, lambda: [w()]),
    "in_place_math": (in_place_math, lambda: [w()]),
    "whole_shape_changes": (whole_shape_changes, lambda: [w()]),
    "out_arguments": (out_arguments, lambda: [x()]),
    "chunks": (chunks, lambda: [w()]),
    "expanded": (expanded, lambda: [w()]),
    "strided": (strided, lambda: [w()]),
    "scatter_ops": (scatter_ops, lambda: [w()]),
    "complex_parts": (complex_parts, lambda: [w()]),
    "history_of_quiet_view": (history_of_quiet_view, lambda: [nonleaf(x()), w()]),
    "parts_of_written": (parts_of_written, lambda: [x(), w()]),
    "columns_of_turned": (columns_of_turned, lambda: [w()]),
    "column_of_turned": (column_of_turned, lambda: [w()]),
    "random_ops": (random_ops, lambda: [w()]),
    "unused": (unused, lambda: [w(), w(), x()]),
    "none_output": (none_output, lambda: [w()]),
    "slice_steps": (slice_steps, lambda: [w()]),
    "low_precision": (low_precision, lambda: [x(), w()]),
    "view_then_write_input": (view_then_write_input, lambda: [x()]),
    "view_then_write_nonleaf": (view_then_write_input, lambda: [nonleaf(x())]),
    "transposed_input": (lambda w: (w * 2, w.t().contiguous()), lambda: [w().detach().t().requires_grad_()]),
    "channels_last": (
        lambda a, b: F.conv2d(a, b, padding=1),
        lambda: [
            torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last),
            torch.randn(4, 3, 3, 3).requires_grad_(),
        ],
    ),
    "sliced_input": (lambda a: (a * 2, a[0]), lambda: [x()[:, ::2]]),
    "empty": (lambda a: (a * 2, a.sum()), lambda: [torch.zeros(0, 3).requires_grad_()]),
    "scalar": (lambda a: (a * 2, a.exp()), lambda: [torch.tensor(2.0, requires_grad=True)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    fn, make = PROGRAMS[name]
    check(fn, make)


@pytest.mark.parametrize("name", ["plain", "views_of_result", "write_through_view", "integers", "chunks", "detach"])
def test_program_without_grad_mode(name: str) -> None:
    fn, make = PROGRAMS[name]
    with torch.no_grad():
        check(fn, make, backward=False)
