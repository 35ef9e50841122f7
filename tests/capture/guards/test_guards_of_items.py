"""Guards of lists and tuples of like tensors, checked in one pass: what is changed in them is seen, as one by one."""

import pytest
import torch
from torch import nn

import smelt
from smelt.capture import _native as native


class Subclass(torch.Tensor):
    pass


class ListOfOurs(list):
    pass


COUNT = 9


def tensors(count=COUNT):
    return [torch.arange(4.0) + i for i in range(count)]


def changed_at(make):
    """The change of one item, at the begin, inside and at the end."""
    return [lambda xs, at=at: xs.__setitem__(at, make(xs, at)) for at in (0, COUNT // 2, COUNT - 1)]


ITEMS = {
    "dtype": lambda xs, at: xs[at].double(),
    "shape": lambda xs, at: xs[at][:3],
    "rank": lambda xs, at: xs[at][None],
    "stride": lambda xs, at: torch.zeros(8)[::2],
    "device": lambda xs, at: xs[at].to("meta"),
    "requires_grad": lambda xs, at: xs[at].clone().requires_grad_(),
    "parameter": lambda xs, at: nn.Parameter(xs[at].clone()),
    "subclass": lambda xs, at: xs[at].as_subclass(Subclass),
    "negative": lambda xs, at: torch._neg_view(xs[at]),
    "sparse": lambda xs, at: xs[at].to_sparse(),
    "none": lambda xs, at: None,
    "number": lambda xs, at: 1.0,
    "list": lambda xs, at: [xs[at]],
}
CHANGES = {f"{name} {i}": change for name, make in ITEMS.items() for i, change in enumerate(changed_at(make))}
CHANGES |= {
    "longer": lambda xs: xs.append(torch.arange(4.0)),
    "shorter": lambda xs: xs.pop(),
    "empty": lambda xs: xs.clear(),
    "in place": lambda xs: xs[3].requires_grad_(),
    "resized": lambda xs: xs[5].resize_(2),
}
SAME = {
    "nothing": lambda xs: None,
    "replaced": lambda xs: xs.__setitem__(4, torch.ones(4)),
    "other order": lambda xs: xs.reverse(),
    "aliased": lambda xs: xs.__setitem__(1, xs[0]),
    "view of another": lambda xs: xs.__setitem__(1, xs[0].view(4)),
}
ARGUMENTS = {
    "list": lambda xs: xs,
    "tuple": tuple,
    "nested": lambda xs: [xs, (torch.ones(2), tuple(xs))],
    "in a dict": lambda xs: {"xs": xs, "y": torch.ones(2)},
    "among others": lambda xs: [torch.ones(2), 3, *xs, None, *xs],
    "subclass": ListOfOurs,
}


def total(value):
    if isinstance(value, torch.Tensor):
        return value.sum()
    if isinstance(value, dict):
        return total(list(value.values()))
    if isinstance(value, (list, tuple)):
        return sum((total(each) for each in value), torch.zeros(()))
    return torch.zeros(())


def guards_of(argument):
    """The guards of a function that reads every tensor in it."""

    def f(value):
        return total(value) * 2

    compiled = smelt.compile(f, dynamic=False)
    torch.testing.assert_close(compiled(argument), f(argument))
    (entry,) = native.entries(f.__code__)
    return entry.guards, f


@pytest.mark.parametrize("argument", ARGUMENTS.values(), ids=ARGUMENTS)
def test_changes_of_items_are_seen_as_one_by_one(argument):
    guards, f = guards_of(argument(tensors()))
    assert guards.check((argument(tensors()),), f.__globals__, f) is not None
    for name, change in CHANGES.items():
        xs = tensors()
        change(xs)
        given = (argument(xs),)
        assert guards.check(given, f.__globals__, f) is None, name
        assert guards.failure(given, f.__globals__, f) is not None, name


@pytest.mark.parametrize("argument", ARGUMENTS.values(), ids=ARGUMENTS)
def test_unguarded_properties_of_items_may_change(argument):
    guards, f = guards_of(argument(tensors()))
    for name, change in SAME.items():
        xs = tensors()
        change(xs)
        given = (argument(xs),)
        one_by_one = guards.failure(given, f.__globals__, f) is None
        assert (guards.check(given, f.__globals__, f) is not None) == one_by_one, name
        assert one_by_one or name in ("aliased", "view of another"), name


@pytest.mark.parametrize("count", [1, 2, 3, 15, 16, 17, 33, 100])
@pytest.mark.parametrize("kind", [list, tuple])
def test_the_items_come_in_their_order(count, kind):
    f = smelt.compile(lambda xs: torch.cat(xs), dynamic=False)
    for _ in range(3):
        xs = kind(tensors(count))
        assert torch.equal(f(xs), torch.cat(xs))
    for other in (kind(tensors(count + 1)), kind([x.double() for x in xs])):
        assert torch.equal(f(other), torch.cat(other))


@pytest.mark.parametrize("name", [*CHANGES, *SAME])
def test_calls_after_a_change_are_as_in_eager(name):
    def f(xs):
        return [x * 2 if isinstance(x, torch.Tensor) else x for x in xs]

    compiled = smelt.compile(f)
    compiled(tensors())
    xs = tensors()
    (CHANGES | SAME)[name](xs)
    if any(isinstance(x, torch.Tensor) and x.layout is not torch.strided for x in xs):
        pytest.skip("the sparse kind is what the guards are asked about above")
    for _ in range(2):
        for ours, theirs in zip(compiled(xs), f(xs), strict=True):
            if not isinstance(theirs, torch.Tensor):
                assert type(ours) is type(theirs)
                continue
            assert (ours.shape, ours.dtype, ours.device, ours.requires_grad, type(ours)) == (
                theirs.shape, theirs.dtype, theirs.device, theirs.requires_grad, type(theirs),
            )  # fmt: skip
            assert theirs.is_meta or torch.equal(ours, theirs)


def test_lists_that_the_function_writes():
    def f(xs):
        for i, x in enumerate(xs):
            xs[i] = x + 1
        xs.append(xs.pop(0) * 2)
        return sum(xs)

    compiled = smelt.compile(f)
    ours, theirs = tensors(), tensors()
    for _ in range(4):
        assert torch.equal(compiled(ours), f(theirs))
        assert all(map(torch.equal, ours, theirs))


def test_tensors_that_the_function_writes_alias_or_not():
    def f(xs):
        for x in xs:
            x.add_(1)
        return sum(xs)

    compiled = smelt.compile(f)
    for share in (False, True, False, True):
        ours, theirs = tensors(), tensors()
        if share:
            ours[2], theirs[2] = ours[7], theirs[7]
        assert torch.equal(compiled(ours), f(theirs))
        assert all(map(torch.equal, ours, theirs))


def test_parameters_in_lists_and_dicts_of_modules():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.ParameterList([nn.Parameter(torch.full((4,), float(i))) for i in range(20)])
            self.named = nn.ParameterDict({f"k{i}": nn.Parameter(torch.full((4,), float(i))) for i in range(20)})

        def forward(self, x):
            return sum(row * x for row in self.rows) + sum(row + x for row in self.named.values())

    net = Net()
    compiled = smelt.compile(net)
    x = torch.ones(4)
    torch.testing.assert_close(compiled(x), net(x))
    net.rows[7] = nn.Parameter(torch.zeros(4))
    net.named["k3"] = nn.Parameter(torch.full((4,), 9.0), requires_grad=False)
    torch.testing.assert_close(compiled(x), net(x))
    with torch.no_grad():
        net.rows[19].fill_(50.0)
    torch.testing.assert_close(compiled(x), net(x))
