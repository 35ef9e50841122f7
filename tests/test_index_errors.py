"""Indices out of range raise what eager raises, in the second call as well: kernels check what they read."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import smelt

TABLE, ROW, SCORES, ONES = torch.ones(4, 2), torch.arange(4.0), torch.randn(2, 4), torch.ones(2)
LOOKUPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one_hot": lambda i: F.one_hot(i, 4),
    "one_hot in a product": lambda i: F.one_hot(i, 4).float() @ TABLE,
    "embedding": lambda i: F.embedding(i, TABLE) * 2,
    "gather": lambda i: torch.gather(ROW, 0, i) * 2,
    "index_select": lambda i: torch.index_select(ROW, 0, i) * 2,
    "cross_entropy": lambda i: F.cross_entropy(SCORES, i),
    "nll_loss": lambda i: F.nll_loss(SCORES, i),
    "nll_loss with weights": lambda i: F.nll_loss(SCORES, i, weight=ROW),
    "scatter": lambda i: ROW.scatter(0, i, 1.0),
    "scatter_add": lambda i: ROW.scatter_add(0, i, ONES),
    "index_add": lambda i: ROW.index_add(0, i, ONES),
    "index_copy": lambda i: ROW.index_copy(0, i, ONES),
}
WRAPPING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "item": lambda i: ROW[i] * 2,
    "index_put": lambda i: ROW.index_put((i,), ONES),
    "index_fill": lambda i: ROW.index_fill(0, i, 2.0),
}
CASES = [(name, bad) for name in LOOKUPS for bad in (4, -1)] + [(name, bad) for name in WRAPPING for bad in (4, -5)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
@pytest.mark.parametrize(("name", "bad"), CASES)
def test_an_index_out_of_range_is_the_error_of_eager(name: str, bad: int, backend: str) -> None:
    fn = {**LOOKUPS, **WRAPPING}[name]
    good, wrong = torch.tensor([0, 1]), torch.tensor([0, bad])
    run = smelt.compile(fn, backend=backend, fullgraph=True)
    torch.testing.assert_close(run(good), fn(good))
    with pytest.raises((IndexError, RuntimeError)) as eager:
        fn(wrong)
    with pytest.raises(type(eager.value)) as compiled:
        run(wrong)
    assert type(compiled.value) is type(eager.value)
    torch.testing.assert_close(run(good), fn(good))


@pytest.mark.parametrize("name", WRAPPING)
def test_negative_indices_count_from_the_end_as_in_eager(name: str) -> None:
    places = torch.tensor([0, -1])
    torch.testing.assert_close(smelt.compile(WRAPPING[name], fullgraph=True)(places), WRAPPING[name](places))


def test_an_index_out_of_range_in_a_whole_step() -> None:
    """The operations that say where it failed run once more with the gradients that the step takes."""

    def errors(compiled: bool) -> list[tuple[str, int | None]]:
        torch.manual_seed(0)
        model, table = torch.nn.Linear(6, 3), torch.nn.Embedding(5, 6)
        optimizer = torch.optim.SGD([*model.parameters(), *table.parameters()], 0.1, momentum=0.9)

        def behind(i: torch.Tensor) -> torch.Tensor:
            loss = model(table.weight * 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss + table.weight[i].sum()

        def between(i: torch.Tensor) -> torch.Tensor:
            loss = model(table.weight).square().mean()
            optimizer.zero_grad()
            loss.backward()
            model.weight.grad[i] = 0
            optimizer.step()
            return loss

        told: list[tuple[str, int | None]] = []
        for step in (behind, between):
            call = smelt.compile(step) if compiled else step
            call(torch.tensor([1, 2]))
            with pytest.raises(IndexError) as error:
                call(torch.tensor([1, 7]))
            lines = [e.lineno for e in error.traceback if e.path.name == "test_index_errors.py"]  # type: ignore[union-attr]
            told.append((str(error.value), lines[-1]))
        return told

    assert errors(True) == errors(False)
