"""What a user's torch.autograd.Function reads besides its arguments: found by interpreting it, for the guards.

A call of `apply` is one node, and stages that differentiate the graph run the Function's Python code once, at compile
time. So everything it reads has to be guarded. A second interpreter walks through `forward` and `backward` on tensors
of its own; its graph is thrown away, its guards stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.autograd.function import FunctionCtx

from smelt.base import torch_c
from smelt.capture.breaks import Break, UserError
from smelt.capture.number_nodes import NumberNodes
from smelt.graph.gradients import KEEP_ABSENT
from smelt.graph.meta import meta_of
from smelt.graph.trace import TraceTensor, trace_like
from smelt.shapes.real import Real
from smelt.shapes.size import Size


class Context(FunctionCtx):
    """The `ctx` of one call, as far as the user's code can tell."""

    to_save: tuple[Any, ...] = ()
    non_differentiable: tuple[Any, ...] = ()
    materialize_grads = True

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What `save_for_backward` was given."""
        return tuple(self.to_save)


class _Numbers(NumberNodes):
    """Nodes for the symbolic numbers of the capture, in a graph that is thrown away: nothing computes them."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph

    def given(self, number: Size | Real, node: fx.Node) -> None:
        """An input brings the number: another node stands for it anyway."""

    def __call__(self, number: Any) -> Any:
        if not isinstance(number, (Size, Real)):
            return number
        node = self._graph.placeholder("number")
        node.meta["val"] = number
        return node


def rehearse(vm: Any, cls: Any, args: Sequence[Any]) -> None:
    """Guard what `cls.apply(*args)` and its derivative read.

    Raises:
        Break: it does something that a node cannot stand for: it writes to objects from outside, prints, needs values.
    """
    twin = vm.twin()
    twin.tensors.number_node = _Numbers(twin.tensors.graph)
    vm.keep(twin)
    given = tuple(_own(twin, arg) if type(arg) is TraceTensor else arg for arg in args)
    try:
        outputs, ctx = _forward(twin, cls, given)
        if not ctx.materialize_grads:
            KEEP_ABSENT.add(cls)
        if any(ctx.needs_input_grad):
            _backward(twin, cls, ctx, outputs)
    except UserError as raised:  # maybe only because the tensors have no values: eager will tell
        raise Break(f"{cls.__name__}.apply", f"it does not run on tensors without values: {raised}") from None
    finally:
        twin.ambient.restore()
    _refuse_effects(vm, twin, cls)


def _own(twin: Any, tensor: torch.Tensor) -> TraceTensor:
    """A tensor of the rehearsal with the metadata of another one."""
    node = twin.tensors.graph.placeholder("given")
    node.meta["val"] = meta_of(tensor)
    own = trace_like(node.meta["val"], requires_grad=tensor.requires_grad)
    twin.tensors.own(own, node)
    return own


def _forward(twin: Any, cls: Any, given: tuple[Any, ...]) -> tuple[tuple[Any, ...], Context]:
    needed = torch.is_grad_enabled()
    ctx = Context(tuple(type(a) is TraceTensor and a.requires_grad and needed for a in given))
    twin.ambient.switch(torch_c.set_grad_enabled, (False,), {})
    out, ctx = call_forward(twin, cls, ctx, given)
    return (tuple(out) if isinstance(out, (tuple, list)) else (out,)), ctx


def call_forward(vm: Any, cls: Any, ctx: Context, given: tuple[Any, ...]) -> tuple[Any, Context]:
    """What a Function's `forward` gives, and the context that it (or `setup_context`) filled."""
    if cls.setup_context is torch.autograd.Function.setup_context:
        return vm.call(vm.load_attr(cls, "forward"), (ctx, *given), {}), ctx
    out = vm.call(vm.load_attr(cls, "forward"), given, {})
    vm.call(vm.load_attr(cls, "setup_context"), (ctx, given, out), {})
    return out, ctx


def _backward(twin: Any, cls: Any, ctx: Context, outputs: tuple[Any, ...]) -> None:
    if cls.backward is torch.autograd.Function.backward:  # it has a `vjp`, or no derivative
        return
    constant = {id(tensor) for tensor in ctx.non_differentiable}
    grads = []
    for out in outputs:
        floating = type(out) is TraceTensor and (out.is_floating_point() or out.is_complex())
        grads.append(_own(twin, out.detach()) if floating and id(out) not in constant else None)
    twin.call(twin.load_attr(cls, "backward"), (ctx, *grads), {})


def _refuse_effects(vm: Any, twin: Any, cls: Any) -> None:
    effects = twin.effects
    if effects.deferred or effects.pending():
        raise Break(f"{cls.__name__}.apply", "its forward or backward changes something besides tensors")
    written = {(id(store.target), store.name) for store in vm.effects.stores.values()}
    if written & twin.reads.keys() or any(m.changed and id(m.original) in effects.mirrors for m in _mirrors(vm)):
        raise Break(f"{cls.__name__}.apply", "it reads what the compiled function has written before")


def _mirrors(vm: Any) -> list[Any]:
    return list(vm.effects.mirrors.values())
