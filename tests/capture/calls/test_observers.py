"""Logs, warnings and prints whose effect the program looks at are made in their turn; others stay put off."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from tests.capture.harness import check, compiled, same

SEEN: list[str] = []
COUNT = 0


class Appending(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        global COUNT
        COUNT += 1
        SEEN.append(record.getMessage())


class Counting(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        self.count += 1
        return True


LOG = logging.getLogger("observed")
LOG.setLevel(10)
LOG.propagate = False
LOG.addHandler(Appending())
FILTER = Counting()
LOG.addFilter(FILTER)


class Lines:
    def __init__(self) -> None:
        self.parts: list[str] = []

    def write(self, text: str) -> int:
        self.parts.append(text)
        return len(text)

    def flush(self) -> None:
        pass


LINES = Lines()


def appends(x: Tensor) -> Any:
    LOG.info("step %d", 1)
    return x + len(SEEN)


def looked_before(x: Tensor) -> Any:
    before = len(SEEN)
    y = x * 2
    LOG.warning("step")
    return y + (len(SEEN) - before)


def a_global(x: Tensor) -> Any:
    before = COUNT
    LOG.info("step")
    return x + (COUNT - before)


def a_filter(x: Tensor) -> Any:
    before = FILTER.count
    LOG.info("step")
    return x + (FILTER.count - before)


def in_a_callee(x: Tensor) -> Any:
    return appends(x) * 2 + a_filter(x)


def recorded(x: Tensor) -> Any:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.warn("a", stacklevel=1)
        return x + sum("a" == str(each.message) for each in found)


def an_error(x: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("a", stacklevel=1)
        except UserWarning:
            return x + 1
    return x


def shown(x: Tensor) -> Any:
    found: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda *args, **kwargs: found.append(args[0])
        warnings.warn("b", stacklevel=1)
        return x + len(found)


def printed(x: Tensor) -> Any:
    LINES.parts.clear()
    print("a", 1, file=LINES)
    return x + len(LINES.parts)


def redirected(x: Tensor) -> Any:
    own = Lines()
    with contextlib.redirect_stdout(own):
        print("a", 1)
    return x + len(own.parts)


PROGRAMS: list[Callable[[Tensor], Any]] = [
    appends,
    looked_before,
    a_global,
    a_filter,
    in_a_callee,
    recorded,
    an_error,
    shown,
    printed,
    redirected,
]


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    SEEN.clear()
    yield


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_observed_effects_happen_in_order(fn: Callable[[Tensor], Any]) -> None:
    found = []
    for each in (fn, compiled(fn)):
        SEEN.clear()
        found.append([each(torch.ones(1)) for _ in range(3)] + [list(SEEN)])
    assert same(*found)


def test_values_that_are_not_read_do_not_break_the_graph() -> None:
    def logs(x: Tensor) -> Any:
        LOG.info("step")
        warnings.warn("c", stacklevel=1)
        return x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(logs, torch.ones(1), breaks=0)


class _Printing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage())


PRINTED = logging.getLogger("printed")
PRINTED.setLevel(10)
PRINTED.propagate = False
PRINTED.addHandler(_Printing())


def _plainly(redirect: Any, say: Callable[[str], Any], x: Tensor) -> Any:
    lines = Lines()
    say("before")
    with redirect(lines):
        say("inside")
        y = x * 2
    say("behind")
    return lines.parts, y


def _failing(redirect: Any, say: Callable[[str], Any], x: Tensor) -> Any:
    lines = Lines()
    try:
        say("before")
        with redirect(lines):
            say("inside")
            raise ValueError
    except ValueError:
        say("failed")
    finally:
        say("at last")
    return lines.parts, x + 1


def _set_by_hand(redirect: Any, say: Callable[[str], Any], x: Tensor) -> Any:
    lines, before = Lines(), sys.stdout
    sys.stdout = lines
    say("inside")
    y = x * 2
    sys.stdout = before
    return lines.parts, y


@pytest.mark.parametrize("program", [_plainly, _failing, _set_by_hand], ids=lambda f: f.__name__)
@pytest.mark.parametrize("say", [PRINTED.info, warnings.warn, print], ids=["log", "warning", "print"])
@pytest.mark.parametrize("redirect", [contextlib.redirect_stdout, contextlib.redirect_stderr])
def test_streams_that_are_others_for_a_time(program: Any, redirect: Any, say: Callable[[str], Any]) -> None:
    """What is said in there is written to them, in its order, also where an error passes."""

    def f(x: Tensor) -> Any:
        return program(redirect, say, x)

    def outcome(run: Callable[[Tensor], Any]) -> Any:
        out, told = Lines(), Lines()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told), warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *_, **__: sys.stderr.write(f"{message}\n")
            results = [run(torch.ones(2))[0] for _ in range(2)]
        return results, out.parts, told.parts

    assert outcome(smelt.compile(f)) == outcome(f)


def test_records_name_the_location_that_logs() -> None:
    """Lines and functions of records, of functions that are called as well, behind breaks and in `except`."""
    logger, seen = logging.getLogger("smelt.tests.places"), []

    class Placing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append((record.getMessage(), record.funcName, record.lineno, record.pathname))

    def helper(x: Tensor) -> Tensor:
        logger.info("helper")

        return x + 1

    def fn(x: Tensor) -> Tensor:
        logger.info("first")
        x = helper(x)

        logger.warning("number %d", 2)
        try:
            raise ValueError
        except ValueError:
            logger.error("handled")
        sys.stdout.flush()
        if x.sum().item() > 0:
            logger.info("behind a break")
        for i in range(2):
            logger.log(20, "loop %d", i)
        (lambda: logger.info("lambda"))()
        return x

    logger.propagate = False
    logger.setLevel(10)
    logger.addHandler(Placing())
    fn(torch.ones(1))
    want, run = list(seen), compiled(fn)
    assert len(want) == 8
    for _ in range(2):
        seen.clear()
        run(torch.ones(1))
        assert seen == want
