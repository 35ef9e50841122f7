"""Runs one program in eager and compiled; says how they differ, if they do.

A program is the text of a module. It defines `entry`, what is compiled, and `calls()`, a generator of the argument
tuples of successive calls. Each way of running it executes the text anew, so that neither sees the other's objects.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import logging
import random
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

import smelt
from smelt.base.errors import SmeltWarning

from .snapshot import ADDRESS, Snapshot, bits


@dataclass
class Outcome:
    """What one way of running a program gave: a list of observations for each call.

    Attributes:
        alive: what the calls were given and gave; it must not die while another call is watched.
    """

    observed: list[dict[str, Any]] = field(default_factory=list)
    alive: list[Any] = field(default_factory=list)
    stats: dict[str, Any] = field(default_factory=dict)


_DERIVATIVE = re.compile(r",\s+grad_fn=<\w+>")


class _Events(io.TextIOBase):
    """Printed text, log records and warnings in one list, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def write(self, text: str) -> int:
        # a compiled graph is one node of autograd, with a name of its own; the length of the name breaks the line
        text = _DERIVATIVE.sub(", grad_fn=<>", text)
        text = ADDRESS.sub("0x", text)
        if self.events and self.events[-1][0] == "print":
            self.events[-1] = ("print", self.events[-1][1] + text)
        else:
            self.events.append(("print", text))
        return len(text)

    def warn(self, message: Any, category: type[Warning], *_: Any, **__: Any) -> None:
        once = "Triggered internally" in str(message)  # torch's C++ code says so once in a process
        if not issubclass(category, SmeltWarning) and not once:
            self.events.append((category.__name__, ADDRESS.sub("0x", str(message))))


class _Handler(logging.Handler):
    def __init__(self, events: _Events) -> None:
        super().__init__()
        self.to = events

    def emit(self, record: logging.LogRecord) -> None:
        self.to.events.append((f"{record.name} {record.levelname}", ADDRESS.sub("0x", record.getMessage())))


@contextlib.contextmanager
def _watched() -> Iterator[_Events]:
    events = _Events()
    handler = _Handler(events)
    logger = logging.getLogger("program")
    if logger.propagate:  # each change of a level empties the caches of every logger
        logger.setLevel(logging.INFO)
        logger.propagate = False
    logger.addHandler(handler)
    try:
        with contextlib.redirect_stdout(events), warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = events.warn
            yield events
    finally:
        logger.removeHandler(handler)


@functools.lru_cache(maxsize=1)
def _compiled(source: str) -> types.CodeType:
    """The code of a program, which both ways of running it execute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        return compile(source, "program.py", "exec")


def run(source: str, backend: str | None, collect: bool = False) -> Outcome:
    """Execute a program and make its calls; `backend` None: in eager.

    Args:
        collect: what a call leaves in cycles dies before its events are compared.
    """
    module = types.ModuleType("program")
    sys.modules["program"] = module
    torch.set_grad_enabled(True)
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)
    exec(_compiled(source), module.__dict__)
    space = module.__dict__
    entry = space["entry"]
    smelt.reset()
    target = entry if backend is None else smelt.compile(entry, backend=backend)
    names = set(space)
    out = Outcome(alive=[module])
    for args in space["calls"]():
        with _watched() as events:
            seen = _call(target, args)
            if collect:
                gc.collect()
            out.alive.append((seen, args))
            observed = {"result": seen, "arguments": args, "events": events.events}
            held = {k: v for k, v in space.items() if k in names or not k.startswith("__")}
            out.observed.append(_observe(observed, held))  # a generator in a result prints when it is read
    out.stats = {} if backend is None else smelt.stats()
    return out


def _call(target: Any, args: tuple[Any, ...]) -> Any:
    try:
        return "returned", target(*args)
    except Exception as error:
        return "raised", error


def _observe(seen: dict[str, Any], space: dict[str, Any]) -> dict[str, Any]:
    """One call as plain data. Gradients come after the rest, since computing them changes the arguments."""
    shot = Snapshot()
    how, value = seen["result"]
    held = {k: v for k, v in space.items() if k not in ("entry", "calls")}
    out = {
        "how": how,
        "result": shot(value),
        "arguments": shot(seen["arguments"]),
        "globals": shot.namespace(held),
        "events": seen["events"],
        "modes": (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()),
        "random": (bytes(torch.get_rng_state().numpy()), random.getstate(), *_numpy_state()),
        # "traceback": _lines(value) if how == "raised" else [],
    }
    torch.set_grad_enabled(True)
    out["gradients"] = _gradients(value, seen["arguments"])
    return out


def _numpy_state() -> tuple[bytes, int]:
    """numpy's own generator: its words and its place in them."""
    _, words, place, *_ = numpy.random.get_state()
    return words.tobytes(), place


def _lines(error: BaseException) -> list[tuple[str, int]]:
    """The lines of the program in a traceback."""
    at, out = error.__traceback__, []
    while at is not None:
        if at.tb_frame.f_code.co_filename == "program.py":
            out.append((at.tb_frame.f_code.co_qualname, at.tb_lineno))
        at = at.tb_next
    return out


def _gradients(value: Any, args: Any) -> list[Any]:
    """What differentiating the returned tensors gives the arguments."""
    leaves = [t for t in _tensors(args, 0) if t.is_leaf and t.requires_grad]
    outputs = [t for t in _tensors(value, 0) if t.requires_grad and t.is_floating_point()]
    if not leaves or not outputs:
        return []
    try:
        total = sum((t.double().square().sum() for t in outputs), torch.zeros((), dtype=torch.float64))
        found = torch.autograd.grad(total, leaves, allow_unused=True)
    except RuntimeError as error:
        return [f"RuntimeError {str(error).splitlines()[0][:60]}"]
    return [None if g is None else Gradient(g) for g in found]


class Gradient:
    """Equal up to rounding: where a program runs as several graphs, the parts of a sum may come in another order."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value.detach().clone()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Gradient) or self.value.dtype != other.value.dtype:
            return False
        first, second = self.value, other.value
        finite = first[first.isfinite()].abs()
        few = 4 * torch.finfo(first.dtype).eps
        least = few * float(finite.max()) if finite.numel() else 0.0
        return first.shape == second.shape and torch.allclose(first, second, few, least, equal_nan=True)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"({tuple(self.value.shape)}, {bits(self.value)!r})"


def _tensors(value: Any, depth: int) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if depth > 3:
        return []
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in _tensors(v, depth + 1)] if isinstance(value, (list, tuple)) else []


def difference(
    source: str, backend: str = "eager", limit: Callable[[], Any] = contextlib.nullcontext
) -> tuple[str | None, dict[str, Any]]:
    """(how the program differs between eager and compiled, None when it does not; the compiler's counts).

    Args:
        limit: makes the context in which the program runs in eager.

    Raises:
        ProgramError: the program itself does not run, or not in the time that `limit` gives, or differs from itself
            in eager (`random.seed(None)`).
    """
    try:
        with limit():
            want = run(source, None)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise ProgramError(f"{type(error).__name__}: {error}") from error
    got = run(source, backend)
    first = _first_difference(want, got)
    if first is None:
        return None, got.stats
    number, part = first
    a, b = want.observed[number][part], got.observed[number][part]
    # from a deeper stack: how far a recursion without end gets does not count
    if _deeper(50, lambda: run(source, None)).observed[number][part] != a:
        raise ProgramError("eager does not repeat itself")
    # CPython's frames may hold an exception that they saw in a cycle, where the capture's have none; never the reverse
    if part == "events":
        with contextlib.redirect_stdout(io.StringIO()):
            gc.collect()  # what the runs before have left
        if _first_difference(run(source, None, collect=True), got) is None:
            return None, got.stats
    return f"call {number}, {part}:\n  eager    {_cut(a, b)}", got.stats


def _first_difference(want: Outcome, got: Outcome) -> tuple[int, str] | None:
    """The first call, and the part of what was seen of it, that are not the same."""
    for number, (a, b) in enumerate(zip(want.observed, got.observed, strict=True)):
        for part in a:
            if a[part] != b[part]:
                return number, part
    return None


def _deeper(frames: int, run: Callable[[], Outcome]) -> Outcome:
    return _deeper(frames - 1, run) if frames else run()


class ProgramError(Exception):
    """A program that cannot be run at all: a fault of the generator."""


def _cut(a: Any, b: Any) -> str:
    """Both values from where they begin to differ."""
    a, b = repr(a), repr(b)
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    start = max(0, at - 60)
    return f"...{a[start : at + 240]}\n  compiled ...{b[start : at + 240]}"
