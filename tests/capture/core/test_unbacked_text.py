"""smelt/capture/core/unbacked_text.py: text of a tensor ends the graph only when somebody reads it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.capture.harness import check, raises

X = torch.arange(6.0).reshape(2, 3)


def check_that(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def unread(x: Any) -> Any:
    check_that(x.dim() == 2, f"sum {x.sum():.2f} of {x!r} and {str(x.mean())}")
    return x * 2


def tensor_check(x: Any) -> Any:
    torch._check_tensor_all(x > -1, lambda: f"{x.min()}")
    return x * 2


@pytest.mark.parametrize("fn", [unread, tensor_check])
def test_unread_text_is_not_made(fn: Any) -> None:
    check(fn, X, graphs=1)


def measured(x: Any) -> Any:
    text = f"{x.sum()}"
    return (x + 1) * len(text)


def joined(x: Any) -> Any:
    return x * 2, "-".join(["a", f"{x.sum()}"])


def added(x: Any) -> Any:
    return x * 2, "sum: " + str(x.sum())


def compared(x: Any) -> Any:
    return x * 2 if f"{x.sum()}" == "15.0" else x


def returned(x: Any) -> Any:
    text = f"{x.sum()}"
    return x * 2, text


def kept(x: Any) -> Any:
    texts = {}
    texts["a"] = f"{x.sum()}"
    return x * 2, texts


def caught(x: Any) -> Any:
    try:
        check_that(False, f"{x.sum()}")
    except ValueError as error:
        return x * 2, str(error)


@pytest.mark.parametrize("fn", [measured, joined, added, compared, returned, kept, caught], ids=lambda fn: fn.__name__)
def test_text_that_is_read(fn: Any) -> None:
    found = check(fn, X, breaks=1)
    assert found.break_reasons[0].title == "a tensor is turned into text"


def test_printed_text(capsys: pytest.CaptureFixture[str]) -> None:
    def fn(x: Any) -> Any:
        print(f"sum {x.sum():.1f}")
        return x * 2

    check(fn, X, breaks=1, calls=1)
    assert capsys.readouterr().out == "sum 15.0\n" * 2


def test_the_message_of_an_error_is_eager_s() -> None:
    def fn(x: Any) -> Any:
        check_that(x.dim() == 3, f"sum {x.sum():.2f}")
        return x

    raises(fn, ValueError, X)
