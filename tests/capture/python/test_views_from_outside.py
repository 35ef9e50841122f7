"""Keys, values and items of dictionaries, and read-only proxies, that existed before the frame: part of the graph."""

from __future__ import annotations

import collections
import types
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt

TABLE = {"x": 1, "y": 2}
ORDERED = collections.OrderedDict(a=1, b=2)
CHAIN = collections.ChainMap({"p": 1}, {"q": 2})
USER = collections.UserDict(k=3)
TENSORS = {"t": torch.ones(2)}
PROXY = types.MappingProxyType(TABLE)
KEYS, VALUES, ITEMS = TABLE.keys(), TABLE.values(), TABLE.items()
ORDERED_KEYS, ORDERED_VALUES, ORDERED_ITEMS = ORDERED.keys(), ORDERED.values(), ORDERED.items()
CHAIN_KEYS, CHAIN_ITEMS, USER_KEYS = CHAIN.keys(), CHAIN.items(), USER.keys()
TENSOR_VALUES, TENSOR_PROXY = TENSORS.values(), types.MappingProxyType(TENSORS)


class Holder:
    def __init__(self) -> None:
        self.u = 1


HOLDER = Holder()
ATTRIBUTES, ATTRIBUTE_VALUES = types.MappingProxyType(HOLDER.__dict__), HOLDER.__dict__.values()


def item(x: Tensor) -> Any:
    return x * PROXY["x"] + PROXY.get("y", 0) + PROXY.get("no", 7) + ("x" in PROXY)


def whole_proxy(x: Tensor) -> Any:
    return x + len(list(PROXY)) + len(dict(PROXY)) + (PROXY | {"q": 1})["q"] + sum(PROXY.values())


def refused(x: Tensor) -> Any:
    try:
        PROXY["no"]
    except KeyError as error:
        x = x + len(str(error))
    try:
        PROXY["x"] = 1  # type: ignore[index]
    except TypeError as error:
        x = x + len(str(error))
    return x


def keys(x: Tensor) -> Any:
    return x + len(KEYS) + ("x" in KEYS) + sorted(KEYS).index("y") + len(list(reversed(KEYS)))


def sets(x: Tensor) -> Any:
    return (
        x + len(KEYS & {"x"}) + len(KEYS | {"z"}) + len(KEYS - {"x"}) + (KEYS == {"x", "y"}) + (ITEMS == TABLE.items())
    )


def pairs(x: Tensor) -> Any:
    for key, value in ITEMS:
        x = x * value + len(key)
    return x


def ordered(x: Tensor) -> Any:
    return x + len(list(ORDERED_KEYS)) + sum(ORDERED_VALUES) + sum(v for _, v in ORDERED_ITEMS)


def kin(x: Tensor) -> Any:
    return x + len(list(CHAIN_KEYS)) + sum(v for _, v in CHAIN_ITEMS) + len(list(USER_KEYS)) + USER["k"]


def tensors(x: Tensor) -> Any:
    return x + sum(TENSOR_VALUES) + TENSOR_PROXY["t"]


def argument(x: Tensor, values: Any = VALUES, held: Any = ({"v": VALUES}, PROXY)) -> Any:
    return x + sum(values) + sum(held[0]["v"]) + held[1]["x"]


def left(x: Tensor) -> Any:
    return x + len(KEYS), [KEYS, PROXY], KEYS, KEYS is KEYS


def mapping(x: Tensor) -> Any:
    return x + len(KEYS.mapping) + KEYS.mapping["x"]


def written(x: Tensor) -> Any:
    count = len(VALUES)
    TABLE["w"] = x.sum()  # type: ignore[assignment]
    total = sum(VALUES) + len(KEYS)
    TABLE.pop("w")
    return total + count + len(KEYS)


def attributes(x: Tensor) -> Any:
    count = len(ATTRIBUTES)
    HOLDER.v = 5  # type: ignore[attr-defined]
    total = x + len(ATTRIBUTES) + sum(ATTRIBUTE_VALUES)
    del HOLDER.v  # type: ignore[attr-defined]
    return total + count + len(ATTRIBUTES)


def attributes_before(x: Tensor) -> Any:
    HOLDER.v = 5  # type: ignore[attr-defined]
    total = x + len(ATTRIBUTES) + sum(ATTRIBUTE_VALUES)
    del HOLDER.v  # type: ignore[attr-defined]
    return total + len(ATTRIBUTES)


def changed_while_iterated(x: Tensor) -> Any:
    try:
        for key in KEYS:
            TABLE[key + "n"] = 1
    except RuntimeError:
        x = x + 1
    for key in [key for key in TABLE if key.endswith("n")]:
        del TABLE[key]
    return x


def matched(x: Tensor) -> Any:
    match PROXY:
        case {"x": value}:
            return x + value
    return x


def text(x: Tensor) -> Any:
    return x + 1, repr(PROXY), str(KEYS), f"{ITEMS}"


PROGRAMS = [
    *(item, whole_proxy, refused, keys, sets, pairs, ordered, kin, tensors, argument, left, mapping, written),
    *(attributes, attributes_before, changed_while_iterated, matched, text),
]


def same(got: Any, want: Any) -> bool:
    if isinstance(want, Tensor):
        return torch.equal(got, want)
    if isinstance(want, (tuple, list)):
        return len(got) == len(want) and all(map(same, got, want))
    return got is want if type(want) in (type(KEYS), type(PROXY)) else got == want


@pytest.fixture
def tables():
    held = (TABLE, ORDERED, CHAIN, USER, TENSORS, HOLDER.__dict__)
    before = [dict(each) for each in held]
    yield
    for each, items in zip(held, before, strict=True):
        each.clear()
        each.update(items)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_views_are_read_at_each_call(tables, program):
    f, x = smelt.compile(program), torch.ones(2)
    before = smelt.stats()["breaks"]
    assert same(f(x), program(x))
    assert smelt.stats()["breaks"] == before
    assert same(f(x), program(x))
    TABLE["y"], ORDERED["b"], CHAIN["q"], USER["k"], TENSORS["t"], HOLDER.u = 5, 6, 7, 8, torch.zeros(2), 9
    assert same(f(x), program(x))
    TABLE["new"], ORDERED["new"], CHAIN["new"], USER["new"], HOLDER.new = 5, 6, 7, 8, 9  # type: ignore[attr-defined]
    TENSORS["new"] = torch.ones(2)
    assert same(f(x), program(x))
    assert same(f(x), program(x))


def test_views_of_large_dictionaries_and_of_other_mappings_are_read_outside():
    large, proxy = {k: k for k in range(1000)}, types.MappingProxyType(USER)

    def run(x: Tensor) -> Tensor:
        return x + sum(large.values()) + proxy["k"]

    values = large.values()

    def of_a_view(x: Tensor) -> Tensor:
        return x + sum(values) + proxy["k"]

    for program in (run, of_a_view):
        f = smelt.compile(program)
        assert torch.equal(f(torch.ones(2)), program(torch.ones(2)))
        large[3] += 1
        assert torch.equal(f(torch.ones(2)), program(torch.ones(2)))
