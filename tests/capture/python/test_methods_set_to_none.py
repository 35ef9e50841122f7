"""A class that sets a method to None says that it has none, whatever else could stand in for it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled

_NONE = "iter contains hash reversed bool add call eq lt neg str index".split()


class Refusing:
    def __getitem__(self, at: int) -> int:
        if at > 3:
            raise IndexError
        return at

    def __len__(self) -> int:
        return 3


for _name in _NONE:
    setattr(Refusing, f"__{_name}__", None)

ASKING: dict[str, Callable[[Any], Any]] = {
    "iter": iter,
    "for": lambda value: [item for item in value],  # noqa: C416
    "star": lambda value: [*value],
    "list": list,
    "sum": sum,
    "zip": lambda value: list(zip(value, value, strict=True)),
    "unpacking": lambda value: operator.add(*value),
    "in": lambda value: 1 in value,
    "not in": lambda value: 9 not in value,
    "reversed": lambda value: list(reversed(value)),
    "bool": bool,
    "if": lambda value: 1 if value else 2,
    "not": lambda value: not value,
    "hash": hash,
    "set": lambda value: {value},
    "add": lambda value: value + 1,
    "eq": lambda value: value == 1,
    "lt": lambda value: value < 1,
    "neg": lambda value: -value,
    "call": lambda value: value(),
    "str": str,
    "index": lambda value: [1, 2][value],
    "len": len,
}


@pytest.mark.parametrize("from_outside", [False, True])
@pytest.mark.parametrize("name", ASKING)
def test_none_is_no_method(name: str, from_outside: bool) -> None:
    ask, outside = ASKING[name], Refusing()

    def f(x: Tensor) -> Any:
        value = outside if from_outside else Refusing()
        try:
            return ask(value), x + 1
        except TypeError as error:
            return str(error), x + 1

    want, run = f(torch.ones(2)), compiled(f)
    for _ in range(2):
        assert run(torch.ones(2))[0] == want[0]
