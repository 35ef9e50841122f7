"""`__context__` is what was handled when the exception was raised; `with` refuses what its class does not support."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled


def chain(error: BaseException | None) -> list[str]:
    out = []
    while error is not None:
        out.append(repr(error))
        error = error.__context__
    return out


def _replaced() -> None:
    error = ValueError(1)
    error.__context__ = KeyError(2)
    try:
        raise TypeError(3)
    except TypeError:
        raise error  # noqa: B904


def _ring() -> None:
    first, second = ValueError(1), KeyError(2)
    try:
        try:
            raise first
        except ValueError:
            raise second  # noqa: B904
    except KeyError:
        raise first  # noqa: B904


def _nested(first: Exception, second: Exception) -> None:
    try:
        raise first
    finally:
        raise second


def _within() -> None:
    try:
        raise ValueError(0)
    except ValueError:
        _nested(ValueError(1), ValueError(2))


def _raised_twice() -> None:
    error = ValueError(1)
    for other in (KeyError(2), TypeError(3)):
        try:
            try:
                raise other
            except (KeyError, TypeError):
                raise error  # noqa: B904
        except ValueError:
            pass
    raise error


def _names() -> None:
    dict(**{1: 2})  # type: ignore[arg-type]


def _names_of_a_function() -> None:
    (lambda **given: given)(**{1: 2})  # type: ignore[misc]


class Nothing:
    pass


class Entered:
    def __enter__(self) -> None:
        pass


def _with(made: Any) -> Callable[[], None]:
    def enter() -> None:
        torch._dynamo.graph_break()
        with made():
            pass

    return enter


def _with_own_attributes() -> None:
    value: Any = Nothing()
    value.__enter__, value.__exit__ = lambda: 1, lambda *_: True
    with value:
        torch._dynamo.graph_break()


def _with_a_made_class() -> None:
    class Made:
        pass

    with Made():  # type: ignore[attr-defined]
        pass


def _exit_stack() -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(_nested, ValueError(1), ValueError(2))
        raise KeyError(0)


PROGRAMS = (
    *(
        _replaced,
        _ring,
        _within,
        _raised_twice,
        _names,
        _names_of_a_function,
        _with(Nothing),
        _with(Entered),
        _with(dict),
    ),
    *(_with_own_attributes, _with_a_made_class, _exit_stack),
)


@pytest.mark.parametrize("at", range(len(PROGRAMS)), ids=lambda at: PROGRAMS[at].__qualname__)
def test_contexts_and_refusals(at: int) -> None:
    def f(x: Tensor) -> Any:
        y = x + 1
        try:
            PROGRAMS[at]()
        except Exception as error:
            return type(error).__name__, chain(error), y
        return None

    want, run = f(torch.ones(2)), compiled(f)
    assert want is not None
    for _ in range(2):
        got = run(torch.ones(2))
        assert got is not None
        assert got[:2] == want[:2]
