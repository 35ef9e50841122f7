"""What fails in a backward fails when a backward comes there, with eager's error: the forward, and other results, do
not."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import custom_op

import smelt

_numbers = itertools.count()


def operator(backward: Callable[..., Any] | None, raises: Exception | None = None) -> Any:
    """An operator of a library, with this derivative."""

    @custom_op(f"errors_of_backward::op{next(_numbers)}", mutates_args=())
    def op(x: Tensor) -> Tensor:
        if raises is not None:
            raise raises
        return x.sin()

    op.register_fake(torch.empty_like)
    if backward is not None:
        op.register_autograd(backward)
    return op


class Own(Exception):
    """Nothing copies it: its arguments are not those that it was made with."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__("own")
        self.both = a, b


def _raise(error: Exception) -> Any:
    raise error


def _aliased() -> Any:
    @custom_op(f"errors_of_backward::op{next(_numbers)}", mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x

    op.register_fake(torch.empty_like)
    return op


def function(backward: Callable[..., Any] | None) -> Any:
    """A `torch.autograd.Function` with this backward."""
    members: dict[str, Any] = {"forward": staticmethod(lambda ctx, x: x.sin())}
    if backward is not None:
        members["backward"] = staticmethod(backward)
    return type("Sine", (torch.autograd.Function,), members).apply


MADE: dict[str, Callable[[], Any]] = {
    "no formula": lambda: operator(None),
    "a formula that raises": lambda: operator(lambda ctx, g: _raise(ValueError("in the formula"))),
    "an error of its own": lambda: operator(lambda ctx, g: _raise(Own(1, 2))),
    "an operator that fails": lambda: operator(lambda ctx, g: g.view(77)),
    "another shape": lambda: operator(lambda ctx, g: g[1:]),
    "too many": lambda: operator(lambda ctx, g: (g, g)),
    "a forward that raises": lambda: operator(None, KeyError("in the operator")),
    "an argument as a result": _aliased,
    "a function without a backward": lambda: function(None),
    "a function with another shape": lambda: function(lambda ctx, g: g[1:]),
    "a function that gives a text": lambda: function(lambda ctx, g: "no tensor"),
}

PROGRAMS: dict[str, Callable[[Any, Tensor], Any]] = {
    "alone": lambda op, x: [op(x)],
    "inside": lambda op, x: [(op(x * 2) * 3).sum()],
    "beside another result": lambda op, x: [x.cos().sum(), op(x)],
    "with another result": lambda op, x: [x.cos().sum() + op(x).sum(), x * 2],
    "without gradients": lambda op, x: [op(x.detach()) * x],
    "twice": lambda op, x: [op(op(x)), op(x)],
}


def _told(error: Exception) -> tuple[str, str]:
    return type(error).__name__, re.sub(r"op\d+|0x[0-9a-f]+|file \S+", "_", str(error))[:100]


def _outcomes(run: Callable[[Tensor], Any]) -> Iterator[Any]:
    for _ in range(2):
        x = torch.linspace(0.1, 1, 5).requires_grad_()
        try:
            results = run(x)
        except Exception as error:
            yield _told(error)
            continue
        for result in results:
            yield result.requires_grad, [round(v, 4) for v in result.flatten().tolist()]
            for _ in range(2):  # it raises as often as it is asked
                if result.requires_grad:
                    x.grad = None
                    try:
                        result.sum().backward(retain_graph=True)
                    except Exception as error:
                        yield _told(error)
                    yield None if x.grad is None else [round(v, 4) for v in x.grad.tolist()]


@pytest.mark.parametrize("what", MADE)
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_error_comes_when_a_backward_comes_there(what: str, program: str) -> None:
    f = PROGRAMS[program]
    op, same = MADE[what](), MADE[what]()
    assert list(_outcomes(smelt.compile(lambda x: f(op, x)))) == list(_outcomes(lambda x: f(same, x)))


def test_the_graph_stays_whole() -> None:
    op = operator(None)
    run = smelt.compile(lambda x: (op(x * 2) + 1, x.cos()), fullgraph=True)
    result, other = run(torch.ones(3, requires_grad=True))
    other.sum().backward()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no autograd formula was registered"):
            result.sum().backward(retain_graph=True)


def test_the_error_keeps_nothing_of_the_trace() -> None:
    op = operator(lambda ctx, g: _raise(ValueError("in the formula")))
    result = smelt.compile(lambda x: op(x))(torch.ones(3, requires_grad=True))
    with pytest.raises(ValueError, match="in the formula") as raised:
        result.sum().backward()
    entry, files = raised.tb, []
    while entry is not None:
        files.append(entry.tb_frame.f_code.co_filename)
        entry = entry.tb_next
    assert not any("joint" in name for name in files) and raised.value.__context__ is None


def _index(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.long)


OF_PYTORCH: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a source that is larger": lambda x, y: x.scatter(1, _index(4, 1), y),
    "added to one place": lambda x, y: x.scatter_add(1, _index(4, 1), y),
    "reduced": lambda x, y: x.scatter_reduce(1, _index(4, 1), y, "mean"),
    "written": lambda x, y: (x * 1).scatter_(0, _index(2, 3), y),
    "all of an orthogonal matrix": lambda x, y: torch.linalg.qr(x, "complete")[0] @ y,
    "no orthogonal matrix": lambda x, y: torch.linalg.qr(x, "r")[1] + y[:3],
}


@pytest.mark.parametrize("backend", ["aot_eager", "smelt"])
@pytest.mark.parametrize("name", OF_PYTORCH)
def test_operators_of_pytorch_whose_derivative_fails(name: str, backend: str) -> None:
    """Also where another result, which has a derivative, comes from the same graph."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 2 + y).sin(), OF_PYTORCH[name](x * 2, y)

    told = []
    for fn in (f, smelt.compile(f, backend=backend)):
        x, y = (torch.rand(4, 3, requires_grad=True) for _ in range(2))
        right, wrong = fn(x.detach().fill_(1).requires_grad_(), y.detach().fill_(2).requires_grad_())
        with pytest.raises(RuntimeError) as raised:
            wrong.sum().backward()
        right.sum().backward()
        torch.manual_seed(0)
        x, y = (torch.rand(4, 3, requires_grad=True) for _ in range(2))
        fn(x, y)[0].sum().backward()
        told.append((str(raised.value), right, x.grad, y.grad))
    assert told[0][0] == told[1][0]
    for got, want in zip(told[1][1:], told[0][1:], strict=True):
        torch.testing.assert_close(got, want)


BESIDE_WRITES: dict[str, Callable[[Tensor], Any]] = {
    "a source that is larger": lambda x: (x.mul_(2), x.scatter(0, _index(1, 2), torch.ones(4, 4) * x[0, 0])),
    "all of an orthogonal matrix": lambda x: (x.relu_(), torch.linalg.qr(x.repeat(3, 1), mode="complete")[0]),
    "a complex view that gets a real number": lambda x: (x * 3, torch.view_as_complex(x.view(-1, 2)).fill_(x.mean())),
}


@pytest.mark.parametrize("backend", ["aot_eager", "smelt"])
@pytest.mark.parametrize("name", BESIDE_WRITES)
def test_they_fail_there_also_where_a_computed_input_is_written(name: str, backend: str) -> None:
    told = []
    for fn in (BESIDE_WRITES[name], smelt.compile(BESIDE_WRITES[name], backend=backend)):
        result = fn(torch.ones(4, 4, requires_grad=True) * 1)[1].abs().sum()
        with pytest.raises(RuntimeError) as raised:
            result.backward()
        told.append(str(raised.value))
    assert told[0] == told[1]


NO_SECOND: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cdist": lambda x: torch.cdist(x, x.detach() + 1, p=1.5).sin() * x.sum(),
    "pdist": lambda x: torch.pdist(x.sin(), p=3.0).sin(),
}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", NO_SECOND)
def test_a_second_derivative_that_pytorch_lacks_is_missed_when_it_is_asked_for(name: str, autocast: bool) -> None:
    """`create_graph=True` alone asks for none. PyTorch has these from version 2.14 on."""
    fn, seen = NO_SECOND[name], []
    for run in (fn, smelt.compile(fn)):
        x = torch.randn(4, 5, generator=torch.manual_seed(1)).requires_grad_()
        with torch.autocast("cpu", enabled=autocast):
            loss = run(x).sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        assert first.requires_grad
        try:
            second, told = torch.autograd.grad(first.square().sum(), x)[0], ""
        except RuntimeError as error:
            second, told = x.detach(), str(error)
        seen.append((first.detach(), second, told))
    torch.testing.assert_close(seen[1][:2], seen[0][:2])
    assert seen[1][2] == seen[0][2] and ("not implemented" in seen[0][2] or torch.__version__ >= "2.14")


@pytest.mark.parametrize("leaf", [True, False])
def test_a_second_derivative_by_a_leaf_is_not_taken_for_none(leaf: bool) -> None:
    """Where there is no second derivative through a compiled graph (it reads sizes), it is told, also of `grad` by one
    input: `None` would say that nothing depends on it."""

    def function(x: Tensor) -> Tensor:
        length, targets = torch.tensor([4]), torch.tensor([[1, 2]])
        return torch.nn.functional.ctc_loss(x[:, None].log_softmax(-1), targets, length, torch.tensor([2]))

    x = torch.randn(4, 5).requires_grad_()
    (first,) = torch.autograd.grad(smelt.compile(function)(x if leaf else x * 2), x, create_graph=True)
    with pytest.raises(RuntimeError, match="a second derivative through a compiled function"):
        torch.autograd.grad(first.square().sum(), x, allow_unused=True)
