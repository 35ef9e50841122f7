"""Finds the pointers that a kernel reads and writes: timing may rerun a kernel that reads no memory which it changes.

For each name, the set of parameters from which it was computed is collected, regardless of the order of statements; a
result of `tl.load` is no pointer. The sets may be too large, never too small.
"""

from __future__ import annotations

import ast
import functools
from typing import NamedTuple


class Effects(NamedTuple):
    """Parameters through which a function reads, and through which it writes; sizes and strides may be among them."""

    reads: frozenset[str]
    writes: frozenset[str]


@functools.lru_cache(256)
def kernel_effects(source: str) -> Effects:
    """Returns the effects of the function `kernel` of a module."""
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    return _Function("kernel", functions, ()).effects()


class _Function:
    def __init__(self, name: str, functions: dict[str, ast.FunctionDef], callers: tuple[str, ...]) -> None:
        self.name, self.functions, self.callers = name, functions, callers
        self.parameters = [argument.arg for argument in functions[name].args.args]
        self.origins: dict[str, set[str]] = {parameter: {parameter} for parameter in self.parameters}
        self.reads: set[str] = set()
        self.writes: set[str] = set()

    def effects(self) -> Effects:
        body = self.functions[self.name]
        before = -1
        while before != (before := sum(map(len, self.origins.values()))):
            for node in ast.walk(body):
                self.assign(node)
        for node in ast.walk(body):
            if isinstance(node, ast.Call):
                self.call(node)
        return Effects(frozenset(self.reads), frozenset(self.writes))

    def assign(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                pass
            case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.AugAssign(target=target, value=value):
                targets = [target]
            case ast.For(target=target, iter=value) | ast.NamedExpr(target=target, value=value):
                targets = [target]
            case _:
                return
        found = self.origins_of(value)
        for target in targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name):
                    self.origins.setdefault(name.id, set()).update(found)

    def origins_of(self, value: ast.expr) -> set[str]:
        if isinstance(value, ast.Call) and _operation(value).startswith(("load", "atomic_")):
            return set()
        if isinstance(value, ast.Name):
            return set(self.origins.get(value.id, ()))
        return {origin for child in ast.iter_child_nodes(value) for origin in self._inside(child)}

    def _inside(self, node: ast.AST) -> set[str]:
        if isinstance(node, ast.expr):
            return self.origins_of(node)
        return {origin for child in ast.iter_child_nodes(node) for origin in self._inside(child)}

    def call(self, node: ast.Call) -> None:
        operation = _operation(node)
        if operation:
            pointer = node.args[:1] or [k.value for k in node.keywords if k.arg == "pointer"]
            through = {origin for value in pointer for origin in self.origins_of(value)}
            if operation.startswith(("load", "atomic_")):
                self.reads |= through
            if operation.startswith(("store", "atomic_")):
                self.writes |= through
            return
        if isinstance(node.func, ast.Name) and node.func.id in self.functions:
            self.inline(node, node.func.id)

    def inline(self, node: ast.Call, name: str) -> None:
        """Returns the effects of a call of a function of the module, in terms of its arguments."""
        positional = [self.origins_of(value) for value in node.args]
        named = {keyword.arg: self.origins_of(keyword.value) for keyword in node.keywords}
        if not any(positional) and not any(named.values()):
            return
        if name in self.callers:
            everything = {origin for each in (*positional, *named.values()) for origin in each}
            self.reads |= everything
            self.writes |= everything
            return
        inner = _Function(name, self.functions, (*self.callers, self.name))
        effects = inner.effects()
        for parameter, origins in (*zip(inner.parameters, positional, strict=False), *named.items()):
            self.reads |= origins if parameter in effects.reads else set()
            self.writes |= origins if parameter in effects.writes else set()


def _operation(node: ast.Call) -> str:
    """Returns the name of an operation of Triton's language, or an empty string."""
    function = node.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "tl":
        return function.attr
    return ""
