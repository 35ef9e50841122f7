"""Errors that operators raise for any values are known without values, in eager's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.base.errors import Unsupported
from smelt.graph.meta_rules import infer
from smelt.graph.trace.trace import TraceMode, trace_like

aten = torch.ops.aten
Program = Callable[..., Any]
CASES: list[tuple[Program, list[torch.Tensor]]] = [
    (lambda a, b: a @ b, [torch.ones(2, 3), torch.ones(3, 3, dtype=torch.float64)]),
    (lambda a, b: a.copy_(b), [torch.ones(2), torch.ones(3)]),
    (lambda a: a.fill_(float("inf")), [torch.ones(2, dtype=torch.int64)]),
    (lambda a: torch.rand_like(a), [torch.ones(2, dtype=torch.int64)]),
    (lambda a, b: a + b, [torch.ones(2), torch.ones(3)]),
    (lambda a, b: torch.add(a, b, out=torch.empty(0)), [torch.ones(2, 2), torch.ones(3)]),
    (lambda a: a.mean(), [torch.ones(2, dtype=torch.int64)]),
    (lambda a: a.expand(3), [torch.ones(2, 3)]),
    (lambda a: torch.softmax(a, 0), [torch.ones(2, dtype=torch.int64)]),
    (lambda a: a.max(), [torch.ones(0)]),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_same_error_as_eager(case: int) -> None:
    program, args = CASES[case]
    with pytest.raises(Exception) as want:
        program(*[a.clone() for a in args])
    with TraceMode(), pytest.raises(type(want.value)) as got:
        program(*map(trace_like, args))
    assert str(got.value) == str(want.value)


def test_errors_that_depend_on_values_are_not_foreseen() -> None:
    with TraceMode():
        assert trace_like(torch.ones(2))[trace_like(torch.ones(2, dtype=torch.int64))].shape == (2,)
        assert aten.repeat_interleave.Tensor(trace_like(torch.tensor([2, 3])), output_size=5).shape == (5,)
        assert torch.linalg.inv(trace_like(torch.ones(2, 2))).shape == (2, 2)
        assert (trace_like(torch.ones(2, dtype=torch.int64)) % trace_like(torch.ones(2, dtype=torch.int64))).ndim == 1


def test_random_numbers_are_not_drawn() -> None:
    torch.manual_seed(3)
    want = torch.get_rng_state()
    with TraceMode():
        torch.rand_like(trace_like(torch.ones(7, 5)))
    assert torch.equal(torch.get_rng_state(), want)


@pytest.mark.parametrize("dynamic", [False, True])
def test_caught_where_it_is_raised(dynamic: bool) -> None:
    """What was written before the operator fails is written, and the except clause runs."""

    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        try:
            return x @ y
        except RuntimeError as error:
            return str(error)

    args = [torch.ones(2, 4), torch.ones(4, 3, dtype=torch.float64)]
    x, y = args[0].clone(), args[1].clone()
    compiled = smelt.compile(program, backend="eager", fullgraph=True, dynamic=dynamic)
    assert compiled(x, y) == program(*args)
    assert torch.equal(x, args[0])


WRITES: list[Program] = [
    lambda a: a[1:].add_(a[:-1]),
    lambda a: a.t().copy_(a),
    lambda a: a[0].copy_(a[:1]),
    lambda a: torch.add(a[1:], 1, out=a[:-1]),
    lambda a: a.__setitem__(slice(1, None), a[:-1]),
    lambda a: a[0].mul_(a[0]),
    lambda a: a[0].add_(a[1]),
]


@pytest.mark.parametrize("size", [3, 100])
@pytest.mark.parametrize("number", range(len(WRITES)))
def test_writes_to_memory_that_is_read(number: int, size: int) -> None:
    def program(x: torch.Tensor) -> Any:
        y = x * 2
        try:
            WRITES[number](y)
        except RuntimeError as error:
            return str(error), y
        return y

    x = torch.arange(float(size * size)).reshape(size, size)
    want, got = program(x), smelt.compile(program, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(want[1] if isinstance(want, tuple) else want, got[1] if isinstance(got, tuple) else got)
    assert isinstance(want, tuple) is isinstance(got, tuple) and (not isinstance(want, tuple) or want[0] == got[0])


def test_a_meta_kernel_that_refuses_what_the_operator_accepts(monkeypatch):
    """As `select_scatter` of PyTorch 2.11 does: the rule for sizes that vary answers in its place."""

    def refuses(*_):
        raise RuntimeError("Tensor.item() cannot be called on meta tensors")

    monkeypatch.setattr(infer, "_by_running", refuses)
    infer._answers.clear()
    with TraceMode():
        x, part = trace_like(torch.rand(3, 4).t(), requires_grad=False), trace_like(torch.rand(3), requires_grad=False)
        out = aten.select_scatter.default(x, part, 0, 1)
        assert (tuple(out.shape), out.stride()) == ((4, 3), (1, 4))
        monkeypatch.delitem(infer.SYMBOLIC_RULES, aten.select_scatter.default)
        with pytest.raises(Unsupported, match="its metadata rule refuses what it accepts"):
            aten.select_scatter.default(x, part, 0, 2)
    infer._answers.clear()
