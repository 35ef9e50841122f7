"""What people see of names that may be anything."""

from __future__ import annotations

import pickle
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smelt.base.errors import CompileError, OptionError, SmeltError, SmeltWarning, shown
from smelt.base.text import on_one_line, visible

STEERING = ["\x1b]0;title\x07", "\x1b[2J", "\r\x08\x7f", "\x9b31m", "\u202e\u2066", "\u200b\ufeff", "\ud800", "\x00"]
TEXTS = st.text(st.characters(), max_size=12) | st.sampled_from(STEERING)


@given(TEXTS)
def test_nothing_steers_a_terminal(text: str) -> None:
    for each in (visible(text), str(SmeltError(text, at=text, why=text, hint=text)), str(SmeltWarning(text))):
        assert not set(each) & set("\x1b\x07\x08\r\x9b\x7f\x00\u202e\u200b\ud800")
    assert len(on_one_line(text).splitlines()) <= 1 and len(shown(text).splitlines()) == 1


def test_lines_and_letters_stay() -> None:
    assert visible("größe\n\t→ 変数 ²") == "größe\n\t→ 変数 ²"
    assert visible("a\u202eb\x00c\x1b[m") == "a\\u202eb\\x00c\\x1b[m"
    assert on_one_line("a\nb\u2028c") == "a b c"


def test_errors_have_their_location_on_one_line() -> None:
    assert str(SmeltError("what", at="x.py\n  at:  /etc/passwd:3")).splitlines() == [
        "what",
        "  at:  x.py   at:  /etc/passwd:3",
    ]


@pytest.mark.parametrize("kind", [CompileError, OptionError])
def test_errors_are_pickled_as_they_are(kind: type[SmeltError]) -> None:
    error = kind("a\x1b[2J", at="b", why="c")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "a\\x1b[2J\n  at:  b\n  why: c"


def test_warnings() -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.warn("a\x1b[2J", SmeltWarning, stacklevel=1)
        warnings.warn(SmeltWarning("b\x07"), stacklevel=1)
    assert [str(each.message) for each in found] == ["a\\x1b[2J", "b\\x07"]
