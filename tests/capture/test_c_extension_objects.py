"""Objects of libraries that are written in C: their functions are called as they are, their values are guarded."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shlex
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.capture.harness import compiled, same

SOURCE = Path(__file__).with_name("foreign.c")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("foreign") / "foreign.so"
    compiler = shlex.split(os.environ.get("CC") or "cc")
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run([*compiler, "-w", "-shared", "-fPIC", include, str(SOURCE), "-o", str(path)], check=True)
    spec = importlib.util.spec_from_file_location("foreign", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


READS: list[Callable[[Tensor, Any], Any]] = [
    lambda x, k: x * float(k),
    lambda x, k: x[int(k) :],
    lambda x, k: x * 2 if k else x * 3,
    lambda x, k: x * 2 if not k else x * 3,
    lambda x, k: x * 2 if k < 1.5 else x * 3,
    lambda x, k: x * 2 if k == 1 else x * 3,
    lambda x, k: x * (k + 1),
    lambda x, k: x * abs(k),
    lambda x, k: x * len(k),
    lambda x, k: (x + 1, bool(k), k and 3, any([k]), all([k])),
    lambda x, k: (x + 1, sorted([k, 1.5])[0] == 1.5, sum([k], 0.5), max([k, 0.5]) == 0.5, max(k, 0.5) == 0.5),
    lambda x, k: x * {1.0: 2, 0.0: 3, 2.0: 4}[float(k)],
    lambda x, k: (x + 1, [k][0] is k),
]


@pytest.mark.parametrize("number", range(len(READS)))
@pytest.mark.parametrize("kind", ["Number", "State"])
@pytest.mark.parametrize("where", ["argument", "attribute", "item"])
def test_values_of_foreign_objects_are_never_those_of_another_call(
    foreign: Any, kind: str, where: str, number: int
) -> None:
    make, read = getattr(foreign, kind), READS[number]

    class Holder:
        k: Any = None

    holder, items = Holder(), [None]

    def fn(x: Tensor, k: Any) -> Any:
        return read(x, k if where == "argument" else holder.k if where == "attribute" else items[0])

    run = compiled(fn)
    for value in (1.0, 2.0, 0.0, 1.0):
        holder.k = items[0] = k = make(value)
        assert same(fn(torch.ones(3), k), run(torch.ones(3), k))


def test_values_of_foreign_numbers_end_no_graph(foreign: Any) -> None:
    run = compiled(lambda x, k: x * float(k) + int(k), fullgraph=True)
    for value in (1.0, 2.0, 1.0):
        assert run(torch.ones(1), foreign.Number(value)).item() == 2 * value


def test_foreign_functions(foreign: Any) -> None:
    class Holder:
        method = foreign.double
        static = staticmethod(foreign.double)

        def __init__(self) -> None:
            self.held = foreign.double

    holder = Holder()
    bound = holder.method
    cases: list[Callable[[Tensor], Any]] = [
        lambda x: foreign.double(x + 1) + 1,
        lambda x: holder.method(x + 1) + 1,
        lambda x: bound(x + 1) + 1,
        lambda x: Holder().method(x + 1) + 1,
        lambda x: Holder.static(x) + Holder.method(x) + holder.held(x),
        lambda x: [foreign.double, bound][0](x) + 1,
        lambda x: (x + 1, foreign.double, holder.method.__self__ is holder),
        lambda x: (x + 1, list(map(foreign.double, [1, 2]))),
    ]
    for fn in cases:
        run = compiled(fn)
        for _ in range(2):
            want, got = fn(torch.ones(2)), run(torch.ones(2))
            assert str(want) == str(got)
    torch.testing.assert_close(compiled(foreign.double)(torch.ones(2)), torch.full((2,), 2.0))


def test_streams_and_handlers_that_call_foreign_functions(foreign: Any) -> None:
    written: list[Any] = []

    class Stream:
        send = foreign.double

        def write(self, text: str) -> int:
            written.append(self.send(text))
            return len(text)

        def flush(self) -> None:
            pass

    class Handler(logging.Handler):
        send = foreign.double

        def emit(self, record: logging.LogRecord) -> None:
            written.append(self.send(record.getMessage()))

    logger = logging.Logger("foreign")
    logger.addHandler(Handler())

    def fn(x: Tensor) -> Tensor:
        y = x + 1
        print("a", end="")
        logger.info("b %s", 1)
        return y * 2

    run = compiled(fn)
    with contextlib.redirect_stdout(Stream()):  # type: ignore[type-var]
        for _ in range(2):
            assert run(torch.ones(1)).item() == 4
    assert [each for each in written if each] == ["aa", "b 1b 1"] * 2
