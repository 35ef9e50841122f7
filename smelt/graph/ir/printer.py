"""Prints an fx graph as a Python program that runs, with the metadata of each value in a comment.

The text is a module with one function `forward`, in the graph's order. Names without an import path (functions of the
user, constants) are listed at the top, as names that the caller must provide.
"""

from __future__ import annotations

import builtins
import operator
from typing import Any

import torch
from torch import fx

from smelt.base.python_text import arguments, is_plain_name, quoted, scalar
from smelt.base.text import Writer, on_one_line
from smelt.base.torch_private import OpOverload
from smelt.graph.ir.meta import TensorMeta

_OPERATORS = {
    operator.add: "{} + {}",
    operator.sub: "{} - {}",
    operator.mul: "{} * {}",
    operator.truediv: "{} / {}",
    operator.floordiv: "{} // {}",
    operator.mod: "{} % {}",
    operator.pow: "{} ** {}",
    operator.matmul: "{} @ {}",
    operator.and_: "{} & {}",
    operator.or_: "{} | {}",
    operator.xor: "{} ^ {}",
    operator.eq: "{} == {}",
    operator.ne: "{} != {}",
    operator.lt: "{} < {}",
    operator.le: "{} <= {}",
    operator.gt: "{} > {}",
    operator.ge: "{} >= {}",
    operator.getitem: "{}[{}]",
    operator.neg: "-{}",
    operator.invert: "~{}",
}


def print_graph(gm: fx.GraphModule) -> str:
    """Returns the graph of `gm` as Python source.

    `aten = torch.ops.aten` and the modules of the targets are imported at the top; constants are taken from a
    dictionary `constants`, functions without an import path from `functions`.
    """
    return _Printer(gm).text()


def operations(gm: fx.GraphModule) -> list[tuple[fx.Node, str]]:
    """Returns the operations of the graph in order, each as a line of Python with the type of its result."""
    printer = _Printer(gm)
    nodes = (node for node in gm.graph.nodes if node.op not in ("placeholder", "output"))
    return [(node, _with_comment(printer.statement(node), _comment(node))) for node in nodes]


def provided_by_caller(gm: fx.GraphModule) -> list[str]:
    """Returns the names that the text of the graph does not define: constants, functions without a path."""
    printer = _Printer(gm)
    printer.text()
    return printer.provided


class _Printer:
    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm = gm
        self.imports: set[str] = {"torch"}
        self.provided: list[str] = []
        self.lines: list[tuple[str, str]] = []

    def text(self) -> str:
        nodes = list(self.gm.graph.nodes)
        inputs = [n for n in nodes if n.op == "placeholder"]
        for node in nodes:
            if node.op != "placeholder":
                self.lines.append((self.statement(node), _comment(node)))
        body = Writer()
        with body.block("def forward(" + ("" if inputs else "):")):
            for node in inputs:
                note = "; ".join(filter(None, [_comment(node), str(node.meta.get("source", ""))]))
                body(_with_comment(f"    {node.name},", note))
            if inputs:
                body("):")
            for line, note in self.lines:
                body(_with_comment(line, note))
        return self.head() + body.text()

    def head(self) -> str:
        head = Writer()
        head(*(f"import {name}" for name in sorted(self.imports)), "", "aten = torch.ops.aten")
        if self.provided:
            head("", "# provided by the caller:", *(f"#   {line}" for line in self.provided))
        head("", "")
        return head.text()

    def statement(self, node: fx.Node) -> str:
        args = [self.value(a) for a in node.args]
        keywords = [(name, self.value(value)) for name, value in node.kwargs.items()]
        match node.op:
            case "output":
                return f"return {args[0]}"
            case "get_attr":
                self.provide(f"constants[{quoted(str(node.target))}]: {_comment(node)}")
                return f"{node.name} = constants[{quoted(str(node.target))}]"
            case "call_method":
                return f"{node.name} = {args[0]}.{node.target}({arguments(args[1:], keywords)})"
            case "call_module":
                self.provide(f"functions[{quoted(str(node.target))}]: a module")
                return f"{node.name} = functions[{quoted(str(node.target))}]({arguments(args, keywords)})"
        if node.target in _OPERATORS and not keywords:
            return f"{node.name} = {_OPERATORS[node.target].format(*map(_operand, args))}"
        return f"{node.name} = {self.function(node.target)}({arguments(args, keywords)})"

    def function(self, target: Any) -> str:
        if isinstance(target, OpOverload):
            return str(target) if target.namespace == "aten" else f"torch.ops.{target}"
        module = getattr(target, "__module__", None) or ""
        name: str = getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or repr(target)
        if module.startswith("torch._ops."):  # an operator without an overload; its namespace cannot be imported
            return f"torch.ops.{module.removeprefix('torch._ops.')}.{name.rpartition('.')[2]}"
        if module in ("torch._C._nn", "torch._C", "torch", "torch._C._VariableFunctions") or not module:
            for namespace, prefix in ((torch.nn.functional, "torch.nn.functional."), (torch, "torch."), (builtins, "")):
                if getattr(namespace, name.rpartition(".")[2], None) is target:
                    self.imports.add("torch.nn.functional")
                    return prefix + name.rpartition(".")[2]
        if module.startswith("torch._VF") or not all(map(is_plain_name, f"{module}.{name}".split("."))):
            self.provide(f"functions[{quoted(name)}]: {target!r}")
            return f"functions[{quoted(name)}]"
        if module == "builtins":
            return name
        module = "operator" if module == "_operator" else module
        self.imports.add(module)
        return f"{module}.{name}"

    def provide(self, line: str) -> None:
        if on_one_line(line) not in self.provided:
            self.provided.append(on_one_line(line))

    def value(self, value: Any) -> str:
        match value:
            case fx.Node():
                return value.name
            case slice():
                return f"slice({self.value(value.start)}, {self.value(value.stop)}, {self.value(value.step)})"
            case tuple():
                return f"({', '.join(map(self.value, value))}{',' if len(value) == 1 else ''})"
            case list():
                return f"[{', '.join(map(self.value, value))}]"
            case dict():
                return "{" + ", ".join(f"{self.value(k)}: {self.value(v)}" for k, v in value.items()) + "}"
            case None | bool() | int() | float() | str():
                return scalar(value)
            case torch.device():
                return f"torch.device({quoted(str(value))})"
        return repr(value)


def _operand(text: str) -> str:
    return f"({text})" if text.startswith("-") else text  # -2 ** n is -(2 ** n)


def _with_comment(line: str, note: str) -> str:
    return f"{line}  # {on_one_line(note)}" if note else line


def _comment(node: fx.Node) -> str:
    if node.op == "output":
        return ""
    return describe(node.meta.get("val"))


def describe(val: Any) -> str:
    """Describe a node's `meta["val"]` as short text: `float32[2, 3]`."""
    match val:
        case None:
            return ""
        case TensorMeta():
            return str(val)
        case list() | tuple():
            return "(" + ", ".join(map(describe, val)) + ")"
    return repr(val)
