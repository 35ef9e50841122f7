"""Runs a function in eager and compiled, and compares everything a caller can see."""

from __future__ import annotations

import collections
import copy
import dataclasses
import types
from collections.abc import Callable
from typing import Any

import torch

from smelt.base.options import Options
from smelt.capture.compiled import compile_callable
from smelt.capture.explain import Explanation, describe


def eager_graph(gm: Any, inputs: Any, report: Any, options: Any) -> Callable[..., Any]:
    """A backend that runs the captured graph as it is."""
    return gm.forward


def compiled(fn: Any, **options: Any) -> Any:
    """`fn`, captured, its graphs run in eager."""
    return compile_callable(fn, eager_graph, Options(**options))


def same(a: Any, b: Any) -> bool:
    """Deep equality of results: types, structure, tensor values and metadata."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.detach(), b.detach())
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(x, y) for x, y in zip(a.values(), b.values(), strict=True))
    if isinstance(a, (list, tuple, collections.deque)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in dataclasses.fields(a))
    if type(a) is types.SimpleNamespace or type(a).__eq__ is object.__eq__ and hasattr(a, "__dict__"):
        return same(vars(a), vars(b)) if not callable(a) else True
    return bool(a == b) or a != a


def check(
    fn: Any, *args: Any, breaks: int = 0, graphs: int | None = None, calls: int = 2, **kwargs: Any
) -> Explanation:
    """Call `fn` in eager and compiled `calls` times; results, changed arguments and random numbers must agree.

    Returns what capture did. `breaks` and `graphs` are what is expected of it.
    """
    run = compiled(fn, fullgraph=breaks == 0)
    for _ in range(calls):
        eager_args, compiled_args = copy.deepcopy((args, kwargs)), copy.deepcopy((args, kwargs))
        torch.manual_seed(0)
        want = fn(*eager_args[0], **eager_args[1])
        torch.manual_seed(0)
        got = run(*compiled_args[0], **compiled_args[1])
        assert same(want, got), f"eager {want!r}\ncompiled {got!r}"
        assert same(eager_args, compiled_args), f"arguments: eager {eager_args!r}\ncompiled {compiled_args!r}"
    found = describe(run._smelt_session)
    assert found.graph_break_count == breaks, str(found)
    assert graphs is None or found.graph_count == graphs, str(found)
    return found


def raises(fn: Any, kind: Any, *args: Any) -> None:
    """Eager and compiled raise the same exception with the same message."""
    messages = []
    for each in (fn, compiled(fn)):
        try:
            each(*copy.deepcopy(args))
        except kind as error:
            messages.append(str(error))
    assert len(messages) == 2 and messages[0] == messages[1], messages
