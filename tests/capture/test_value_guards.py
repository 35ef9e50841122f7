"""A version is for the values that it was made with: of every class, wherever one stands, before and after a break."""

from __future__ import annotations

import datetime
import decimal
import fractions
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.capture.harness import compiled, same


class Whole(int):
    scale: int


class Text(str):
    pass


class Exact(decimal.Decimal):
    scale: int


class Bag:
    held: Any


def whole(value: int, scale: int) -> Whole:
    out = Whole(value)
    out.scale = scale
    return out


def exact(value: str, scale: int) -> Exact:
    out = Exact(value)
    out.scale = scale
    return out


NAN = float("nan")
PAIRS: list[tuple[Any, Any]] = [
    (slice(12, None), slice(None, 12)),
    (slice(0, 6, 2), slice(0, 6, 3)),
    (slice(None), slice(None, None, -1)),
    (slice("a", None), slice("b", None)),
    (decimal.Decimal(1), decimal.Decimal(2)),
    (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    (decimal.Decimal("NaN"), decimal.Decimal("0")),
    (decimal.Decimal("0"), decimal.Decimal("-0")),
    (fractions.Fraction(1, 2), fractions.Fraction(3, 2)),
    (datetime.timedelta(1), datetime.timedelta(2)),
    (datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)),
    (datetime.datetime(2020, 1, 1, fold=0), datetime.datetime(2020, 1, 1, fold=1)),
    (NAN, 1.0),
    (1.0, NAN),
    (0.0, -0.0),
    (complex(NAN, 1), complex(1, NAN)),
    (complex(0.0, -0.0), complex(0.0, 0.0)),
    (1, True),
    (1, 1.0),
    (range(0, 3, 2), range(0, 4, 2)),
    (range(0), range(5, 5)),
    (np.float32(0.0), np.float32(-0.0)),
    (np.float64(NAN), np.float64(1.0)),
    (np.datetime64("2020", "Y"), np.datetime64("2020-01-01", "D")),
    (np.int8(1), np.int16(1)),
    (np.dtype("f4"), np.dtype("f8")),
    ("a", "b"),
    (b"a", b"b"),
    (None, False),
    ((1, (slice(1, 2), NAN)), (1, (slice(1, 3), NAN))),
    (whole(1, 2), whole(1, 3)),
    (whole(1, 2), whole(2, 2)),
    (whole(1, 2), 1),
    (Text("a"), Text("b")),
    (exact("1", 2), exact("1", 3)),
    (exact("1", 2), exact("2", 2)),
    ([1, decimal.Decimal(1)], [1, decimal.Decimal(2)]),
    ({"a": slice(1)}, {"a": slice(2)}),
    (torch.Size((1, 2)), torch.Size((2, 1))),
    (torch.float32, torch.float64),
    (torch.device("cpu"), torch.device("meta")),
]

GLOBAL: Any = None


def show(value: Any) -> Any:
    """What a program sees of a value."""
    kind = type(value)
    if kind is slice:
        return value.start, value.stop, value.step
    if isinstance(value, (list, tuple)):
        return [show(item) for item in value]
    if isinstance(value, dict):
        return {key: show(item) for key, item in value.items()}
    seen = [kind.__name__, str(value), repr(value), getattr(value, "scale", None)]
    if isinstance(value, (float, complex, decimal.Decimal)):
        seen.append(value != value)
    if isinstance(value, range):
        seen.append(value.stop)
    return seen


PLACES: dict[str, Callable[[Any, Any], Any]] = {
    "argument": lambda run, value: run(value),
    "list": lambda run, value: run([value]),
    "dict": lambda run, value: run({"k": value}),
    "attribute": lambda run, value: run(_bag(value)),
}


def _bag(value: Any) -> Bag:
    out = Bag()
    out.held = value
    return out


def _read(held: Any) -> Any:
    if type(held) is Bag:
        return held.held
    if type(held) is list and len(held) == 1:
        return held[0]
    if type(held) is dict and "k" in held:
        return held["k"]
    return held


def before(held: Any, x: Tensor) -> Any:
    return x + 1, show(_read(held))


def behind(held: Any, x: Tensor) -> Any:
    y = x + 1
    if y.sum().item() < 1e9:
        y = y * 2
    return y, show(_read(held)), y.tolist()


@pytest.mark.parametrize("fn", [before, behind], ids=["before", "behind"])
@pytest.mark.parametrize("place", PLACES)
def test_a_version_is_for_its_value(place: str, fn: Any) -> None:
    for number, (a, b) in enumerate(PAIRS):
        run = compiled(fn, recompile_limit=30)
        for value in (a, b, a, b):
            x = torch.ones(2)
            want = PLACES[place](lambda held, x=x: fn(held, x), value)
            got = PLACES[place](lambda held, x=x, run=run: run(held, x), value)
            assert same(want, got) or str(want) == str(got), f"pair {number}: {want} {got}"


def test_globals_closures_and_defaults() -> None:
    global GLOBAL
    cell: Any = None

    def closed(x: Tensor) -> Any:
        return x + 1, show(cell), show(GLOBAL)

    for a, b in PAIRS:

        def default(x: Tensor, held: Any = None, *, named: Any = None) -> Any:
            return x + 1, show(held), show(named)

        runs = compiled(closed, recompile_limit=30), compiled(default, recompile_limit=30)
        for value in (a, b, a):
            cell = GLOBAL = value
            default.__defaults__, default.__kwdefaults__ = (value,), {"named": value}
            for fn, run in zip((closed, default), runs, strict=True):
                assert str(fn(torch.ones(1))) == str(run(torch.ones(1))), (a, b)


def test_slices_index() -> None:
    x = torch.arange(14.0)
    run = compiled(lambda x, s: x[s], recompile_limit=60)
    for start, stop, step in itertools.product((None, 0, 3, -2), (None, 0, 5, -1), (None, 1, 2)):
        assert run(x, slice(start, stop, step)).equal(x[slice(start, stop, step)])
    both = compiled(lambda x, s, t: (x[s], x[t], s == t, list(range(9))[s], s.indices(5)))
    for pair in ((slice(1, 3), slice(1, 3)), (slice(2, 4), slice(1, 3))):
        assert same(
            both(x, *pair), (x[pair[0]], x[pair[1]], pair[0] == pair[1], list(range(9))[pair[0]], pair[0].indices(5))
        )
    kept = slice(1, 5)
    assert compiled(lambda x, s: (x + 1, s))(x, kept)[1] is kept


def test_nan_and_the_sign_of_zero_with_numbers_that_change() -> None:
    one = torch.ones(1)
    unequal = compiled(lambda x, s: x + (1 if s != s else 0))
    assert [unequal(one, v).item() for v in (1.0, 2.0, NAN, 3.0, NAN)] == [1, 1, 2, 1, 2]
    signed = compiled(lambda x, s: x * math.copysign(1.0, s))
    assert [signed(one, v).item() for v in (1.0, 2.0, -0.0, 0.0, -3.0)] == [1, 1, -1, 1, -1]


def test_a_number_that_changes_and_is_read_twice() -> None:
    run = compiled(lambda x, held: x * held[0] + x * held[0])
    for number in (2, 3, 4, 1.5, 2.5):
        assert run(torch.ones(2), [number]).equal(torch.full((2,), 2.0 * number))


def test_facts_of_tensors() -> None:
    viewed = compiled(lambda x: x * 2 if x._is_view() else x * 3)
    base = torch.ones(4)
    assert [viewed(x)[0].item() for x in (torch.ones(2), base[:2], torch.ones(2))] == [3, 2, 3]
    assert compiled(lambda x: (x * 1, x[1:]._is_view(), (x + 1)._is_view()))(base)[1:] == (True, False)
    retains = compiled(lambda x: (x * 2, x.retains_grad)[1])
    made = torch.ones(2, requires_grad=True) * 1
    first = retains(made)
    made.retain_grad()
    assert (first, retains(made)) == (False, True)
    number = compiled(lambda x: (x * 2 + x.output_nr).mean().item())
    assert [number(t) for t in torch.ones(3, 2, requires_grad=True).unbind()] == [2, 3, 4]


class Distance:
    def __init__(self) -> None:
        self.scale = 1.0

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        return (a - b).abs().sum(-1) * self.scale

    def method(self, a: Tensor, b: Tensor) -> Tensor:
        return self(a, b)


def test_functions_that_functional_calls() -> None:
    a = torch.ones(2, 3), torch.zeros(2, 3), torch.full((2, 3), 0.5)
    scale = [1.0]
    distance = Distance()
    for given in (lambda a, b: (a - b).abs().sum(-1) * scale[0], distance, distance.method):
        run = compiled(
            lambda x, y, z, given=given: F.triplet_margin_with_distance_loss(x, y, z, distance_function=given)
        )
        for factor in (1.0, 5.0, 1.0):
            scale[0] = distance.scale = factor
            want = F.triplet_margin_with_distance_loss(*a, distance_function=given)
            assert run(*a).equal(want), factor
    layer = torch.nn.TripletMarginWithDistanceLoss(distance_function=distance)
    run = compiled(layer)
    for factor in (1.0, 5.0):
        distance.scale = factor
        assert run(*a).equal(layer(*a))


def test_functions_that_run_on_elements() -> None:
    run = compiled(lambda x, y: ((x * 2).apply_(lambda v: v + 1), (x * 1).map_(y, lambda a, b: a - b)))
    x, y = torch.ones(2), torch.full((2,), 3.0)
    for _ in range(2):
        assert same(run(x, y), (torch.full((2,), 3.0), torch.full((2,), -2.0)))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.longdouble])
def test_signs_of_zeros_of_numpy(kind: Callable[[float], Any]) -> None:
    run = compiled(lambda x, number: x * float(np.copysign(1.0, number)))
    for value in (-0.0, 0.0, -0.0):
        assert run(torch.ones(1), kind(value)).item() == math.copysign(1.0, value)
