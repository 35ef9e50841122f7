"""Determines which pointers a Triton kernel writes to, by an analysis of its Python source.

The pointer of a store is an expression over the kernel's parameters: `tl.store(out_ptr + offsets, ...)` counts as a
write to `out_ptr` and to all parameters from which `offsets` is computed, except through loads from memory. If the
source is not conclusive, a parameter is treated as written: a superfluous parameter costs a copy, a missed one gives
wrong results.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from smelt.base.class_tables import isinstance

_STORES = ("store", "scatter", "atomic_")
"""Prefixes of the names of functions that write through their first argument."""

_READS = frozenset({"load", "gather"})
"""Functions whose results contain no pointers."""

Origins = dict[str, frozenset[str]]


def written_parameters(kernel: object) -> frozenset[str]:
    """The names of the parameters that a `triton.jit` function may write to."""
    return _written(python_function(kernel), ())


def python_function(kernel: Any) -> Any:
    """The Python function of a kernel, inside its autotuners, heuristics and `triton.jit` object."""
    while not inspect.isfunction(kernel):
        kernel = kernel.fn
    return kernel


def _written(function: Any, calling: tuple[Any, ...]) -> frozenset[str]:
    parameters = frozenset(inspect.signature(function).parameters)
    if function in calling:
        return parameters
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return parameters
    return _Walk(function, tree, (*calling, function), parameters).written()


class _Walk:
    """The analysis of one function: the parameters from which each variable is computed, and the parameters that stores
    write to.
    """

    def __init__(
        self, function: FunctionType, tree: ast.stmt, calling: tuple[object, ...], parameters: frozenset[str]
    ) -> None:
        self.function, self.tree, self.calling = function, tree, calling
        self.origins: Origins = {name: frozenset({name}) for name in parameters}
        self.parameters = parameters

    def written(self) -> frozenset[str]:
        before: Origins = {}
        while before != self.origins:  # repeated: a loop may use a variable above the line that assigns it
            before = dict(self.origins)
            for node in ast.walk(self.tree):
                for target, value in _assignments(node):
                    for name in (n.id for n in ast.walk(target) if isinstance(n, ast.Name)):
                        self.origins[name] = self.origins.get(name, frozenset()) | self.of(value)
        calls = (node for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        return frozenset().union(*map(self.stores, calls)) & self.parameters

    def of(self, node: ast.AST) -> frozenset[str]:
        """The parameters from which an expression is computed, except through loads from memory."""
        if isinstance(node, ast.Name):
            return self.origins.get(node.id, frozenset())
        if isinstance(node, ast.Call) and self.meaning(node.func)[0] == "read":
            return frozenset()
        return frozenset().union(*map(self.of, ast.iter_child_nodes(node)))

    def stores(self, call: ast.Call) -> frozenset[str]:
        """The parameters that a call writes through."""
        kind, callee = self.meaning(call.func)
        operands = [*call.args, *(k.value for k in call.keywords)]
        if kind in ("read", "pure"):
            return frozenset()
        if kind == "store":
            if callee is None:  # `descriptor.store(...)`
                return self.of(call.func)
            return self.of(call.args[0]) if call.args else frozenset().union(*map(self.of, operands))
        if kind == "function" and not any(isinstance(a, ast.Starred) for a in call.args):
            names = list(inspect.signature(callee).parameters)
            values = dict(zip(names, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}
            return frozenset().union(*(self.of(values[n]) for n in _written(callee, self.calling) if n in values))
        return frozenset().union(*map(self.of, operands), self.of(call.func))

    def meaning(self, callee: ast.expr) -> tuple[str, Any]:
        """(effect of a call: "read", "pure", "store", "function" or "unknown"; the called object)."""
        value = self.resolve(callee)
        if value is None:  # a method of a value in the kernel
            name = callee.attr if isinstance(callee, ast.Attribute) else ""
            return ("store" if name.startswith(_STORES) else "pure" if name in _METHODS else "unknown"), None
        inner = getattr(value, "fn", None)
        owner = self.resolve(callee.value) if isinstance(callee, ast.Attribute) else None
        # Triton's interpreter replaces the functions while it runs a kernel
        if _is_language(value) or _is_language(owner):
            name = callee.attr if isinstance(callee, ast.Attribute) else getattr(value, "__name__", "")
            if name.startswith(_STORES):
                return "store", value
            return ("unknown" if name.startswith("inline_asm") else "read" if name in _READS else "pure"), value
        if inspect.isfunction(inner):
            return "function", inner
        return ("pure" if getattr(builtins, getattr(value, "__name__", ""), None) is value else "unknown"), value

    def resolve(self, node: ast.expr) -> object:
        """The object to which a dotted name refers; None if the name is not global."""
        if isinstance(node, ast.Name) and node.id not in self.origins:
            free = inspect.getclosurevars(self.function).nonlocals if self.function.__closure__ else {}
            scope = self.function.__globals__
            return free.get(node.id, scope.get(node.id, getattr(builtins, node.id, None)))
        if isinstance(node, ast.Attribute):
            base = self.resolve(node.value)
            return None if base is None else getattr(base, node.attr, None)
        return None


def _is_language(value: object) -> bool:
    """Whether a value is a module or function of `triton.language`; its functions that are kernels are analysed
    instead.
    """
    name = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
    return isinstance(name, str) and name.startswith("triton.language") and not hasattr(value, "fn")


_METHODS = frozenset(
    "to cast reshape view permute trans broadcast_to expand_dims sum max min argmax argmin abs exp exp2 log log2 sqrt "
    "rsqrt sigmoid softmax sin cos cdiv flip ravel split join item advance".split()
)


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((target, value) for target in targets)
        case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield target, value
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield target, value
        case ast.withitem(optional_vars=ast.expr() as target, context_expr=value):
            yield target, value
