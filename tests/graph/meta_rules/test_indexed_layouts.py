"""Results of indexing, of writes by index and of bags of embeddings have eager's strides and sizes, also when empty."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import smelt

aten = torch.ops.aten
OF = {
    "rows": lambda *shape: torch.rand(*shape),
    "reversed": lambda *shape: torch.rand(*shape[::-1]).permute(*reversed(range(len(shape)))),
    "steps": lambda *shape: torch.rand(*shape[:-1], 2 * shape[-1])[..., ::2],
}
PICKED: dict[str, Callable[[Tensor], Tensor]] = {
    "first": lambda x: x[torch.tensor([0, 0])],
    "second": lambda x: x[:, torch.tensor([[0, 0, 0]])],
    "both": lambda x: x[torch.tensor([0, 0]), torch.tensor([[0], [0]])],
    "none": lambda x: x[torch.empty(0, dtype=torch.int64)],
    "written": lambda x: x.index_put((torch.tensor([0]),), x.new_ones(1, *x.shape[1:])),
    "added": lambda x: x.index_put((torch.tensor([0, 0]),), x.new_ones(2, *x.shape[1:]), accumulate=True),
    "masked": lambda x: aten._unsafe_masked_index_put_accumulate(
        x, torch.ones(2, *x.shape[1:], dtype=torch.bool), [torch.tensor([0, 0])], x.new_ones(2, *x.shape[1:])
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(5, 5, 0), (1, 3, 0), (3, 1, 4), (5, 1, 1), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("layout", OF)
@pytest.mark.parametrize("picked", PICKED)
def test_indexed(picked: str, layout: str, shape: tuple[int, ...], dynamic: bool) -> None:
    x, fn = OF[layout](*shape), PICKED[picked]
    for made in (fn, lambda x: fn(x * 1)):
        want, found = made(x), smelt.compile(made, dynamic=dynamic, fullgraph=True)(x)
        assert (found.shape, found.stride()) == (want.shape, want.stride())
        torch.testing.assert_close(found, want)


FACTORS = {
    "rows": lambda n: torch.rand(n),
    "steps": lambda n: torch.rand(2 * n)[::2],
    "one": lambda n: torch.rand(1).expand(n),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", FACTORS)
@pytest.mark.parametrize("mode", [0, 1])
def test_bags(mode: int, layout: str, dynamic: bool) -> None:
    def fn(weight: Tensor, index: Tensor, offsets: Tensor, factors: Tensor) -> tuple[Tensor, ...]:
        out: tuple[Tensor, ...] = aten._embedding_bag(
            weight, index, offsets, False, mode, False, None if mode else factors
        )
        return out

    index, offsets = torch.tensor([1, 2, 3, 4, 1]), torch.tensor([0, 2])
    args = torch.rand(10, 5), index, offsets, FACTORS[layout](5)
    want, found = fn(*args), smelt.compile(fn, dynamic=dynamic, fullgraph=True)(*args)
    assert [(t.shape, t.stride()) for t in found] == [(t.shape, t.stride()) for t in want]
    torch.testing.assert_close(found[0], want[0])


@pytest.mark.parametrize("layout", FACTORS)
def test_gradients_of_bags(layout: str) -> None:
    def fn(weight: Tensor, factors: Tensor) -> Tensor:
        index, offsets = torch.tensor([1, 2, 3, 4, 1]), torch.tensor([0, 2])
        return torch.nn.functional.embedding_bag(index, weight, offsets, mode="sum", per_sample_weights=factors)

    weight, factors = torch.rand(10, 5, requires_grad=True), FACTORS[layout](5).requires_grad_()
    want, found = fn(weight, factors), smelt.compile(fn, fullgraph=True)(weight, factors)
    torch.testing.assert_close(found, want)
    both = [torch.autograd.grad(out.square().sum(), (weight, factors)) for out in (want, found)]
    torch.testing.assert_close(both[1], both[0])
