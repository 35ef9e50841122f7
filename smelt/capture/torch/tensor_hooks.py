"""Hooks that the program registers on tensors: residual code registers them after the graph, before a backward can run.

A hook on a tensor that the graph makes has to be registered on the tensor object through which gradients flow.
Therefore the graph is cut where the tensor is made (`graph.nodes.cut_points.Edge`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.hooks import RemovableHandle

from smelt.base import torch_c
from smelt.capture.core.breaks import Break, Restart, user_raise
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import REBUILD, TENSOR_METHODS, Rebuilder, special
from smelt.capture.tensors.cut_points import cut_after, refuse_nested_cut
from smelt.graph.nodes.absent_gradients import skipping_absent
from smelt.graph.trace.trace import TraceTensor


class PendingHook(RemovableHandle):
    """The handle of a hook that is not registered yet.

    Attributes:
        name: name of the method that registers the hook.
        version: number of writes to the tensor's memory before the call of that method.
        born: step of the capture at which the program called the method.
    """

    def __init__(self, tensor: TraceTensor, name: str, hook: object, born: int) -> None:
        self.tensor, self.name, self.hook, self.born = tensor, name, hook, born
        self.version = tensor.storage_view.storage.version
        self.removed = False

    def remove(self) -> None:
        """Mark the hook as removed, so that residual code does not register it."""
        self.removed = True


@special(PendingHook.remove)
def remove(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `handle.remove()`."""
    vm.work += 1
    args[0].remove()


def register_hook(vm: Interpreter, tensor: TraceTensor, hook: object) -> PendingHook:
    """Captured form of `tensor.register_hook(hook)`."""
    if not tensor.requires_grad:
        user_raise(RuntimeError("cannot register a hook on a tensor that doesn't require gradient"))
    return _register(vm, tensor, "register_hook", hook)


def register_accumulate_hook(vm: Interpreter, tensor: TraceTensor, hook: object) -> PendingHook:
    """Captured form of `tensor.register_post_accumulate_grad_hook(hook)`."""
    if not tensor.requires_grad:
        user_raise(RuntimeError("cannot register a hook on a tensor that doesn't require gradient"))
    if not vm.load_attr(tensor, "is_leaf"):
        user_raise(RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors"))
    return _register(vm, tensor, "register_post_accumulate_grad_hook", hook)


def retain_grad(vm: Interpreter, tensor: TraceTensor) -> None:
    """Captured form of `tensor.retain_grad()`."""
    if not tensor.requires_grad:
        user_raise(RuntimeError("can't retain_grad on Tensor that has requires_grad=False"))
    if vm.load_attr(tensor, "is_leaf"):
        return
    _require_hookable(vm, tensor, "retain_grad")
    tensor.retain_grad()  # the program may read `retains_grad`
    vm.effects.defer(torch.Tensor.retain_grad, (tensor,), {})


TENSOR_METHODS["register_hook"] = register_hook
TENSOR_METHODS["register_post_accumulate_grad_hook"] = register_accumulate_hook
TENSOR_METHODS["retain_grad"] = retain_grad


def _register(vm: Interpreter, tensor: TraceTensor, name: str, hook: object) -> PendingHook:
    _require_hookable(vm, tensor, name)
    handle = PendingHook(tensor, name, hook, vm.step)
    vm.work += 1
    vm.python.hooks.setdefault(id(tensor), []).append(handle)
    vm.effects.make(handle)
    return handle


# -- the tensor ------------------------------------------------------------------------------------------------------


def _require_hookable(vm: Interpreter, tensor: TraceTensor, name: str) -> None:
    """Make the tensor one that residual code can register hooks on: an input, or a tensor at which the graph is cut.

    Raises:
        Break: the tensor cannot be made hookable, or the graph computes its gradients.
    """
    tensors = vm.tensors
    if vm.source_of(tensor) is not None:
        if id(tensor.storage_view.storage) in tensors.writers:
            raise Break(f"tensor.{name}() of an argument that was written", "which of its values is meant is lost")
        return
    refuse_nested_cut(vm, f"tensor.{name}()")
    if tensors.is_made_leaf(tensors.nodes[id(tensor)]):
        raise Break(
            f"tensor.{name}() of a tensor that was set to require gradients inside", "it is no tensor of the caller"
        )
    node = tensors.nodes[id(tensor)]
    writers = tensors.writers.get(id(tensor.storage_view.storage), [])
    cut_after(vm, {node, *writers}, node)


# -- residual code ---------------------------------------------------------------------------------------------------


@REBUILD(PendingHook)
def rebuild_pending_hook(r: Rebuilder, handle: PendingHook) -> str:
    """Write code that registers the hook, after the hooks that the program registered on the tensor before.

    Raises:
        Restart: the tensor was written to after the program registered the hook, which belongs to the old value.
    """
    for earlier in r.vm.python.hooks[id(handle.tensor)]:
        if earlier is handle:
            break
        if not earlier.removed:
            r(earlier)
    if handle.tensor.storage_view.storage.version != handle.version:
        stop = Break("a write to a tensor that has a hook", "the hook is for what the tensor was before")
        raise Restart(handle.born, stop)
    r.acts = r.acts or r.vm.source_of(handle.tensor) is not None
    register = r.constant(_registered, "registered")
    name = r.assign(handle, f"{register}({r(handle.tensor)}, {handle.name!r}, {r(handle.hook)})")
    if handle.removed:
        r.lines.append(f"{name}.remove()")
    return name


def _registered(tensor: torch.Tensor, name: str, hook: Callable[..., object]) -> RemovableHandle:
    """Register the hook. Reads `grad_fn` first: PyTorch crashes for a view whose base was written to after the last
    read of `grad_fn`.
    """
    with torch_c.without_torch_function():  # the program's call of it has been captured
        tensor.grad_fn  # noqa: B018
        handle: RemovableHandle = getattr(tensor, name)(skipping_absent(hook) if name == "register_hook" else hook)
    return handle
