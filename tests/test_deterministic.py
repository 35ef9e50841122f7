"""`torch.use_deterministic_algorithms(True)`: new memory holds what eager fills it with, and refusals are eager's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt

Program = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def settings_are_put_back() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


def _switched_inside(x: torch.Tensor) -> torch.Tensor:
    torch.use_deterministic_algorithms(False)
    before = x * torch.zeros(3)
    torch.use_deterministic_algorithms(True)
    return before + torch.empty(3)


def _written_in_part(x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty(4, 3)
    out[1:3] = x
    return out * 2


FILLED: dict[str, Program] = {
    "empty": lambda x: torch.empty(3) + x,
    "empty_like": lambda x: torch.empty_like(x.t()),
    "new_empty": lambda x: x.new_empty(0, 3).sum(0) + x.new_empty(3),
    "empty_strided": lambda x: torch.empty_strided((2, 3), (6, 2)) + x,
    "new_empty_strided": lambda x: x.new_empty_strided((2, 3), (1, 2)) + x,
    "empty_permuted": lambda x: torch.empty_permuted((2, 3), (1, 0)),
    "in part": _written_in_part,
    "switched inside": _switched_inside,
    "behind a break": lambda x: (x.numpy(), torch.empty_like(x))[1],
}


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype is b.dtype and a.stride() == b.stride() and torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


@pytest.mark.parametrize("name", FILLED)
def test_new_memory_is_filled(name: str) -> None:
    program, x = FILLED[name], torch.ones(2, 3)
    run = smelt.compile(program)
    run(x)
    for fill in (True, False, True):
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = fill
        got = run(x)
        if fill:
            assert _equal(got, program(x)) and bool(got.isnan().any())
        else:
            assert not got.isnan().any() or name == "switched inside"


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64, torch.bfloat16, torch.complex64])
def test_every_type_is_filled(dtype: torch.dtype) -> None:
    def program() -> torch.Tensor:
        return torch.empty(2, 3, dtype=dtype).t()

    torch.use_deterministic_algorithms(True)
    got, want = smelt.compile(program)(), program()
    if dtype.is_complex:
        got, want = torch.view_as_real(got), torch.view_as_real(want)
    assert _equal(got, want)


REFUSED: dict[str, Program] = {
    "put_": lambda x: x.clone().put_(torch.tensor([0, 1]), torch.ones(2)),
    "put": lambda x: x.put(torch.tensor([0, 1]), torch.ones(2)) + 1,
    "max_unpool2d": lambda x: torch.nn.functional.max_unpool2d(x[None, None], torch.arange(6).view(1, 1, 2, 3), 2),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nondeterministic_operation_is_refused_as_in_eager(name: str) -> None:
    program, x = REFUSED[name], torch.ones(2, 3)
    run = smelt.compile(program)
    assert torch.equal(run(x), program(x))
    torch.use_deterministic_algorithms(True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
            run(x)
    torch.use_deterministic_algorithms(True, warn_only=True)
    told: list[Any] = []
    for each in (run, program):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            out = each(x)
        told.append(sorted({str(one.message)[:60] for one in caught}))
        assert out.shape == program(x).shape
    assert told[0] == told[1] != []
    torch.use_deterministic_algorithms(False)
    assert torch.equal(run(x), program(x))


def test_ordered_operation_stays_in_the_graph() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.clone().put_(torch.tensor([0, 0]), torch.ones(2), accumulate=True).cumsum(1)

    torch.use_deterministic_algorithms(True)
    x = torch.rand(2, 3)
    torch.testing.assert_close(smelt.compile(program, fullgraph=True)(x), program(x))
