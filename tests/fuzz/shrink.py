"""Makes a failing program smaller: statements go, blocks become their bodies, expressions parts of themselves."""

from __future__ import annotations

import ast
import copy
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


def shrink(source: str, fails: Callable[[str], bool], seconds: float = 30.0) -> str:
    """The smallest program found in the time given for which `fails` still holds."""
    end = time.monotonic() + seconds
    best = ast.unparse(ast.parse(source))
    if not fails(best):
        return source
    progress = True
    while progress and time.monotonic() < end:
        progress = False
        for make in (_without_statements, _unwrapped, _simpler_expressions):
            at = 0
            while time.monotonic() < end:
                candidate = next(make(best, at), None)
                if candidate is None:
                    break
                at += 1
                if candidate != best and _accepted(candidate) and fails(candidate):
                    best, progress, at = candidate, True, max(0, at - 1)
    return best


def _accepted(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            compile(text, "program.py", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _lists(tree: ast.AST) -> list[tuple[Any, str]]:
    """Every list of statements: (node, field)."""
    return [
        (node, name)
        for node in ast.walk(tree)
        for name in _BODIES
        if isinstance(getattr(node, name, None), list) and getattr(node, name)
    ]


def _places(tree: ast.AST) -> list[tuple[Any, str, int, int]]:
    """Ranges of statements, large ones first."""
    out = []
    for node, name in _lists(tree):
        count = len(getattr(node, name))
        for size in sorted({count, count // 2, 1} - {0}, reverse=True):
            out += [(node, name, start, size) for start in range(count - size, -1, -size)]
    return sorted(out, key=lambda place: -place[3])


def _without_statements(text: str, at: int) -> Iterator[str]:
    tree = ast.parse(text)
    places = _places(tree)
    if at < len(places):
        node, name, start, size = places[at]
        held = getattr(node, name)
        del held[start : start + size]
        if not held and name == "body":
            held.append(ast.Pass())
        yield _text(tree)


def _unwrapped(text: str, at: int) -> Iterator[str]:
    """A compound statement replaced by one of its bodies."""
    tree = ast.parse(text)
    spots = [
        (getattr(node, name), index, inner)
        for node, name in _lists(tree)
        for index, child in enumerate(getattr(node, name))
        if isinstance(child, (ast.If, ast.For, ast.While, ast.Try, ast.With))
        for inner in ("body", "orelse", "finalbody")
        if getattr(child, inner, None)
    ]
    if at < len(spots):
        held, index, inner = spots[at]
        held[index : index + 1] = getattr(held[index], inner)
        yield _text(tree)


def _simpler_expressions(text: str, at: int) -> Iterator[str]:
    """An expression replaced by a part of it or by a constant."""
    tree = ast.parse(text)
    spots: list[tuple[Any, str, int | None, ast.expr]] = []
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            for index, item in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(item, ast.expr) and isinstance(getattr(item, "ctx", ast.Load()), ast.Load):
                    spots += [(node, name, index, new) for new in _parts(item)]
    if at < len(spots):
        node, name, index, new = spots[at]
        if index is None:
            setattr(node, name, copy.deepcopy(new))
        else:
            getattr(node, name)[index] = copy.deepcopy(new)
        yield _text(tree)


def _parts(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, (ast.Constant, ast.Name)):
        return []
    inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        fewer = [type(node)(elts=[e for e in node.elts if e is not each], ctx=ast.Load()) for each in node.elts]
        return [*fewer, *inner]  # type: ignore[list-item]
    return [ast.Constant(1), *inner]


def _text(tree: ast.AST) -> str:
    try:
        return ast.unparse(ast.fix_missing_locations(tree))
    except (ValueError, AttributeError):  # something became empty that must not be
        return ""
