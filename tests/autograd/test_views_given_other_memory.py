"""`view.data = q`: the view keeps its place in the history of its base, and lies in other memory than it.

Eager's graph has saved the view itself, and follows a write to it by its place in the base, wherever `q` begins. So it
does where the base gets its history (`requires_grad_()`) after the view.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

T = torch.Tensor


def _before(x: T, q: T) -> T:
    v = x[1:3]
    v.data = q
    return (v * v).sum() + (x * x).sum()


def _between(x: T, q: T) -> T:
    v = x[1:3]
    w = v * v
    v.data = q
    return (w * v).sum()


def _between_of_a_result(x: T, q: T) -> T:
    z = x * 2
    w = z[1:3].sin() + z[1:3]
    w2 = w.cos()
    w.data = q
    return (w2 * w + w.exp()).sum()


def _written(x: T, q: T) -> T:
    z = x * 2
    v = z[1:3]
    v.data = q
    v.mul_(3)
    return (v * v).sum() + (z * z).sum()


def _base_written(x: T, q: T) -> T:
    z = x * 2
    v = z[1:3]
    v.data = q
    z.mul_(3)
    return (v * v).sum() + (z * z).sum()


def _of_no_gradient(x: T, q: T) -> T:
    z = torch.ones(2, 6)
    w = x[1:3] * z
    z.data = q
    z.add_(1) if not x.requires_grad else None
    return (w * z).sum()


def _in_a_function(x: T, q: T) -> T:
    def inner(v: T) -> T:
        v.data = q
        return v * 2

    v = x[1:3]
    return (inner(v) * v).sum()


PROGRAMS = [_before, _between, _between_of_a_result, _written, _base_written, _of_no_gradient, _in_a_function]


def _run(fn: Callable[..., T], leaf: bool, at: int) -> Any:
    x = torch.randn(4, 6, generator=torch.manual_seed(0)).requires_grad_(leaf)
    q = (torch.arange(60.0) / 8)[at : at + 12].view(2, 6)
    out = fn(x, q)
    try:
        if out.requires_grad:
            out.backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:  # a place in the view's memory that its base's has not
        assert "setStorage" in str(error)
        return None
    return out.detach(), x.grad, q


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_in_a_function(fn: Callable[..., T], backend: str) -> None:
    compiled = smelt.compile(fn, backend=backend)
    for leaf in (True, False):
        for at in (0, 3, 24):
            torch.testing.assert_close(_run(compiled, leaf, at), _run(fn, leaf, at))


VIEWS: dict[str, Callable[[T], T]] = {
    "rows": lambda x: x[1:3],
    "columns": lambda x: x[:, 1:5:2],
    "transposed": lambda x: x.t(),
    "expanded": lambda x: x[:1].expand(3, 6),
    "part": lambda x: x.split(2)[1],
}
USES: dict[str, Callable[[T], T]] = {"product": lambda v: v * v, "sine": torch.sin, "matmul": lambda v: v @ v.mT}


@pytest.mark.parametrize("target", ["cpp", "triton", "aot_eager"])
@pytest.mark.parametrize("view", VIEWS)
def test_an_argument_that_is_a_view_before_the_backward(view: str, target: str) -> None:
    how: Any = {"backend": target} if target == "aot_eager" else {"options": {"target": target}}
    for use in USES.values():
        found = []
        for run in (use, smelt.compile(use, **how)):
            for leaf in (True, False):
                x = torch.randn(4, 6, generator=torch.manual_seed(0)).requires_grad_()
                v = VIEWS[view](x if leaf else x * 1)
                out = run(v)
                v.data = torch.full(v.shape, 7.0)
                out.sum().backward()  # type: ignore[no-untyped-call]
                found.append(x.grad)
        torch.testing.assert_close(found[2:], found[:2])


def _first_written(a: T, b: T) -> T:
    a.mul_(3)
    return (b * b).sum() + (a * a).sum()


def _second_written(a: T, b: T) -> T:
    b.mul_(a.detach().sum())
    return (a[:2] * b[:2]).sum()


GIVEN: dict[str, Callable[[T], tuple[T, T]]] = {
    "base and moved": lambda b: (b, _moved(b[:2])),
    "moved and base": lambda b: (_moved(b[:2]), b),
    "moved and view": lambda b: (_moved(b[:2]), b[:2]),
    "view beside": lambda b: (b[:2], b[2:]),
}


def _moved(view: T) -> T:
    view.data = torch.full(view.shape, 7.0)
    return view


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("fn", [_first_written, _second_written])
def test_arguments_one_of_which_is_written(fn: Callable[[T, T], T], backend: str) -> None:
    """One compiled function for all: what is a view of what, and where it lies, changes from call to call."""
    compiled = smelt.compile(fn, backend=backend)
    for given in ("view beside", *GIVEN):
        found = []
        for run in (fn, compiled):
            x = torch.arange(12.0).view(4, 3).requires_grad_()
            run(*GIVEN[given](x * 2)).backward()  # type: ignore[no-untyped-call]
            found.append(x.grad)
        torch.testing.assert_close(found[1], found[0])


WRITES: dict[str, Callable[[T, T], Any]] = {
    "the base": lambda x, v: x.mul_(2),
    "the view": lambda x, v: v.mul_(2),
    "data": lambda x, v: v.data.mul_(2),
    "both": lambda x, v: (v.data.add_(1), x.mul_(2)),
    "nobody": lambda x, v: None,
}


@pytest.mark.parametrize("backend", ["smelt", "aot_eager"])
@pytest.mark.parametrize("write", WRITES)
def test_views_of_a_base_that_requires_gradients_later(write: str, backend: str) -> None:
    """Autograd gives a view a history where its base has one by now and was written since the view was taken."""

    def program(x: T, early: bool) -> tuple[T, T]:
        u = x[1:3]
        if early:
            WRITES[write](x, u)
        v = x.view(-1)[6:18]
        if not early:
            WRITES[write](x, v)
        x.requires_grad_()
        return (x[:2] * u).sum() + (v * v).sum(), u

    compiled = smelt.compile(program, backend=backend)
    for early in (True, False):
        found = []
        for run in (program, compiled):
            x = torch.arange(24.0).view(4, 6)
            out, u = run(x, early)
            out.backward()  # type: ignore[no-untyped-call]
            found.append((out.detach(), x.grad, u.is_leaf))
        torch.testing.assert_close(found[1], found[0])
