"""What built-in functions read of containers from outside: a container that holds more at the next call is never taken
for the first one."""

from __future__ import annotations

import array
import collections
import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled

READERS: dict[str, Callable[[Any, Any], Any]] = {
    "len": lambda x, b: x + len(b),
    "sum": lambda x, b: x + sum(v for v in b if isinstance(v, int)),
    "list": lambda x, b: x + len(list(b)),
    "tuple": lambda x, b: x + len(tuple(b)),
    "set": lambda x, b: x + len(set(b)),
    "deque": lambda x, b: x + len(collections.deque(b)),
    "star": lambda x, b: x + len([*b]),
    "unpack": lambda x, b: (lambda first, *rest: x + len(rest))(*b),
    "fromkeys": lambda x, b: x + len(dict.fromkeys(b)),
    "ordered": lambda x, b: x + len(collections.OrderedDict.fromkeys(b, x)),
    "counter": lambda x, b: x + len(collections.Counter(b)),
    "chain": lambda x, b: x + len(list(itertools.chain(b, b))),
    "zip": lambda x, b: x + len(list(zip(b, b, strict=True))),
    "enumerate": lambda x, b: x + len(list(enumerate(b))),
    "map": lambda x, b: x + len(list(map(str, b))),
    "sorted": lambda x, b: x + len(sorted(b, key=str)),
    "union": lambda x, b: x + len(set().union(b)),
    "extend": lambda x, b: x + len((lambda items: (items.extend(b), items)[1])([1])),
    "contains": lambda x, b: x + (99 in b),
    "hint": lambda x, b: x + operator.length_hint(b),
    "tensor": lambda x, b: x + torch.tensor(list(b)).sum(),
}


CONTAINERS: dict[str, Callable[[int], Any]] = {
    "list": lambda n: list(range(97, 97 + n)),
    "bytes": lambda n: bytes(range(97, 97 + n)),
    "bytearray": lambda n: bytearray(range(97, 97 + n)),
    "array": lambda n: array.array("i", range(97, 97 + n)),
    "memoryview": lambda n: memoryview(bytes(range(97, 97 + n))),
    "deque": lambda n: collections.deque(range(97, 97 + n)),
    "set": lambda n: set(range(97, 97 + n)),
    "dict": lambda n: dict.fromkeys(range(97, 97 + n)),
    "counter": lambda n: collections.Counter(range(97, 97 + n)),
    "keys": lambda n: dict.fromkeys(range(97, 97 + n)).keys(),
    "values": lambda n: dict(enumerate(range(97, 97 + n))).values(),
    "ordered keys": lambda n: collections.OrderedDict.fromkeys(range(97, 97 + n)).keys(),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_a_container_of_another_length(container: str) -> None:
    for name, reader in READERS.items():
        run = compiled(reader)
        for count in (2, 3, 2, 4):
            held, x = CONTAINERS[container](count), torch.ones(2)
            eager: Tensor = reader(x, held)
            assert torch.equal(eager, run(x, held)), f"{name} of {count}"


@pytest.mark.parametrize("reader", ["len", "list", "fromkeys", "zip"])
def test_a_view_whose_dict_grows(reader: str) -> None:
    held = {1: 2}
    view, x, run = held.keys(), torch.ones(2), compiled(READERS[reader])
    for key in range(5, 8):
        assert torch.equal(READERS[reader](x, view), run(x, view))
        held[key] = key
