"""Decides which values get a buffer (are realized); all others are computed where they are used.

Externs, reductions, scatters, inputs and outputs always have a buffer. A pointwise value gets a buffer when several
loops would repeat costly work for it, when it is small and a view repeats it along a big tensor, when inlining it would
nest too many bodies, or when an extern needs it in memory and no strided view of another buffer can replace it. If
fusion later puts all its users into its loop, the buffer is dropped.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from smelt.base.torch_private import OpOverload
from smelt.graph.ir.aliasing import shared_arguments
from smelt.graph.ir.meta import TensorMeta, by_element_stride, is_channels_last, is_dense, same_steps
from smelt.graph.ir.schema import depends_on_strides
from smelt.loops.facts import MOVES, Strides, facts_of
from smelt.loops.ir import Extern, Index, LoopProgram, Node, Pointwise, references
from smelt.schedule.dependencies import row_major, trace, weight
from smelt.schedule.machine import CPU, Machine, Realization
from smelt.shapes.expr import Var, flat_index, variable
from smelt.shapes.size import IntLike, hint, known_at_most, same


@dataclass(frozen=True, slots=True)
class StridedView:
    """A tensor argument as strides over a buffer: shape, stride and offset in elements from the buffer's start."""

    base: str
    shape: tuple[IntLike, ...]
    stride: tuple[IntLike, ...]
    offset: IntLike


@dataclass
class Realized:
    """The values with buffers, their strides, and extern arguments that are strided views of buffers."""

    stored: set[str]
    strides: dict[str, tuple[IntLike, ...]]
    views: dict[str, StridedView] = field(default_factory=dict)


def metas_of(node: Node) -> TensorMeta:
    """Returns the metadata of a node whose value is one tensor."""
    assert isinstance(node.meta, TensorMeta), node
    return node.meta


def realize(program: LoopProgram, machine: Machine = CPU) -> Realized:
    """Choose the buffers of a program."""
    choice = _Choice(program, machine)
    choice.store_required()
    choice.estimate()
    choice.store_shared()
    return Realized(choice.stored, choice.strides, choice.views)


class _Choice:
    def __init__(self, program: LoopProgram, machine: Machine) -> None:
        self.program, self.nodes, self.machine = program, program.nodes, machine
        self.users = program.users()
        self.outputs = {o.name: o.meta for o in program.outputs if o.name is not None and o.meta is not None}
        self.stored: set[str] = set()
        self.strides: dict[str, tuple[IntLike, ...]] = {}
        self.views: dict[str, StridedView] = {}
        self.cost: dict[str, int] = {}
        self.leaves: dict[str, frozenset[str]] = {}
        self.levels: dict[str, int] = {}
        self.evaluations: dict[str, int] = {}
        self.viewed_elements: dict[str, IntLike] = {}

    def store(self, name: str) -> None:
        """Give a value a buffer. Outputs get the strides that the caller expects, others dense strides."""
        if name in self.stored:
            return
        node = self.nodes[name]
        self.stored.add(name)
        meta = metas_of(node)
        wanted: tuple[IntLike, ...]
        if not isinstance(node, Pointwise):
            wanted = meta.stride
        elif name in self.outputs:
            wanted = self.outputs[name].stride
        else:
            wanted = self.prospective(name)
        self.strides[name] = wanted

    def store_required(self) -> None:
        for name, node in self.nodes.items():
            if not isinstance(node, Pointwise) and isinstance(node.meta, TensorMeta):
                self.store(name)
        for name in self.outputs:
            self.store(name)
        self._count_viewed_elements()
        for node in self.nodes.values():
            if isinstance(node, Extern):
                for name in references((node.args, node.kwargs)):
                    self.argument(node, name)

    def _count_viewed_elements(self) -> None:
        """Count, for each value, the elements of all arguments of externs that are views of it."""
        externs = (node for node in self.nodes.values() if isinstance(node, Extern))
        arguments = dict.fromkeys(name for node in externs for name in references((node.args, node.kwargs)))
        for name in arguments:
            if name not in self.stored and not isinstance(self.nodes[name], Extern):
                base, _, _ = base_of_views(self.program, name, self.stored)
                self.viewed_elements[base] = self.viewed_elements.get(base, 0) + metas_of(self.nodes[name]).numel

    def argument(self, node: Extern, name: str) -> None:
        """Make an argument available to an extern, as a buffer or as a strided view of one."""
        if name in self.stored or name in self.views or isinstance(self.nodes[name], Extern):
            return
        base, index, index_vars = base_of_views(self.program, name, self.stored)
        if base != name:
            was_stored = base in self.stored
            shape = metas_of(self.nodes[name]).shape
            if was_stored or known_at_most(metas_of(self.nodes[base]).numel, self.viewed_elements.get(base, 0)):
                strides = self.strides.get(base) or self.prospective(base)
                view = strided(base, shape, index, index_vars, strides)
                if view is not None and _acceptable(node, view, metas_of(self.nodes[name])):
                    self.store(base)
                    self.views[name] = view
                    return
        self.store(name)

    def prospective(self, name: str) -> tuple[IntLike, ...]:
        meta = metas_of(self.nodes[name])
        return meta.stride if is_dense(meta.shape, meta.stride) else row_major(meta.shape)

    def estimate(self) -> None:
        """Compute the cost and the leaves (buffers read) of each value if inlined; shared costly values count as
        stored.
        """
        limits = self.machine.realization
        for name, node in self.nodes.items():
            if not isinstance(node, Pointwise):
                self.cost[name], self.leaves[name], self.levels[name] = 0, frozenset((name,)), 0
                self.evaluations[name] = 0
                continue
            self.split_sum(node)
            cost = 0 if node.view else weight(node.op)
            leaves: frozenset[str] = frozenset()
            level = 0
            for source in node.inputs:
                leaves = leaves | self.leaves[source] if leaves else self.leaves[source]
                cost += self.cost[source]
                level = max(level, self.levels[source])
            self.levels[name] = 1 + level
            deep = self.levels[name] > limits.levels
            if len(leaves) > limits.leaves or cost > limits.additions or deep or self.spreads(node):
                self.store(name)
            if name in self.stored:
                self.levels[name] = self.evaluations[name] = 0
            if name in self.stored or (
                not node.view and cost > limits.cheap_additions and len(self.consumers(name)) > 1
            ):
                cost, leaves = 0, frozenset((name,))
            self.cost[name], self.leaves[name] = cost, leaves
            self.expanded(node)

    def split_sum(self, node: Pointwise) -> None:
        """Store a partial sum if a sum of many large results of externs would otherwise keep all of them in memory."""
        if node.op != "add" or len(node.inputs) != 2:
            return
        limits = self.machine.realization
        a, b = (
            sum(adds_up(self.program, self.users, leaf, limits) for leaf in self.leaves[source])
            for source in node.inputs
        )
        if a + b > limits.waiting:
            so_far = node.inputs[a < b]
            self.store(so_far)
            self.leaves[so_far] = frozenset((so_far,))
            self.cost[so_far] = self.levels[so_far] = self.evaluations[so_far] = 0

    def spreads(self, node: Pointwise) -> bool:
        """Whether inlining would evaluate too many elements, at different indices, of computed values for one element.

        `evaluations` counts, path by path, evaluations below values that read at indices other than their own. Only if
        that number exceeds the limit, the distinct evaluations are counted, which takes longer.
        """
        below = sum(self.evaluations[source] for source in node.inputs)
        computed = any(self.levels[source] for source in node.inputs)
        self.evaluations[node.name] = below + (below > 0 or (computed and node.op in MOVES))
        most = self.machine.realization.evaluations
        if below <= most:
            return False
        index = tuple(variable(Var(f"e{d}", n)) for d, n in enumerate(node.meta.shape))
        distinct = trace(self.program, self.stored, node.body, index, limit=most).evaluations
        self.evaluations[node.name] = distinct
        return distinct > most

    def expanded(self, node: Pointwise) -> None:
        """Store a small computed value that a view repeats many times."""
        if node.op != "broadcast_in_dim":
            return
        base, _, _ = base_of_views(self.program, node.name, self.stored)
        if base in self.stored or not isinstance(self.nodes[base], Pointwise):
            return
        small, big = hint(metas_of(self.nodes[base]).numel), hint(node.meta.numel)
        if big >= self.machine.realization.repeats * small and self.cost[base] > 1:
            self.store(base)

    def consumers(self, name: str) -> set[str]:
        """Returns the users of a value; views without buffers are replaced by their users."""
        found: set[str] = set()
        left = [name]
        while left:
            for user in self.users[left.pop()]:
                node = self.nodes[user]
                if isinstance(node, Pointwise) and node.view and user not in self.stored:
                    left.append(user)
                else:
                    found.add(user)
        return found

    def store_shared(self) -> None:
        """Store values that several loops would recompute at a cost; users are visited first, so their choice
        is known.
        """
        loops: dict[str, frozenset[str]] = {}
        for name in reversed(self.nodes):
            node = self.nodes[name]
            roots: set[str] = set()
            for user in self.users[name]:
                if user in self.stored or not isinstance(self.nodes[user], Pointwise):
                    roots.add(user)
                else:
                    roots |= loops[user]
            if isinstance(node, Pointwise) and name not in self.stored and len(roots) > 1 and not node.view:
                if not self.widens(node) and not self.repeatable(node, len(roots)):
                    self.store(name)
            loops[name] = frozenset(roots)

    def widens(self, node: Pointwise) -> bool:
        """Whether a value is the conversion of a computed value to a wider type: then the narrower value is stored
        instead.
        """
        if node.op != "convert" or len(node.inputs) != 1:
            return False
        source = self.nodes[node.inputs[0]]
        if not isinstance(source, Pointwise) or source.view:
            return False
        return hint(source.meta.nbytes) < hint(node.meta.nbytes)

    def repeatable(self, node: Pointwise, loops: int) -> bool:
        """Whether recomputing a value in each of its loops costs no more than reading it back.

        The first loop reads the value's operands in either case.
        """
        cost = 0 if node.view else weight(node.op)
        leaves: set[str] = set()
        for source in node.inputs:
            cost += self.cost[source]
            leaves |= self.leaves[source]
        size = hint(node.meta.nbytes)
        read = sum(min(_bytes(self.nodes[leaf]), 4 * size) for leaf in leaves)
        if not any(_bytes(self.nodes[leaf]) * 8 >= size for leaf in leaves):
            return cost <= 2 * weight("random")
        limits = self.machine.realization
        ratio = self.machine.max_read_ratio if loops == 2 else limits.max_read_ratio
        return cost <= limits.cheap_additions and read <= size * ratio


def adds_up(program: LoopProgram, users: Mapping[str, Sequence[str]], name: str, limits: Realization) -> bool:
    """Whether a value is a large result of an extern whose only use is an addition of the same size."""
    node = program.nodes[name]
    if not isinstance(node, Extern) or _bytes(node) < limits.waiting_bytes or len(users[name]) != 1:
        return False
    user = program.nodes[users[name][0]]
    return isinstance(user, Pointwise) and user.op == "add" and same(user.meta.numel, metas_of(node).numel)


def _bytes(node: Node) -> int:
    meta = node.meta
    return hint(meta.nbytes) if isinstance(meta, TensorMeta) else 0


def base_of_views(program: LoopProgram, name: str, stored: Container[str] = ()) -> tuple[str, Index, list[Var]]:
    """Follow views to their base; returns (its name, the index into it, the variables of the index).

    Args:
        stored: values that have a buffer; a view among them is not followed.
    """
    index_vars = [Var(f"d{d}", n) for d, n in enumerate(metas_of(program.nodes[name]).shape)]
    index: Index = tuple(variable(v) for v in index_vars)
    while name not in stored:
        node = program.nodes[name]
        if not (isinstance(node, Pointwise) and node.view):
            break
        name, index = _Follow().through(node, index)
    return name, index, index_vars


class _Follow:
    """An `Ops` handler that returns the single load of a view's body."""

    def through(self, node: Pointwise, index: Index) -> tuple[str, Index]:
        return node.body(self, index)  # type: ignore[arg-type]

    def load(self, name: str, index: Index) -> tuple[str, Index]:
        return name, index


def strided(
    base: str, shape: Sequence[IntLike], index: Index, index_vars: Sequence[Var], strides: Sequence[IntLike]
) -> StridedView | None:
    """Returns the view of `base` whose element `index_vars` is base[index]; None unless it has non-negative strides."""
    offset = flat_index(index, strides)
    if not offset.is_linear() or not known_at_most(0, offset.const):
        return None
    stride: list[IntLike] = []
    for var, size in zip(index_vars, shape, strict=True):
        stride.append(1 if same(size, 1) or same(size, 0) else offset.coefficient(var))
    if not all(known_at_most(0, s) for s in stride):
        return None
    # a dimension of size 1 may have any stride: the row-major stride keeps externs on fast paths
    for d in range(len(shape) - 2, -1, -1):
        if same(shape[d], 1):
            stride[d] = stride[d + 1] * shape[d + 1]
    return StridedView(base, tuple(shape), tuple(stride), offset.const)


def _is_broadcast(view: StridedView) -> bool:
    return any(same(s, 0) and not same(n, 1) and not same(n, 0) for n, s in zip(view.shape, view.stride, strict=True))


def _acceptable(node: Extern, view: StridedView, meta: TensorMeta) -> bool:
    """Whether an extern takes these strides without copying; `meta` has the strides that eager would pass."""
    if isinstance(node.target, OpOverload):
        if same_steps(meta.shape, meta.stride, view.stride):
            return True
        if depends_on_strides(node.target) or shared_arguments(node.target):  # a view has the alignment of its base
            return not is_dense(meta.shape, meta.stride)
    return _fits(facts_of(node.target).strides, view, meta)


def _fits(strides: Strides, view: StridedView, meta: TensorMeta) -> bool:
    """Whether the strides of a view are those that the kernels of an extern accept."""
    if strides is Strides.ROWS:  # rows are read as wide loads; broadcasting costs nothing
        return same(view.shape[-1], 1) or same(view.stride[-1], 0) or same(view.stride[-1], 1)
    if _is_broadcast(view):
        return False
    if strides is Strides.IMAGES and (is_channels_last(meta.shape, meta.stride) or _by_element(meta)):
        return same_steps(meta.shape, meta.stride, view.stride)  # the extern chooses its kernels by the strides
    if strides is not Strides.MATRIX or len(view.shape) < 2:
        return True
    (rows, columns), (a, b) = view.shape[-2:], view.stride[-2:]
    return (same(b, 1) and known_at_most(columns, a)) or (same(a, 1) and known_at_most(rows, b))


def _by_element(meta: TensorMeta) -> bool:
    return meta.ndim == 4 and same_steps(meta.shape, meta.stride, by_element_stride(meta.shape))
