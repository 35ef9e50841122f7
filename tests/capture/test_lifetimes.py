"""Objects of the program die when it drops them: capture keeps none, and makes none whose end would be seen."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import smelt
from tests.capture.harness import compiled


@pytest.fixture(autouse=True)
def without_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Held:
    def __init__(self) -> None:
        self.t = torch.ones(2)


def maker() -> tuple[Any, list[Any]]:
    """A function that no graph holds, and what shows whether the objects that it made are alive."""
    seen: list[Any] = []

    @smelt.disable
    def make() -> Held:
        held = Held()
        seen.append(weakref.ref(held))
        return held

    return make, seen


def test_an_argument_dies_with_the_caller() -> None:
    fn = compiled(lambda x, held: x + held.t)
    held = Held()
    seen = weakref.ref(held)
    fn(torch.ones(2), held)
    del held
    assert seen() is None


def test_a_list_is_emptied_in_the_graph() -> None:
    def fn(x: torch.Tensor, items: list[Any]) -> torch.Tensor:
        y = x + items[0].t
        items.clear()
        return y

    items = [Held()]
    seen = weakref.ref(items[0])
    compiled(fn)(torch.ones(2), items)
    assert seen() is None


def test_local_alive_across_a_break_is_freed_at_the_end_of_the_call() -> None:
    make, seen = maker()

    def fn(x: torch.Tensor) -> torch.Tensor:
        held = make()
        smelt.graph_break()
        return x + held.t

    run = compiled(fn)
    for _ in range(2):
        run(torch.ones(2))
    assert [ref() for ref in seen] == [None, None]


class Ends:
    """Writes down that it died."""

    def __init__(self, seen: list[Any], name: str) -> None:
        self.seen, self.name = seen, name

    def __del__(self) -> None:
        self.seen.append(f"{self.name} dies")


def test_across_breaks_objects_die_when_the_program_lets_them() -> None:
    make = smelt.disable(Ends)

    def fn(x: torch.Tensor, seen: list[Any]) -> torch.Tensor:
        a, b, unread = make(seen, "a"), make(seen, "b"), make(seen, "c")  # noqa: F841
        smelt.graph_break()
        x = x + len(a.name)
        a = None
        smelt.graph_break()
        seen.append("a was let go")
        del b
        smelt.graph_break()
        seen.append("b was let go, nobody looks at the third")
        smelt.graph_break()
        seen.append("end")
        return x * 2

    def generators(x: torch.Tensor, seen: list[Any]) -> torch.Tensor:
        @smelt.disable
        def numbers(name: str) -> Iterator[int]:
            try:
                yield from range(9)
            finally:
                seen.append(f"{name} closed")

        for i in range(2):
            kept = numbers(f"kept {i}")
            first = next(kept)
            seen.append(first)
            smelt.graph_break()
            for n in numbers(f"loop {i}"):
                if n > 1:
                    break
            smelt.graph_break()
            seen.append("next")
        return x + first

    for program in (fn, generators):
        run = compiled(program)
        for _ in range(3):
            want: list[Any] = []
            got: list[Any] = []
            program(torch.ones(2), want)
            run(torch.ones(2), got)
            assert got == want


def test_an_object_with_an_end_of_its_own_is_made_once() -> None:
    ended = []

    class Ends:
        def __del__(self) -> None:
            ended.append(1)

    def fn(x: torch.Tensor) -> torch.Tensor:
        held = Ends()
        return x + (held is not None)

    run = compiled(fn)
    for number in range(1, 4):
        assert torch.equal(run(torch.ones(2)), torch.full((2,), 2.0))
        assert len(ended) == number


def test_a_call_that_raises_while_it_is_captured_keeps_nothing() -> None:
    make, seen = maker()

    def fn(x: torch.Tensor, items: list[int]) -> torch.Tensor:
        held = make()
        items.pop()
        return x + held.t

    run = compiled(fn)
    run(torch.ones(2), [1])
    for _ in range(3):
        with pytest.raises(IndexError):
            run(torch.ones(2), [])
    assert [ref() for ref in seen] == [None] * 4


class Entered:
    def __enter__(self) -> Entered:
        return self

    def __exit__(self, *_: object) -> bool:
        return True


def number_that_values_tell(x: torch.Tensor, held: Held) -> torch.Tensor:
    return x + len((held.t > 2.5).nonzero()[: int(x.sum())].tolist())


def handled_in_a_callee(x: torch.Tensor, held: Held) -> torch.Tensor:
    def find(at: int) -> torch.Tensor:
        if at > 1:
            raise IndexError(at)
        return held.t

    try:
        x = find(3)
    except IndexError as error:
        x = x * len(error.args)
    return x + find(0)


def raised_in_c_code(x: torch.Tensor, held: Held) -> torch.Tensor:
    with Entered():
        x = x + getattr(held, "missing", 1)
        x = x + [held.t][3]
    return x + held.t


def thrown_into_a_generator(x: torch.Tensor, held: Held) -> torch.Tensor:
    numbers = (held.t + i for i in range(3))
    x = x + next(numbers)
    try:
        numbers.throw(KeyError(1))
    except KeyError:
        x = x + 1
    return x


def nothing_that_residual_code_can_make(x: torch.Tensor, held: Held) -> Any:
    return torch.Generator(), x + held.t


def raises(x: torch.Tensor, held: Held) -> Any:
    return sorted([held.t, x], key=lambda t: t.missing)


@pytest.mark.parametrize(
    "program",
    [
        number_that_values_tell,
        handled_in_a_callee,
        raised_in_c_code,
        thrown_into_a_generator,
        nothing_that_residual_code_can_make,
        raises,
    ],
)
def test_capture_keeps_nothing_of_what_it_met(program: Any) -> None:
    for first in (True, False):
        run = compiled(program)
        for _ in range(2):
            held = Held()
            seen = weakref.ref(held)
            with contextlib.suppress(AttributeError):
                run(torch.ones(2), held)
            del held
            assert seen() is None or first  # torch imports modules at its first error, and they keep an exception
