"""The loop IR: each value of a program is described by a body, written against an `Ops` handler that is passed in.

Grammar:
    program   := node* outputs
    node      := Input | Constant | Pointwise | Reduction | Scatter | Extern | Item
    body      := ops.load(name, index) | ops.constant(number, dtype) | ops.integer(index expression, dtype)
               | ops.apply(op, dtype, value*) | ops.convert(value, dtype) | ops.masked(conditions, body, value)
               | ops.random(value, stream, index expression)
    index     := one expression per dimension; may hold ops.indirect(value, size)

The handler determines whether a body prints, yields its reads, evaluates as a reference or renders code. A node's value
is logical: it has a shape and a dtype. The schedule decides about memory: which values have a buffer, and its strides
and offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import fx

from smelt.graph.ir.meta import TensorMeta
from smelt.shapes.expr import Expr
from smelt.shapes.size import IntLike, Size, Symbol, known_at_most, known_less, same

Value = Any
Index = tuple[Expr, ...]


@dataclass(frozen=True)
class Condition:
    """The condition low <= expr < high on index arithmetic; a bound of None leaves that side open. With `step`, also
    (expr - low) % step == 0.
    """

    expr: Expr
    low: IntLike | None
    high: IntLike | None
    step: IntLike = 1

    def holds_always(self) -> bool:
        """Whether the ranges of the variables prove the condition."""
        return not self.open_low() and not self.open_high() and same(self.step, 1)

    def open_low(self) -> bool:
        """Whether the lower bound has to be tested."""
        return self.low is not None and not known_at_most(self.low, self.expr.range()[0])

    def open_high(self) -> bool:
        """Whether the upper bound has to be tested."""
        return self.high is not None and not known_less(self.expr.range()[1], self.high)

    def holds_never(self) -> bool:
        """Whether the ranges of the variables refute the condition."""
        low, high = self.expr.range()
        return (self.low is not None and known_less(high, self.low)) or (
            self.high is not None and known_at_most(self.high, low)
        )


class Ops(Protocol):
    """The operations of a body. The handler determines the type of values."""

    def load(self, name: str, index: Index) -> Value:
        """Returns element `index` of the value `name`."""

    def constant(self, value: bool | int | float | Size, dtype: torch.dtype) -> Value:
        """Returns a number; a symbolic size becomes a number at run time."""

    def integer(self, expr: Expr, dtype: torch.dtype) -> Value:
        """Returns an index expression as a number."""

    def apply(self, op: str, dtype: torch.dtype, *args: Value) -> Value:
        """Apply a pointwise prim to operands of `dtype` (for `where`, the dtype of the two branches)."""

    def convert(self, value: Value, source: torch.dtype, target: torch.dtype) -> Value:
        """Returns the value in another dtype."""

    def masked(self, conditions: Sequence[Condition], body: Callable[[], Value], other: Value) -> Value:
        """Returns `body()` where all conditions are true, `other` elsewhere; the body's loads are made only where they
        are true.
        """

    def indirect(self, value: Value, size: IntLike, wrap: bool) -> Expr:
        """Returns a loaded integer as an index into a dimension of `size`; with `wrap`, negative indices count from the
        end.
        """

    def random(self, seed: Value, stream: int, index: Expr, count: IntLike) -> Value:
        """Returns the float32 in [0, 1) for counter `index` (below `count`) of `stream` and the int64 seed."""


Body = Callable[[Ops, Index], Value]

REFUSE = "refuse_"
"""Prefix of operations that return their first operand and set a fault, whose bit follows, where their second operand
is true.
"""


@dataclass(slots=True)
class Input:
    """A tensor that the caller passes."""

    name: str
    meta: TensorMeta
    inputs: tuple[str, ...] = ()


@dataclass(slots=True)
class Constant:
    """A tensor known at compile time."""

    name: str
    meta: TensorMeta
    tensor: torch.Tensor
    inputs: tuple[str, ...] = ()


@dataclass(slots=True)
class Pointwise:
    """A value with element(index) = body(ops, index). `view`: whether the body is one load at another index."""

    name: str
    meta: TensorMeta
    inputs: tuple[str, ...]
    body: Body
    op: str
    view: bool = False


@dataclass(slots=True)
class Reduction:
    """A value with element(kept) = fold of body(ops, index) over `dims` of `source_shape`; `kind` names the fold.

    The kinds are sum, prod, amax, amin, any, all, argmax and argmin. The arg kinds reduce one dimension and return the
    index of its first extremum. `dtype` is the dtype of the folded values. The schedule sets `ragged` (high, low,
    total) if the last chunk of a split dimension is short: with i and j the indices of dimensions high and low,
    elements with i * (size of low) + j >= total are excluded.
    """

    name: str
    meta: TensorMeta
    inputs: tuple[str, ...]
    body: Body
    kind: str
    source_shape: tuple[IntLike, ...]
    dims: tuple[int, ...]
    dtype: torch.dtype
    ragged: tuple[int, int, IntLike] | None = None


@dataclass(slots=True)
class Scatter:
    """A copy of `base`, then for every index of `ranges`: element(target(ops, index)) = or += body(ops, index).

    `parallel` lists the dimensions of `ranges` that are target indices themselves: different values of them never write
    the same element.
    """

    name: str
    meta: TensorMeta
    inputs: tuple[str, ...]
    base: Body
    ranges: tuple[IntLike, ...]
    body: Body
    target: Callable[[Ops, Index], Index]
    accumulate: bool
    parallel: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to the value of a node in the arguments of an Extern."""

    name: str


@dataclass(slots=True)
class Extern:
    """A call of a kernel that is not generated. `args` and `kwargs` contain Refs in the positions of tensors.

    `meta` is one TensorMeta or a tuple of them (None for absent results). `parameters` names the args, if known.
    `shares`: inputs of whose memory a result may be a view. `line`: the user's line of a collective, if known.
    """

    name: str
    meta: Any
    inputs: tuple[str, ...]
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    line: str = ""


def references(value: Any) -> list[str]:
    """Returns the names of the Refs inside extern arguments, in order."""
    match value:
        case Ref(name):
            return [name]
        case tuple() | list():
            return [name for item in value for name in references(item)]
        case dict():
            return [name for item in value.values() for name in references(item)]
    return []


@dataclass(slots=True)
class Item:
    """Result number `position` of a multi-output Extern."""

    name: str
    meta: TensorMeta
    inputs: tuple[str, ...]
    position: int


Node = Input | Constant | Pointwise | Reduction | Scatter | Extern | Item


@dataclass(frozen=True, slots=True)
class Output:
    """A result of the program: the value of node `name` with exactly the strides of `meta`.

    In a schedule its shape may differ from that of its node, if the node is a product: the same elements in the same
    order. Without a name the result is `number`: None or a size.
    """

    name: str | None
    meta: TensorMeta | None
    number: IntLike | None = None


@dataclass(slots=True)
class LoopProgram:
    """Nodes by name in an order in which operands come first, and the outputs.

    `symbols`: the integers that the caller passes after the tensors; sizes of nodes are expressions of them. `after`:
    for some nodes, an earlier node whose kernel must run before theirs although they do not read it. `calls`: for each
    node, (the call from which it was lowered, its index among the nodes of that call).
    """

    nodes: dict[str, Node]
    outputs: list[Output]
    inputs: list[str]
    symbols: list[Symbol] = field(default_factory=list)
    after: dict[str, str] = field(default_factory=dict)
    calls: dict[str, tuple[fx.Node, int]] = field(default_factory=dict)
    _users: dict[str, list[str]] | None = field(default=None, init=False, repr=False, compare=False)

    def users(self) -> Mapping[str, list[str]]:
        """Returns for each node the nodes that read it (once each, in program order).

        The result is computed once, because passes make new programs instead of changing nodes.
        """
        if self._users is None:
            users: dict[str, list[str]] = {name: [] for name in self.nodes}
            for node in self.nodes.values():
                for name in node.inputs if len(node.inputs) < 2 else dict.fromkeys(node.inputs):
                    users[name].append(node.name)
            self._users = users
        return self._users
