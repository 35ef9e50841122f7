"""smelt/capture/tensors/speculation.py: values of masks and lengths are read while capturing, and guarded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.capture.tensors.speculation import MAX_SPECULATED_VERSIONS, ValuesHold
from tests.capture.harness import check, compiled, same

pytestmark = pytest.mark.usefixtures("branches_end_graphs")

X = torch.arange(12.0).reshape(3, 4)
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]])


def branch(x: Any, mask: Any) -> Any:
    return x * 2 if mask.bool().all() else x * mask


def lengths(x: Any, mask: Any) -> Any:
    return torch.cat([x[i, :n] for i, n in enumerate(mask.sum(1).tolist())])


def item(x: Any, mask: Any) -> Any:
    return x[:, : mask.sum(1).max().item()] * int(mask[0, 0])


def index_of_slice(x: Any, mask: Any) -> Any:
    return x[:, : mask.sum(1).max()]


def factory(x: Any, mask: Any) -> Any:
    return torch.arange(mask.sum()) + x.sum()


def selected(x: Any, mask: Any) -> Any:
    return x[mask.bool()].sum() + x[mask > 0, None].mean() + torch.masked_select(x, mask.bool()).sum()


def places(x: Any, mask: Any) -> Any:
    rows, columns = torch.where(mask > 0)
    return (
        x[rows, columns]
        + torch.nonzero(mask).sum()
        + torch.nonzero(mask, as_tuple=True)[0]
        + torch.argwhere(mask).sum()
    )


def repeated(x: Any, mask: Any) -> Any:
    return torch.repeat_interleave(x, mask.sum(1), dim=0), torch.repeat_interleave(mask.sum(1))


def classes(x: Any, mask: Any) -> Any:
    return nn.functional.one_hot(mask) * x.sum()


def equal(x: Any, mask: Any) -> Any:
    return x + 1 if torch.equal(mask, mask * mask) else x - 1


def expanded(x: Any, mask: Any) -> Any:
    return x.exp()[mask.bool().unsqueeze(0).expand_as(x[None])[0]].sum()


def filled(x: Any, mask: Any) -> Any:
    y = x.clone()
    for i in range(3):
        y[i, mask.sum(1)[i] :] = 0
    return y


def assigned(x: Any, mask: Any) -> Any:
    """Positions of text with images in it: a mask among other indices, and a tensor without a mask."""
    y, row = x.new_zeros(2, 3, 4), mask[2].bool()
    y[:, 1, mask[1].bool()] = x[:2, mask[1].bool()]
    y[:, mask[2, 1], row] = x[:2, row]
    y.__setitem__((0, mask.bool()), x[mask.bool()] * 2)
    return y


FUNCTIONS = [filled, assigned, expanded, branch, lengths, item, index_of_slice, factory, selected, places]
FUNCTIONS += [repeated, classes, equal]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_one_graph_and_never_stale(fn: Any) -> None:
    check(fn, X, MASK, graphs=1)
    run = compiled(fn)
    for mask in (MASK, torch.ones_like(MASK), MASK, MASK.flip(0), MASK.flip(1), 2 * MASK, MASK):
        assert same(run(X, mask), fn(X, mask))


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_values_that_keep_changing_end_the_graph(fn: Any) -> None:
    run = compiled(fn)
    for seed in range(12):
        mask = (torch.rand(3, 4, generator=torch.Generator().manual_seed(seed)) > 0.4).long()
        mask[:, 0] = 1
        assert same(run(X, mask), fn(X, mask))
    session = run._smelt_session
    assert not any(site.given_up for site in session.sites.values())
    first = next(iter(session.sites.values()))
    assert len(first.versions) <= MAX_SPECULATED_VERSIONS + 1


def test_fullgraph_takes_values_for_granted_up_to_its_limit() -> None:
    run = compiled(lengths, fullgraph=True)
    for end in range(1, 5):
        mask = torch.zeros_like(MASK)
        mask[:, :end] = 1
        assert same(run(X, mask), lengths(X, mask))
    assert not run._smelt_session.breaks


def test_comparisons_with_small_floating_point_arguments() -> None:
    def labelled(x: Any, labels: Any) -> Any:
        return [row[each > -1].sum() for row, each in zip(x, labels, strict=True)]

    def weighted(x: Any, labels: Any) -> Any:
        return x[labels * 2 > -1]

    labels = torch.tensor([[1.0, 2.0, -1.0, -1.0], [3.0, -1.0, -1.0, -1.0], [1.0, 1.0, 1.0, 1.0]])
    check(labelled, X, labels)
    run = compiled(labelled, fullgraph=True)
    for padded in (labels, labels.roll(1), labels):
        assert same(run(X, padded), labelled(X, padded))
    check(weighted, X, labels, graphs=1)
    check(labelled, torch.ones(2, 512), torch.ones(2, 512), graphs=1)


def test_floating_point_arguments_are_data() -> None:
    def fn(x: Any) -> Any:
        return x * 2 if (x > 3).any() else x

    check(fn, X, breaks=1)


def test_module_tensors_may_steer() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("chance", torch.tensor(0.5))

        def forward(self, x: Any) -> Any:
            return x * 2 if self.chance > 0 else x

    model = Model()
    run = smelt.compile(model, backend="eager", fullgraph=True)
    assert same(run(X), X * 2)
    model.chance.zero_()
    assert same(run(X), X)


def test_random_and_written_values_are_not_taken_for_granted() -> None:
    def draws(x: Any, mask: Any) -> Any:
        return x * 2 if torch.randint(0, 2, (1,)) > 0 else x

    def writes_own(x: Any, mask: Any) -> Any:
        own = mask + 0
        first = own.sum().item()
        view = own[0]
        view[:] = 5
        return x * own.sum().item() + view.max().item() + first

    check(writes_own, X, MASK, graphs=1)

    def writes(x: Any, mask: Any) -> Any:
        mask.add_(1)
        return x * 2 if mask.sum() > 10 else x

    check(draws, X, MASK, breaks=1)
    check(writes, X, MASK, breaks=1)


def test_buffer_read_as_an_index_may_be_written_later() -> None:
    class Queue(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("at", torch.zeros(1, dtype=torch.long))
            self.register_buffer("kept", torch.zeros(4, 3))

        def forward(self, x: Any) -> Any:
            at = int(self.at)
            self.kept[at : at + 2] = x
            self.at[0] = (at + 2) % 4
            return self.kept.sum()

    model, expected = Queue(), Queue()
    run = smelt.compile(model, backend="eager", fullgraph=True)
    for step in range(5):
        x = torch.full((2, 3), float(step))
        assert same(run(x), expected(x))
    assert same(dict(model.named_buffers()), dict(expected.named_buffers()))


def test_long_computations_are_not_repeated_by_guards() -> None:
    def fn(x: Any, mask: Any) -> Any:
        for _ in range(100):
            mask = mask + 1
        return x * 2 if mask.sum() > 10 else x

    check(fn, X, MASK, breaks=1)


def test_gradients_pass_through_selections() -> None:
    found = []
    for run in (selected, smelt.compile(selected, fullgraph=True)):
        x = X.clone().requires_grad_()
        run(x, MASK).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[0], found[1])


def test_the_guard_is_printed() -> None:
    lines = check(branch, X, MASK).guards[0]
    assert any("values_are[False](mask)" in line for line in lines)


def test_indices_have_eagers_layout() -> None:
    def fn(mask: Any) -> Any:
        return torch.nonzero(mask), torch.argwhere(mask), torch.where(mask), torch.nonzero(mask[0, 0], as_tuple=True)

    run = smelt.compile(fn, fullgraph=True)
    for mask in (MASK, 1 - MASK):
        found, wanted = run(mask), fn(mask)
        for a, b in zip((*found[:2], *found[2], *found[3]), (*wanted[:2], *wanted[2], *wanted[3]), strict=True):
            assert a.equal(b) and (not b.numel() or a.stride() == b.stride())


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4)])
def test_empty_indices_have_eagers_layout(shape: tuple[int, ...]) -> None:
    def fn(mask: Any) -> Any:
        return torch.nonzero(mask), torch.argwhere(mask), *torch.where(mask), *torch.nonzero(mask, as_tuple=True)

    mask = torch.zeros(shape, dtype=torch.int64).movedim(-1, 0) if shape else torch.tensor(0)
    for a, b in zip(smelt.compile(fn, fullgraph=True)(mask), fn(mask), strict=True):
        assert a.shape == b.shape and a.stride() == b.stride()


def chunks(x: Any, ends: Any) -> Any:
    """As the vision towers that attend within windows do: how many windows there are is read from a tensor too."""
    ends = torch.unique_consecutive(ends)
    lengths = ends[1:] - ends[:-1]
    return [part * len(lengths) for part in x.split(lengths.tolist())], lengths * 2


def test_a_list_of_numbers_has_a_known_length() -> None:
    ends = torch.tensor([0, 2, 2, 3])
    assert same(compiled(chunks, fullgraph=True)(X, ends), chunks(X, ends))
    run = compiled(chunks)
    for each in (ends, ends, torch.tensor([0, 1, 3, 3]), torch.tensor([0, 1, 2, 3]), torch.tensor([0, 3])):
        assert same(run(X, each), chunks(X, each)), each


def test_the_guard_computes_nothing_for_inputs_that_it_has_seen() -> None:
    seen = []

    def count(mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen.append(mask)
        return (torch.count_nonzero(mask),)

    graph: Any = SimpleNamespace(forward=count)
    holds = ValuesHold(graph, (torch.tensor(2),))
    mask = torch.tensor([1, 0, 1])
    assert holds(mask) and holds(mask.clone()) and len(seen) == 1
    mask[1] = 1  # the program writes to its own tensor: what is kept is a copy
    assert not holds(mask) and not holds(mask.bool()) and len(seen) == 3
    for other in ([1, 1, 0], [0, 1, 1], [1, 1, 0], [0, 1, 1]):
        assert holds(torch.tensor(other))
    assert len(seen) == 7
    assert holds(torch.tensor([0, 1, 1])) and len(seen) == 8  # those that keep changing are not kept
    floating = ValuesHold(graph, (torch.tensor(2),))
    assert floating(torch.tensor([1.0, 0.0, 1.0])) and floating(torch.tensor([1.0, -0.0, 1.0])) and len(seen) == 10
