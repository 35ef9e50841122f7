"""Writes to memory that the same operator reads or writes twice give what eager gives: its error, or its values."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

Program = Callable[[torch.Tensor], Any]
places = torch.tensor([1, 2])
two = torch.tensor([3.0, 4.0])

IN_ORDER: dict[str, Program] = {
    "windows": lambda x: x.as_strided((3, 2), (1, 1)).mul_(2),
    "windows_unfold": lambda x: x.unfold(0, 3, 1).add_(x[:3]),
    "windows_turned": lambda x: x.as_strided((2, 3), (1, 1), 2).copy_(torch.arange(6.0).view(2, 3)),
    "windows_of_four": lambda x: x.unfold(0, 4, 3).mul_(3),
    "tril": lambda x: x.as_strided((3, 3), (1, 1)).tril_(),
    "tril_expanded": lambda x: x[:3].expand(3, 3).tril_(),
    "triu_out": lambda x: torch.triu(x[:9].view(3, 3), out=x[1:10].view(3, 3)),
    "index_fill": lambda x: x[:1].expand(4).index_fill_(0, places, 5.0),
    "masked_fill": lambda x: x[:1].expand(4).masked_fill_(torch.tensor([True, False, True, False]), 3.0),
    "index_put": lambda x: x[:1].expand(4).index_put_((places,), two),
    "setitem": lambda x: x[:1].expand(4).__setitem__(places, two),
    "steps": lambda x: x[2::2].add_(x[:-2:2]),
    "steps_back": lambda x: x[:-2:2].add_(x[2::2]),
    "columns": lambda x: x.view(3, 4)[:, 1:3].add_(x.view(3, 4)[:, :2]),
    "columns_out": lambda x: torch.add(x.view(3, 4)[:, 1:3], 1, out=x.view(3, 4)[:, :2]),
    "mm": lambda x: torch.mm(x[:9].view(3, 3), x[3:].view(3, 3), out=x[:9].view(3, 3)),
    "matmul": lambda x: torch.matmul(x[:9].view(3, 3), x[:9].view(3, 3), out=x[:9].view(3, 3)),
    "baddbmm": lambda x: torch.baddbmm(*[x[:9].view(1, 3, 3)] * 3, out=x[:9].view(1, 3, 3)),
    "addmm": lambda x: x[:9].view(3, 3).addmm_(x[:9].view(3, 3), x[3:].view(3, 3)),
    "sum": lambda x: torch.sum(x[:9].view(3, 3), 0, out=x[1:4]),
    "softmax": lambda x: torch.softmax(x[:4], 0, out=x[1:5]),
    "index_select": lambda x: torch.index_select(x[:4], 0, places, out=x[1:3]),
    "foreach": lambda x: torch._foreach_add_([x[2::2], x[1:3]], [x[:-2:2], x[1:3]]),
    "bytes": lambda x: x.view(torch.int32)[1::2].copy_(x[:-1:2]),
}

APART: dict[str, Program] = {
    "steps": lambda x: x[::2].add_(x[1::2]),
    "columns": lambda x: x.view(3, 4)[:, :2].add_(x.view(3, 4)[:, 2:]),
    "rows": lambda x: x.view(3, 4)[1].copy_(x.view(3, 4)[0]),
    "itself": lambda x: x[1:].mul_(x[1:]),
    "itself_out": lambda x: torch.add(x[1:], x[1:], out=x[1:]),
    "itself_by_another_way": lambda x: x.view(3, 4)[1].add_(x[4:8]),
    "itself_in_a_product": lambda x: torch.addmm(
        x[:9].view(3, 3), torch.ones(3, 2), torch.ones(2, 3), out=x[:9].view(3, 3)
    ),
    "copy_of_itself": lambda x: x[1:].copy_(x[1:]),
    "one_value": lambda x: x[:1].expand(4).fill_(3.0),
    "one_value_in_windows": lambda x: x.unfold(0, 3, 1).zero_(),
    "value_of_its_own": lambda x: x[:4].fill_(x[2]),
    "no_windows": lambda x: x.as_strided((3, 2), (2, 3)).mul_(2),
    "repeated_operand": lambda x: x[4:8].add_(x[:1].expand(4)),
    "where": lambda x: torch.where(x[:4] > 2, x[:4], torch.zeros(4), out=x[:4]),
    "sum_beside": lambda x: torch.sum(x[:9].view(3, 3), 0, out=x[9:]),
    "mm_beside": lambda x: torch.mm(x[:4].view(2, 2), x[4:8].view(2, 2), out=x[8:].view(2, 2)),
}


def outcome(f: Callable[..., Any], *args: torch.Tensor) -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            out = f(*args)
        except (RuntimeError, IndexError) as error:
            return type(error), str(error).splitlines()[0], *(x.tolist() for x in args)
    results = [o.tolist() for o in (out if isinstance(out, (list, tuple)) else [out]) if o is not None]
    return results, *(x.tolist() for x in args)


def memory(n: int = 12) -> torch.Tensor:
    return torch.arange(1.0, n + 1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", IN_ORDER)
def test_order_dependent_overlapping_writes_match_eager(name: str, dynamic: bool) -> None:
    f = IN_ORDER[name]
    compiled = smelt.compile(lambda x: f(x), dynamic=dynamic)
    assert outcome(compiled, memory()) == outcome(f, memory())


@pytest.mark.parametrize("name", IN_ORDER)
def test_memory_that_the_function_makes_itself(name: str) -> None:
    f = IN_ORDER[name]

    def made(x: torch.Tensor) -> Any:
        y = x * 1
        f(y)
        return y + 1

    assert outcome(smelt.compile(made), memory()) == outcome(made, memory())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", APART)
def test_elements_apart_are_captured(name: str, dynamic: bool) -> None:
    f = APART[name]
    compiled = smelt.compile(lambda x: f(x), fullgraph=True, dynamic=dynamic)
    assert outcome(compiled, memory()) == outcome(f, memory())


@pytest.mark.parametrize("first", [slice(2, None, 2), slice(1, None, 2)])
def test_arguments_that_share_memory(first: slice) -> None:
    """At one call they lie apart, at the next one beside the other in one memory."""

    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(b)
        return a * 2

    def both(g: Callable[..., Any]) -> list[Any]:
        x, found = memory(), []
        for a, b in ((memory(5), memory(5)), (x[first][:5], x[:-2:2]), (memory(5), memory(5))):
            found += [g(a, b).tolist(), a.tolist(), b.tolist()]
        return [*found, x.tolist()]

    assert both(smelt.compile(f)) == both(f)


def test_sizes_of_a_later_call_decide_again() -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        x[n::2].add_(x[: x.shape[0] - n : 2])
        return x

    compiled = smelt.compile(f, dynamic=True)
    for size, n in ((12, 1), (12, 2), (14, 3), (16, 4), (15, 2)):
        assert outcome(lambda x, n=n: compiled(x, n), memory(size)) == outcome(lambda x, n=n: f(x, n), memory(size))
