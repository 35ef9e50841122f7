"""Guards under construction: sources are fetched once, checks are kept once and print as Python."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from smelt.capture import _native as native
from smelt.capture.core import sources
from smelt.capture.guards.calibrate import calibrate
from smelt.capture.guards.guards import GuardList


@pytest.fixture(autouse=True)
def calibrated():
    calibrate()


class Thing:
    def __init__(self):
        self.x = 3
        self.items = [1, {"k": 2}]


def test_equal_paths_share_fetches():
    guards = GuardList()
    a = sources.instance_item(sources.local(0, "self"), "x")
    b = sources.instance_item(sources.local(0, "self"), "x")
    assert guards.fetch(a) == guards.fetch(b)
    guards.check(a, native.EQ, 3)
    guards.check(b, native.EQ, 3)
    assert len(guards.checks) == 1 and guards.lines() == ["self.x == 3"]


def test_evaluation_follows_the_path():
    guards, thing = GuardList(), Thing()
    root = sources.local(0, "t")
    items = sources.instance_item(root, "items")
    inner = sources.dict_item(sources.sequence_item(items, 1, list), "k")
    guards.check(items, native.LEN, 2)
    guards.check(inner, native.EQ, 2)
    made = guards.finish([guards.fetch(inner)])
    assert inner.text == "t.items[1]['k']" and root.local and inner.local
    assert made.check((thing,), {}) == (2,)
    thing.items[1]["k"] = 5
    assert made.check((thing,), {}) is None


def test_constants_are_not_local():
    base = sources.const(Thing, "Thing")
    assert not sources.class_attr(Thing, "x").local and not sources.attr(base, "y").local
    assert repr(sources.attr(base, "y")) == "<Thing.y>"


def test_module_members_print_like_the_model():
    layers = sources.member(sources.local(0, "self"), "_modules", "layers")
    first = sources.member(layers, "_modules", "0")
    assert sources.member(first, "_parameters", "weight").text == "self.layers[0].weight"
    table = sources.instance_item(layers, "_modules")
    same = sources.dict_item(table, "0")
    assert same.text == "self.layers[0]" and same.kind == native.MODULE_MEMBER


def test_identity_between_sources():
    guards = GuardList()
    a, b, c = (sources.local(i, n) for i, n in enumerate("abc"))
    guards.same(b, a)
    guards.different(c, a)
    guards.all_different([a, c])
    guards.python(lambda x, y: len(y) == 2, [a, c])
    made = guards.finish([])
    one, two = [1], [1, 2]
    assert made.check((one, one, two), {}) is not None
    assert made.check((one, [1], two), {}) is None and made.check((one, one, one), {}) is None
    assert guards.lines()[0] == "a is b" and "all different" in guards.lines()[2]


def test_tensor_guards_do_not_keep_the_tensor():
    guards = GuardList()
    tensor = torch.zeros(2)
    guards.check(sources.local(0, "x"), native.TENSOR, tensor)
    made, alive = guards.finish([]), weakref.ref(tensor)
    assert made.check((torch.ones(2),), {}) is not None and made.check((torch.ones(3),), {}) is None
    del tensor
    gc.collect()
    assert alive() is None and guards.lines() == ["tensor x: float32[2]"]


def test_tensors_that_are_alike_share_what_is_asked_of_them():
    guards = GuardList()
    tensors = [torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(2, 3, requires_grad=True), torch.zeros(3, 2).t()]
    for i, tensor in enumerate(tensors):
        guards.check(sources.local(i, f"t{i}"), native.TENSOR, tensor)
    made = guards.finish([])
    specs = [operand for _, _, operand in made.checks]
    assert specs[0] is specs[1] and len(set(map(id, specs))) == 3
    assert made.check(tensors, {}) is not None
    assert made.check([*tensors[:3], torch.zeros(2, 3)], {}) is None
