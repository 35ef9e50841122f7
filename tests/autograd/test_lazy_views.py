"""Conjugates and negatives are views as in eager (`conj()`, `.mH`); zeros without memory have values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


def numbers() -> torch.Tensor:
    return torch.tensor([[1 + 1j, 2 - 1j], [3 + 2j, 5 + 1j]])


def _read_after_write(z: torch.Tensor) -> Any:
    c = z.conj()
    z.mul_(2j)
    return c * 3


def _written_through(z: torch.Tensor) -> Any:
    z.conj().mul_(2j)
    return z


def _base_written(z: torch.Tensor) -> Any:
    y = z * 3
    c = y.conj()
    y.add_(1j)
    return c * 3, c, y


def _imaginary_written(z: torch.Tensor) -> Any:
    z.conj().imag.add_(5)
    return z


def _element_written(z: torch.Tensor) -> Any:
    c = z.conj()
    c[0] = 5j
    return c, z + 1


def _conjugate_of_other_memory(z: torch.Tensor) -> Any:
    c, d, e = (z + 0).conj(), z + 1j, (z + 0).conj()
    c.set_(z)
    d.set_(z.conj())
    e.set_(z.conj())
    c.mul_(2j)
    return c, c * 3, d, e + 1, z


def _negative(z: torch.Tensor) -> Any:
    n = torch._neg_view(z.real)
    z.mul_(3)
    return n * 2, n


def _detached_then_written(z: torch.Tensor) -> Any:
    y = z * 3
    c = y.conj().detach()
    y[0] = 2j
    return c


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "read after a write": _read_after_write,
    "written through": _written_through,
    "base written": _base_written,
    "imaginary part written": _imaginary_written,
    "element written": _element_written,
    "conjugate of other memory": _conjugate_of_other_memory,
    "negative": _negative,
    "result": lambda z: z.conj(),
    "adjoint": lambda z: (z.mH, z.H, torch.adjoint(z).contiguous()),
    "parts": lambda z: (z.conj().imag, z.conj().real),
    "resolved": lambda z: (z.conj().resolve_conj(), z.conj().clone(), z.conj().conj()),
    "questions": lambda z: (z.conj().is_conj(), z.is_conj(), z.conj().imag.is_neg()),
    "views of it": lambda z: (z.conj().t()[0], z.conj()[None].expand(2, 2, 2).sum()),
    "twice": lambda z: (c := z.conj(), c),
    "products": lambda z: (z.mH @ z, torch.vdot(z[0], z[1])),
    "of an intermediate": lambda z: (z * z).conj(),
    "detached": lambda z: (z * z).conj().detach(),
    "a part detached": lambda z: (z * z).conj()[1:].detach(),
    "negative detached": lambda z: torch._neg_view(z.real * 2).detach(),
    "detached, then written": _detached_then_written,
}


def facts(out: Any, given: torch.Tensor) -> list[Any]:
    outs = out if isinstance(out, tuple) else (out,)
    return [
        (o.is_conj(), o.is_neg(), o.data_ptr() == given.data_ptr(), o.stride()) if isinstance(o, torch.Tensor) else o
        for o in outs
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name: str) -> None:
    f = PROGRAMS[name]
    c = smelt.compile(f)
    for _ in range(2):
        z, y = numbers(), numbers()
        out, expected = c(z), f(y)
        assert facts(out, z) == facts(expected, y)
        torch.testing.assert_close(out, expected)
        torch.testing.assert_close(z, y)


@pytest.mark.parametrize("name", ["of an intermediate", "products", "parts", "result", "views of it"])
def test_gradients(name: str) -> None:
    found = []
    for run in (PROGRAMS[name], smelt.compile(PROGRAMS[name])):
        leaf = numbers().requires_grad_()
        out = run(leaf * 1)
        outs = out if isinstance(out, tuple) else (out,)
        sum((o.abs() ** 2).sum() for o in outs).backward()
        found.append(leaf.grad)
    torch.testing.assert_close(*found)


def test_a_view_as_real_numbers_is_refused() -> None:
    with pytest.raises(RuntimeError, match="unresolved conjugated"):
        smelt.compile(lambda z: torch.view_as_real(z.conj()))(numbers())


def test_zeros_without_memory() -> None:
    x = torch.randn(3, requires_grad=True)
    (zeros,) = torch.autograd.grad(torch.sgn(x).sum(), x)
    assert zeros._is_zerotensor()
    c = smelt.compile(lambda t: t[-1] + 10)
    assert [c(t).item() for t in (torch.ones(3), zeros, torch.ones(3))] == [11, 10, 11]
    inside = smelt.compile(lambda x: torch.autograd.grad(torch.sgn(x).sum(), x)[0] * 2 + 1)
    assert inside(x).tolist() == [1, 1, 1]
    y = smelt.compile(lambda x: x * 2)(x)
    torch.sgn(y).sum().backward()  # the gradient that comes to the compiled backward is one
    assert x.grad is not None and x.grad.tolist() == [0, 0, 0]
