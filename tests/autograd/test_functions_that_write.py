"""The backward of a `torch.autograd.Function` that writes to what others hold: an input or a result of the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.graph.nodes.custom_functions import writes_outside

WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": lambda held, g: held.add_(g),
    "copy": lambda held, g: held.copy_(g.abs()),
    "part": lambda held, g: held[1:].mul_(2),
    "view": lambda held, g: held.view(-1).sub_(1),
    "data": lambda held, g: held.data.add_(g),
}


def function(write: Callable[[Tensor, Tensor], Any], saved: bool) -> Any:
    """Doubles its first argument; its backward writes to the second."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, held: Tensor) -> Tensor:
            ctx.save_for_backward(held) if saved else setattr(ctx, "held", held)
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            write(ctx.saved_tensors[0] if saved else ctx.held, g)
            return g * 2, None

    return Doubled.apply


def of_argument(op: Any, compiler: Any) -> list[Any]:
    held, x, out = torch.zeros(5), torch.arange(5.0, requires_grad=True), []
    fn = compiler(lambda x: (op(x, held) * torch.arange(5.0)).sum())
    for _ in range(3):
        fn(x).backward()
        out += [held.clone(), held._version]
    return [*out, x.grad]


def of_result(op: Any, compiler: Any) -> list[Any]:
    x, out = torch.arange(5.0, requires_grad=True), []

    def f(x: Tensor) -> tuple[Tensor, ...]:
        held = x.detach() + 1
        return op(x, held) + 1, held[1:], held

    fn = compiler(f)
    for _ in range(3):
        y, part, held = fn(x)
        y.sum().backward()
        out += [y, part, held]
    return [*out, x.grad]


def of_buffer(op: Any, compiler: Any) -> list[Any]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.largest = nn.Buffer(torch.zeros(5))
            self.scale = nn.Parameter(torch.arange(5.0))

        def forward(self, x: Tensor) -> Tensor:
            return op(x * self.scale, self.largest).sin()

    model = Model()
    fn, out = compiler(model), []
    for _ in range(3):
        fn(torch.ones(5)).sum().backward()
        out.append(model.largest.clone())
    return [*out, model.scale.grad]


@pytest.mark.parametrize("backend", ["aot_eager", "smelt"])
@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("program", [of_argument, of_result, of_buffer])
def test_writes_of_forward_and_backward_are_visible_to_the_program(
    program: Callable[..., list[Any]], write: str, saved: bool, backend: str
) -> None:
    want = program(function(WRITES[write], saved), lambda f: f)
    got = program(function(WRITES[write], saved), lambda f: smelt.compile(f, backend=backend))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b)


def test_writes_to_values_without_other_references_stay_in_the_graph() -> None:
    op = function(WRITES["add"], True)
    fn = smelt.compile(lambda x: op(x, x.detach() * 2).sin(), fullgraph=True)
    x, y = (torch.arange(5.0, requires_grad=True) for _ in range(2))
    fn(x).sum().backward()
    op(y, y.detach() * 2).sin().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def _with_gradient(loss: Tensor, x: Tensor, held: Tensor) -> Any:
    (gradient,) = torch.autograd.grad(loss, x)
    return gradient, held.tolist()


def _without_gradient(loss: Tensor, x: Tensor, held: Tensor) -> Any:
    torch.autograd.grad(loss, x)
    return held.tolist()


def _backward(loss: Tensor, x: Tensor, held: Tensor) -> Any:
    loss.backward()
    return held.item(), held * 1


def _backward_alone(loss: Tensor, x: Tensor, held: Tensor) -> Any:
    loss.backward()


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("write", ["add", "copy", "view"])
@pytest.mark.parametrize("end", [_with_gradient, _without_gradient, _backward, _backward_alone])
def test_writes_of_backward_called_inside_the_compiled_function(
    end: Callable[..., Any], write: str, saved: bool
) -> None:
    op = function(WRITES[write], saved)

    def program(t: Tensor, held: Tensor) -> Any:
        x = t.clone().requires_grad_()
        return end((op(x, held) * 3).sum(), x, held)

    found = []
    for run in (program, smelt.compile(program)):
        held, got = torch.zeros(1), []
        for _ in range(3):
            got += [run(torch.ones(1), held), held.clone()]
        found.append(got)
    assert str(found[1]) == str(found[0])


def test_only_the_function_that_writes_leaves_the_graph() -> None:
    class Tripled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 3

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 3

    op, held, x = function(WRITES["add"], True), torch.zeros(5), torch.arange(5.0, requires_grad=True)
    smelt.compile(lambda x: op(Tripled.apply(x), held).sin())(x).sum().backward()
    assert held.abs().sum() > 0
    assert not writes_outside(Tripled)
    smelt.compile(lambda x: Tripled.apply(x).sin(), fullgraph=True)(x).sum().backward()
