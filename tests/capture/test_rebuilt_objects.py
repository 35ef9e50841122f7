"""Objects that a function makes and gives back: subclasses with attributes, exceptions, matches, methods of numbers."""

from __future__ import annotations

import builtins
import collections
import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled


class List(list[Any]):
    def __iter__(self) -> Any:
        return iter([99])


class Tuple(tuple[Any, ...]):
    def __iter__(self) -> Any:
        return iter([99])


class Hidden(tuple[Any, ...]):
    def __len__(self) -> int:
        raise NotImplementedError


class Set(set[Any]):
    def __iter__(self) -> Any:
        return iter([99])


class Frozen(frozenset[Any]):
    pass


class Dict(dict[Any, Any]):
    pass


class Default(collections.defaultdict[Any, Any]):
    pass


class Deque(collections.deque[Any]):
    pass


class Whole(int):
    pass


class Real(float):
    pass


class Text(str):
    pass


class Bytes(bytes):
    pass


class Slotted(tuple[Any, ...]):
    __slots__ = ()


MAKERS: list[Callable[[Any], Any]] = [
    lambda x: List([x, 1]),
    lambda x: Tuple((x, 1)),
    lambda x: Hidden((2, 2)),
    lambda x: Set([1, 2]),
    lambda x: Frozen([1]),
    lambda x: Dict(a=x),
    lambda x: Default(list, a=1),
    lambda x: Deque([x, 1], 3),
    lambda x: Whole(3),
    lambda x: Real(-0.0),
    lambda x: Text("abc"),
    lambda x: Bytes(b"abc"),
]


def plain(value: Any) -> Any:
    for kind in (list, tuple, set, frozenset, collections.deque):
        if isinstance(value, kind):
            return [plain(item) for item in kind.__iter__(value)]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in dict.items(value)}
    return value.tolist() if isinstance(value, Tensor) else repr(value)


@pytest.mark.parametrize("number", range(len(MAKERS)))
def test_subclasses_keep_what_they_hold(number: int) -> None:
    make = MAKERS[number]

    def fn(x: Tensor) -> Any:
        made = make(x)
        made.k = 5
        made.__dict__["a b"] = x * 2
        return x + 1, made

    run = compiled(fn)
    for _ in range(2):
        want, got = fn(torch.ones(1))[1], run(torch.ones(1))[1]
        assert type(want) is type(got) and plain(want) == plain(got)
        assert {key: plain(v) for key, v in vars(want).items()} == {key: plain(v) for key, v in vars(got).items()}
        assert getattr(want, "maxlen", None) == getattr(got, "maxlen", None)
        assert getattr(want, "default_factory", None) is getattr(got, "default_factory", None)


def test_membership_is_that_of_the_container() -> None:
    def fn(x: Tensor, s: Any, l: Any, t: Any) -> Any:  # noqa: E741
        own = List([1])
        return 1 in s, 99 in s, 1 in l, 99 in l, 1 in t, 1 in own, 99 in own, x + 1

    given = Set([1]), List([1]), Tuple((1,))
    assert compiled(fn)(torch.ones(1), *given)[:-1] == fn(torch.ones(1), *given)[:-1]


class Failed(ValueError):
    pass


EXCEPTIONS: list[Callable[[], BaseException]] = [
    lambda: ValueError("a", 1),
    lambda: Failed("a"),
    lambda: StopIteration(3),
    lambda: OSError(2, "no", "file"),
    lambda: KeyError("k"),
    lambda: SystemExit(4),
    lambda: ImportError("a", name="n", path="p"),
    lambda: UnicodeDecodeError("utf8", b"abc", 1, 2, "why"),
    lambda: AttributeError("a", name="n", obj=3),
]


@pytest.mark.parametrize("number", range(len(EXCEPTIONS)))
def test_exceptions_keep_what_they_hold(number: int) -> None:
    make = EXCEPTIONS[number]

    def fn(x: Tensor) -> Any:
        error: Any = make()
        error.k = 5
        error.__cause__ = KeyError("cause")
        error.add_note("note")
        return x + 1, error

    want, got = fn(torch.ones(1))[1], compiled(fn)(torch.ones(1))[1]
    assert type(want) is type(got) and str(want) == str(got) and want.args == got.args and vars(want) == vars(got)
    assert repr(want.__cause__) == repr(got.__cause__) and want.__suppress_context__ == got.__suppress_context__
    for name in ("value", "errno", "filename", "code", "name", "path", "start", "reason", "obj"):
        assert getattr(want, name, None) == getattr(got, name, None)


FOUND: list[Callable[[str], Any]] = [
    lambda s: re.match(r"(\w)(?P<n>\d)?", s),
    lambda s: re.search(r"b", s),
    lambda s: re.compile("a|ab|abc").fullmatch(s),
    lambda s: list(re.finditer(r"(?<=a)b|c", s))[1],
    lambda s: re.compile("b").search(s, 1, 2),
]


@pytest.mark.parametrize("number", range(len(FOUND)))
def test_matches(number: int) -> None:
    find = FOUND[number]
    want, got = find("abc"), compiled(lambda x, s: (x + 1, find(s)))(torch.ones(1), "abc")[1]
    assert (want.regs, want.groups(), want.pos, want.endpos, want.string) == (
        got.regs,
        got.groups(),
        got.pos,
        got.endpos,
        got.string,
    )


def test_counted_matches() -> None:
    def fn(x: Tensor, s: str) -> Any:
        found = collections.Counter(m.group() for m in re.finditer(r"\w", s))
        return x * found["a"], found, found.most_common(1)

    for text in ("abca", "ba", "aaa"):
        assert str(fn(torch.ones(1), text)) == str(compiled(fn)(torch.ones(1), text))


def test_a_match_among_the_arguments() -> None:
    run = compiled(lambda x, m: (x * len(m.group(1)), m.start(), m.lastindex))
    for text in ("ab", "abc", "x"):
        found = re.match(r"(\w+)", text)
        assert found is not None
        assert str(run(torch.ones(1), found)) == str((torch.ones(1) * len(text), 0, 1))


METHODS: list[Callable[[], Any]] = [
    lambda: (5).bit_length,
    lambda: (-5).bit_length,
    lambda: True.bit_length,
    lambda: (2.5).is_integer,
    lambda: (-2.5).hex,
    lambda: float("inf").hex,
    lambda: (0.5).as_integer_ratio,
    lambda: (1j).conjugate,
    lambda: "a".upper,
    lambda: b"a".hex,
    lambda: (1, 2).__len__,
    lambda: [1, 2].copy,
]


def test_methods_of_numbers_and_texts() -> None:
    for method in METHODS:
        assert compiled(lambda x, m=method: (x + 1, m()))(torch.ones(1))[1]() == method()()


def test_keys_by_comparison() -> None:
    def fn(x: Tensor, items: list[int]) -> Any:
        key = functools.cmp_to_key(lambda a, b: b - a)
        return x + 1, key(1) < key(2), key(2) == key(2), sorted(items, key=key), max(items, key=key)

    assert compiled(fn)(torch.ones(1), [1, 3, 2])[1:] == fn(torch.ones(1), [1, 3, 2])[1:]


NAMES = ["a = 0; import builtins; builtins.ran = True; b", "class", "a b", "ﬁ", "²", "a\nb", "'", "", "None"]


class Holder:
    pass


@pytest.mark.parametrize("name", NAMES)
def test_names_of_attributes_are_data(name: str) -> None:
    builtins.ran = False  # type: ignore[attr-defined]

    def write(p: Any, x: Tensor) -> Any:
        setattr(p, name, x * 2)
        return x.sum()

    def read(p: Any, x: Tensor) -> Any:
        return getattr(p, name) + x, hasattr(p, name)

    def remove(p: Any, x: Tensor) -> Any:
        delattr(p, name)
        return x + hasattr(p, name)

    def own(p: Any, x: Tensor) -> Any:
        made = Holder()
        setattr(made, name, x * 3)
        return made, x + 1

    for holder in (Holder, torch.nn.Identity):
        held = holder()
        compiled(write)(held, torch.ones(3))
        assert vars(held)[name].tolist() == [2, 2, 2]
        assert compiled(read)(held, torch.ones(3))[0].tolist() == [3, 3, 3]
        compiled(remove)(held, torch.ones(3))
        assert name not in vars(held)
    assert vars(compiled(own)(None, torch.ones(1))[0])[name].item() == 3
    for kind in (type(name.replace("\0", ""), (), {}),):
        assert type(compiled(lambda x, kind=kind: (x + 1, kind()))(torch.ones(1))[1]) is kind
    assert builtins.ran is False  # type: ignore[attr-defined]
    del builtins.ran  # type: ignore[attr-defined]


def test_text_of_tensors() -> None:
    def fn(x: Tensor) -> Any:
        y = x + 1
        return (
            y.__repr__(),
            y.__format__(""),
            y.__str__(),
            str(y),
            f"{y}",
            "%s" % y,  # noqa: UP031
            repr([y]),
            y.sum().__format__(".2f"),
        )

    assert compiled(fn)(torch.ones(2)) == fn(torch.ones(2))


def test_exception_groups() -> None:
    def handled(x: Tensor) -> Any:
        try:
            raise ExceptionGroup("both", [ValueError(1), KeyError(2)])
        except* ValueError as group:
            x = x * len(group.exceptions)
        except* KeyError:
            x = x + 10
        return x

    def made(x: Tensor) -> Any:
        group = ExceptionGroup("one", [ValueError(1)])
        print(end="")
        return x + len(group.exceptions), group.message, group.args[0], repr(group.exceptions[0])

    x = torch.ones(2)
    for _ in range(2):
        assert torch.equal(compiled(handled)(x), handled(x))
        assert compiled(made)(x)[1:] == made(x)[1:]
