"""The values that a user's torch.autograd.Function reads besides its arguments: found by interpretation, and guarded.

A call of `apply` is one node, and stages that differentiate the graph run the Function's Python code once, at compile
time. Therefore all values that the code reads have to be guarded. A second interpreter runs `forward` and `backward` on
separate trace tensors; its graph is dropped, its guards are kept.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import fx
from torch.autograd.function import FunctionCtx

from smelt.base import torch_c
from smelt.base.class_tables import isinstance
from smelt.base.torch_private import is_view
from smelt.capture import _native as native
from smelt.capture.core.breaks import Break, UserError
from smelt.capture.core.interface import Args, Interpreter
from smelt.capture.core.sources import Source
from smelt.capture.guards.guards import Check, GuardList
from smelt.capture.python.effects import has_written
from smelt.capture.tensors.number_nodes import NumberNodes
from smelt.graph.ir.meta import meta_of
from smelt.graph.nodes.custom_functions import BackwardState
from smelt.graph.trace.trace import TraceTensor, trace_like
from smelt.shapes.real import Real
from smelt.shapes.size import Size


class Context(FunctionCtx):
    """The `ctx` of one call, as the user's code sees it.

    Attributes:
        count: the number of arguments; the backward returns one gradient for each argument.
    """

    to_save: tuple[Any, ...] = ()
    non_differentiable: tuple[Any, ...] = ()
    materialize_grads = True
    count = 0

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad

    @property
    def dirty(self) -> tuple[object, ...]:
        """The arguments of `mark_dirty`."""
        return tuple(getattr(self, "dirty_tensors", ()) or ())

    @property
    def saved_tensors(self) -> tuple[object, ...]:
        """The arguments of `save_for_backward`."""
        return tuple(self.to_save)


class _Numbers(NumberNodes):
    """Placeholders for the symbolic numbers of the capture in the graph that is dropped, where no node computes
    them.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph

    def add_input(self, number: Size | Real, node: fx.Node) -> None:
        """Ignore an input that gives the number: the number gets a separate placeholder."""

    def __call__(self, number: object) -> object:
        if not isinstance(number, (Size, Real)):
            return number
        node = self._graph.placeholder("number")
        node.meta["val"] = number
        return node


def guard_reads(
    vm: Interpreter, cls: type[torch.autograd.Function], args: Sequence[object]
) -> tuple[BackwardState | None, bool]:
    """Guard the values that `cls.apply(*args)` and its derivative read; returns (mutable state that the backward reads,
    whether materialization is off).

    The state, None if the backward reads no mutable values, is checked a second time before the backward runs. The
    second result is True if the call has switched `set_materialize_grads` off.

    Raises:
        Break: a node cannot represent the call, because the call writes to external objects, prints, or needs
            values.
    """
    sibling = vm.sibling()
    sibling.tensors.number_node = _Numbers(sibling.tensors.graph)
    vm.keep(sibling)
    operands = tuple(_placeholder_like(sibling, arg) if type(arg) is TraceTensor else arg for arg in args)
    before: list[Check] = []
    after: list[Check] = []
    seen: set[tuple[int, str]] = set()
    try:
        with _collecting(sibling, before):
            outputs, ctx = _forward(sibling, cls, operands)
        if len(outputs) > 1:
            _refuse_written_views(vm, cls, ctx, dict(zip(map(id, operands), args, strict=True)))
        reads_class = _reads_of_class(sibling)
        if any(ctx.needs_input_grad):
            seen = _forget_reads(sibling)
            with _collecting(sibling, after):
                _backward(sibling, cls, ctx, outputs)
    except UserError as raised:  # perhaps only because the tensors have no values, which a run in eager shows
        raise Break(f"{cls.__name__}.apply", f"it does not run on tensors without values: {raised}") from None
    finally:
        sibling.ambient.restore()
    if id(cls) in vm.python.made_classes:
        _refuse_call_state(cls, reads_class or _reads_of_class(sibling), [*before, *after])
    seen |= sibling.reads.keys() | _containers(sibling, [*before, *after])
    vm.python.read_later |= sibling.reads.keys() | _containers(sibling, after)
    _refuse_effects(vm, sibling, cls, seen)
    if sibling.tensors.inputs:
        raise Break(f"{cls.__name__}.apply", "it reads tensors that it is not given")
    return _state(vm, cls, before, after), not ctx.materialize_grads


@contextmanager
def _collecting(sibling: Interpreter, checks: list[Check]) -> Iterator[None]:
    """Collect the checks on values that are read while the context is open, including checks that exist already."""
    outer, sibling.guards.noted = sibling.guards.noted, checks
    try:
        yield
    finally:
        sibling.guards.noted = outer
        if outer is not None:
            outer += checks


def _reads_of_class(sibling: Interpreter) -> bool:
    """Whether the Function has read an attribute of a class that each call makes anew."""
    return any(
        key in sibling.python.made_classes and not _is_immutable(found)
        for (key, _), found in sibling.python.lookups.items()
    )


def _refuse_call_state(cls: type, reads_class: bool, checks: list[Check]) -> None:
    """Refuse reads of variables and attributes that each call makes anew: a node keeps the class of one call, and runs
    later.
    """
    if reads_class or any(source.local and _may_change(source, kind, operand) for source, kind, operand in checks):
        raise Break(f"{cls.__name__}.apply", "it reads what each call makes anew", "give it to apply as an argument")


def _forget_reads(sibling: Interpreter) -> set[tuple[int, str]]:
    """Forget the known values of external objects, so that the next read of each value repeats its checks."""
    known = [key for key in sibling.reads if sibling.is_external(key[0])]
    for key in known:
        del sibling.reads[key]
    sibling.python.lookups.clear()
    return set(known)


def _state(
    vm: Interpreter, cls: type[torch.autograd.Function], before: list[Check], after: list[Check]
) -> BackwardState | None:
    after = [check for check in after if _may_change(*check)]
    if not after:
        return None
    if any(source.local for source, _, _ in after):
        raise Break(f"{cls.__name__}.apply", "its backward reads an object that the compiled function is given")
    before = [check for check in before if _may_change(*check) and not check[0].local]
    return BackwardState(cls, _checker(vm, after), _checker(vm, before))


def _may_change(source: Source, kind: int, operand: object) -> bool:
    """Whether a program may change the compared value: plain values may change, functions, classes and modules
    do not.
    """
    if source.kind == native.FUNCTION_FIELD:
        return False
    if source.kind == native.CLASS_ATTR and (kind == native.MISSING or _is_of_context(source)):
        return False
    if kind == native.IS:
        return not _is_immutable(operand)
    if kind == native.MISSING:  # except for a global name that refers to a builtin, which is not defined later
        return source.base is not None and source.base.base is not None
    return kind in (native.EQ, native.LEN, native.DICT_KEYS, native.HAS_KEY, native.NOT_KEY)


def _is_immutable(value: object) -> bool:
    return callable(value) or hasattr(value, "__get__") or isinstance(value, _FIXED)


_FIXED = (types.ModuleType, torch.dtype, torch.layout, torch.memory_format)


def _is_of_context(source: Source) -> bool:
    return source.base is not None and any(source.base.key is each for each in Context.__mro__)


def _checker(vm: Interpreter, checks: list[Check]) -> Callable[[], bool]:
    """A function that returns whether all of the checks hold at the time of its call."""
    required = GuardList()
    for check in checks:
        required.check(*check)
    guards, frame = required.finish(()), vm.frames[0]
    globals, function = frame.globals, frame.function
    return lambda: guards.check((), globals, function) is not None


def _refuse_written_views(
    vm: Interpreter, cls: type[torch.autograd.Function], ctx: Context, originals: dict[int, object]
) -> None:
    """Refuse a Function with several results that writes to a view: autograd raises an error, but not for trace
    tensors.
    """
    for tensor in ctx.dirty:
        real = vm.tensors.real.get(id(originals.get(id(tensor))))
        if real is not None and real.requires_grad and is_view(real):
            raise Break(f"{cls.__name__}.apply", "it writes to a view that the compiled function is given")


def _placeholder_like(sibling: Interpreter, tensor: torch.Tensor) -> TraceTensor:
    """A trace tensor of the second interpreter with the metadata of `tensor`."""
    node = sibling.tensors.graph.placeholder("given")
    node.meta["val"] = meta_of(tensor)
    own = trace_like(node.meta["val"], requires_grad=tensor.requires_grad)
    sibling.tensors.own(own, node)
    return own


def _forward(
    sibling: Interpreter, cls: type[torch.autograd.Function], operands: Args
) -> tuple[tuple[object, ...], Context]:
    needed = torch.is_grad_enabled()
    ctx = Context(tuple(type(a) is TraceTensor and a.requires_grad and needed for a in operands))
    sibling.ambient.switch(torch_c.set_grad_enabled, (False,), {})
    out, ctx = call_forward(sibling, cls, ctx, operands)
    return (tuple(out) if isinstance(out, (tuple, list)) else (out,)), ctx


def call_forward(
    vm: Interpreter, cls: type[torch.autograd.Function], ctx: Context, operands: Args
) -> tuple[object, Context]:
    """The result of a Function's `forward`, and the context that it (or `setup_context`) filled."""
    if cls.setup_context is torch.autograd.Function.setup_context:
        ctx.count = len(operands)
        return vm.call(vm.load_attr(cls, "forward"), (ctx, *operands), {}), ctx
    try:
        bound = inspect.signature(cls.forward).bind(*operands)
        bound.apply_defaults()
        operands = bound.args  # the form in which PyTorch passes the arguments
    except TypeError:
        pass  # the call raises the error
    ctx.count = len(operands)
    out = vm.call(vm.load_attr(cls, "forward"), operands, {})
    vm.call(vm.load_attr(cls, "setup_context"), (ctx, operands, out), {})
    return out, ctx


def _backward(sibling: Interpreter, cls: type[torch.autograd.Function], ctx: Context, outputs: tuple[Any, ...]) -> None:
    if cls.backward is torch.autograd.Function.backward:  # the Function has a `vjp`, or no derivative
        return
    constant = {id(tensor) for tensor in ctx.non_differentiable}
    grads = []
    for out in outputs:
        floating = type(out) is TraceTensor and (out.is_floating_point() or out.is_complex())
        grads.append(_placeholder_like(sibling, out.detach()) if floating and id(out) not in constant else None)
    found = sibling.call(sibling.load_attr(cls, "backward"), (ctx, *grads), {})
    gradients = found if isinstance(found, tuple) else (found,)
    if not ctx.materialize_grads:
        for some in _with_absent(grads):  # with absent gradients the backward may read other values, or raise
            with suppress(UserError):
                sibling.call(sibling.load_attr(cls, "backward"), (ctx, *some), {})
    if len(gradients) < ctx.count or any(each is not None for each in gradients[ctx.count :]):
        raise Break(
            f"{cls.__name__}.apply", "its backward gives another number of gradients, which is an error of its own"
        )


def _with_absent(gradients: Sequence[object]) -> Iterator[list[object]]:
    """Lists of gradients of which some are absent: one, or all but one; for few gradients each subset."""
    positions = [k for k, gradient in enumerate(gradients) if gradient is not None]
    counts = range(1, len(positions)) if len(positions) <= _MAX_SUBSET_RESULTS else (1, len(positions) - 1)
    for count in counts if len(positions) > 1 else ():
        for absent in itertools.combinations(positions, count):
            yield [None if k in absent else gradient for k, gradient in enumerate(gradients)]


_MAX_SUBSET_RESULTS = 4
"""Maximum number of results of a Function for which each subset of absent gradients is tried."""


def _refuse_effects(
    vm: Interpreter, sibling: Interpreter, cls: type[torch.autograd.Function], seen: set[tuple[int, str]]
) -> None:
    if sibling.effects.deferred or sibling.effects.pending():
        raise Break(f"{cls.__name__}.apply", "its forward or backward changes something besides tensors")
    if has_written(vm, seen):
        raise Break(f"{cls.__name__}.apply", "it reads what the compiled function has written before")


def _containers(sibling: Interpreter, checks: Sequence[Check]) -> set[tuple[int, str]]:
    """The containers whose items, keys or length were checked."""
    mirrored = {(id(mirror.original), "") for mirror in sibling.effects.mirrors.values()}
    objects = {source: key for key, source in sibling.sources.items()}
    found = {objects.get(step) for source, _, _ in checks for step in (source, source.base) if step is not None}
    return mirrored | {(key, "") for key in found if key is not None}
