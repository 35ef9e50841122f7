"""The interpreter runs code of the standard library, written in pure Python, as CPython does."""

from __future__ import annotations

import base64
import bisect
import calendar
import collections
import colorsys
import copy
import csv
import dataclasses
import datetime
import difflib
import enum
import fnmatch
import fractions
import functools
import graphlib
import heapq
import html
import io
import json
import json.decoder
import json.encoder
import keyword
import operator
import posixpath
import pprint
import reprlib
import shlex
import statistics
import string
import textwrap
import tokenize
import types
import urllib.parse
import uuid

import pytest
import torch

from smelt.capture.explain import describe
from tests.capture.harness import check, compiled

X = torch.ones(2)


@dataclasses.dataclass(order=True)
class Version:
    major: int
    minor: int = 0
    tags: list = dataclasses.field(default_factory=list, compare=False)


class Flag(enum.Flag):
    A = enum.auto()
    B = enum.auto()


class Registry(collections.UserDict):
    def __missing__(self, key):
        return f"no {key}"


@functools.singledispatch
def kind(value):
    return "object"


@kind.register
def _(value: int):
    return "int"


@functools.total_ordering
class Level:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return self.n == other.n

    def __lt__(self, other):
        return self.n < other.n


class Lazy:
    @functools.cached_property
    def value(self):
        return [1, 2]


TEXT = "The quick brown fox jumps over the lazy dog. " * 3
ONE_GRAPH = {
    "copy": lambda: copy.deepcopy({"a": [1, (2, {"b": 3})]}),
    "copy_object": lambda: copy.copy(Version(1, 2, [3])),
    "colorsys": lambda: colorsys.rgb_to_hls(0.2, 0.4, 0.4),
    "heapq": lambda: (list(heapq.merge([1, 4], [2, 3])), heapq.nsmallest(2, [3, 1, 2])),
    "bisect": lambda: bisect.bisect_left([1, 3, 5], 3),
    "counter": lambda: collections.Counter("hello").most_common(2),
    "chain_map": lambda: dict(collections.ChainMap({"a": 1}, {"a": 2, "b": 3})),
    "user_dict": lambda: (Registry(a=1)["a"], Registry()["zz"], list(Registry(b=1).items())),
    "posixpath": lambda: (posixpath.join("a", "b/../c"), posixpath.normpath("a//b/../c"), posixpath.splitext("x.y.z")),
    "urllib": lambda: urllib.parse.urlsplit("http://a.b/c?d=e#f").path,
    "html": lambda: html.escape("<a & 'b'>"),
    "fnmatch": lambda: fnmatch.translate("*.py"),
    "json_encoder": lambda: "".join(json.encoder._make_iterencode(
        {}, None, json.encoder.py_encode_basestring, None, float.__repr__, ": ", ", ", False, False, False
    )({"a": [1, 2.5, None, True, {"b": "c"}]}, 0)),
    "difflib": lambda: difflib.SequenceMatcher(None, "abcd", "bcde").ratio(),
    "close_matches": lambda: difflib.get_close_matches("appel", ["ape", "apple", "peach"]),
    "statistics": lambda: (statistics.mean([1, 2, 3]), statistics.median([5, 1, 3])),
    "graphlib": lambda: list(graphlib.TopologicalSorter({"c": {"b"}, "b": {"a"}}).static_order()),
    "reprlib": lambda: reprlib.repr(list(range(100))),
    "textwrap": lambda: textwrap.wrap(TEXT, 30),
    "string_template": lambda: string.Template("$a and ${b}").substitute(a=1, b=2),
    "keyword": lambda: keyword.iskeyword("for"),
    "fractions": lambda: fractions.Fraction(3, 6) + fractions.Fraction(1, 2) == 1,
    "dataclass_order": lambda: sorted([Version(2), Version(1, 5)]) == [Version(1, 5), Version(2)],
    "dataclass_tools": lambda: (dataclasses.asdict(Version(1, tags=[2])), dataclasses.astuple(Version(1))),
    "enum_flags": lambda: ((Flag.A | Flag.B).value, Flag.A in (Flag.A | Flag.B), Flag["B"].name),
    "singledispatch": lambda: (kind(1), kind("a")),
    "total_ordering": lambda: (Level(1) <= Level(2), Level(2) > Level(1), Level(1) >= Level(1)),
    "cached_property": lambda: (lambda lazy: (lazy.value, lazy.value is lazy.value))(Lazy()),
    "string_io": lambda: (lambda out: (print("a", 1, file=out), out.getvalue())[1])(io.StringIO()),
    "simple_namespace": lambda: types.SimpleNamespace(a=1).a,
    "operator_tools": lambda: (operator.attrgetter("major")(Version(4)), operator.methodcaller("upper")("a")),
    "calendar": lambda: calendar.monthrange(2024, 2)[1],
    "dates": lambda: (datetime.date(2024, 1, 31) + datetime.timedelta(days=1)).isoformat(),
    "base64": lambda: base64.b64encode(b"hello"),
    "uuid": lambda: str(uuid.UUID(int=5)),
    "partialmethod": lambda: functools.reduce(lambda a, b: a * b, [1, 2, 3, 4]),
}  # fmt: skip
ANY_GRAPHS = {
    "csv": lambda: list(csv.DictReader(io.StringIO("a,b\n1,2\n"))),
    "shlex": lambda: shlex.split("a 'b c' d"),
    "pprint": lambda: pprint.pformat({"a": list(range(5))}),
    "json": lambda: json.loads(json.dumps({"a": [1, {"b": None}]})),
    "tokenize": lambda: [t.string for t in tokenize.generate_tokens(io.StringIO("a = 1\n").readline)],
    "py_scanstring": lambda: json.decoder.py_scanstring('abc"', 0),
}


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_one_graph(name):
    work = ONE_GRAPH[name]
    check(lambda x: (x + 1, work()), X, graphs=1)


@pytest.mark.parametrize("name", ANY_GRAPHS)
def test_any_number_of_graphs(name):
    work = ANY_GRAPHS[name]

    def fn(x):
        return x + 1, work()

    run = compiled(fn)
    assert run(X)[1] == fn(X)[1] and describe(run._smelt_session).graph_count >= 1


def test_keywords_of_arithmetic() -> None:
    def numbers(x: torch.Tensor) -> object:
        return x * pow(base=2, exp=3), round(number=2.5), round(ndigits=1, number=2.55), pow(2, exp=3, mod=5)

    check(numbers, X)
    check(lambda x: pow(exp=2, base=x + 1), X)


class Counted:
    """Yields 0 asynchronously, then no more."""

    def __init__(self) -> None:
        self.left = [0]

    def __aiter__(self) -> Counted:
        return self

    async def __anext__(self) -> int:
        if not self.left:
            raise StopAsyncIteration
        return self.left.pop()


@pytest.mark.parametrize("default", [(), ("default",)])
def test_asynchronous_iterators(default: tuple[str, ...]) -> None:
    def sent(x: torch.Tensor) -> object:
        found = []
        iterator = Counted()
        for _ in range(2):
            try:
                anext(iterator, *default).__await__().send(None)
            except (StopIteration, StopAsyncIteration) as end:
                found.append((type(end), end.args))
        return x + 1, found

    run = compiled(sent)
    for _ in range(2):
        assert run(X)[1] == sent(X)[1]
