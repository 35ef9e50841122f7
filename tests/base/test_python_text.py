"""Data in generated Python: constants, keywords and names, whatever the characters."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.base.python_text import LITERALS, arguments, is_plain_name, names_in, new_name, quoted

ODD = ["class", "ﬁ", "\udc80", "'", '"', "\\", "#", "__debug__"]
TEXTS = st.text(st.characters(), max_size=12) | st.sampled_from(ODD)


class Odd(str):
    """A text that calls itself something else wherever it may."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "1 / 0"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return "1 / 0"


@given(TEXTS)
def test_a_literal_is_the_same_text(text: str) -> None:
    assert ast.literal_eval(quoted(text)) == text
    assert ast.literal_eval(quoted(Odd(text))) == text
    assert "\n" not in quoted(text)


@pytest.mark.parametrize("value", [0, -1, True, None, 10**599, 10**600, -(10**5000)], ids=range(7))
def test_a_literal_is_the_same_number(value: Any) -> None:
    found = ast.literal_eval(LITERALS[type(value)](value))
    assert type(found) is type(value) and found == value


@given(st.dictionaries(TEXTS, st.integers(0, 9)))
def test_keywords_come_as_they_are(named: dict[str, int]) -> None:
    text = arguments(["7"], [(Odd(name), str(value)) for name, value in named.items()])
    assert eval(f"take({text})", {"take": lambda *args, **kwargs: (args, list(kwargs.items()))}) == (
        (7,),
        list(named.items()),
    )


@given(st.lists(TEXTS, max_size=8))
def test_names_are_new_and_plain(hints: list[str]) -> None:
    taken: dict[str, int] = {}
    for hint in [*hints, *hints, *map(Odd, hints)]:
        name = new_name(hint, taken, {"graph"})
        assert is_plain_name(name) and name[0].isalpha() and name not in taken and name != "graph" and len(name) < 80
        taken[name] = 0


def test_words_of_texts_and_attributes_are_no_variables() -> None:
    assert names_in("f(x, _c.y, 'z', \"a' b\", g['\\'w'], **{'k': v2})") == {"f", "x", "_c", "g", "v2"}
