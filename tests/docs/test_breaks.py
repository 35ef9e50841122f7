"""docs/breaks.md: what it says to break a graph does, and the rest does not."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt

SEEN: list[Any] = []


class Holder:
    value: Any = None


HOLDER = Holder()


def saved(x: torch.Tensor) -> torch.Tensor:
    torch.save(x, "/dev/null")
    return x * 2


def seeded(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return x * 2


@smelt.disable
def _left_out(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def disabled(x: torch.Tensor) -> torch.Tensor:
    return _left_out(x * 2) * 3


@torch.compiler.disable
def _left_out_for_torch(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def disabled_for_torch(x: torch.Tensor) -> torch.Tensor:
    return _left_out_for_torch(x * 2) * 3


def class_statement(x: torch.Tensor) -> torch.Tensor:
    class Two:
        two = 2

    return x * Two.two


def looks_at_its_frame(x: torch.Tensor) -> Any:
    y = x * 2  # noqa: F841 (eval reads it)
    return eval("y + 1")


def branch(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        x = x + 1
    return x * 2


def number(x: torch.Tensor) -> torch.Tensor:
    return x * x.sum().item()


def numbers(x: torch.Tensor) -> torch.Tensor:
    return x * x.tolist()[0]


def printed(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    print(y.shape)
    warnings.warn("told", stacklevel=1)
    return y + 1


def written(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    HOLDER.value = y
    SEEN.append(y)
    return y + 1


@contextlib.contextmanager
def _region() -> Iterator[None]:
    yield


def plain_python(x: torch.Tensor) -> torch.Tensor:
    try:
        with _region():
            y: Any = sum(x * i for i in range(3))
    except ValueError:
        y = x
    return (lambda: y + 1)()


BREAKS = [saved, seeded, disabled, disabled_for_torch, class_statement, looks_at_its_frame]
NONE = [branch, number, numbers, printed, written, plain_python]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fn", [*BREAKS, *NONE], ids=lambda fn: fn.__name__)
def test_rows(fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = smelt.explain(fn)(torch.ones(3))
    assert (found.graph_break_count > 0) == (fn in BREAKS)
    assert all("test_breaks.py:" in reason.at for reason in found.break_reasons[:1])
    SEEN.clear()
