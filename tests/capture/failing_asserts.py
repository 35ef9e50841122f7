"""Functions whose asserts fail: pytest writes those of test files anew, and what it adds would be captured too."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


def below_zero(x: Tensor, *, a: int = 3) -> Tensor:
    """x * a, which is to be negative."""
    y = x * a
    assert (y < 0).all(), "no"
    return y


def above_five(message: str) -> Callable[[Tensor], Tensor]:
    """A function that wants 2 x above 5, and says so with `message`."""

    def fn(x: Tensor) -> Tensor:
        y = x * 2
        assert (y > 5).all(), message
        return y

    return fn
