"""`__getattribute__`, `__getattr__`, `__setattr__` and `__delattr__` of any kind, and who asks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled, same

WRITTEN: list[Any] = []


class Giving:
    """A descriptor that gives what its owner calls."""

    def __init__(self, called: Callable[..., Any]) -> None:
        self.called = called

    def __get__(self, obj: Any, cls: Any) -> Any:
        return self.called


class Held:
    def __init__(self) -> None:
        self.own = 1


class Fallback(Held):
    def __getattr__(self, name: str) -> Any:
        return f"no {name}"

    @property
    def refused(self) -> Any:
        raise AttributeError("the property's")


class Child(Fallback):
    def above(self) -> Any:
        try:
            return super().refused
        except AttributeError as error:
            return f"caught {error}"


class Both(Held):
    def __getattribute__(self, name: str) -> Any:
        if name == "other":
            raise AttributeError("not here")
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        return f"no {name}"


class ByDescriptor(Held):
    __getattribute__ = Giving(lambda name: f"given {name}")  # type: ignore[assignment]


class FallbackByDescriptor(Held):
    __getattr__ = Giving(lambda name: f"given {name}")


class Writing:
    __setattr__ = Giving(lambda name, value: WRITTEN.append((name, value)))  # type: ignore[assignment]
    __delattr__ = Giving(lambda name: WRITTEN.append(name))  # type: ignore[assignment]


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        return 42 if name == "other" else super().__getattribute__(name)

    def __getattr__(cls, name: str) -> Any:
        return f"no {name}"


class OfMeta(metaclass=Meta):
    own = 1


def _asked(value: Any) -> Any:
    return value.own, value.other, value.missing


def _generic(value: Any) -> Any:
    found: list[Any] = []
    for name in ("own", "refused", "other"):
        try:
            found.append(object.__getattribute__(value, name))
        except AttributeError as error:
            found.append(str(error))
        found += [getattr(value, name, "default"), hasattr(value, name)]
    return found


def _written(value: Any) -> Any:
    WRITTEN.clear()
    value.own = 3
    del value.other
    return list(WRITTEN), sorted(vars(value))


PROGRAMS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "fallback": (Fallback, _asked),
    "fallback, asked for no more than the object": (Fallback, _generic),
    "fallback of a property": (Fallback, lambda value: value.refused),
    "property of the parent class": (Child, lambda value: value.above()),
    "both": (Both, _asked),
    "a descriptor": (ByDescriptor, _asked),
    "fallback that is a descriptor": (FallbackByDescriptor, _asked),
    "writes": (Writing, _written),
    "of the metaclass": (lambda: OfMeta, _asked),
    "a module's": (lambda: torch.nn.Linear(2, 2), lambda value: _failing(value, "weight")),
}


def _failing(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError as error:
        return str(error)


@pytest.mark.parametrize("from_outside", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_hooks_are_asked_as_in_eager(name: str, from_outside: bool) -> None:
    make, ask = PROGRAMS[name]
    outside = make()

    def f(x: Tensor) -> Any:
        value = outside if from_outside else make()
        return ask(value), x + 1, ask(value)

    want, run = f(torch.ones(2)), compiled(f)
    for _ in range(2):
        assert same(list(want), list(run(torch.ones(2))))


def test_an_attribute_that_a_fallback_stood_for_is_set_later() -> None:
    value: Any = Fallback()
    run = compiled(lambda x: (value.late, x + 1))
    assert run(torch.ones(2))[0] == "no late"
    value.late = 5
    assert run(torch.ones(2))[0] == 5


class Refusing:
    """Has in its dictionary what it is not asked for there."""

    def __init__(self) -> None:
        self.__dict__["x"] = 5

    def __getattribute__(self, name: str) -> Any:
        if name == "x":
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        return 3


class RefusingProperty(Fallback):
    def __init__(self) -> None:
        self.__dict__["refused"] = 5


class RefusingModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.__dict__["x"] = 5

    @property
    def x(self) -> Any:
        raise AttributeError("the property's")


def _deleted(value: Any) -> Any:
    del value.own
    found = value.own, hasattr(value, "own")
    value.own = 1
    return found


def _deleted_without_fallback(value: Any) -> Any:
    del value.own
    found = hasattr(value, "own")
    value.own = 1
    return found


def _popped(value: Any) -> Any:
    vars(value).pop("own")
    found = value.own
    value.own = 1
    return found


class WithClassValue(Held):
    own = 9


@pytest.mark.parametrize(
    ("make", "ask"),
    [
        (Refusing, lambda value: value.x),
        (RefusingProperty, lambda value: value.refused),
        (RefusingModule, lambda value: hasattr(value, "x")),
        (Fallback, _deleted),
        (Held, _deleted_without_fallback),
        (WithClassValue, _popped),
    ],
    ids=["__getattribute__", "property", "property of a module", "deleted", "deleted, no fallback", "popped"],
)
def test_attribute_lookups_of_an_unchanged_object_compile_once(make: Any, ask: Callable[[Any], Any]) -> None:
    """That the dictionary lacks the name is guarded only where it does."""
    value, run = make(), compiled(lambda x, value: (ask(value), x + 1))
    want = ask(make())
    for _ in range(4):
        assert run(torch.ones(2), value)[0] == want
    assert all(len(site.versions) == 1 for site in run._smelt_session.sites.values() if site.versions)
