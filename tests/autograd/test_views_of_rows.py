"""Views that want elements side by side (`view(dtype)`, `view_as_complex`) of values whose strides the compiler chose.

Eager's tensors have the strides that the program gave them; a value has others where a copy vanished, where one number
was expanded or transposed, or where a kernel writes in the order that it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


def expanded_then_zeroed(x: Any, y: Any) -> Any:
    view = x.expand(2, *x.shape).view(torch.float32)
    x.zero_()
    return x, view + 1


def expanded_then_filled(x: Any, y: Any) -> Any:
    view = x.expand(2, *x.shape).view(torch.int16)
    x.fill_(2)
    return x, view + 1, view


def zeros_expanded(x: Any, y: Any) -> Any:
    view = torch.zeros(4, 8).expand(2, 4, 8).view(torch.int16)
    return view + 1, view


def filled_like_transposed(x: Any, y: Any) -> Any:
    return torch.full_like(x.t(), 2).t().view(torch.int16) * 2, torch.zeros_like(x.t()).t().view(torch.complex64) * 1


def contiguous_of_transposed(x: Any, y: Any) -> Any:
    return ((x.t().contiguous() + y).view(torch.int16) + 1,)


def transposed_expanded(x: Any, y: Any) -> Any:
    return ((x.t().expand(3, 8, 4) * 2).transpose(1, 2).view(torch.float64) * 2,)


def rows_of_wider_rows(x: Any, y: Any) -> Any:
    return (torch.cat([x, x[:, :1]], 1)[:, :8].contiguous().view(torch.float64) * 2,)


def complex_of_transposed(x: Any, y: Any) -> Any:
    return (torch.view_as_complex(y.t().clone(memory_format=torch.contiguous_format).view(4, 4, 2)) * 2,)


def written_with_transposed(x: Any, y: Any) -> Any:
    z = torch.zeros(4, 8)
    view = z.view(torch.int16)
    z.copy_(y.t() * x)
    view.add_(1)
    z.mul_(2)
    return z + 1, view * 2, view


def written_through_the_view(x: Any, y: Any) -> Any:
    view = y.t().contiguous().view(torch.int16)
    view.add_(1)
    return view, view * 2


def written_with_a_row(x: Any, y: Any) -> Any:
    z = torch.zeros(8)
    view = z.view(torch.float64)
    z.copy_(x[:1].expand(2, 8)[0])
    return z + 1, view * 2, view


PROGRAMS = [
    expanded_then_zeroed,
    expanded_then_filled,
    zeros_expanded,
    filled_like_transposed,
    contiguous_of_transposed,
    transposed_expanded,
    rows_of_wider_rows,
    complex_of_transposed,
    written_with_transposed,
    written_through_the_view,
    written_with_a_row,
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_bits_and_strides_are_eagers(program: Callable[..., Any], dynamic: bool) -> None:
    run = smelt.compile(program, dynamic=dynamic, fullgraph=True)
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        given = torch.randn(4, 8, generator=generator), torch.randn(8, 4, generator=generator)
        wanted, got = program(*[t.clone() for t in given]), run(*[t.clone() for t in given])
        for a, b in zip(got, wanted, strict=True):
            assert a.stride() == b.stride()
            assert torch.equal(_bits(a), _bits(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)
