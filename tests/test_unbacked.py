"""Data-dependent numbers, through all stages: one graph, eager's results for every value."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import smelt

LIMITS = ([1.0, 1.0], [0.5, 0.5], [-9.0, 0.0], [9.0, 3.0], [0.0, 0.0], [2.0, 0.0])
"""Their sums choose all, some or no elements of a normal sample, and are the whole numbers that programs read."""


def count(t: Any) -> Any:
    return (t * 1.0).sum().to(torch.int64)


def item_as_size(x: Any, t: Any) -> Any:
    n = count(t).item()
    torch._check(n >= 0)
    torch._check(n <= x.size(0))
    return (x[:n] * 2).sum(0) + x.narrow(0, 0, n).exp().sum(0) + torch.zeros(n, 3).sum(0)


def item_makes_tensors(x: Any, t: Any) -> Any:
    n = count(t).item()
    torch._check(n >= 0)
    return x.sum(0).expand(n, 3) * 2, torch.arange(n), torch.full((n, 2), 3.0), x.new_zeros(n + 1, 2), x * n, n


def item_of_a_float(x: Any, t: Any) -> Any:
    s = x.detach().abs().sum().item()
    return x * (s * 2 + 1) / x.detach().norm().item() - s / 2.0, s


def with_a_message(x: Any, t: Any) -> Any:
    n = count(t).item()
    torch._check(n >= 0, lambda: "negative!")
    torch._check(n < 4, lambda: f"too many: {n}")
    return x * n


def written_after_the_read(x: Any, t: Any) -> Any:
    s = t.sum() + 0
    n = s.item()
    s.add_(1)
    return x * n, n, s


def masked(x: Any, t: Any) -> Any:
    rows = x[x[:, 0] > t.sum()]
    return rows.sin() + 1, torch.softmax(rows, 0), rows @ rows.t(), rows[:, 1:] + rows[:, :2], rows.shape


def masked_write(x: Any, t: Any) -> Any:
    y, mask = x.clone(), x > t.sum()
    y[mask] = x[mask] * 3 + 1
    return y


def masked_reductions(x: Any, t: Any) -> Any:
    rows = x[x[:, 0] > t.sum()]
    return rows.mean(0), rows.sum(), rows.numel(), torch.cumsum(rows, 0), rows.max(1).values


def extremum(x: Any, t: Any) -> Any:
    return x[x[:, 0] > t.sum()].amax(0)


def joined(x: Any, t: Any) -> Any:
    mask = x[:, 0] > t.sum()
    return torch.cat([x[mask], x[~mask]], 0) * 2, x[mask].view(-1, 3), x[mask].reshape(-1)


def selected(x: Any, t: Any) -> Any:
    return torch.masked_select(x, x > t.sum()) * 2


def places(x: Any, t: Any) -> Any:
    found = torch.nonzero(x > t.sum())
    return found, found.shape[0], x[found[:, 0], found[:, 1]] * 2, torch.argwhere(x > t.sum()) + 1


def distinct(x: Any, t: Any) -> Any:
    values, inverse, counts = torch.unique((x * 2).round().detach(), return_inverse=True, return_counts=True)
    return values * 2, inverse + 1, counts + 1, x * 2


def distinct_slices(x: Any, t: Any) -> Any:
    rounded = (x.detach() + t.sum()).round().clamp(-1, 1).view(4, 2, 3)
    found = [torch.unique(rounded, dim=d, return_inverse=True) for d in (0, 1, -1)]
    found += [torch.unique_consecutive(rounded, dim=d, return_counts=True) for d in (0, 1, -1)]
    return *(part for pair in found for part in pair), found[1][0].sum(1) * 2, x * 2


def recognised(x: Any, t: Any) -> Any:
    log_probs = x.log_softmax(-1).unsqueeze(1).expand(8, 2, 3)
    lengths = (t.clamp(0, 1) * 2).long() + 1
    return torch.nn.functional.ctc_loss(log_probs, torch.ones(2, 3, dtype=torch.int64), torch.full((2,), 8), lengths)


def repeated(x: Any, t: Any) -> Any:
    return torch.repeat_interleave(x[:2], (t.abs() * 2).long(), dim=0) * 2


def counted(x: Any, t: Any) -> Any:
    numbers, weights = (t.abs() * 2).long(), t.detach() + 1
    many, of_nothing = torch.bincount(numbers), torch.bincount(numbers[:0], minlength=2)
    return many + 1, torch.bincount(numbers, weights, 3) * 2, many.shape[0], of_nothing, torch.nonzero(x[:0].detach())


def routed(x: Any, t: Any) -> Any:
    best, expert = torch.softmax(x, -1).max(-1)
    out = torch.zeros_like(x)
    for e in range(x.shape[1]):
        (rows,) = torch.where(expert == e)
        out.index_add_(0, rows, x[rows] * (e + 1.5) * best[rows, None])
    return out


def listed(x: Any, t: Any) -> Any:
    lengths = (t * 1.0).abs().clamp(0, 4).to(torch.int64).tolist()
    for n in lengths:
        torch._check(n >= 0)
    rows = [x[:n].sum(0) * (i + 1) for i, n in enumerate(lengths)]
    (pair,) = x.detach()[:1, :2].tolist()
    return torch.stack(rows) + pair[0] * pair[1], lengths


def picked(x: Any, t: Any) -> Any:
    place = x.detach().abs().sum(1).argmax(), x.detach().sum(0).argmin()
    n = (x > 0).sum().item() // 4 - 3
    return x[place] * 2, x[place[0], :, None], x[:, place[1]], x[..., place[1] - 1, None], x[n] * n, x[1:, n % 2]


def placed(x: Any, t: Any) -> Any:
    row, n = x.detach().abs().sum(1).argmax(), (x > 0).sum().item() // 4 - 3
    whole, column, inner, number = x * 1, x * 2, x * 3, x * 4
    whole[row] = 2
    column[:, row % 3] = x[:, 0]
    inner[row, 1:, None] = x[0, :2, None] * 3
    number[n, -1] = t.sum()
    return whole, column, inner, number


def asserted(x: Any, t: Any) -> Any:
    n, m = count(t).item(), (x > 0).sum().item()
    if not 0 <= n < 12:  # as pytest leaves alone what it finds
        raise AssertionError("of the program")
    if m > n + 24:
        raise ValueError(f"{m} and {n}")
    return x[:n].sum() * m


PROGRAMS = [item_as_size, item_makes_tensors, item_of_a_float, with_a_message, written_after_the_read, masked]
PROGRAMS += [masked_write, masked_reductions, extremum, joined, selected, places, distinct, distinct_slices]
PROGRAMS += [recognised, repeated, counted, routed, listed, picked, placed, asserted]


def outcome(fn: Any, limit: list[float], grad: bool) -> tuple[Any, Any]:
    """Results (or the error) and the gradient of a call."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 3, generator=generator, dtype=torch.float64).requires_grad_(grad)
    try:
        out = fn(x, torch.tensor(limit))
    except Exception as error:
        return (type(error), str(error)), None
    out = out if isinstance(out, tuple) else (out,)
    heads = [o.sin().sum() for o in out if isinstance(o, torch.Tensor) and o.requires_grad]
    if heads:
        torch.stack(heads).sum().backward()
    return out, x.grad


def same(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(b, a, equal_nan=True)
        assert a.requires_grad == b.requires_grad and (a.numel() == 0 or a.stride() == b.stride())
    else:
        assert type(a) is type(b) and (a == b or (isinstance(a, float) and math.isclose(a, b)))


@pytest.mark.parametrize("grad", [False, True], ids=["forward", "training"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda fn: fn.__name__)
def test_one_graph_for_every_value(program: Any, backend: str, grad: bool) -> None:
    run = smelt.compile(program, backend=backend, fullgraph=True)
    for limit in LIMITS:
        (expected, wanted), (found, gradient) = outcome(program, limit, grad), outcome(run, limit, grad)
        for a, b in zip(expected, found, strict=True):
            same(a, b)
        same(wanted, gradient)
    sites = run._smelt_session.sites.values()
    assert sum(len(site.versions) for site in sites) == 1


def test_a_question_without_an_answer_ends_the_graph_at_the_read() -> None:
    def fn(x: Any, t: Any) -> Any:
        n = count(t).item()
        kept = "many" if n > 5 else "few"
        return x + n if kept == "many" else x - n

    run = smelt.compile(fn, backend="eager")
    for limit in LIMITS:
        assert torch.equal(run(torch.ones(3), torch.tensor(limit)), fn(torch.ones(3), torch.tensor(limit)))
    (reason,) = run._smelt_session.breaks
    assert reason.at.endswith(f":{fn.__code__.co_firstlineno + 1}")
    assert f":{fn.__code__.co_firstlineno + 2} asks" in reason.why and "torch._check" in reason.hint
    with pytest.raises(smelt.Unsupported, match="torch._check"):
        smelt.compile(fn, backend="eager", fullgraph=True)(torch.ones(3), torch.ones(2))


def returns_either(x: Any, t: Any) -> Any:
    n = count(t).item()
    if n > 2:
        return x * n
    return x - n


def sets_variables(x: Any, t: Any) -> Any:
    n, m = count(t).item(), (x > 0).sum().item()
    y = x * 2 if n else x + 1
    if n + m * 2 == m * n + 1 or n < m:
        y = y.sin() + m
    for i in range(3):
        if i < n:
            y = y * 2 + i
    return y, n


def empty_or_not(x: Any, t: Any) -> Any:
    rows = (x[:, 0] > t.sum()).nonzero()[:, 0]
    if len(rows) > 1:
        return torch.zeros_like(x).index_add(0, rows, x[rows] * 2)
    return x * 3


BRANCHES = [returns_either, sets_variables, empty_or_not]


@pytest.mark.parametrize("fn", BRANCHES, ids=lambda fn: fn.__name__)
def test_a_branch_on_a_number_is_in_the_graph(fn: Any) -> None:
    """Where it is not compiled in parts, each for numbers that are known."""
    run = smelt.compile(fn, backend="eager", fullgraph=True)
    for limit in LIMITS:
        (expected, wanted), (found, gradient) = outcome(fn, limit, True), outcome(run, limit, True)
        for a, b in zip(expected, found, strict=True):
            same(a, b)
        same(wanted, gradient)
    assert [len(site.versions) for site in run._smelt_session.sites.values()] == [1]


@pytest.mark.parametrize("fn", BRANCHES, ids=lambda fn: fn.__name__)
def test_a_branch_on_a_number_ends_the_graph_at_the_read(fn: Any) -> None:
    run = smelt.compile(fn, backend="aot_eager")
    for limit in LIMITS:
        (expected, wanted), (found, gradient) = outcome(fn, limit, True), outcome(run, limit, True)
        for a, b in zip(expected, found, strict=True):
            same(a, b)
        same(wanted, gradient)
    assert all("torch._check" in reason.hint for reason in run._smelt_session.breaks)


def test_an_index_outside_of_the_tensor() -> None:
    def fn(x: Any) -> Any:
        return x[(x > 0).sum()] * 2, x[:, -(x > 5).sum()]

    run = smelt.compile(fn, backend="eager", fullgraph=True)
    assert all(torch.equal(a, b) for a, b in zip(run(-torch.ones(3, 4)), fn(-torch.ones(3, 4)), strict=True))
    for x in (torch.ones(3, 4), torch.full((3, 4), 9.0)):
        with pytest.raises(IndexError, match="out of bounds"):
            run(x)


def test_more_numbers_than_a_graph_reads_end_it() -> None:
    def fn(x: Any) -> Any:
        return x * sum((x > 0).long().tolist())

    run, x = smelt.compile(fn, backend="eager"), torch.ones(200)
    assert torch.equal(run(x), fn(x))
    (reason,) = run._smelt_session.breaks
    assert "tolist" in reason.title


def test_a_bound_answers_the_question() -> None:
    def fn(x: Any, t: Any) -> Any:
        n = count(t).item()
        torch._check(n > 5)
        return x + n if n > 5 else x - n

    run = smelt.compile(fn, backend="eager", fullgraph=True)
    assert torch.equal(run(torch.ones(3), torch.tensor([9.0])), torch.full((3,), 10.0))
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        run(torch.ones(3), torch.tensor([2.0]))


def test_a_whole_number_that_changes_is_read_by_the_graph() -> None:
    """Static first; then it is a symbol, as sizes are."""

    def fn(x: Any, n: Any) -> Any:
        n = (n + 0).item()
        torch._check(n >= 0)
        return torch.zeros(n) + x.sum()

    run = smelt.compile(fn, backend="eager", fullgraph=True)
    for n in (3, 4, 5, 0, 1, 9):
        assert run(torch.ones(2), torch.tensor(n)).shape == (n,)
    assert [len(site.versions) for site in run._smelt_session.sites.values()] == [2]


def test_a_program_that_only_calls_such_an_operator() -> None:
    x = torch.tensor([1.0, 2.0, 2.0])
    assert torch.equal(smelt.compile(torch.unique, fullgraph=True)(x), torch.unique(x))


def test_an_equation_is_checked() -> None:
    def fn(x: Any, t: Any) -> Any:
        n = count(t).item()
        torch._check(n == 3)
        return x[:n] * 2

    run = smelt.compile(fn, fullgraph=True)
    assert torch.equal(run(torch.ones(5), torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="Expected cond to be True"):
        run(torch.ones(5), torch.ones(4))


@pytest.mark.parametrize("weights", ["fweights", "aweights", "both"])
def test_covariance_with_weights(weights: str) -> None:
    """Its C++ code looks whether weights are negative, or sum to zero."""
    names = ["fweights", "aweights"] if weights == "both" else [weights]

    def fn(x: Any, given: dict[str, Any]) -> Any:
        return torch.cov(x, **given), x.cov(correction=0, **given)

    run = smelt.compile(fn, fullgraph=True)
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    every = {"fweights": torch.tensor([1, 2, 3, 1]), "aweights": torch.rand(4, dtype=torch.float64)}
    given = {name: every[name] for name in names}
    for got, want in zip(run(x, given), fn(x, given), strict=True):
        same(want, got)
        same(*(torch.autograd.grad(out.sin().sum(), x, retain_graph=True)[0] for out in (want, got)))
    for bad in (-1, 0):
        with pytest.raises(RuntimeError, match="cannot be negative|sum to zero"):
            run(x, {name: every[name] * bad for name in names[:1]})


def test_covariance_refuses_weights_of_another_dtype() -> None:
    x = torch.randn(3, 4)
    for given in ({"fweights": torch.ones(4)}, {"aweights": torch.ones(4, dtype=torch.int64)}):
        with pytest.raises(RuntimeError, match="expected .weights to have"):
            smelt.compile(torch.cov, fullgraph=True)(x, **given)


def test_index_fill_with_a_value_that_requires_grad() -> None:
    """The formula of its derivative counts the indices once, by `unique`."""

    def fn(x: Any, i: Any, value: Any) -> Any:
        return x.index_fill(1, i, value), torch.index_fill(x * 2, -1, i, value), (x * 3).index_fill_(0, i, value)

    def run(fn: Any) -> Any:
        x, value = torch.ones(4, 4, requires_grad=True), torch.tensor(2.0, requires_grad=True)
        out = fn(x, torch.tensor([3, 1, 1]), value)
        return *out, *torch.autograd.grad(sum((k + 1) * o.square().sum() for k, o in enumerate(out)), [x, value])

    for want, got in zip(run(fn), run(smelt.compile(fn, fullgraph=True)), strict=True):
        same(want, got)


WRITES: dict[str, Any] = {
    "beside a number": lambda y, m, w: y.__setitem__((m, 0), w),
    "beside a slice": lambda y, m, w: y.__setitem__((m, slice(1, None)), w),
    "behind a number": lambda y, m, w: y.__setitem__((1, m[:3]), w * 2),
    "alone": lambda y, m, w: y.__setitem__(m, w),
    "accumulated": lambda y, m, w: y.index_put_((m, torch.tensor(1)), w, accumulate=True),
    "in place": lambda y, m, w: y.__setitem__((m, 0), y[m, 0] * w),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_number_with_a_gradient_is_written_by_a_mask(name: str) -> None:
    def fn(x: torch.Tensor, mask: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * 2
        WRITES[name](y, mask, w)
        return y

    run = smelt.compile(fn)
    for bits in ("1010", "1111", "0000", "0001", "1110", "0100"):
        mask = torch.tensor([bit == "1" for bit in bits])
        x, w = torch.randn(4, 3, requires_grad=True), torch.randn((), requires_grad=True)
        want, got = fn(x, mask, w), run(x, mask, w)
        torch.testing.assert_close(got, want)
        for a, b in zip(*(torch.autograd.grad(out.sin().sum(), (x, w)) for out in (got, want)), strict=True):
            torch.testing.assert_close(a, b)
