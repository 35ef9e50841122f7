"""Calls of compiled graphs: saving, versions, tangents, several calls alive at once, threads."""

from __future__ import annotations

import threading

import pytest
import torch

from smelt.autograd.call.calling_convention import wrap
from smelt.autograd.eager import compile_aot_eager, eager_program
from smelt.autograd.partition.eager_partition import split
from smelt.autograd.trace.joint import trace_joint
from smelt.base.options import Options
from tests.autograd.compare import check, compiled
from tests.autograd.joint_examples import graph_of_call


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, requires_grad=True)


def grad_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    (grad,) = torch.autograd.grad(out.sum(), [x])
    return grad


def test_retain_graph_twice() -> None:
    x = leaf(3)
    call = compiled(torch.exp, [x])
    (y,) = call(x)
    first = torch.autograd.grad(y.sum(), x, retain_graph=True)
    second = torch.autograd.grad(y.sum(), x)
    assert torch.equal(first[0], second[0])
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(y.sum(), x)


def test_second_forward_before_first_backward() -> None:
    a, b = leaf(3), leaf(3)
    call = compiled(torch.sin, [a])
    (ya,), (yb,) = call(a), call(b)
    assert torch.allclose(grad_of(ya, a), a.cos())
    assert torch.allclose(grad_of(yb, b), b.cos())


def test_tangent_in_another_layout_and_expanded() -> None:
    x = leaf(3, 4)
    call = compiled(lambda x: x.sin() * 2, [x])
    (y,) = call(x)
    tangent = torch.randn(4, 3).t()
    (grad,) = torch.autograd.grad(y, x, tangent)
    assert torch.allclose(grad, 2 * x.cos() * tangent)
    (y,) = call(x)
    assert torch.allclose(torch.autograd.grad(y, x, torch.ones(()).expand(3, 4))[0], 2 * x.cos())


def test_inputs_of_only_unused_outputs_have_no_gradient() -> None:
    a, b, c = leaf(3), leaf(3), leaf(3)
    first, second = compiled(lambda a, b, c: ((a * c).exp(), (b * c).sin()), [a, b, c])(a, b, c)
    found = torch.autograd.grad(first.sum() + second.sum(), [a, b, c], retain_graph=True)
    assert all(g is not None for g in found)
    found = torch.autograd.grad(first.sum(), [a, b, c], retain_graph=True, allow_unused=True)
    assert [g is None for g in found] == [False, True, False]
    found = torch.autograd.grad(second.sum(), [a, b, c], allow_unused=True)
    assert [g is None for g in found] == [True, False, False]


def test_a_constant_gradient_comes_from_used_outputs_only() -> None:
    a, b = leaf(3), leaf(3)
    call = compiled(lambda a, b: (a.clone().fill_(2.0), b * 2), [a, b])
    first, second = call(a, b)
    assert torch.autograd.grad(second.sum(), [a, b], allow_unused=True, retain_graph=True)[0] is None
    found = torch.autograd.grad(first.sum(), [a, b], allow_unused=True)
    assert torch.equal(found[0], torch.zeros(3))
    assert found[1] is None


def test_unused_written_inputs() -> None:
    a, b = leaf(3), leaf(3)

    def write(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        x.mul_(b)
        return a * 2

    x = torch.ones(3)
    (y,) = compiled(write, [a, b, x])(a, b, x)
    assert torch.autograd.grad(y.sum(), [a, b], allow_unused=True)[1] is None
    x = torch.ones(3)
    compiled(write, [a, b, x])(a, b, x)
    assert torch.autograd.grad(x.sum(), [a, b], allow_unused=True)[0] is None


def test_a_graph_that_is_called_under_no_grad_and_leaves_it() -> None:
    x = leaf(3)

    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.sin(x)
        torch.set_grad_enabled(True)
        y = torch.exp(x)
        torch.set_grad_enabled(False)
        return before, y

    with torch.no_grad():
        program = compiled(call, [x])
        before, y = program(x)
    assert not before.requires_grad and torch.allclose(grad_of(y, x), x.exp())


def test_a_clone_protects_what_the_caller_writes_before_the_backward() -> None:
    w, x = leaf(3), torch.randn(3)
    (y,) = compiled(lambda w, x: w * x.clone(), [w, x])(w, x)
    old = x.clone()
    x.zero_()
    assert torch.equal(grad_of(y, w), old)
    (y,) = compiled(lambda w, x: w * x, [w, x])(w, x)
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grad_of(y, w)


def test_one_of_two_outputs_used() -> None:
    x, w = leaf(3), leaf(3)
    call = compiled(lambda x, w: (x * 2, w * 3), [x, w])
    a, _ = call(x, w)
    grads = torch.autograd.grad(a.sum(), [x, w], allow_unused=True)
    assert torch.equal(grads[0], torch.full((3,), 2.0))
    assert grads[1] is None or not grads[1].any()


def test_saved_input_written_later_is_found() -> None:
    x, w = leaf(3), torch.randn(3)
    (y,) = compiled(lambda x, w: x * w, [x, w])(x, w)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_saved_view_of_an_input_written_later_is_found() -> None:
    x, w = leaf(4, 3), torch.randn(3, 4)
    (y,) = compiled(lambda x, w: x * w.t(), [x, w])(x, w)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_saved_output_written_later_is_found() -> None:
    x = leaf(3)
    (y,) = compiled(torch.exp, [x])(x)
    y.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_written_input_that_backward_needs_keeps_its_old_value() -> None:
    x, buffer = leaf(3), torch.full((3,), 2.0)

    def fn(x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
        y = x * buffer.clone()
        buffer.add_(5)
        return y

    (y,) = compiled(fn, [x, buffer])(x, buffer)
    assert torch.equal(grad_of(y, x), torch.full((3,), 2.0))
    assert torch.equal(buffer, torch.full((3,), 7.0))


def test_written_input_counts_a_version() -> None:
    buffer = torch.zeros(3)
    call = compiled(lambda b: b.add_(1), [buffer])
    call(buffer)
    assert buffer._version == 1


def test_gradients_accumulate_into_grad() -> None:
    x = leaf(3)
    call = compiled(lambda x: x * 2, [x])
    for _ in range(2):
        call(x)[0].sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 4.0))


def test_tensor_hooks_run() -> None:
    x = leaf(3)
    seen = []
    x.register_hook(seen.append)
    (y,) = compiled(lambda x: x * 2, [x])(x)
    y.register_hook(lambda g: g * 10)
    y.sum().backward()
    assert torch.equal(seen[0], torch.full((3,), 20.0))


def test_threads_share_one_callable() -> None:
    inputs = [leaf(16) for _ in range(4)]
    call = compiled(lambda x: x.sin() * x, [inputs[0]])
    grads: dict[int, torch.Tensor] = {}

    def work(i: int) -> None:
        for _ in range(20):
            (y,) = call(inputs[i])
            (grads[i],) = torch.autograd.grad(y.sum(), inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, x in enumerate(inputs):
        assert torch.allclose(grads[i], x.sin() + x * x.cos())


def test_no_grad_at_call_time() -> None:
    x = leaf(3)
    call = compiled(lambda x: x * 2, [x])
    with torch.no_grad():
        (y,) = call(x)
    assert not y.requires_grad


def test_seed_follows_the_default_generator() -> None:
    seeds = []

    def forward(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        seeds.append(inputs[1].item())
        return [inputs[0].clone()]

    x = torch.randn(3)
    joint = trace_joint(graph_of_call(torch.nn.functional.dropout, 1), [x], Options())
    call = wrap(joint, forward, None)
    for _ in range(2):
        torch.manual_seed(3)
        call(x)
    call(x)
    assert seeds[0] == seeds[1] != seeds[2]


def test_programs_run_outside_autocast() -> None:
    x, w = leaf(4, 4), leaf(4, 4)

    def fn(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", enabled=False):
            exact = x @ w
        return exact, x @ w

    with torch.autocast("cpu", torch.bfloat16):
        exact, low = compiled(fn, [x, w])(x, w)
    assert exact.dtype is torch.float32 and low.dtype is torch.bfloat16
    assert torch.equal(exact, x @ w)


def test_backward_program_may_clear_its_inputs() -> None:
    x = leaf(3)
    joint = trace_joint(graph_of_call(torch.exp, 1), [x], Options())
    forward, backward = split(joint)
    assert backward is not None
    given: list[list[torch.Tensor]] = []
    run = eager_program(backward)

    def spy(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        given.append(inputs)
        return run(inputs)

    (y,) = wrap(joint, eager_program(forward), spy)(x)
    y.sum().backward()
    assert given == [[]]


def test_inference_tensors_and_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.randn(3)
        call = compile_aot_eager(graph_of_call(lambda x: x * 2, 1), [x], Options())
        assert torch.equal(call(x)[0], x * 2)


def test_sparse_tangents() -> None:
    fn = lambda x: (x.sin() * 2,)  # noqa: E731
    found = []
    for call in (fn, compiled(fn, [torch.ones(4, 2, requires_grad=True)])):
        x = torch.linspace(0, 1, 8).reshape(4, 2).requires_grad_()
        rows = torch.nn.functional.embedding(torch.tensor([1, 1, 3]), call(x)[0], sparse=True)
        rows.sum().backward()
        found.append(x.grad.to_dense())
    torch.testing.assert_close(*found)


def test_conjugate_of_a_number() -> None:
    check(
        lambda x: torch.view_as_real(x * (2 + 1j)), lambda: [torch.ones(3, dtype=torch.complex64, requires_grad=True)]
    )


def test_a_result_without_a_gradient_still_requires_grad() -> None:
    x = leaf(3, 5)
    call = compiled(lambda x: torch.linalg.vector_norm(x, 0, dim=-1), [x])
    (y,) = call(x)
    assert y.requires_grad
    y.sum().backward()
    assert x.grad is None  # as in eager, whose formula for the number of elements gives none
