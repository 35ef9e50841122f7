"""Random numbers, clocks and arrays of numpy in captured code give what they give in eager."""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import smelt
from tests.capture.harness import compiled, same

X = torch.arange(12.0).reshape(4, 3)


def alike(a, b):
    """Deep equality, of arrays as well."""
    if isinstance(a, np.ndarray):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(alike(a[k], b[k]) for k in a)
    return same(a, b)


def states():
    return repr((random.getstate(), np.random.get_state()))


def check(fn, *args, whole=True, calls=6, versions=None, make=compiled, same=alike):
    """Eager and compiled draw the same numbers and give the same, call for call; returns the session."""
    run = make(fn, fullgraph=whole)
    for seed in range(calls):
        given = copy.deepcopy(args), copy.deepcopy(args)
        random.seed(seed)
        np.random.seed(seed)
        want, after = fn(*given[0]), states()
        random.seed(seed)
        np.random.seed(seed)
        got = run(*given[1])
        assert same(want, got), f"call {seed}: eager {want!r}\ncompiled {got!r}"
        assert states() == after, f"call {seed}: the generators stand elsewhere"
    session = run._smelt_session
    sites = [site for site in session.sites.values() if fn.__name__ in site.name]  # others may hook events
    found = [len(site.versions) for site in sites]
    assert versions is None or found == [versions], found
    return session


# -- numbers --------------------------------------------------------------------------------------------


def draws_in_order(x):
    p, q = random.random(), np.random.rand()
    y = x * p
    return y * random.gauss(0, 1) + q, random.choice([1, 2, 3]), random.sample(range(10), 3), np.random.randn(2)


def computes(x):
    p = random.random()
    k = math.floor(p * 10) + int(p * 5)
    return x + k, k, max(p, 0.5), abs(p - 1), round(p, 2), divmod(k, 3), -p, p**2, p // 0.1, not p


def asks(x):
    p = random.random()
    return x + 1, p == p, p is None, p != 0.3, isinstance(p, float), type(p), bool(p)


def shows(x):
    n = random.randint(0, 9)
    text = f"{n:03d} {n!r}"
    return x + 1, text, text + "!", str(n)


def seeds(x):
    np.random.seed(3)
    random.seed(4)
    return x * np.random.randn() + random.random()


def makes_generators(x):
    a, b = np.random.default_rng(5), random.Random(7)
    first = a.random()
    return x * first + b.uniform(1, 2), a.integers(0, 5, 3), b.random()


def sizes(x):
    n = random.randint(2, 4)
    return x[:n] * n, torch.zeros(n, 2), torch.arange(n)


def containers(x):
    found = {"a": random.random()}
    found["b"] = found["a"] * 2
    return x * found["b"], found


@pytest.mark.parametrize(
    "fn", [draws_in_order, computes, asks, shows, seeds, makes_generators, sizes, containers], ids=lambda f: f.__name__
)
def test_numbers(fn):
    check(fn, X, versions=1)


def test_clocks():
    def fn(x):
        start = time.perf_counter()
        return x + 1, start, time.perf_counter() - start

    run = compiled(fn, fullgraph=True)
    first, second = run(X), run(X)
    assert 0 <= first[2] < 5 and first[1] < second[1] <= time.perf_counter()


def test_a_clock_is_not_taken_for_granted():
    start = time.perf_counter()

    def fn(x):
        return x + 1 if time.perf_counter() - start > 0.2 else [x]

    run = compiled(fn)
    assert isinstance(run(X), list) and isinstance(run(X), list)
    time.sleep(0.25)
    assert torch.equal(run(X), X + 1)


# -- branches --------------------------------------------------------------------------------------------


def drops_layers(x):
    for scale in (1.0, 2.0, 3.0, 4.0):
        p = random.uniform(0, 1)
        if p < 0.5:
            continue
        x = torch.sin(x * scale)
    return x


def drops_layers_of_numpy(x):
    for _ in range(4):
        p = np.random.random()
        skip = p < 0.5
        if not skip:
            x = torch.sin(x)
    return x


def returns_early(x):
    p = random.random()
    if p < 0.3:
        return x + 1
    elif p < 0.6:
        return x * 2
    return x.sin()


@pytest.mark.parametrize("fn", [drops_layers, drops_layers_of_numpy, returns_early], ids=lambda f: f.__name__)
def test_both_arms_of_a_branch_are_in_the_graph(fn):
    check(fn, X, versions=1, calls=12)


def test_a_branch_with_one_impossible_arm_is_none():
    def fn(x):
        y = x + 1 if random.uniform(0, 1) < 0.0 else x - 1
        return y if random.random() >= 0 else [y]

    assert check(fn, X, versions=1)


@pytest.mark.parametrize("whole", [True, False])
def test_a_version_for_each_arm_of_other_branches(whole):
    def fn(x):
        if random.random() < 0.5:
            return x + 1
        return [x, x - 1]

    check(fn, X, versions=2, calls=12, whole=whole)


def test_many_outcomes_end_the_graph():
    def fn(x):
        for i in range(6):
            if random.random() < 0.5:
                x = x + random.random()
            else:
                x = torch.cat([x, x[:1] * i])
        return x

    check(fn, X, whole=False, calls=40)


def test_draws_after_a_break():
    def fn(x):
        p = random.random()
        y = x * p
        smelt.graph_break()
        return y + random.random(), p

    check(fn, X, whole=False)


# -- arrays --------------------------------------------------------------------------------------------


def constants(x):
    m = np.triu(np.ones((4, 3)), 1).astype(bool)
    s = np.prod(np.array(x.shape))
    return x.masked_fill(torch.from_numpy(m), 0.0), int(s), np.linspace(0, 1, 3).tolist(), m.sum(), np.array([1, 2])[1]


def writes(x):
    a = np.arange(6).reshape(2, 3)
    b = a[1:]
    a[1, 1] = 9
    return x[:2] + torch.tensor(a), a, b, x * float(b[0, 1])


def writes_what_is_drawn(x):
    a = np.zeros(4, dtype=np.float32)
    b = a[1:]
    a[2] = random.random()
    return x[:, 0] + torch.tensor(a), b, float(b[1])


def in_place(x):
    a = np.ones(3, dtype=np.float32)
    c = a
    a += np.random.rand(3).astype(np.float32)
    return x + torch.from_numpy(a), c is a, c


def shuffles(x):
    a = np.arange(4)
    np.random.shuffle(a)
    return x[torch.from_numpy(a)], x[np.random.permutation(4)], a


def iterates(x):
    for v in np.array([1.0, 2.0]):
        x = x + v
    for v in np.random.rand(2):
        x = x * v
    first, second = np.random.rand(2)
    return x, first, second, len(np.random.rand(3)), list(np.random.rand(2))


def other_sizes(x):
    a = np.random.rand(4, 3)
    return x + torch.tensor(np.stack([a, a * 2]).mean(0), dtype=torch.float32), np.where(a > 0.5)[0]


@pytest.mark.parametrize(
    "fn",
    [constants, writes, writes_what_is_drawn, in_place, shuffles, iterates, other_sizes],
    ids=lambda f: f.__name__,
)
def test_arrays(fn):
    check(fn, X, versions=1)


def test_arrays_are_made_anew_for_each_call():
    def fn(x):
        a = np.zeros(3)
        return x + torch.tensor(a), a

    run = compiled(fn, fullgraph=True)
    run(X)[1][:] = 7
    run(X)[0].fill_(7)
    assert torch.equal(run(X)[0], X.double()) and run(X)[1].tolist() == [0, 0, 0]


def test_arrays_from_outside_are_read_at_each_call():
    scale = np.array([1.0, 2.0, 3.0])

    def fn(x, shift):
        first = shift[0]
        return x * torch.from_numpy(scale) + torch.as_tensor(shift), float(scale.sum()), first, shift

    run = compiled(fn, fullgraph=True)
    shift = np.array([1.0, 5.0, 6.0])
    for value in (1.0, 4.0, 9.0):
        scale[1] = shift[0] = value
        got, want = run(X, shift), fn(X, shift)
        assert alike(got, want) and got[3] is shift
    assert len(next(iter(run._smelt_session.sites.values())).versions) == 1
    assert alike(run(X, shift.astype(np.float32)), fn(X, shift.astype(np.float32)))
    assert alike(run(X, np.ones((4, 3))), fn(X, np.ones((4, 3))))


def test_branch_on_an_external_numpy_array_is_guarded():
    sizes = np.array([2, 3])

    def fn(x):
        if sizes[0] > 2:
            return x + 1
        return x.reshape(int(sizes[0]), -1), sizes[1] * 2

    run = compiled(fn, fullgraph=True)
    for values in ((2, 3), (2, 5), (4, 5), (1, 1)):
        sizes[:] = values
        assert alike(run(X), fn(X)), values


def test_arrays_that_others_see_are_written_in_order():
    def fn(x, held):
        y = x * 2
        held[0] = 5
        t = torch.from_numpy(held)
        held[1] = 6
        return y + x, t * 1

    for shared in (True, False):
        results = []
        for run in (fn, compiled(fn)):
            held = np.arange(3.0)
            x = torch.from_numpy(held) if shared else torch.arange(3.0).double()
            results.append((run(x, held), held))
        assert alike(*results)


def test_a_graph_that_writes_what_an_array_shows():
    held = np.arange(3.0)

    def fn(x):
        x.add_(1)
        return float(held.sum()), x * 1

    for run in (fn, compiled(fn), compiled(fn)):
        held[:] = 1
        for _ in range(2):
            got = run(torch.from_numpy(held))
            assert got[0] == got[1].sum()
        assert alike(run(torch.zeros(3).double())[0], float(held.sum()))


# -- objects from outside --------------------------------------------------------------------------------------------


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.generator = np.random.default_rng(1)
        self.plain = random.Random(2)
        self.means = np.array([0.1, 0.2, 0.3], dtype=np.float32)
        self.last = 0.0

    def forward(self, x):
        x = x - torch.from_numpy(self.means)
        if self.training:
            x = x * self.generator.random() + self.plain.uniform(1, 2)
            self.last = self.plain.random()
        return self.linear(x)


@pytest.mark.parametrize("make", [compiled, smelt.compile], ids=["captured", "compiled"])
def test_generators_and_arrays_of_a_module(make):
    eager = Noisy()
    other = copy.deepcopy(eager)
    run = make(other, fullgraph=True)
    for _ in range(4):
        want, got = eager(X), run(X)
        assert torch.allclose(want, got) and eager.last == other.last
        want.sum().backward()
        got.sum().backward()
        assert torch.allclose(eager.linear.weight.grad, other.linear.weight.grad)
    assert eager.generator.random() == other.generator.random()
    eager.eval(), other.eval()
    other.means[:] = eager.means[:] = 1
    assert torch.allclose(eager(X), run(X))


def test_another_generator():
    def fn(x, generator):
        return x + generator.random()

    run = compiled(fn, fullgraph=True)
    for seed in range(3):
        want = fn(X, np.random.RandomState(seed))
        assert torch.equal(run(X, np.random.RandomState(seed)), want)
    assert torch.equal(run(X, random.Random(3)), fn(X, random.Random(3)))


# -- functions that run whole ------------------------------------------------------------------------


def chosen(count):
    found = []
    while len(found) < count:
        number = random.randint(0, 5)
        if number not in found:
            found.append(number)
    return found


def spans(length, share):
    """A mask as SpecAugment makes it."""
    count = int(share * length + np.random.rand(1).item())
    places = np.random.choice(np.arange(length), count, replace=False)
    mask = np.zeros(length, dtype=bool)
    mask[places] = True
    return mask


def masks(x):
    x = x * 1
    x[torch.tensor(spans(4, 0.5))] = 0
    x[torch.tensor(spans(4, 0.3))] = x.new_tensor([1.0, 2.0, 3.0])
    numbers = chosen(3)
    return x + torch.tensor(numbers), numbers


def test_functions_that_draw_run_whole():
    session = check(masks, X, versions=1)
    assert not session.breaks


class Sparse(nn.Module):
    """Random attention as BigBird draws it."""

    def __init__(self):
        super().__init__()
        self.blocks = 4
        self.table = [3, 2]

    def pattern(self, rows):
        out = np.zeros((rows, self.table[1]), dtype=np.int32)
        if not self.training:
            return out
        for row in range(rows):
            out[row, :] = self.row(row)
        return out

    @staticmethod
    def row(index):
        found = [n for n in np.random.permutation(np.arange(6)) if n != index]
        return np.array(found[:2])

    def forward(self, x):
        np.random.seed(self.blocks)
        places = np.stack([self.pattern(4)[1:] for _ in range(2)])
        return x[torch.tensor(places, dtype=torch.long) % 4]


def test_methods_that_draw_run_whole():
    model = Sparse()
    check(lambda x: model(x), X)
    model.table[1] = 1
    model.row = None  # type: ignore[method-assign]
    del model.row
    model.eval()
    check(lambda x: model(x), X)


def test_looking_ahead_leaves_the_generators_alone():
    def fn(x):
        numbers = chosen(2)
        if np.random.rand() > 0.5:
            x = x + random.random()
        return x * random.random(), numbers

    check(fn, X, calls=12)


COUNTED: list[int] = []
OFFSET = 0


def counts(n):
    COUNTED.append(n)
    return random.random()


def reads_a_global(n):
    return OFFSET + random.random()


def fails_at_times(n):
    if random.random() < 0.5:
        raise ValueError("half of the time")
    return n


def of_any_size():
    return np.zeros(random.randint(1, 3))


def test_functions_with_effects_are_interpreted():
    def fn(x):
        before = len(COUNTED)
        value = counts(2)
        return x * value, len(COUNTED) - before

    check(fn, X)


def test_functions_see_what_was_written_before():
    def fn(x):
        global OFFSET
        OFFSET = 5
        value = reads_a_global(1)
        OFFSET = 0
        return x * value

    check(fn, X)
    assert OFFSET == 0


def test_functions_that_raise():
    def fn(x):
        try:
            k = fails_at_times(2)
        except ValueError:
            k = 5
        return x + k

    def uncaught(x):
        return x + fails_at_times(2)

    check(fn, X, whole=False, calls=12)
    run = compiled(uncaught)
    for seed in range(8):
        random.seed(seed)
        fine = random.random() >= 0.5
        random.seed(seed)
        if fine:
            assert torch.equal(run(X), X + 2)
        else:
            with pytest.raises(ValueError, match="half"):
                run(X)


def test_branches_that_only_raise():
    def fn(x, near):
        y = x * random.random()
        try:
            if np.random.rand() < 0.5:
                raise ValueError("half of the time")
            y = y + 1
        except ValueError:
            y = y - near
        return y

    def writes(x, near):
        y = fn(x, near)
        x.add_(1)
        return y, x

    check(fn, X, 2, whole=False, calls=12)
    check(writes, X, 2, whole=False, calls=12)
    run = compiled(lambda x: fails_at_times(x + 1))
    for seed in range(8):
        random.seed(seed)
        fine = random.random() >= 0.5
        after = states()
        random.seed(seed)
        if fine:
            assert torch.equal(run(X), X + 1)
        else:
            with pytest.raises(ValueError, match="half"):
                run(X)
        assert states() == after


def test_functions_that_give_arrays_of_any_size():
    def fn(x):
        a = of_any_size()
        return x.sum() + torch.tensor(a), a

    check(fn, X, whole=False, calls=10)


# -- compiled --------------------------------------------------------------------------------------------


def close(a, b):
    if isinstance(a, torch.Tensor):
        return torch.allclose(a, b, atol=1e-6)
    return all(map(close, a, b)) if isinstance(a, (tuple, list)) else alike(a, b)


@pytest.mark.parametrize(
    "fn",
    [draws_in_order, computes, sizes, drops_layers, writes_what_is_drawn, shuffles, masks],
    ids=lambda f: f.__name__,
)
def test_through_all_stages(fn):
    check(fn, X, make=smelt.compile, same=close)


def test_numbers_beside_branches():
    def fn(x):
        y = x * random.random()
        if np.random.rand() < 0.5:
            y = y.sin()
        return y + random.random()

    check(fn, X, make=smelt.compile, same=close, calls=12, whole=False)


def test_gradients_of_dropped_layers():
    layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def fn(x):
        for layer in layers:
            if random.uniform(0, 1) < 0.5:
                continue
            x = layer(x)
        return x.square().sum() * random.random()

    run = smelt.compile(fn)
    for seed in range(6):
        found = []
        for step in (fn, run):
            layers.zero_grad()
            random.seed(seed)
            out = step(X + 0)
            if out.requires_grad:
                out.backward()
            found.append((out.detach(), [None if p.grad is None else p.grad.clone() for p in layers.parameters()]))
        assert torch.allclose(found[0][0], found[1][0])
        for a, b in zip(found[0][1], found[1][1], strict=True):
            assert (a is None or not a.any()) if b is None else torch.allclose(a if a is not None else b * 0, b)


def _shuffled_by_name(x):
    generator, items = random.Random(5), [1, 2, 3, 4]
    generator.shuffle(x=items)
    return x * generator.random(), items, generator.sample(items, 2)


def _shuffled_argument(x, items):
    generator = random.Random(5)
    generator.shuffle(items)
    return x * generator.random(), list(items)


@pytest.mark.parametrize("make", [random.Random, np.random.RandomState, np.random.default_rng])
def test_a_generator_that_the_function_makes_shuffles_a_list(make):
    def fn(x):
        generator, items = make(3), [1, x, 3, 4]
        generator.shuffle(items)
        return items, generator.uniform(0, 1)

    run, x = smelt.compile(fn), torch.ones(2)
    for _ in range(2):
        assert str(run(x)) == str(fn(x))
    run = smelt.compile(_shuffled_by_name)
    assert str(run(x)) == str(_shuffled_by_name(x))
    mine, eager, run = [1, 2, 3, 4], [1, 2, 3, 4], smelt.compile(_shuffled_argument)
    for _ in range(2):
        assert str(run(x, mine)) == str(_shuffled_argument(x, eager)) and mine == eager


@pytest.mark.parametrize("kind", [lambda fn: np.vectorize(fn), lambda fn: np.frompyfunc(fn, 1, 1)])
def test_numpy_holds_a_function_that_is_made_inside(kind: Callable[..., Any]) -> None:
    """It has the values of its call: a later one got those of an earlier, or symbols."""

    def fn(x: torch.Tensor, n: int) -> tuple[object, ...]:
        made = kind(lambda v: v + n)
        return x + 1, made(np.arange(3))

    run = smelt.compile(fn)
    for n in (3, 4, 5, 4):
        assert repr(run(torch.ones(2), n)) == repr(fn(torch.ones(2), n))


def test_functions_of_numpy_objects_are_distinguished() -> None:
    """An object that calls the program's function was taken for one of numpy's own."""
    run = smelt.compile(lambda x, held: (x + 1, held(np.arange(3))))
    for n in (1, 2, 3):
        assert run(torch.ones(2), np.vectorize(lambda v, n=n: v + n))[1].tolist() == [n, n + 1, n + 2]


def test_an_array_made_like_an_argument_may_be_written():
    def fn(a):
        out = np.empty_like(a)
        np.add(a, 1, out=out)
        np.multiply(out, a, out)
        total = np.zeros(())
        a.sum(out=total)
        return out, total

    check(fn, np.arange(6.0))


def test_an_array_given_as_out_is_left_to_numpy():
    def fn(a, out):
        return np.add(a, 1, out=out) is out, a.sum(axis=0, out=out[0, ...])

    check(fn, np.arange(6.0), np.zeros(6), whole=False)
