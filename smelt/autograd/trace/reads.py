"""Numbers that the program reads from tensors while it runs: nodes of the joint graph, and results of the forward.

The node of a number is named after its symbol, so that the symbolic sizes of later nodes refer to it by name. A check
of a number is a node as well; its result is unused.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from smelt.base.errors import Unsupported
from smelt.graph.trace.trace import TraceTensor
from smelt.graph.trace.unbacked import holds
from smelt.shapes.assumptions import Assumed, Assumptions
from smelt.shapes.real import Real
from smelt.shapes.size import Size, Symbol, as_symbol
from smelt.shapes.unbacked import Origin, is_unbacked

aten = torch.ops.aten


class JointReads:
    """The numbers of one joint trace (`graph.trace.unbacked.Numbers`).

    Attributes:
        running: origin of the torch-level node that is being traced; None outside of a node.
        floats: node of each floating-point number, by key.
        nodes: node of each symbol, in order of creation.
        checks: nodes that compute nothing and may raise.
    """

    def __init__(self, recorder: Any, owner: Assumptions) -> None:
        self.recorder, self.owner = recorder, owner
        self.known: dict[Hashable, Any] = {}
        self.running: Origin | None = None
        self.nodes: dict[Symbol, fx.Node] = {}
        self.floats: dict[str, Any] = {}
        self.checks: list[fx.Node] = []

    def identity(self, tensor: TraceTensor) -> Hashable:
        """Returns the identity of a value: its node, since values of a functional graph never change."""
        return self.recorder.value(tensor.storage_view)

    def origin(self) -> Origin:
        """Returns the origin of a number that is read now: the point where capture can break the graph to avoid the
        read.
        """
        return self.running or Origin(0, "a part of the program that capture did not see")

    def read(self, number: Size | Real, tensor: TraceTensor) -> None:
        """Record that `number` is read from `tensor`. As an operand of an operator, an integer is represented by its
        node, a float by a 0-d tensor.
        """
        value = self.recorder.value(tensor.storage_view)
        if isinstance(number, Real):
            value = self.recorder.emit(aten.view.default, value, [])
            self.floats[number.key] = self.recorder.emit(aten._to_copy.default, value, dtype=torch.float64)
        else:
            self._add(number, aten._local_scalar_dense.default, (value,))

    def read_size(self, number: Size, tensor: TraceTensor, dim: int) -> None:
        """Record that `number` is read from the size of `tensor` in dimension `dim`."""
        self._add(number, aten.sym_size.int, (self.recorder.value(tensor.storage_view), dim))

    def float_node(self, number: Any) -> Any:
        """Returns the 0-d float64 tensor of a number: a constant, a size, or a number that comes from tensors."""
        if isinstance(number, (int, float, Size)):
            return self.recorder.emit(aten.full.default, [], number, dtype=torch.float64)
        if not is_unbacked(number):
            return self.recorder.number(number)
        known = self.floats.get(number.key)
        if known is None and number.compute is None:  # not read from a tensor, so it is an input of the graph
            return self.recorder.given_number(number)
        if known is None:
            operands = [self.float_node(a) for a in number.args]
            op = _FLOAT_OPERATORS[number.compute]
            known = self.floats[number.key] = operands[0] if op is None else self.recorder.emit(op, *operands)
        return known

    def _add(self, number: Size, op: Any, args: tuple[Any, ...]) -> None:
        if self.recorder.backward:
            raise Unsupported("a number that a backward reads from tensors", why="a backward program is one piece")
        symbol = as_symbol(number)
        assert symbol is not None
        self.nodes[symbol] = self._node(op, args, symbol.name, number)

    @contextmanager
    def checking(self) -> Iterator[None]:
        """A context in which assumptions about numbers become checks in the graph."""
        before, self.owner.expects = self.owner.expects, self.expect
        try:
            yield
        finally:
            self.owner.expects = before

    def expect(self, fact: Assumed, text: str, error: str) -> None:
        """Add a node that raises `error` if the fact does not hold when the program runs; `text` describes the fact."""
        args = (fact.left, fact.sign, fact.right, text or str(fact), error)
        self.checks.append(self._node(holds, args, f"check_{len(self.checks)}", 0))

    def _node(self, op: Any, args: tuple[Any, ...], name: str, val: Any) -> fx.Node:
        node = self.recorder.graph.create_node("call_function", op, args, {}, name)
        node.meta["val"] = val
        return node


_FLOAT_OPERATORS: dict[Any, Any] = {
    operator.add: aten.add.Tensor,
    operator.sub: aten.sub.Tensor,
    operator.mul: aten.mul.Tensor,
    operator.truediv: aten.div.Tensor,
    operator.neg: aten.neg.default,
    operator.abs: aten.abs.default,
    float: None,
}
"""The ATen operator for each Python operator that `Assumptions.may_compute` allows; None: the operand itself."""
