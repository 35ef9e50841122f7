"""Lowerings by prim name. A lowering gets the node's name, meta and arguments and returns its loop node."""

from __future__ import annotations

from collections.abc import Callable

from smelt.graph.ir.meta import TensorMeta
from smelt.loops.ir import Body, Index, Node, Ops, Pointwise, Value
from smelt.shapes.size import IntLike

Lowering = Callable[..., Node]

LOWERINGS: dict[str, Lowering] = {}
"""Function `f(name, meta, *args) -> Node` by name of the prim; tensor arguments are passed as `Operand`."""


class Operand:
    """A tensor argument of a lowering: the name and meta of the node that makes it."""

    __slots__ = ("name", "meta")

    def __init__(self, name: str, meta: TensorMeta) -> None:
        self.name, self.meta = name, meta

    @property
    def shape(self) -> tuple[IntLike, ...]:
        return self.meta.shape


def lowering(*names: str) -> Callable[[Lowering], Lowering]:
    """Register a lowering for prims."""

    def enter(function: Lowering) -> Lowering:
        for name in names:
            LOWERINGS[name] = function
        return function

    return enter


def pointwise(name: str, meta: TensorMeta, operands: list[Operand], body: Body, op: str) -> Pointwise:
    """Returns a Pointwise node over `operands`."""
    return Pointwise(name, meta, tuple(dict.fromkeys(x.name for x in operands)), body, op)


def view(name: str, meta: TensorMeta, x: Operand, remap: Callable[[Index], Index], op: str) -> Pointwise:
    """Returns a Pointwise node that is element `remap(index)` of x."""
    source = x.name

    def body(ops: Ops, index: Index) -> Value:
        return ops.load(source, remap(index))

    return Pointwise(name, meta, (source,), body, op, view=True)
