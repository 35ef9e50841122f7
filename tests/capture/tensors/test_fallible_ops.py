"""Errors that only values tell, caught by the program: its clause runs, and what it did before it stays done."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt
from tests.capture.harness import compiled

TABLE = torch.arange(8.0).reshape(4, 2)


def item(index: Tensor, count: Tensor) -> Tensor:
    count.add_(1)
    try:
        return TABLE[index]
    except IndexError:
        return TABLE[:2] * 100


def item_before_a_draw(index: Tensor, count: Tensor) -> Tensor:
    try:
        return TABLE[index] + torch.rand(2)
    except (IndexError, KeyError) as error:
        return TABLE[:2] * len(str(error))


def embedding(index: Tensor, count: Tensor) -> Tensor:
    try:
        found = F.embedding(index, TABLE)
        count.add_(1)
    except IndexError:
        found = TABLE[:2] * 100
    return found


def loss(index: Tensor, count: Tensor) -> Tensor:
    try:
        count.add_(1)
        return F.cross_entropy(TABLE[:2], index)
    except IndexError:
        return TABLE[:2] * 100


def in_a_loop(index: Tensor, count: Tensor) -> Tensor:
    total = TABLE.sum()
    for rows in (4, 3, 2):
        try:
            total = total + TABLE[:rows].index_select(0, index).sum()
        except IndexError:
            count.add_(1)
    return total


@pytest.mark.parametrize("fn", [item, item_before_a_draw, embedding, loss, in_a_loop], ids=lambda fn: fn.__name__)
def test_an_index_out_of_range(fn: Callable[[Tensor, Tensor], Tensor]) -> None:
    run = compiled(fn)
    for indices in ([0, 1], [0, 9], [1, 1], [2, 3], [7, 8]):
        index, found = torch.tensor(indices), []
        for each in (fn, run):
            torch.manual_seed(0)
            count = torch.zeros(2)
            found.append((each(index, count), count, torch.rand(1)))
        for eager, captured in zip(*found, strict=True):
            assert torch.equal(eager, captured)


def test_a_step_that_catches_all_errors_is_one_graph() -> None:
    def step(index: Tensor, count: Tensor) -> Tensor | None:
        try:
            count.add_(1)
            return F.cross_entropy(F.embedding(index, TABLE), index)
        except Exception:
            return None

    run = compiled(step, fullgraph=True)
    index, count = torch.tensor([0, 1]), torch.zeros(2)
    assert torch.equal(run(index, count), F.cross_entropy(TABLE[index], index)) and count[0] == 1


def test_a_graph_that_draws_is_wound_back() -> None:
    """What is drawn before and after an error is what eager draws, without a break."""

    def fn(x: Tensor, index: Tensor) -> Tensor:
        noise = F.dropout(x, 0.5) + torch.rand(2)
        try:
            return noise + F.embedding(index, TABLE)
        except IndexError as error:
            return noise * torch.rand(2) + len(str(error))

    def checked(x: Tensor, index: Tensor) -> Tensor:
        noise = torch.rand_like(x)
        assert noise.sum() > 100, "never"
        return noise

    for backend in ("eager", "aot_eager"):
        run = smelt.compile(fn, backend=backend, fullgraph=True)
        refused = smelt.compile(checked, backend=backend)
        for indices in ([0, 1], [0, 9], [1, 1], [7, 8]):
            found = []
            for each in (fn, run):
                torch.manual_seed(3)
                found.append((each(torch.ones(2, 2), torch.tensor(indices)), torch.rand(3)))
            for eager, captured in zip(*found, strict=True):
                assert torch.equal(eager, captured)
        after = []
        for each in (checked, refused):
            torch.manual_seed(3)
            with pytest.raises(AssertionError, match="never"):
                each(torch.ones(2), torch.ones(2))
            after.append(torch.rand(3))
        assert torch.equal(*after)
