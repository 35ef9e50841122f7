"""Functions, generators and coroutines that run after the call that made them, and are still captured."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator
from typing import Any

from smelt.capture import _native as native


def captured_later(session: object, fn: Callable[..., object]) -> Callable[..., object]:
    """A function that calls `fn` and captures it for `session`, for example while another thread computes gradients."""
    session_ref = weakref.ref(session)
    return lambda *args, **kwargs: native.call(fn, args, kwargs, session_ref())


def run_in_steps(generator: Generator[Any, Any, Any], session: object) -> Generator[object, object, object]:
    """A generator that runs `generator` (PEP 380) and makes each step inside a compiled call of `session`."""
    send, throw, close = generator.send, generator.throw, generator.close
    step, sent = send, None
    try:
        while True:
            value = native.call(step, (sent,), None, session)
            try:
                step, sent = send, (yield value)
            except GeneratorExit:
                native.call(close, (), None, session)
                raise
            except BaseException as error:
                step, sent = throw, error
    except StopIteration as stop:
        return stop.value


class Steps:
    """An awaitable that runs another awaitable step by step; see `run_in_steps`."""

    def __init__(self, awaited: Generator[object, object, object], session: object) -> None:
        self.awaited, self.session = awaited, session

    def __await__(self) -> Generator[object, object, object]:
        return run_in_steps(self.awaited, self.session)
