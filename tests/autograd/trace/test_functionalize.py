"""The recorder: values, writes through views, merged nodes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import smelt
from smelt.autograd.trace.functionalize import GraphRecorder, is_view_node
from smelt.base.errors import CompileError, Unsupported
from smelt.graph.ir.meta import meta_of
from smelt.graph.trace.trace import TraceMode, TraceTensor, trace_like
from tests.autograd.compare import check

aten = torch.ops.aten


@pytest.fixture
def rec() -> GraphRecorder:
    return GraphRecorder()


def bound(rec: GraphRecorder, *shape: int) -> TraceTensor:
    tensor = trace_like(torch.zeros(shape))
    rec.bind(tensor, rec.placeholder("x", meta_of(torch.zeros(shape))))
    return tensor


def test_equal_nodes_are_one(rec: GraphRecorder) -> None:
    x = bound(rec, 3)
    with TraceMode(rec):
        a, b, c, d = x * 2, x * 2, x * 2.0, x * True
    assert rec.value(a.storage_view) is rec.value(b.storage_view)
    assert len({rec.value(t.storage_view) for t in (a, c, d)}) == 3


def test_zero_and_minus_zero_are_two(rec: GraphRecorder) -> None:
    x = bound(rec, 3)
    with TraceMode(rec):
        assert rec.value((x + 0.0).storage_view) is not rec.value((x + -0.0).storage_view)


def test_random_nodes_are_never_merged(rec: GraphRecorder) -> None:
    x = bound(rec, 3)
    with TraceMode(rec):
        a, b = torch.rand_like(x), torch.rand_like(x)
    assert rec.value(a.storage_view) is not rec.value(b.storage_view)
    assert rec.value(a.storage_view).meta["random"]


def test_a_write_is_seen_by_older_views_and_not_by_older_values(rec: GraphRecorder) -> None:
    x = bound(rec, 3, 4)
    row, before = x[1], rec.value(x.storage_view)
    with TraceMode(rec):
        x.mul_(2)
    assert rec.value(x.storage_view) is not before
    assert rec.value(row.storage_view).args[0] is rec.value(x.storage_view)


def test_a_write_through_a_view_changes_its_base(rec: GraphRecorder) -> None:
    x = bound(rec, 3, 4)
    with TraceMode(rec):
        x.t()[1].fill_(7)
    node = rec.value(x.storage_view)
    assert node.target is aten.permute.default and node.args[0].target is aten.select_scatter.default


def test_unread_views_are_no_nodes(rec: GraphRecorder) -> None:
    x = bound(rec, 3, 4)
    with TraceMode(rec):
        x.t().unsqueeze(0)[..., 1:].chunk(2)
    assert len(rec.graph.nodes) == 1


def test_low_precision_writes_keep_the_dtype(rec: GraphRecorder) -> None:
    x = trace_like(torch.zeros(3, dtype=torch.float16))
    rec.bind(x, rec.placeholder("x", x.storage_view.layout.val))
    with TraceMode(rec):
        x.add_(trace_like_bound(rec))
    assert rec.value(x.storage_view).meta["val"].dtype is torch.float16


def trace_like_bound(rec: GraphRecorder) -> TraceTensor:
    return bound(rec, 3)


def test_literals_and_constants(rec: GraphRecorder) -> None:
    outside = torch.arange(3.0)
    x = bound(rec, 3)
    with TraceMode(rec):
        number, several = torch.tensor(2.5), torch.tensor([1.0, 2.0])
        y = x + outside
        z = x * outside
    assert rec.value(number.storage_view).target is aten.full.default
    assert rec.value(several.storage_view).op == "get_attr"
    assert rec.value(y.storage_view).args[1] is rec.value(z.storage_view).args[1]
    assert number.item() == 2.5
    assert not rec.changed_constants()


def test_a_number_that_was_written_has_no_known_value(rec: GraphRecorder) -> None:
    with TraceMode(rec):
        number = torch.tensor(2.5)
        number.add_(1)
        with pytest.raises(Unsupported, match="needs the values"):
            number.item()


def test_foreign_tensors_are_refused(rec: GraphRecorder) -> None:
    with pytest.raises(CompileError, match="did not make"), TraceMode(rec):
        trace_like(torch.zeros(2)) + 1


def test_generators_are_refused(rec: GraphRecorder) -> None:
    with pytest.raises(Unsupported, match="generator"), TraceMode(rec):
        torch.rand(2, generator=torch.Generator())


def test_foreach_writes(rec: GraphRecorder) -> None:
    a, b = bound(rec, 2), bound(rec, 3)
    with TraceMode(rec):
        torch._foreach_add_([a, b], 1.0)
        torch._foreach_mul_([a, b], [a.sum(), b.sum()][0])
    for t in (a, b):
        assert rec.value(t.storage_view).meta["val"].shape == tuple(t.shape)
        assert t.storage_view.storage.version == 2


def test_is_view_node(rec: GraphRecorder) -> None:
    x = bound(rec, 3, 4)
    with TraceMode(rec):
        view, value = x.t(), x * 2
    assert is_view_node(rec.value(view.storage_view)) and not is_view_node(rec.value(value.storage_view))


def test_lists_whose_tensors_share_memory_are_written_in_turn() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x.clone(), y.clone()
        torch._foreach_add_([a, a], 1.0)
        torch._foreach_add_([a, b], [b, a])
        torch._foreach_mul_([a, a[0]], [2.0, 3.0])
        return a, b

    check(fn, lambda: [torch.arange(3.0), torch.ones(3)])


def test_a_view_taken_under_no_grad_keeps_to_itself() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            row = x[0]
        return row.as_strided((2,), (1,)) * x.sum(), x * 1

    check(fn, lambda: [torch.ones(2, 3, requires_grad=True)])


def reshaped_view(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    row = x[0]
    row.unsqueeze_(0)
    row.index_put_((torch.tensor([0, 0]),), y.mean())
    return (x,)


def view_reshaped_again(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    part = (x + y.sum())[:2]
    part.t_()
    part.mul_(y[0])
    part[0].mul_(2)
    part.squeeze_().unsqueeze_(-1)
    return part * 2, part


def base_turned(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Its last column is none of the turned tensor."""
    whole = x * y.sum()
    column = whole.select(1, 3)
    whole.t_()
    column.mul_(y[1])
    return column, whole * 1, whole


def base_turned_often(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole = x * y.sum()
    flat = whole.view(-1)
    whole.transpose_(0, 1)
    row = whole[0]
    whole.unsqueeze_(0).swapaxes_(0, 2)
    row.mul_(2)
    flat.add_(y.sum())
    return flat * 2, whole, row, flat


def turned_for_all(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole = x * y.sum()
    held = [whole, whole[0]]
    held[0].t_()
    return whole + 1, held[1], held[0], whole


def turned_without_gradients(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole = x * y.sum()
    part = (x + 1)[:2]
    with torch.no_grad():
        part.t_()
    part.mul_(y[0])
    other = whole[1:]
    with torch.no_grad():
        other.t_()
    return part, other * 2, other


@pytest.mark.parametrize(
    "fn",
    (reshaped_view, view_reshaped_again, base_turned, base_turned_often, turned_for_all, turned_without_gradients),
)
def test_views_keep_their_history_when_one_of_them_or_their_base_turns_in_place(fn: Any) -> None:
    """PyTorch's engine makes it again, by the operators of views, from a base that must have kept its shape."""
    captured = smelt.compile(fn, backend="aot_eager", fullgraph=True)
    for call in (None, captured):
        check(fn, lambda: [torch.ones(3, 4), torch.tensor([0.5, 2.0], requires_grad=True)], call)


def test_factorizations_raise_as_in_eager() -> None:
    fn = smelt.compile(lambda x: torch.linalg.cholesky(x) * 2, fullgraph=True)
    x = torch.eye(3).repeat(2, 1, 1)
    assert torch.equal(fn(x), torch.linalg.cholesky(x) * 2)
    with pytest.raises(torch.linalg.LinAlgError, match="leading minor of order 1"):
        fn(-x)


def test_a_derivative_that_checks_the_loss_raises_as_in_eager() -> None:
    """Complex singular vectors are known up to a phase; a loss that depends on it has no gradient."""

    def loss(x: torch.Tensor, phase: float) -> torch.Tensor:
        u, s, vh = torch.linalg.svd(x, full_matrices=False)
        return (u.abs().square() * s).sum() + phase * (u[0, 0] * 2).real

    x = torch.randn(3, 2, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    run = smelt.compile(loss, fullgraph=True)
    grads = []
    for fn in (run, loss):
        given = x.clone().requires_grad_()
        fn(given, 0.0).backward()
        grads.append(given.grad)
        with pytest.raises(RuntimeError):
            fn(x.clone().requires_grad_(), 1.0).backward()
    torch.testing.assert_close(*grads)


def test_a_copy_of_what_was_expanded_or_has_gaps_has_neither() -> None:
    """Results that own their memory are copies; `clone()` and `copy_` leave no other trace in the graph."""

    def program(x: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        z.copy_(x.diagonal())
        return [x[::2].clone(), z]

    x, z = torch.randn(4, 4), torch.randn(4, 4)
    got = smelt.compile(program, fullgraph=True)(x, z)
    assert torch.equal(got[0], x[::2]) and got[0].is_contiguous()
    assert torch.equal(z, x.diagonal().expand(4, 4)) and got[1] is z
