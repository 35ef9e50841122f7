"""Who notices a write: version counters of arguments, of their views, of `.data` and `detach()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.base.torch_c import share_counter
from tests.autograd.compare import check, nonleaf

BACKENDS = ("eager", "aot_eager", "smelt")


def written_data(x: torch.Tensor, w: torch.Tensor) -> Any:
    x.data.mul_(2)
    return (x * w,)


def written_detached(x: torch.Tensor, w: torch.Tensor) -> Any:
    x.detach().mul_(2)
    return (x * w,)


def written_itself(x: torch.Tensor, w: torch.Tensor) -> Any:
    x.mul_(2)
    return (x * w,)


def written_data_with_gradients(x: torch.Tensor, w: torch.Tensor) -> Any:
    data = x.data
    data.mul_(w)
    return x * w, data


def given_data(x: torch.Tensor, w: torch.Tensor) -> Any:
    data = x.data
    return data, data[0], x.detach(), x[1], x * w


def turned(x: torch.Tensor, w: torch.Tensor) -> Any:
    x[0].unsqueeze_(0)
    return (x * w,)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "fn", (written_data, written_detached, written_itself, written_data_with_gradients, given_data, turned)
)
def test_writes_count_where_they_do_in_eager(fn: Callable[..., Any], backend: str) -> None:
    counts = []
    for call in (fn, smelt.compile(fn, backend=backend)):
        for w in (torch.ones(2, 3), torch.ones(2, 3, requires_grad=True)):
            x = torch.ones(2, 3)
            out = call(x, w)
            seen = [x._version > 0]
            for each in out:
                before = x._version
                with torch.no_grad():
                    each.detach().add_(1)
                seen.append(x._version > before)
            counts.append(seen)
    assert counts[2:] == counts[:2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_write_to_data_is_not_detected_by_earlier_saved_tensors(backend: str) -> None:
    run = smelt.compile(lambda x: x.data.mul_(2).sum(), backend=backend)
    leaf = torch.ones(3, requires_grad=True)
    x = leaf * 3
    loss = x.square().sum()
    run(x)
    loss.backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [36] * 3  # twice the value that is there now


def copied_data(x: torch.Tensor) -> Any:
    """Its values stay; its history does not."""
    x.copy_(x.data)
    return (x * 2,)


def data_in_a_region(x: torch.Tensor) -> Any:
    """Two parts of a graph: the second gets a tensor and its `.data`."""
    data = x.data
    with torch.inference_mode():
        view = x.unfold(0, 2, 2)
        data[..., 1:] = 0.5
    return view, x * 2


def set_to_another(x: torch.Tensor) -> Any:
    """A tensor that is given other memory counts for itself, its views count with it."""
    made = torch.zeros(2, dtype=x.dtype)
    made.set_(x.detach()[0])
    return made, made[1:], made.as_strided((2,), (1,)), x.data, x.detach()


def written_in_lists(x: torch.Tensor) -> Any:
    torch._foreach_mul_([x, x], 2.0)
    return (x * 2,)


def assigned_data(x: torch.Tensor) -> Any:
    y = x.detach()
    y.data = y.data.clone()
    return y, y[0], x


@pytest.mark.parametrize("fn", (copied_data, data_in_a_region, set_to_another, written_in_lists, assigned_data))
def test_histories_beside_data(fn: Callable[..., Any]) -> None:
    check(fn, lambda: [nonleaf(torch.ones(3, 4))], smelt.compile(fn, backend="aot_eager"))


def test_whether_tensors_share_a_counter() -> None:
    x = torch.ones(3)
    x.add_(1)
    assert share_counter(x, x[1:]) and share_counter(x[0], x.detach())
    assert not share_counter(x, x.data) and not share_counter(x.data, x[0])
    assert x._version == 1


def test_assigned_data_and_a_view_of_it_count_together() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        x.data = x.data.clone()
        return x.detach()[0]

    for call in (fn, smelt.compile(fn, backend="aot_eager")):
        x = torch.ones(2, 2)
        assert share_counter(x, call(x))


def test_writes_after_an_assignment_of_data_count() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> None:
        for each in (x, y):
            each.data = each.data.clone()
        x.add_(1)

    for call in (fn, smelt.compile(fn, backend="aot_eager")):
        x, y = torch.ones(2, 2), torch.ones(2)
        call(x, y)
        assert (x._version, y._version) == (1, 0) and float(x[0, 0]) == 2


def test_batch_norm_counts_no_write_to_its_statistics() -> None:
    def fn(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, mean, var, training=True)

    for call in (fn, smelt.compile(fn, backend="aot_eager")):
        mean, var = torch.zeros(3), torch.ones(3)
        call(torch.randn(2, 3, 4, 4, requires_grad=True), mean, var)
        assert mean._version == 0 and mean.any()


def counts_of_an_argument(x: torch.Tensor) -> Any:
    before = x._version
    x.add_(1)
    part = x[0]
    part.mul_(2)
    return x * before, x._version - before, part._version == x._version, (x.detach() * 1)._version


@pytest.mark.parametrize("backend", BACKENDS)
def test_counts_of_an_argument_are_read_at_each_call(backend: str) -> None:
    seen = []
    for call in (counts_of_an_argument, smelt.compile(counts_of_an_argument, backend=backend)):
        x = torch.ones(2, 3)
        for _ in range(3):
            out, increase, *rest = call(x)
            seen.append((out.tolist(), increase > 0, *rest, x.tolist()))
            x.sub_(1)
    first, second = seen[:3], seen[3:]
    assert [one[1:] for one in first] == [one[1:] for one in second]
    assert first[0] == second[0]


def written_twice(x: torch.Tensor) -> Any:
    x.add_(1)
    x.mul_(2)
    return (x * 2,)


def written_in_regions(x: torch.Tensor) -> Any:
    with torch.autocast("cpu"):
        x.add_(1)
        x[0].mul_(2)
    with torch.no_grad():
        x.detach().t().add_(1)
    return (x * 2,)


def written_by_a_view_and_returned(x: torch.Tensor) -> Any:
    view = x[0]
    view.mul_(2)
    view.add_(1)
    return view, x.sum()


def written_under_vmap(x: torch.Tensor) -> Any:
    def each(y: torch.Tensor) -> torch.Tensor:
        y.add_(1)
        y.mul_(2)
        return y.sum()

    return (torch.func.vmap(each)(x),)


def written_and_beside_it(x: torch.Tensor) -> Any:
    x.data.mul_(2)
    x.add_(1)
    torch._foreach_mul_([x, x], 2.0)
    return (x * 2,)


WRITTEN_OFTEN = (
    written_twice,
    written_in_regions,
    written_by_a_view_and_returned,
    written_under_vmap,
    written_and_beside_it,
)


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", WRITTEN_OFTEN)
def test_each_write_counts(fn: Callable[..., Any], backend: str, history: bool) -> None:
    seen = []
    for call in (fn, smelt.compile(fn, backend=backend)):
        for _ in range(2):
            x = nonleaf(torch.ones(3, 3)) if history and fn is not written_under_vmap else torch.ones(3, 3)
            before, covering = x._version, x[1:]
            call(x)
            seen.append((x._version - before, covering._version - before))
    assert seen[0][0] > 1
    assert seen[2:] == seen[:2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_write_to_memory_that_arguments_share_counts(backend: str) -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> None:
        x.add_(1)
        y.mul_(2)
        y.mul_(2)

    seen = []
    for call in (fn, smelt.compile(fn, backend=backend)):
        x = torch.ones(4)
        call(x, x[1:])
        y = torch.ones(4)
        call(y, y.data)
        seen.append((x._version, y._version, x.tolist(), y.tolist()))
    assert seen[0] == seen[1]
