"""`super()`: of tensors of the program's own classes, across graph breaks, and objects that were made elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled, same


class Plain(Tensor):
    def twice(self) -> Any:
        return super().mul(2)

    def named(self) -> Any:
        return super(Plain, self).add(3)  # noqa: UP008

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        return super().sum(*args, **kwargs) + 1

    def __add__(self, other: Any) -> Any:
        return super().__add__(other) * 2

    def __setitem__(self, at: Any, value: Any) -> None:
        super().__setitem__(at, value)

    def __iadd__(self, other: Any) -> Any:  # type: ignore[misc]
        return super().__iadd__(other)

    def __len__(self) -> int:
        return super().__len__() + 1

    @property
    def turned(self) -> Any:
        return super().T

    @classmethod
    def of(cls, x: Tensor) -> Any:
        return x.as_subclass(cls)

    def later(self, n: int) -> Any:
        y = super().mul(n)
        self = y + 1  # noqa: F841
        n = len(str(n))
        return super().mul(n), y


class Child(Plain):
    def twice(self) -> Any:
        return super().twice() + 1

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        return super().sum(*args, **kwargs) * 3

    @property
    def turned(self) -> Any:
        return super().turned + 1

    @classmethod
    def of(cls, x: Tensor) -> Any:
        return super().of(x)


LOG: list[str] = []


class Logged(Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        LOG.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


class Turned(Logged):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.add:
            return super().__torch_function__(torch.sub, types, args, kwargs)
        return super(Turned, cls).__torch_function__(func, types, args, kwargs)  # noqa: UP008

    def twice(self) -> Any:
        return super().mul(2)

    def __add__(self, other: Any) -> Any:
        return super().__add__(other)


class Tagged(Tensor):
    tag: int

    @staticmethod
    def __new__(cls, x: Tensor, tag: int = 1) -> Tagged:
        made = super().__new__(cls, x)
        made.tag = tag
        return made

    def __init__(self, x: Tensor, tag: int = 1) -> None:
        super().__init__()


METHODS: list[Callable[[Any], Any]] = [
    lambda t: t.twice(),
    lambda t: t + 1,
    lambda t: torch.add(t, 1),
    lambda t: t.sum(),
    lambda t: t.sum(dim=0),
    lambda t: (len(t), t * 2),
]
OWN: list[Callable[[Any], Any]] = [
    lambda t: t.named(),
    lambda t: (t.__setitem__(0, 7.0), t * 2)[1],
    lambda t: t.__iadd__(2) * 2,
    lambda t: t.turned,
    lambda t: t.later(10),
    lambda t: type(t).of(t * 2).twice(),
    lambda t: super(type(t), t).sum(),
    lambda t: super(type(t), type(t)).sum(t),
]


@pytest.mark.parametrize("kind", [Plain, Child])
@pytest.mark.parametrize("fn", METHODS + OWN)
def test_methods_of_tensor_classes(fn: Callable[[Any], Any], kind: type) -> None:
    _compare(fn, lambda: torch.arange(6.0).reshape(2, 3).as_subclass(kind))


@pytest.mark.parametrize("kind", [Logged, Turned])
@pytest.mark.parametrize("fn", METHODS[1:])
def test_torch_function(fn: Callable[[Any], Any], kind: type) -> None:
    _compare(fn, lambda: torch.arange(6.0).reshape(2, 3).as_subclass(kind))


def test_method_under_torch_function() -> None:
    _compare(METHODS[0], lambda: torch.ones(2).as_subclass(Turned))


def test_constructors_of_tensor_classes() -> None:
    _compare(lambda x: Tagged(x * 2) + 1, lambda: torch.ones(2))
    _compare(lambda x: Tagged(x * 2, 3).tag + x, lambda: torch.ones(2))


class Base:
    def __init__(self, weight: float) -> None:
        self.weight = weight

    def scale(self, x: Tensor) -> Tensor:
        return x * self.weight


class Derived(Base):
    def __init__(self, weight: float) -> None:
        super().__init__(weight)
        self.up = super()

    def scale(self, x: Tensor) -> Tensor:
        return super().scale(x) + 100

    def held(self, x: Tensor) -> Tensor:
        return self.up.scale(x)

    def across(self, x: Tensor) -> Tensor:
        up = super()
        y = up.scale(x)
        print(end="")
        return up.scale(y)

    def parts(self, x: Tensor) -> Any:
        up = super()
        return x * up.__self__.weight, up.__self__ is self, up.__thisclass__, up.__class__, hasattr(up, "nothing")

    def unbound(self, x: Tensor) -> Tensor:
        return super(Derived).__get__(self).scale(x)

    def replaced(self, x: Tensor) -> Tensor:
        print(end="")
        self = Derived(self.weight + 1)
        print(end="")
        return super().scale(x)

    def deleted(self, x: Tensor) -> Any:
        del self
        return super().scale(x)  # type: ignore[misc]

    def without_names(*args: Any) -> Any:  # type: ignore[misc]
        return super().scale(args[1])  # type: ignore[misc]

    def missing(self, x: Tensor) -> Any:
        return super().nothing + x  # type: ignore[misc]

    def in_a_function(self, x: Tensor) -> Any:
        def inner(mine: Any) -> Any:
            return super().scale(x) + mine.weight  # type: ignore[misc]

        return inner(self)


@pytest.mark.parametrize(
    "name",
    "scale held across parts unbound replaced deleted without_names missing in_a_function".split(),
)
def test_other_objects(name: str) -> None:
    """The third call has another object, also behind a `super` that was made outside."""

    def fn(each: Derived, x: Tensor) -> Any:
        return getattr(each, name)(x)

    run, x = compiled(fn), torch.arange(3.0)
    objects = Derived(2.0), Derived(2.0)
    for call in range(3):
        assert same(_outcome(run, objects[0], x), _outcome(fn, objects[1], x)), call
        for each in objects:
            each.weight += 1
            if call == 1:
                each.up = Derived(7.0).up


def test_of_a_parameter() -> None:
    p = torch.nn.Parameter(torch.ones(3))
    assert compiled(lambda p: super(torch.nn.Parameter, p).sum())(p) == 3


def _outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as error:
        return type(error).__name__, str(error)


def _compare(fn: Callable[[Any], Any], make: Callable[[], Tensor]) -> None:
    """Results, their classes, what was written, and what `__torch_function__` saw, twice."""
    run, given = compiled(fn), (make(), make())
    for _ in range(2):
        seen = []
        for call, t in ((fn, given[0]), (run, given[1])):
            LOG.clear()
            out = call(t)
            seen.append((list(LOG), _plain(out), _plain(t)))
        assert seen[0] == seen[1]


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            return type(value), value.tolist()
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


class Doubling(list[Any]):
    def append(self, item: Any) -> None:
        super().append(item * 2)

    def __setitem__(self, at: Any, item: Any) -> None:
        super().__setitem__(at, item + 1)


class Shifted(dict[Any, Any]):
    def __setitem__(self, key: Any, item: Any) -> None:
        super().__setitem__(key, item + 1)

    def __delitem__(self, key: Any) -> None:
        super().__setitem__("deleted", key)
        super().__delitem__(key)


class Twice(set[Any]):
    def update(self, *items: Any) -> None:
        super().update(*([each * 2 for each in one] for one in items))


def _writes(items: Any, table: Any, group: Any, x: Tensor) -> Any:
    mine = Doubling([x])
    mine.append(x)
    items.append(3)
    items[0] = 5
    table["a"] = 1
    del table["b"]
    group.update([1, 4])
    return list(mine), x + len(items)


def _appends(items: Any, table: Any, group: Any, x: Tensor) -> Any:
    items.append(3)
    return x + 1


@pytest.mark.parametrize("fn", [_writes, _appends])
def test_containers_that_override_what_writes_to_them(fn: Callable[..., Any]) -> None:
    """What was written is stored as it is, not through the methods once more."""
    given = [(Doubling([1]), Shifted(a=1, b=2), Twice([7])) for _ in range(2)]
    run, x = compiled(fn), torch.ones(2)
    for _ in range(2):
        assert same(run(*given[0], x), fn(*given[1], x))
        given[0][1]["b"] = given[1][1]["b"] = 4
        assert [str(each) for each in given[0]] == [str(each) for each in given[1]]
