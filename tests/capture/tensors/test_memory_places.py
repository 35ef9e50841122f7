"""Calls that tell places of memory by number, on tensors that do not start where their memory does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

aten = torch.ops.aten
PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "scatter into a copy": lambda a: torch.as_strided_scatter(a.clone(), a[0, :3] * 9, (3,), (2,), 1),
    "scatter into what is computed": lambda a: torch.as_strided_scatter(a * 1, a[0, :3] * 9, (3,), (2,), 1),
    "scatter into an argument": lambda a: a.as_strided_scatter(a[0, :3] * 9, (3,), (2,), storage_offset=5),
    "scatter from its first element": lambda a: torch.as_strided_scatter(a, a[0, :3] * 9, (3,), (2,)),
    "scatter into a part": lambda a: (a[1:] * 2)[1:].as_strided_scatter(a[0, :3] * 9, (3,), (1,), 13),
    "scatter, as an operator": lambda a: aten.as_strided_scatter(a, a[0, :3] * 9, (3,), (2,), storage_offset=5),
    "an operator": lambda a: aten.as_strided(a, (3,), (1,), 4) * 3,
    "an overload": lambda a: aten.as_strided.default(a, (3,), (1,), storage_offset=4) * 3,
    "an operator with names": lambda a: aten.as_strided_copy.default(self=a, size=(3,), stride=(1,), storage_offset=4),
    "beside a part": lambda a: (a * 2)[1:].as_strided((3,), (1,), 1),
    "beside a part, computed with": lambda a: torch.as_strided((a * 2)[1:], (3,), (1,), 1) * 3,
    "complex numbers": lambda a: torch.view_as_complex(a.view(4, 3, 2)).real * 2,
    "complex numbers, as an operator": lambda a: aten.view_as_complex(a.view(4, 3, 2)).real * 2,
    "complex numbers of a copy": lambda a: torch.view_as_complex((a * 1).view(4, 3, 2)).real * 2,
    "complex numbers of a part": lambda a: torch.view_as_complex(a.view(12, 2)[1:].view(-1)[1:-1].view(-1, 2)).real,
    "larger numbers": lambda a: a.view(torch.int64) + 1,
    "larger numbers, as an operator": lambda a: aten.view.dtype(a, torch.int64) + 1,
    "larger numbers of a copy": lambda a: (a * 1).view(torch.int64),
    "larger numbers of a copy of a part": lambda a: a[:, 2:].clone().view(torch.int64) + 1,
    "larger numbers of a part of a copy": lambda a: (a + 0).view(-1)[1:5].view(torch.int64),
    "larger numbers of a copy of what is computed": lambda a: (a * 2).view(-1)[1:5].clone().view(torch.int64),
    "larger numbers of a part of what is computed": lambda a: (a * 2).view(-1)[1:5].view(dtype=torch.int64),
    "larger numbers of smaller ones": lambda a: a.view(torch.int16).view(-1)[2:10].view(torch.int64) + 1,
}


def _seen(run: Callable[[torch.Tensor], Any], start: int, gradient: bool) -> Any:
    whole = torch.arange(40.0)
    a = whole[start : start + 24].view(4, 6).requires_grad_(gradient)
    try:
        out = run(a)
        if out.requires_grad:
            out.backward(torch.arange(float(out.numel())).view(out.shape))
    except RuntimeError as error:
        return type(error), str(error).partition("\n")[0]
    return out.tolist(), out.stride(), None if a.grad is None else a.grad.tolist()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_places_count_from_where_memory_begins_as_in_eager(name: str, dynamic: bool) -> None:
    fn = PROGRAMS[name]
    compiled = smelt.compile(fn, dynamic=dynamic)
    for gradient in (False, True):
        for start in (0, 3, 2):
            assert _seen(compiled, start, gradient) == _seen(fn, start, gradient)


@pytest.mark.parametrize("layout", [(9, 1), (1, 4), (12, 2), (0, 1), (1, 1)])
def test_a_scatter_into_a_copy_keeps_the_layout(layout: tuple[int, int]) -> None:
    a, source = torch.arange(60.0).as_strided((4, 6), layout, 3), torch.ones(3)
    for fn in (
        lambda a: torch.as_strided_scatter(a, source, (3,), (2,), 4),
        lambda a: torch.as_strided_scatter(a * 2, source, (3,), (2,), 4),
    ):
        got, want = smelt.compile(fn)(a), fn(a)
        assert torch.equal(got, want) and got.stride() == want.stride()


def test_a_write_of_complex_numbers_that_eager_refuses_is_not_done() -> None:
    compiled = smelt.compile(lambda a: torch.view_as_complex(a.view(4, 3, 2)).mul_(2j))
    whole = torch.arange(40.0)
    compiled(whole[:24])
    before = whole.clone()
    with pytest.raises(RuntimeError, match="divisible by 2"):
        compiled(whole[3:27])
    assert torch.equal(whole, before)
