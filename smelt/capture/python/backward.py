"""`loss.backward()` inside the captured function: the graph computes the gradients, and `.grad` is written after it.

The trace tensors of a capture have the program's real autograd history, so the engine itself determines which leaves a
loss reaches, and the metadata of their gradients. The graph computes them with `torch.autograd.grad`; the addition to
`.grad` is a deferred write, so that an optimizer in the same function reads the new gradients, and a gradient that only
the optimizer reads is never stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from smelt.base import torch_c
from smelt.base.class_tables import isinstance
from smelt.base.torch_private import forbidden, is_view, view_base
from smelt.capture.core.breaks import Break, user_raise
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special
from smelt.capture.guards.questions import has_hooks, is_leaf, no_hooks
from smelt.capture.python.effects import has_written
from smelt.capture.python.gradient_hooks import call_hooks, call_late_hooks, in_order, registered
from smelt.graph.ir.meta import accumulated, is_dense
from smelt.graph.nodes.cut_points import cuts, why_cut
from smelt.graph.nodes.engine_nodes import history
from smelt.graph.nodes.gradients import gradients
from smelt.graph.nodes.invalid_history import with_invalid_history
from smelt.graph.trace.trace import TraceTensor
from smelt.shapes.size import same


@special(torch.Tensor.backward)
def tensor_backward(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """`tensor.backward(gradient, retain_graph, create_graph, inputs)`"""
    _of_tensor(vm, *args, **kwargs)


@special(torch.autograd.backward)
def autograd_backward(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """`torch.autograd.backward(tensors, grad_tensors, retain_graph, create_graph, ..., inputs)`"""
    _of_tensors(vm, *args, **kwargs)


def _of_tensor(
    vm: Interpreter,
    tensor: object,
    gradient: object = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: object = None,
) -> None:
    _of_tensors(vm, tensor, gradient, retain_graph, create_graph, inputs=inputs)


def _chosen(reached: Sequence[TraceTensor], wanted: Sequence[object]) -> list[TraceTensor]:
    """The reached leaves that are among the call's `inputs`."""
    if not wanted:
        user_raise(RuntimeError("`inputs` argument to `backward()` cannot be empty."))
    if any(type(each) is not TraceTensor or each.grad_fn is not None for each in wanted):
        raise Break("backward(inputs=...) of tensors that are computed", "their .grad would be kept")
    return [leaf for leaf in reached if any(leaf is each for each in wanted)]


def _of_tensors(
    vm: Interpreter,
    tensors: object,
    grad_tensors: object = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: object = None,
    inputs: object = None,
) -> None:
    vm.equal_calls.require_history()
    refuse_pieces(vm, "backward()")
    if create_graph or grad_variables is not None:
        raise Break("backward(create_graph=True)", "gradients that have a history of their own stay outside a graph")
    roots = _sequence(vm.effects.plain(tensors))
    head_gradients = _sequence(vm.effects.plain(grad_tensors)) if grad_tensors is not None else [None] * len(roots)
    if not all(type(root) is TraceTensor for root in roots):
        raise Break("backward() of what is no tensor")
    reached = list(leaves_below(roots))
    if inputs is not None:
        reached = _chosen(reached, _sequence(vm.effects.plain(inputs)))
    for leaf in reached:
        check_leaf(vm, leaf, hooks=True)
    hooked = any(_hooked(vm, leaf) for leaf in reached)
    if hooked:
        reached = in_order(roots, reached)
    spent = [] if retain_graph else list(history(roots))
    if reached:
        call = {"retain_graph": True, "allow_unused": True} if retain_graph else {"allow_unused": True}
        if hooked:
            found = vm.tensors.run(gradients, (roots, reached, head_gradients), {"retain_graph": bool(retain_graph)})
        else:
            found = vm.tensors.run(torch.autograd.grad, (roots, reached, head_gradients), call)
        vm.tensors.note_used_up(spent)
        _accumulate(vm, reached, found)
    else:  # no gradient to compute: the engine raises its error
        vm.tensors.run(torch.autograd.backward, (roots, head_gradients), {})


def refuse_pieces(vm: Interpreter, call: str) -> None:
    """Check that gradients can be a node of this graph.

    Raises:
        Break: the graph is cut, at a branch on a tensor's value or at a hook; or the function has written to objects
            that a custom backward reads.
    """
    for node in cuts(vm.tensors.graph):
        raise Break(f"{call} after {why_cut(node)}", "the graph is differentiated in pieces")
    if has_written(vm, vm.python.read_later):
        raise Break(call, "the backward of a torch.autograd.Function reads what the compiled function has written")


def _sequence(value: Any) -> list[Any]:
    return [value] if isinstance(value, torch.Tensor) else [*value]


# -- leaves of a backward ------------------------------------------------------------------------------------------


def leaves_below(roots: Sequence[torch.Tensor]) -> Iterator[TraceTensor]:
    """The leaves to whose `.grad` a backward from the roots adds."""
    yield from (root for root in roots if type(root) is TraceTensor and root.requires_grad and root.grad_fn is None)
    for node in history(roots):
        leaf = getattr(node, "variable", None)
        if type(leaf) is TraceTensor:
            yield leaf


def check_leaf(vm: Interpreter, leaf: TraceTensor, hooks: bool = False) -> None:
    """Check that a leaf of the trace is a leaf of the program, too; adds guards if it is an external tensor.

    Args:
        hooks: whether the leaf's hooks will be called.

    Raises:
        Break: the gradient would have to flow to operations before the function, or through a hook.
    """
    if id(leaf) in vm.tensors.computed:
        raise Break(
            "backward() reaches what was computed before the function",
            "its gradients flow on, outside of the graph",
            "compile the function that computes it too, or call backward() outside",
        )
    source, real = vm.sources.get(id(leaf)), vm.tensors.real.get(id(leaf))
    if real is None or source is None:
        return
    if not isinstance(real, torch.nn.Parameter):  # a parameter is always a leaf
        vm.guards.python(is_leaf, [source])
    if not has_hooks(real):
        vm.guards.joint_check(no_hooks, source)
    if not hooks and _hooked(vm, leaf):
        raise Break("torch.autograd.grad with a hook on a tensor", "the hook is called with the gradient")


def _hooked(vm: Interpreter, leaf: TraceTensor) -> bool:
    real = vm.tensors.real.get(id(leaf))
    return real is not None and has_hooks(real) or bool(registered(vm, leaf))


# -- writing the gradients -----------------------------------------------------------------------------------------


def _accumulate(vm: Interpreter, leaves: Iterable[TraceTensor], gradients: Iterable[Any]) -> None:
    """Add gradients to `.grad` as autograd does: in place if `.grad` exists, else the gradient becomes `.grad`."""
    taken: set[int] = set()
    for leaf, gradient in zip(leaves, gradients, strict=True):
        if gradient is None:
            continue
        if _hooked(vm, leaf):
            gradient = call_hooks(vm, leaf, gradient)
        _add(vm, leaf, gradient, taken)
        if _hooked(vm, leaf):
            call_late_hooks(vm, leaf)


def _add(vm: Interpreter, leaf: TraceTensor, gradient: TraceTensor, taken: set[int]) -> None:
    """Add a gradient to `.grad`, or set it. `taken`: identities of storages that another tensor's `.grad` uses."""
    before = vm.load_attr(leaf, "grad")
    if before is not None:
        with vm.ambient.unrecorded(vm.tensors.graph):
            vm.tensors.run(torch.Tensor.add_, (before, gradient), {}, method="add_")
        return
    if id(gradient.storage_view.storage) in taken or not _fits(gradient, leaf):
        own = leaf.storage_view.layout.val
        if is_dense(own.shape, own.stride):
            kept = vm.tensors.run(torch.empty_like, (leaf,), {"requires_grad": False})
        else:
            kept = vm.tensors.run(torch.Tensor.new_empty, (leaf, tuple(own.shape)), {}, method="new_empty")
        gradient = vm.tensors.run(torch.Tensor.copy_, (kept, gradient), {}, method="copy_")
    taken.add(id(gradient.storage_view.storage))
    store_grad(vm, leaf, gradient)


def _fits(gradient: TraceTensor, leaf: TraceTensor) -> bool:
    """Whether the gradient has the memory layout that `.grad` gets from autograd."""
    computed = gradient.storage_view.layout.val
    return accumulated(leaf.storage_view.layout.val, computed) is computed and same(
        gradient.storage_view.layout.offset, 0
    )


def store_grad(vm: Interpreter, tensor: TraceTensor, value: object) -> None:
    """Set `tensor.grad` to `value`: captured code reads it at once, other code reads it after the graph has run."""
    if vm.source_of(tensor) is None:
        vm.reads[id(tensor), "grad"] = value
    else:
        if value is None and (id(tensor), "grad") not in vm.reads:
            vm.effects.cleared.append(tensor)
        vm.effects.store("attr", tensor, "grad", value)


def has_freed_history(vm: Interpreter, tensor: TraceTensor) -> bool:
    """Whether a backward has freed saved tensors in the history of the tensor."""
    return bool(vm.tensors.spent) and any(id(node) in vm.tensors.spent for node in history([tensor]))


def base_with_freed_history(vm: Interpreter, tensor: TraceTensor) -> TraceTensor | None:
    """The base of a view taken without a history (`torch.no_grad()`), if `has_freed_history` holds for the base."""
    if not (vm.tensors.spent and tensor.requires_grad and is_view(tensor)):
        return None
    if forbidden(tensor) is None and tensor.grad_fn is not None:
        return None
    base = view_base(tensor)
    if type(base) is not TraceTensor or base.dtype is not tensor.dtype or tensor.storage_view.layout.val.symbolic:
        return None
    lazy = tensor.is_conj() or tensor.is_neg()
    return base if not lazy and id(base) in vm.tensors.nodes and has_freed_history(vm, base) else None


def view_without_history(
    base: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], distance: int, written: bool
) -> torch.Tensor:
    """The view of the base at this offset, taken under `torch.no_grad()`.

    Args:
        distance: offset from the first element of the base, in elements.
        written: whether the base or the view was written after the view was taken, so that autograd refuses to use the
            view.
    """
    with torch.no_grad():
        view = base.as_strided(shape, stride, base.storage_offset() + distance)
    if written:
        torch.autograd.graph.increment_version(base)
    return view


def spent(tensor: torch.Tensor, *origins: torch.Tensor) -> torch.Tensor:
    """A result of the graph as eager returns it after a backward: it requires gradients, but its history is freed."""
    with torch_c.without_torch_function():  # the origins may be instances of subclasses
        return with_invalid_history(tensor, RuntimeError(_SPENT), origins)


_SPENT = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already "
    "been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). "
    "Specify retain_graph=True if you need to backward through the graph a second time or if you need to access saved "
    "tensors after calling backward."
)
