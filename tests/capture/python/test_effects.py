"""Writes to the outside happen after the graph, in order, exactly as in eager."""

from __future__ import annotations

import collections
import functools
import itertools
import logging

import pytest
import torch

import smelt
from smelt.base.errors import Unsupported
from tests.capture.harness import check, compiled, same

X = torch.arange(6.0).reshape(2, 3)
COUNTER = 0
STORE: dict[str, object] = {}


class State:
    limit = 1

    def __init__(self):
        self.n = 0
        self.items = [1]
        self.table = {"a": 1, "b": 2}
        self.seen = {1}
        self.queue = collections.deque([1], maxlen=2)
        self.last = None
        self.gone = 1

    @property
    def twice(self):
        return self.n * 2

    @twice.setter
    def twice(self, value):
        self.n = value // 2


CASES = {}


def case(fn):
    CASES[fn.__name__] = fn
    return fn


@case
def attributes(s, x):
    s.n += 1
    s.last = x * s.n
    s.twice = 10
    del s.gone
    s.fresh = [x, s.n]
    return s.n, s.last, hasattr(s, "gone")


@case
def lists(s, x):
    s.items.append(x + 1)
    first = len(s.items)
    s.items[0] = "changed"
    s.items += [3]
    s.items.insert(0, None)
    return first, s.items[1]


@case
def only_appended(s, x):
    s.items.append(x * 2)
    s.items.append(5)


@case
def dicts(s, x):
    s.table["c"] = x * 2
    s.table.pop("a")
    s.table["b"] += 1
    s.table.setdefault("d", []).append(x)
    s.table.update(e=1)
    return list(s.table), "a" in s.table, s.table.get("c")


@case
def reordered(s, x):
    value = s.table.pop("a")
    s.table["a"] = value
    return x + value


@case
def cleared(s, x):
    s.table.clear()
    s.items.clear()
    return x + len(s.table)


@case
def sets_and_queues(s, x):
    s.seen.add(2)
    s.queue.append(x * 1)
    s.queue.append(3)
    return x + 1, len(s.queue), 2 in s.seen


@case
def alias(s, x):
    items = s.items
    items.append(1)
    s.table["items"] = items
    return s.items is items, len(s.items)


@case
def read_after_write(s, x):
    s.table["k"] = x
    y = s.table["k"] + 1
    s.n = 5
    s.n = s.n + 1
    return y, s.n


@case
def dictionary_of_instance(s, x):
    s.__dict__["n"] = 7
    vars(s)["extra"] = x
    return s.n, s.extra


@case
def argument_list(s, x):
    held = [x]
    s.items.append(held)
    held.append(x + 1)
    return held


@case
def tensors_in_place(s, x):
    x.add_(1)
    s.last = x
    return x * 2


@case
def swapped(s, x):
    s.items, s.table = s.table, s.items
    return x + 1


@pytest.mark.parametrize("name", CASES)
def test_like_eager(name):
    check(CASES[name], State(), X)


def test_identity_of_what_is_stored():
    def fn(s, x):
        s.last = x
        s.items.append(s.table)
        return s.items

    s = State()
    out = compiled(fn, fullgraph=True)(s, X)
    assert s.last is X and out is s.items and s.items[-1] is s.table


def test_globals_and_nonlocals():
    total = 0

    def fn(x):
        global COUNTER
        nonlocal total
        COUNTER += 1
        total = total + 2
        STORE["x"] = x * COUNTER
        return x + total

    run = compiled(fn, fullgraph=True, recompile_limit=20)
    for i in range(1, 4):
        out = run(X)
        assert COUNTER == i and total == 2 * i
        assert torch.equal(out, X + total) and torch.equal(STORE["x"], X * i)


def test_print_and_logging_come_after_the_graph(capsys, caplog):
    log = logging.getLogger("smelt.test")

    def fn(x):
        print("shape", tuple(x.shape))
        log.warning("seen %s", x.shape[0])
        return x + 1

    run = compiled(fn, fullgraph=True)
    with caplog.at_level(logging.WARNING):
        run(X), run(X)
    assert capsys.readouterr().out == "shape (2, 3)\n" * 2
    assert [r.getMessage() for r in caplog.records] == ["seen 2", "seen 2"]


def test_nothing_happens_twice_when_capture_starts_again():
    calls = []

    def inner(x):
        calls.append(1)
        if x.sum() > 0:
            calls.append(2)
        return x + 1

    def fn(x):
        calls.append(0)
        return inner(x * 2)

    run = compiled(fn)
    run(X)
    assert calls == [0, 1, 2]
    run(X)
    assert calls == [0, 1, 2] * 2


def test_exception_leaves_no_trace_of_the_capture():
    s = State()

    def fn(s, x):
        s.items.append(1)
        raise ValueError

    with pytest.raises(ValueError):
        compiled(fn)(s, X)
    assert s.items == [1, 1]


def test_module_attribute_and_buffer():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            self.calls += 1
            self.mean = self.mean * 0.5 + x.mean(0)
            return x - self.mean

    a, b = Net(), Net()
    run = compiled(a.forward, fullgraph=True, recompile_limit=20)
    for _ in range(3):
        assert torch.equal(run(X), b(X))
    assert a.calls == 3 and torch.equal(a.mean, b.mean) and "mean" in a._buffers and same(a.calls, b.calls)


class Average(torch.nn.Module):
    """A slow copy of a layer, moved towards it by assigning `data`."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.quick, self.slow = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3).requires_grad_(False)

    @torch.no_grad()
    def follow(self):
        for quick, slow in zip(self.quick.parameters(), self.slow.parameters(), strict=True):
            slow.data = slow.data * 0.75 + quick.data * 0.25

    def forward(self, x):
        before = self.slow(x)
        self.follow()
        self.slow.bias.add_(1)
        return self.quick(x), before, self.slow(x)


def test_assigned_data_is_seen_by_later_reads_and_leaves_the_old_memory_alone():
    a, b = Average(), Average()
    kept = [model.slow.weight.detach() for model in (a, b)]
    run = compiled(a.forward, fullgraph=True)
    for _ in range(3):
        ours, eager = run(X), b(X)
        assert all(torch.allclose(x, y, atol=1e-6) for x, y in zip(ours, eager, strict=True))
        ours[0].sum().backward()
        eager[0].sum().backward()
    for (name, x), y in zip(a.named_parameters(), b.parameters(), strict=True):
        assert torch.allclose(x, y, atol=1e-6), name
        assert (x.grad is None) == (y.grad is None) and type(x) is torch.nn.Parameter
    assert torch.equal(kept[0], kept[1]) and kept[0].data_ptr() != a.slow.weight.data_ptr()


def test_assigned_data_may_share_memory():
    def fn(a, b):
        a.data = b
        b.add_(1)
        return a * 2

    for run in (fn, compiled(fn, fullgraph=True)):
        a, b = torch.zeros(3), torch.ones(3)
        assert torch.equal(run(a, b), torch.full((3,), 4.0))
        assert torch.equal(a, b) and a.data_ptr() == b.data_ptr()


def test_assigned_data_that_a_graph_cannot_hold_breaks():
    def history(w, x):
        w.data = x
        return w * 2

    def shape(w, x):
        w.data = x[:1]
        return w * 2

    for fn, w in ((history, torch.zeros(2, 3, requires_grad=True)), (shape, torch.zeros(2, 3))):
        with pytest.raises(Unsupported, match="data"):
            compiled(fn, fullgraph=True)(w.clone().detach().requires_grad_(w.requires_grad), X)
        out = compiled(fn)(w, X)
        assert torch.equal(out, w * 2)


THROUGH = [
    *(zip, enumerate, list, tuple, reversed, itertools.chain),
    lambda held: map(lambda item: item, held),
    lambda held: sorted(held, key=lambda item: item["rate"]),
    lambda held: itertools.islice(held, 1, None),
    lambda held: [max(held, key=lambda item: item["rate"])],
]


@pytest.mark.parametrize("through", THROUGH)
def test_containers_that_are_handed_on_are_the_very_objects(through):
    """Also where they hold containers themselves: what is written to them is not lost."""

    def fn(x, held):
        for item in through(held):
            group = item if isinstance(item, dict) else item[-1]
            group["rate"] = group["rate"] * 0.5
            group["inner"].append(len(group["inner"]))
        return x + held[0]["rate"]

    def arguments():
        return torch.ones(2), [{"rate": 1.0, "inner": [1]}, {"rate": 3.0, "inner": []}]

    want, got = arguments(), arguments()
    assert torch.equal(fn(*want), compiled(fn, fullgraph=True)(*got))
    assert want[1] == got[1]


def test_gradients_that_reach_a_tensor_after_its_data_was_assigned():
    def run(compile):
        def fn(x, w):
            x.data = x.data * 2
            x[0].sub_(w.sum())
            return x * 3

        x, w = torch.ones(3, 2), torch.ones(2, requires_grad=True)
        compile(fn)(x, w).sum().backward()
        return x.grad_fn is not None, x.detach(), w.grad

    want = run(lambda f: f)
    torch.testing.assert_close(run(lambda f: smelt.compile(f, backend="aot_eager")), want)


Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "write",
    [
        lambda given: setattr(given[0], "tag", 1),
        lambda given: setattr(given[1], "left", 1),
        lambda given: setattr(given[2], "tag", 1),
        lambda given: setattr(given[3], "func", print),
        lambda given: setattr(given[4], "__cause__", 1),
        lambda given: setattr(given[5], "__class__", int),
        lambda given: setattr(int, "tag", 1),
        lambda given: setattr(given[6], "tag", 1),
        lambda given: setattr(given[0], "append", 1),
    ],
    ids=["list", "named tuple", "number", "partial", "exception", "class", "built-in class", "method", "read-only"],
)
def test_refused_attributes_raise_before_other_effects(write, capsys):
    def fn(x, given):
        write(given)
        print("too far")
        return x + 1

    given = [1], Pair(1, 2), object(), functools.partial(print), ValueError(), State(), State().__init__
    messages = []
    for run in (fn, compiled(fn)):
        with pytest.raises((AttributeError, TypeError)) as caught:
            run(X, given)
        messages.append(str(caught.value))
    assert messages[0] == messages[1] and not capsys.readouterr().out


def test_a_name_that_became_a_member_of_the_module():
    def fn(module, x):
        module.extra = None
        return x + 1

    members = [None, torch.nn.Linear(1, 1), torch.ones(2), torch.nn.Parameter(torch.ones(2)), None]
    tables = []
    for run in (fn, compiled(fn)):
        for member in members:
            module = torch.nn.Module()
            if type(member) is torch.Tensor:
                module.register_buffer("extra", member)
            elif member is not None:
                module.extra = member
            run(module, X)
            tables.append((module._parameters, module._buffers, module._modules, "extra" in vars(module)))
    assert tables[: len(members)] == tables[len(members) :]


def test_a_queues_limit_is_looked_at():
    """It decides what `append` drops and whether `insert` raises."""

    def program(x, queue):
        for n in range(3):
            queue.append(n)
        queue.insert(1, 7)
        return x + len(queue)

    run = compiled(program)
    for limit in (None, 5, 3, None):
        mine, theirs = (collections.deque([], maxlen=limit) for _ in range(2))
        if limit == 3:
            for fn, queue in ((run, mine), (program, theirs)):
                with pytest.raises(IndexError, match="maximum size"):
                    fn(torch.ones(2), queue)
        else:
            assert torch.equal(run(torch.ones(2), mine), program(torch.ones(2), theirs))
        assert mine == theirs and mine.maxlen == limit


def test_text_that_looks_like_residual_code_stays_as_it_is() -> None:
    """Residual code is never edited as text: constants of the program may hold anything."""

    class Holder:
        pass

    def keep(x: torch.Tensor, holder: Holder) -> dict[str, object]:
        holder.count = holder.count + 1
        return {holder.key: x * 2, "t": "see _f[7], _f3 and _out[0]", "_f[0]": holder.text}

    for key, text in (("_f[0]", "_f[1]"), ("_c.graph", "'); import os; ('"), ("\\", '"""\n'), ("ﬁ\ud800", "\x00{}%s")):
        mine, its = Holder(), Holder()
        for holder in (mine, its):
            holder.count, holder.key, holder.text = 1, key, text
        result, right = smelt.compile(keep)(torch.ones(2), mine), keep(torch.ones(2), its)
        assert list(result) == list(right) and result["t"] == right["t"] and result["_f[0]"] == right["_f[0]"]
        assert mine.count == its.count == 2


class MadeOfTwo(list):  # type: ignore[type-arg]
    def __new__(cls, first: int, second: int) -> MadeOfTwo:
        return super().__new__(cls)

    def __init__(self, first: int, second: int) -> None:
        super().__init__([first, second])


def test_a_list_whose_class_wants_arguments() -> None:
    def fn(x: torch.Tensor, held: MadeOfTwo) -> object:
        held.append(3)
        return sorted(held), len(held), x + 1

    run = compiled(fn)
    for _ in range(2):
        held = MadeOfTwo(2, 1)
        assert run(torch.ones(2), held)[:2] == ([1, 2, 3], 3)
        assert list(held) == [2, 1, 3]
