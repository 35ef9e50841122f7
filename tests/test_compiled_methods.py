"""Compiled methods and objects that can be called belong to an object, as in eager: copies of it have their own."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import inspect
import pickle
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w

    def shifted(self, x: Tensor, by: float = 1.0) -> Tensor:
        return x + self.w * by

    async def later(self, x: Tensor) -> Tensor:
        return self.shifted(x)

    def parts(self, x: Tensor) -> Any:
        yield self.shifted(x)
        yield self(x)


class Plain:
    """Not a module: an object that can be called."""

    def __init__(self) -> None:
        self.w = torch.full((3,), 2.0)

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.w


class Slotted:
    __slots__ = ("w",)

    def __init__(self) -> None:
        self.w = torch.full((3,), 2.0)

    def __call__(self, x: Tensor) -> Tensor:
        return x - self.w


Compile = Callable[[Any], Any]
X = torch.ones(3)


def _forward(compile: Compile) -> Any:
    m = Scaled()
    m.forward = compile(m.forward)  # type: ignore[method-assign]
    return m, m.w, lambda m: m(X)


def _two_methods(compile: Compile) -> Any:
    m: Any = Scaled()
    m.forward, m.shifted = compile(m.forward), compile(m.shifted)
    return m, m.w, lambda m: (m(X), m.shifted(X, by=3.0))


def _another_name(compile: Compile) -> Any:
    m: Any = Scaled()
    m.fast = compile(m.shifted)
    return m, m.w, lambda m: m.fast(X)


def _in_a_list(compile: Compile) -> Any:
    m: Any = Scaled()
    m.steps = [compile(m.shifted), {"forward": compile(m.forward)}]
    return m, m.w, lambda m: (m.steps[0](X), m.steps[1]["forward"](X))


def _of_a_submodule(compile: Compile) -> Any:
    m: Any = nn.Sequential(Scaled(), Scaled())
    m.first = compile(m[0].shifted)
    return m, m[0].w, lambda m: m.first(X)


def _of_torch(compile: Compile) -> Any:
    m: Any = nn.Linear(3, 3)
    m.forward = compile(m.forward)
    return m, m.weight, lambda m: m(X)


def _partial(compile: Compile) -> Any:
    m: Any = Scaled()
    m.fast = compile(functools.partial(m.shifted, by=2.0))
    return m, m.w, lambda m: m.fast(X)


def _partial_of_a_compiled_one(compile: Compile) -> Any:
    m: Any = Scaled()
    m.fast = functools.partial(compile(m.shifted), by=2.0)
    return m, m.w, lambda m: m.fast(X)


def _partial_over_a_tensor(compile: Compile) -> Any:
    m = types.SimpleNamespace(w=torch.full((3,), 2.0))
    m.fast = compile(functools.partial(torch.mul, m.w))
    return m, m.w, lambda m: m.fast(X)


def _object(compile: Compile) -> Any:
    m: Any = types.SimpleNamespace(inner=Plain())
    m.fast = compile(m.inner)
    return m, m.inner.w, lambda m: m.fast(X)


def _object_with_slots(compile: Compile) -> Any:
    m: Any = types.SimpleNamespace(inner=Slotted())
    m.fast = compile(m.inner)
    return m, m.inner.w, lambda m: m.fast(X)


def _compiled_twice(compile: Compile) -> Any:
    m = Scaled()
    m.forward = compile(compile(m.forward))  # type: ignore[method-assign]
    return m, m.w, lambda m: m(X)


def _coroutine(compile: Compile) -> Any:
    m: Any = Scaled()
    m.later = compile(m.later)
    return m, m.w, lambda m: asyncio.run(m.later(X))


def _generator(compile: Compile) -> Any:
    m: Any = Scaled()
    m.parts = compile(m.parts)
    return m, m.w, lambda m: list(m.parts(X))


HOLDERS = [
    *(_forward, _two_methods, _another_name, _in_a_list, _of_a_submodule, _of_torch, _partial),
    *(_partial_of_a_compiled_one, _partial_over_a_tensor, _object, _object_with_slots, _compiled_twice),
    *(_coroutine, _generator),
]


def _shown(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else [_shown(each) for each in value]


def _history(holder: Callable[[Compile], Any], compile: Compile, copied: Callable[[Any], Any], early: bool) -> Any:
    """What an object and its copy give, before and after one of them is written to."""
    torch.manual_seed(0)
    m, w, run = holder(compile)
    out = [] if early else [run(m)]
    other = copied(m)
    out += [run(m), run(other)]
    with torch.no_grad():
        w.fill_(100.0)
    out += [run(m), run(other), run(copied(other))]
    return [_shown(each) for each in out]


@pytest.mark.parametrize("early", [False, True], ids=["after a call", "before any call"])
@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy], ids=["deepcopy", "copy"])
@pytest.mark.parametrize("holder", HOLDERS, ids=lambda f: f.__name__.strip("_"))
def test_copies_as_in_eager(holder: Callable[[Compile], Any], copied: Callable[[Any], Any], early: bool) -> None:
    got, want = (_history(holder, each, copied, early) for each in (smelt.compile, lambda f: f))
    torch.testing.assert_close(got, want)


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("holder", [_forward, _two_methods, _another_name, _in_a_list, _of_torch, _object])
def test_pickled_as_in_eager(holder: Callable[[Compile], Any]) -> None:
    got, want = (_history(holder, each, _pickled, False) for each in (smelt.compile, lambda f: f))
    torch.testing.assert_close(got, want)


def test_a_copy_is_compiled_and_needs_no_version_of_its_own() -> None:
    m, _, run = _forward(smelt.compile)
    run(m)
    other = copy.deepcopy(m)
    run(other)
    assert smelt.is_compiled(other.forward) and smelt.stats()["graphs"] == 1


def test_a_copy_does_not_keep_what_it_was_copied_from() -> None:
    m, w, run = _forward(smelt.compile)
    other = copy.deepcopy(m)
    run(other)
    gone = weakref.ref(m)
    del m, w
    gc.collect()
    assert gone() is None
    run(other)


def test_gradients_belong_to_the_copy() -> None:
    m, w, run = _forward(smelt.compile)
    run(m).sum().backward()
    other = copy.deepcopy(m)
    run(other).sum().backward()
    run(other).sum().backward()
    assert w.grad.tolist() == [1.0] * 3 and other.w.grad.tolist() == [2.0] * 3


def test_compiled_method_keeps_its_name_signature_and_instance() -> None:
    m = Scaled()
    run = smelt.compile(m.shifted)
    assert smelt.is_compiled(run) and run.__self__ is m and run.__name__ == "shifted"
    assert inspect.signature(run) == inspect.signature(m.shifted)
    assert not smelt.is_compiled(m.shifted) and smelt.is_compiled(smelt.compile(Plain()))


def test_an_object_in_a_class_is_no_method() -> None:
    """Python binds functions that a class holds; objects that can be called stay as they are."""

    class Holder:
        eager = Plain()
        fast = smelt.compile(Plain())
        part = smelt.compile(functools.partial(torch.add, X))

    assert Holder().fast(X).tolist() == Holder().eager(X).tolist()
    assert Holder().part(X).tolist() == [2.0] * 3


def test_inside_of_another_compiled_function() -> None:
    m, w, run = _two_methods(smelt.compile)
    other = copy.deepcopy(m)
    outer = smelt.compile(lambda a, b: (a(X), b.shifted(X)), fullgraph=True)
    with torch.no_grad():
        w.fill_(100.0)
    assert _shown(outer(m, other)) == [[100.0] * 3, [3.0] * 3]


def doubled(x: Tensor) -> Tensor:
    return x * 2


decorated = smelt.compile(doubled)


def test_a_compiled_function_beside_its_original_is_not_pickled() -> None:
    """Functions are pickled by name, and the name leads to another one: so it is with those that a decorator makes."""
    with pytest.raises(pickle.PicklingError, match="not the same object"):
        pickle.dumps(decorated)
