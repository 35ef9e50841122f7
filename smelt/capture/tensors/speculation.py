"""Assumes values of masks, ids and lengths that the program needs; a guard compares them with the values of each call.

`if mask.all()`, `lengths.tolist()` and `x[mask]` need tensors' values. If these are computed from integer or boolean
arguments (or from the module's own tensors), capture computes them from the real tensors of this call and continues
with them. A guard computes and compares them at each call, since such values seldom change, like sizes. After
`MAX_SPECULATED_VERSIONS` captures of a compile site, its graph ends instead where it needs such a value. A graph also
ends where it needs a value that is computed from floating-point arguments, with one exception: the number of elements
of a small tensor that pass a comparison (`boxes[labels > -1]`) is assumed as well, since labels often contain a number
that represents padding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from smelt.base.class_tables import isinstance
from smelt.base.torch_c import set_grad_enabled
from smelt.base.torch_private import OpOverload
from smelt.capture import _native as native
from smelt.capture.core.interface import Args, Kwargs
from smelt.capture.core.sources import PROLOGUE
from smelt.capture.tensors.graph_module import CapturedGraph
from smelt.capture.tensors.writes import alias_was_written
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.module import Graph
from smelt.graph.meta_rules.constant_values import known_value
from smelt.graph.nodes.conditional import Conditional
from smelt.graph.nodes.cut_points import EagerBoundary
from smelt.graph.trace.trace import TraceTensor
from smelt.shapes.assumptions import Assumed
from smelt.shapes.unbacked import is_unbacked

if TYPE_CHECKING:
    from smelt.capture.tensors.tensors import Input, Tensors

MAX_SPECULATED_VERSIONS = 3
"""Maximum number of versions of one compile site for which values are assumed."""

MAX_ASSUMED_ELEMENTS = 1024
"""Maximum number of elements of a tensor whose values are assumed."""

MAX_GUARD_NODES = 64
"""Maximum number of nodes of a computation that a guard repeats."""

MAX_COMPUTED_ELEMENTS = 1 << 24
"""Maximum number of elements of a tensor that such a computation makes."""

MAX_FLOAT_INPUT_ELEMENTS = 256
"""Maximum number of elements of a floating-point argument that is compared; tensors of labels are small."""

PICKING_OPS = frozenset(
    {"getitem", "__getitem__", "select", "narrow", "unbind", "split", "chunk"}
    | {"view", "reshape", "flatten", "squeeze", "unsqueeze", "expand", "detach", "clone", "contiguous"}
)
"""Operators that may be applied to floating point arguments before the results are compared with other values."""

METADATA_ONLY_METHODS = frozenset(
    {"expand_as", "view_as", "reshape_as", "type_as", "new_zeros", "new_ones", "new_full", "new_tensor"}
)
"""Methods that use only the shape, dtype or device of their last tensor argument."""


class CannotAssume(Exception):
    """Raised if values cannot be assumed."""


@dataclass(frozen=True)
class AssumedValue:
    """An assumed value: `found` is the result of `question` on a node's value, at the time when `after` was the last
    node of the graph.
    """

    node: fx.Node
    question: Callable[[torch.Tensor], torch.Tensor]
    found: torch.Tensor
    after: fx.Node


class Speculation:
    """The values that one capture assumes.

    Args:
        tensors: the capture's tensors.
        allowed: whether values may be assumed; if not, every operation that needs values ends the graph.

    Attributes:
        assume_values: whether values are assumed even where the graph could read them.
    """

    def __init__(self, tensors: Tensors, allowed: bool) -> None:
        self.tensors, self.allowed = tensors, allowed
        self.assume_values = self.prefers_reads = False
        self._times: Counter[object] = Counter()
        self._computed: dict[fx.Node, Any] = {}
        self._assumed: dict[tuple[fx.Node, Callable[..., object], int], AssumedValue] = {}
        self._needed: set[fx.Node] = set()

    def describe_state(self) -> tuple[int, ...]:
        """How many values were assumed so far."""
        return len(self._assumed), len(self._needed), self._times.total()

    def assumes(self, node: fx.Node) -> bool:
        """Whether something about the node's value was assumed."""
        return any(assumed.node is node for assumed in self._assumed.values())

    def value(self, tensor: TraceTensor) -> torch.Tensor | None:
        """A real tensor with the known or assumed values of `tensor`; None if they stay unknown."""
        known = known_value(tensor)
        if known is not None:
            return known
        if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.numel() > MAX_ASSUMED_ELEMENTS:
            return None
        return self._assume(tensor, _itself)

    def count(self, mask: TraceTensor) -> int | None:
        """The known or assumed number of nonzero elements of `mask`; None if it stays unknown."""
        found = self._assume(mask, torch.count_nonzero)
        return None if found is None else int(found)

    def _assume(self, tensor: TraceTensor, question: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor | None:
        node = self.tensors.nodes.get(id(tensor))
        if node is None or not self.allowed:
            return None
        key = (node, question, tensor.storage_view.storage.version)
        if key not in self._assumed:
            try:
                program = self._program(node)
                if (question is _itself or _is_floating(node)) and any(map(self._is_data, program)):
                    raise CannotAssume
                with torch.no_grad(), _PureOnly():
                    found = question(self._run(program)[node])
            except (CannotAssume, RuntimeError):
                return None
            if not self._is_worth_assuming(question, found):
                return None
            if question is _itself:
                self._assume_sizes(node, found)
            self._assumed[key] = AssumedValue(node, question, found, next(iter(reversed(self.tensors.graph.nodes))))
            self._needed.update(program)
            self.tensors.vm.work += 1
        return self._assumed[key].found

    def _is_worth_assuming(self, question: Callable[[torch.Tensor], torch.Tensor], found: torch.Tensor) -> bool:
        """Whether capture should assume the value and compile a version for it; the graph may instead read a value that
        has changed before.
        """
        vm = self.tensors.vm
        by_node = (str(vm.where()), question)
        self._times[by_node] += 1  # a line in a loop may need several values
        same = vm.sizes.changes.look_at_value((*by_node, self._times[by_node]), found.tolist())
        return not self.prefers_reads or (same and vm.sizes.dynamic is not True)

    @contextmanager
    def preferring_reads(self) -> Iterator[None]:
        """A context in which values that have changed before stay unknown, because the graph may read them itself."""
        before, self.prefers_reads = self.prefers_reads, self.tensors.vm.values.are_read and not self.assume_values
        try:
            yield
        finally:
            self.prefers_reads = before

    # -- computing ----------------------------------------------------------------------------------------------------

    def _run(self, program: list[fx.Node]) -> dict[fx.Node, Any]:
        """Compute the real values of the nodes of `program`, a result of `_program`."""
        writes = not self.tensors.mutated.isdisjoint(program)
        values = {} if writes else self._computed  # earlier values are out of date where something was written
        for each in program:
            if each in values:
                continue
            if each.op == "placeholder":
                values[each] = self._input(each).tensor
            else:
                args, kwargs = fx.node.map_arg((_without_values(each, blank), each.kwargs), values.__getitem__)
                values[each] = _call(each, args, kwargs)
                self._verify(each, values[each])
        return values

    def _program(self, node: fx.Node) -> list[fx.Node]:
        """The nodes that `node` depends on, in order, with the writes so far to their memory.

        Raises:
            CannotAssume: there are too many nodes, or they depend on values that may not be assumed.
        """
        needed: set[fx.Node] = set()
        waiting = [node]
        while waiting:
            each = waiting.pop()
            if each in needed:
                continue
            needed.add(each)
            if len(needed) > MAX_GUARD_NODES:
                raise CannotAssume
            writers = self.tensors.writers_of(each)
            if each.op == "placeholder":
                self._check_input(each)
                if writers:
                    raise CannotAssume
            elif each.op not in ("call_function", "call_method") or isinstance(
                each.target, (Conditional, EagerBoundary)
            ):
                raise CannotAssume
            else:
                waiting.extend(writers)
                fx.node.map_arg((_without_values(each, _nothing), each.kwargs), waiting.append)
        if any(map(self._is_data, needed)):
            if any(_is_floating(each) and not _is_selected_element(each) for each in needed):
                raise CannotAssume
        return [each for each in self.tensors.graph.nodes if each in needed]

    def _is_data(self, node: fx.Node) -> bool:
        """Whether a node is a floating-point argument, whose values differ from call to call, unlike those of masks,
        ids and tensors of modules.
        """
        if node.op != "placeholder":
            return False
        return self._input(node).source.kind != native.MODULE_MEMBER and _is_floating(node)

    def _check_input(self, node: fx.Node) -> None:
        entry = self._input(node)
        tensor = entry.tensor
        if self._is_data(node) and tensor.numel() > MAX_FLOAT_INPUT_ELEMENTS:
            raise CannotAssume
        if type(tensor) is not torch.Tensor and not isinstance(tensor, (torch.nn.Parameter, torch.nn.Buffer)):
            raise CannotAssume
        if alias_was_written(self.tensors.vm, tensor, entry.source):
            raise CannotAssume

    def _input(self, node: fx.Node) -> Input:
        found = next((i for i in self.tensors.inputs if i.node is node), None)
        if found is None or found.source.kind == PROLOGUE:  # a size, or a value that is made anew at each call
            raise CannotAssume
        return found

    @staticmethod
    def _verify(node: fx.Node, value: object) -> None:
        """Compare a value with the node's metadata: the present modes may differ from those in which the node was
        recorded.
        """
        seen: Any = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            if value.dtype is not seen.dtype or value.ndim != seen.ndim or value.numel() > MAX_COMPUTED_ELEMENTS:
                raise CannotAssume
            if any(n != size for n, size in zip(value.shape, seen.shape, strict=True) if not is_unbacked(size)):
                raise CannotAssume

    def _assume_sizes(self, node: fx.Node, found: torch.Tensor) -> None:
        """Note the sizes of a tensor whose values are guarded: the guard on the values covers the sizes as well."""
        shape: Any = node.meta["val"].shape
        for size, number in zip(shape, found.shape, strict=True):
            if is_unbacked(size):
                size.owner.learn(Assumed("==", size, number, ""))

    # -- the guard ---------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Add the guard for all assumed values."""
        if not self._assumed:
            return
        needed = self._needed
        fetch = self.tensors.vm.guards.fetch
        inputs = sorted((self._input(n) for n in needed if n.op == "placeholder"), key=lambda i: fetch(i.source))
        if not inputs:
            return  # the assumed values depend only on constants of the program
        graph = Graph()
        copies: dict[fx.Node, fx.Node] = {}

        def blanks(*of: Any) -> fx.Node:
            return graph.call_function(blank, of)

        for entry in inputs:
            copies[entry.node] = graph.placeholder(entry.node.name)
        by_node: dict[fx.Node, list[AssumedValue]] = {}
        for each in self._assumed.values():
            by_node.setdefault(each.after, []).append(each)
        answers: list[tuple[fx.Node, torch.Tensor]] = []
        for node in self.tensors.graph.nodes:
            if node in needed and node not in copies:
                args = tuple(
                    fx.node.map_arg(each, lambda n: copies.get(n, n)) for each in _without_values(node, blanks)
                )
                kwargs = fx.node.map_arg(node.kwargs, copies.__getitem__)
                copies[node] = graph.create_node(node.op, node.target, args, kwargs)
            for each in by_node.get(node, ()):
                answers.append((graph.call_function(each.question, (copies[each.node],)), each.found))
        graph.output(tuple(answer for answer, _ in answers))
        check = ValuesHold(CapturedGraph({}, graph), tuple(found for _, found in answers))
        self.tensors.vm.guards.python(check, [entry.source for entry in inputs])


class ValuesHold:
    """A guard that the values computed from the given inputs equal the values that capture assumed.

    Masks and lengths are often equal from call to call. Inputs that passed are copied; when the next inputs equal them,
    nothing is computed. Inputs that keep changing are no longer copied.
    """

    MAX_KEPT_ELEMENTS = 1 << 16
    """Maximum number of elements of all inputs together for which the inputs are copied."""
    MAX_TRIES = 3
    """Number of calls with changed inputs after which inputs are no longer copied."""

    def __init__(self, program: fx.GraphModule, expected: tuple[torch.Tensor, ...]) -> None:
        self.program, self.expected = program, expected
        self._numbers: list[tuple[torch.dtype, int]] | None = None
        if all(each.ndim == 0 and each.dtype is torch.int64 and each.device.type == "cpu" for each in expected):
            self._numbers = [(each.dtype, int(each.item())) for each in expected]
        self._accepted: tuple[torch.Tensor, ...] = ()
        self._tries = 0
        shown = ", ".join(str(each.tolist())[:60] for each in expected[:4])
        self.__name__ = f"values_are[{shown}{', ...' if len(expected) > 4 else ''}]"

    def __call__(self, *inputs: torch.Tensor) -> bool:
        if self._accepted and self._equal(inputs, self._accepted):
            return True
        recording = torch.is_grad_enabled()
        if recording:
            set_grad_enabled(False)
        try:
            found = self.program.forward(*inputs)
        except (RuntimeError, IndexError):  # for example because the shapes do not fit
            return False
        finally:
            if recording:
                set_grad_enabled(True)
        holds = (
            self._equal(found, self.expected) if self._numbers is None else self._equal_numbers(found, self._numbers)
        )
        if holds:
            self._copy_inputs(inputs)
        return holds

    @staticmethod
    def _equal(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
        for a, b in zip(some, others, strict=True):
            if not (a.dtype is b.dtype and a.device == b.device and torch.equal(a, b)):
                return False
        return True

    @staticmethod
    def _equal_numbers(found: Sequence[torch.Tensor], numbers: Sequence[tuple[torch.dtype, int]]) -> bool:
        """Whether CPU tensors with one number each, such as lengths, equal `numbers`; takes a third of the time of
        `_equal`.
        """
        for tensor, (dtype, number) in zip(found, numbers, strict=True):
            if tensor.ndim or not tensor.is_cpu or tensor.dtype is not dtype or tensor.item() != number:
                return False
        return True

    def _copy_inputs(self, inputs: Sequence[torch.Tensor]) -> None:
        if self._tries >= self.MAX_TRIES:
            return
        self._tries += bool(self._accepted)
        worth = self._tries < self.MAX_TRIES and sum(each.numel() for each in inputs) <= self.MAX_KEPT_ELEMENTS
        if worth and any(each.is_floating_point() or each.is_complex() for each in inputs):
            worth, self._tries = False, self.MAX_TRIES  # -0.0 == 0.0; later inputs will be floats, too
        self._accepted = tuple(each.detach().clone() for each in inputs) if worth else ()


class _PureOnly(TorchDispatchMode):
    """A mode that refuses operators that draw random numbers, so that results depend only on the operators'
    arguments.
    """

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise CannotAssume
        return func(*args, **(kwargs or {}))


def _itself(value: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor, which may be written to later."""
    return value.clone()


def _call(node: fx.Node, args: Args, kwargs: Kwargs) -> object:
    target: Any = node.target
    return getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)


def _is_floating(node: fx.Node) -> bool:
    seen: Any = node.meta.get("val")
    values = seen if isinstance(seen, tuple) else (seen,)
    return any(isinstance(p, TensorMeta) and (p.dtype.is_floating_point or p.dtype.is_complex) for p in values)


def _is_selected_element(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op == "placeholder" or name in PICKING_OPS


def _without_values(node: fx.Node, stand_in: Callable[..., Any]) -> tuple[fx.node.Argument, ...]:
    """The node's arguments, with `stand_in(shape, dtype, device)` for a tensor of which only the metadata matters."""
    if node.op != "call_method" or node.target not in METADATA_ONLY_METHODS:
        return node.args
    at = 1 if str(node.target).endswith("_as") else 0
    like = node.args[at] if len(node.args) > at else None
    if not isinstance(like, fx.Node) or like.meta["val"].symbolic:
        return node.args
    seen = like.meta["val"]
    return (*node.args[:at], stand_in(tuple(seen.shape), seen.dtype, seen.device), *node.args[at + 1 :])


def blank(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of the given shape whose elements all share one zero in memory."""
    return torch.zeros((), dtype=dtype, device=device).expand(shape)


def _nothing(*of: object) -> None:
    return None
