"""The common base of all targets' `Ops` handlers: loads from memory or inlined values, and masked evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.base.errors import CompileError
from smelt.codegen.index import IndexRenderer
from smelt.codegen.parameters import Arguments
from smelt.codegen.scope import Scopes, V
from smelt.loops.ir import Condition, Index, Ops, Pointwise
from smelt.schedule.plan import Schedule


class OpsRenderer(IndexRenderer, Ops):
    """Renders bodies of a schedule. `masks`: the conditions under which the current body is rendered, innermost
    last.
    """

    def __init__(self, plan: Schedule, scopes: Scopes, arguments: Arguments, used: set[str]) -> None:
        super().__init__(scopes, arguments)
        self.plan, self.used = plan, used
        self.masks: list[V] = []

    def load(self, name: str, index: Index) -> V:
        around = self.masks
        # keys without conditions: otherwise a chain of slice writes would be computed once for each set of conditions
        if self.is_member(name, index):
            self.masks = []
        conditions = frozenset(m.text for m in self.masks)
        known = self.scopes.find_under((name, index), conditions)
        if known is None:
            known = self.value_of(name, index)
            self.scopes.remember_under((name, index), conditions, known)
        self.masks = around
        return known

    def is_member(self, name: str, index: Index) -> bool:
        """Whether the loops compute this element in each iteration, under any conditions."""
        return False

    def value_of(self, name: str, index: Index) -> V:
        """Returns a value at an index: from memory if it has a buffer, else inlined."""
        return self.from_memory(name, index) if name in self.plan.stored else self.inlined(name, index)

    def from_memory(self, name: str, index: Index) -> V:
        """Returns an element of a buffer."""
        raise NotImplementedError("a target knows its memory")

    def inlined(self, name: str, index: Index) -> V:
        node = self.plan.program.nodes[name]
        if not isinstance(node, Pointwise):
            raise CompileError(f"codegen: {name} has neither a buffer nor a body")
        return node.body(self, index)

    def masked(self, conditions: Sequence[Condition], body: Callable[[], V], other: V) -> V:
        open_ones = [c for c in conditions if not c.holds_always()]
        if not open_ones:
            return body()
        if any(c.holds_never() for c in open_ones):
            return other
        mask = self.mask(open_ones)
        if any(m.text == mask.text for m in self.masks):
            return body()  # the enclosing body already selects by the same condition
        self.masks.append(mask)
        value = body()
        self.masks.pop()
        return self.choose(mask, value, other)

    def mask(self, conditions: Sequence[Condition]) -> V:
        """Returns a mask that is true where all conditions are met."""
        raise NotImplementedError("a target knows its booleans")

    def choose(self, mask: V, value: V, other: V) -> V:
        """Returns `value` where the mask is true, else `other`."""
        raise NotImplementedError("a target knows its choices")
