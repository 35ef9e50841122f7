"""smelt/autograd/call/unpacked.py: what is saved for a backward lies as the backward program reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.autograd.call.unpacked import copy_of, unpacked
from smelt.graph.ir.meta import meta_of


def ramp(count: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.arange(count) % 7).to(dtype)


LAYOUTS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "gap": lambda d: ramp(96, d).view(6, 16)[:, :8],
    "step": lambda d: ramp(96, d).view(6, 16)[:, ::2],
    "column expanded": lambda d: ramp(6, d).view(6, 1).expand(6, 8),
    "row expanded": lambda d: ramp(8, d).expand(6, 8),
    "number expanded": lambda d: torch.tensor(5, dtype=d).expand(6, 8),
    "windows": lambda d: ramp(30, d).as_strided((6, 8), (2, 1), 3),
    "transposed with gaps": lambda d: ramp(200, d).view(10, 20)[:8, :6].t(),
    "transposed": lambda d: ramp(48, d).view(8, 6).t(),
    "nothing": lambda d: torch.zeros(0, 8, dtype=d),
}
OVERLAPPING = ("column expanded", "row expanded", "number expanded", "windows")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_copy_has_the_strides_and_memory_of_its_own(name: str) -> None:
    given = LAYOUTS[name](torch.int64)
    made = copy_of(given)
    assert made.stride() == given.stride() and torch.equal(made, given)
    assert not made.numel() or made.untyped_storage().data_ptr() != given.untyped_storage().data_ptr()
    (back,) = unpacked([given.contiguous()], [meta_of(given)])
    assert (back.stride() == given.stride() or not given.numel()) and torch.equal(back, given)
    assert unpacked([given], [meta_of(given)])[0] is given


def gradient(f: Callable[..., torch.Tensor], a: torch.Tensor) -> torch.Tensor:
    b = torch.linspace(1, 2, 9).requires_grad_()
    f(a, b).sin().sum().backward()
    assert b.grad is not None
    return b.grad


PROGRAMS: dict[str, Callable[..., torch.Tensor]] = {
    "multiplied": lambda a, b: a.clone() * b[:8],
    "index": lambda a, b: b[a.clone()] * 2,
    "written": lambda a, b: (a.clone() * b[:8], a.mul_(1))[0],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_beside_a_clone(program: str, dtype: torch.dtype) -> None:
    f = PROGRAMS[program]
    compiled = smelt.compile(f, options={"recompile_limit": 64})
    for name, make in LAYOUTS.items():
        if program == "written" and name in OVERLAPPING:
            continue
        dtype = torch.int64 if program == "index" else dtype
        torch.testing.assert_close(
            gradient(compiled, make(dtype)), gradient(f, make(dtype)), msg=lambda m, name=name: f"{name}: {m}"
        )


def test_a_sliced_parameter() -> None:
    def run(c: Callable[..., Any]) -> list[torch.Tensor]:
        whole = torch.nn.Parameter(torch.linspace(-1, 1, 96).view(6, 16))
        part = whole[:, 2:10]
        c(lambda p: (p.clone() * p).sum())(part).backward()
        assert whole.grad is not None
        return [whole.grad]

    torch.testing.assert_close(run(smelt.compile), run(lambda f: f))


def test_a_write_by_the_caller_after_a_clone() -> None:
    def run(c: Callable[..., Any]) -> torch.Tensor:
        a, b = torch.linspace(0, 1, 96).view(6, 16)[:, ::2], torch.ones(8, requires_grad=True)
        out = c(lambda a, b: a.clone() * b)(a, b)
        a.zero_()
        out.sum().backward()
        assert b.grad is not None
        return b.grad

    torch.testing.assert_close(run(smelt.compile), run(lambda f: f))


@pytest.mark.parametrize("name", LAYOUTS)
def test_hooks_may_bring_saved_tensors_back_in_another_layout(name: str) -> None:
    def run(c: Callable[..., Any]) -> torch.Tensor:
        b = torch.linspace(1, 2, 8).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous(), lambda t: t.clone()):
            out = c(lambda a, b: (a * b).sin())(LAYOUTS[name](torch.float32), b)
        out.sum().backward()
        assert b.grad is not None
        return b.grad

    torch.testing.assert_close(run(smelt.compile), run(lambda f: f))
