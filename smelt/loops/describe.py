"""Describes loop programs as text: each node's body is run with a handler that writes lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.loops.ir import (
    Condition,
    Constant,
    Extern,
    Index,
    Input,
    Item,
    LoopProgram,
    Node,
    Pointwise,
    Reduction,
    Ref,
    Scatter,
)
from smelt.shapes.expr import Expr, Runtime, Var, variable
from smelt.shapes.size import IntLike, Size, same


def describe(program: LoopProgram) -> str:
    """Describe every node with its body, and the outputs."""
    lines = [line for node in program.nodes.values() for line in describe_node(node)]
    if program.symbols:
        lines.insert(0, "sizes " + ", ".join(f"{s} (here {s.hint})" for s in program.symbols))
    lines.append("return " + ", ".join(o.name or str(o.number) for o in program.outputs))
    return "\n".join(lines) + "\n"


def extern_name(target: object) -> str:
    """Returns the name of what an extern calls."""
    name = getattr(target, "name", None)  # operators of torch have a method
    return name if isinstance(name, str) else str(target)


def describe_node(node: Node) -> list[str]:
    """Returns the lines of one node."""
    head = f"{node.name}: {_meta(node.meta)}"
    match node:
        case Input():
            return [f"{head} = input"]
        case Constant():
            return [f"{head} = constant"]
        case Item(inputs=(source,), position=position):
            return [f"{head} = {source}[{position}]"]
        case Extern(target=target, args=args, kwargs=kwargs):
            words = [_argument(a) for a in args] + [f"{k}={_argument(v)}" for k, v in kwargs.items()]
            return [f"{head} = extern {extern_name(target)}({', '.join(words)})"]
        case Pointwise(meta=meta, body=body):
            index = _index("i", meta.shape)
            return [f"{head} at {_tuple(index)}:", *_body(body, index)]
        case Reduction(source_shape=shape, dims=dims, kind=kind, body=body):
            index = _index("i", shape)
            over = ", ".join(f"{index[d]} < {shape[d]}" for d in dims)
            return [f"{head} = {kind} over {over} of {_tuple(index)}:", *_body(body, index)]
        case Scatter():
            return [f"{head} = scatter:", *_scatter(node)]
    raise AssertionError(node)


def _scatter(node: Scatter) -> list[str]:
    start, index = _index("i", node.meta.shape), _index("u", node.ranges)
    printer = Printer("    ")
    value = node.body(printer, index)
    target = node.target(printer, index)
    sign = "+=" if node.accumulate else "="
    lines = ["  start at " + _tuple(start) + ":", *_body(node.base, start)]
    return [*lines, f"  for {_tuple(index)}:", *printer.lines, f"    out{_tuple(target)} {sign} {value}"]


def _body(body: Callable[[Any, Index], str], index: Index) -> list[str]:
    printer = Printer("    ")
    result = body(printer, index)
    return [*printer.lines, f"    return {result}"]


def _index(stem: str, shape: Sequence[IntLike]) -> Index:
    return tuple(variable(Var(f"{stem}{d}", n)) for d, n in enumerate(shape))


def _tuple(index: Sequence[Expr]) -> str:
    return "(" + ", ".join(map(str, index)) + ")"


def _meta(meta: Any) -> str:
    return "(" + ", ".join(map(str, meta)) + ")" if isinstance(meta, tuple) else str(meta)


def _argument(value: Any) -> str:
    match value:
        case Ref(name):
            return name
        case tuple() | list():
            return "(" + ", ".join(map(_argument, value)) + ")"
    return str(value)


def _test(c: Condition) -> str:
    return f"{c.low} <= {c.expr} < {c.high}" + ("" if same(c.step, 1) else f" step {c.step}")


class Printer:
    """An `Ops` handler whose values are names of printed lines."""

    def __init__(self, indent: str) -> None:
        self.lines: list[str] = []
        self.indent = indent

    def line(self, text: str) -> str:
        name = f"t{len(self.lines)}"
        self.lines.append(f"{self.indent}{name} = {text}")
        return name

    def load(self, name: str, index: Index) -> str:
        return self.line(f"{name}{_tuple(index)}".replace("()", "[]"))

    def constant(self, value: bool | int | float | Size, dtype: torch.dtype) -> str:
        return str(value)

    def integer(self, expr: Expr, dtype: torch.dtype) -> str:
        return f"({expr})"

    def apply(self, op: str, dtype: torch.dtype, *args: str) -> str:
        return self.line(f"{op}({', '.join(args)})")

    def convert(self, value: str, source: torch.dtype, target: torch.dtype) -> str:
        return self.line(f"{str(target).removeprefix('torch.')}({value})")

    def masked(self, conditions: Sequence[Condition], body: Callable[[], str], other: str) -> str:
        tests = " and ".join(map(_test, conditions))
        return self.line(f"{body()} if {tests or True} else {other}")

    def indirect(self, value: str, size: IntLike, wrap: bool) -> Expr:
        return Expr(((Runtime(f"[{value}]", size), 1),), 0)

    def random(self, seed: str, stream: int, index: Expr, count: IntLike) -> str:
        return self.line(f"random({seed}, stream {stream}, {index})")
