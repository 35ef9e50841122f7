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


def test_notes() -> None:
    class Noted(Exception):
        pass

    def fn(x: Tensor, outside: Exception) -> Any:
        made = Noted(1)
        made.add_note("a")
        try:
            raise made
        except Noted as error:
            error.add_note("b")
            notes = list(error.__notes__)
        try:
            made.add_note(5)  # type: ignore[arg-type]
        except TypeError as error:
            notes.append(str(error))
        outside.add_note("o")
        return x + 1, notes, Noted("left"), len(outside.__notes__)

    run, outside = compiled(fn), KeyError()
    for turn in (1, 2):
        _, notes, _, length = run(torch.ones(1), outside)
        assert notes == ["a", "b", "note must be a str, not 'int'"] and length == turn
    assert outside.__notes__ == ["o", "o"]


def test_a_note_leaves_with_its_exception() -> None:
    def fn(x: Tensor) -> Any:
        made = ValueError(1)
        made.add_note("a")
        return x + 1, made

    assert compiled(fn)(torch.ones(1))[1].__notes__ == ["a"]


def _unfit() -> list[Callable[[], object]]:
    def several(a, b, /, c, *, d=1, e):  # type: ignore[no-untyped-def]
        return a

    class Box:
        def method(self, a):  # type: ignore[no-untyped-def]
            return a

    call: Any = several
    return [
        lambda: call(1),
        lambda: call(1, 2, 3),
        lambda: call(1, 2, 3, 4, e=1),
        lambda: call(1, b=2, c=3, e=1),
        lambda: call(1, 2, 3, e=1, z=3),
        lambda: call(1, 2, 3, c=1, e=3),
        lambda: Box().method(),  # type: ignore[call-arg]
        lambda: Box().method(1, 2),  # type: ignore[call-arg]
        lambda: (lambda a, b=1: a)(1, 2, 3),
        lambda: undefined_name,  # type: ignore[name-defined]  # noqa: F821
    ]


def test_texts_of_call_errors() -> None:
    def fn(x: Tensor) -> Any:
        said = []
        for call in _unfit():
            try:
                call()
            except (TypeError, NameError) as error:
                said.append((str(error), getattr(error, "name", None)))
        return x + 1, said

    want = fn(torch.ones(1))[1]
    assert len(want) == len(_unfit()) and compiled(fn)(torch.ones(1))[1] == want
