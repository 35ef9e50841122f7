"""`with torch.inference_mode()` and `with saved_tensors_hooks(...)` in captured code: regions of the graph run in them.

A region that is still open at a graph break would have to be entered by residual code: capture restarts and ends the
graph before the region.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from smelt.base import torch_c
from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import At, Break, Restart, UserError
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special
from smelt.capture.tensors.cut_points import refuse_nested_cut
from smelt.graph.nodes.cut_points import EagerBoundary
from smelt.graph.nodes.thread_modes import Entered, EnterInference, EnterSavedHooks, Leave


@dataclass
class ModeRegion:
    """A region of a thread mode that the program has entered and not yet left.

    Attributes:
        owner: the context manager.
        name: the name of the region in messages.
        token: the value that the node which entered the region made; None if there is no such node.
        gradients, inference: the modes before the region.
        step, at: the step and the user's line at which the region was entered.
    """

    owner: Any
    name: str
    token: Entered | None
    gradients: bool
    inference: bool
    step: int
    at: At | None


def refuse_open(vm: Interpreter) -> None:
    """Require that no region is open where the graph ends.

    Raises:
        Restart: a region is open; capture stops before the region.
    """
    if vm.python.regions:
        first: ModeRegion = vm.python.regions[0]
        stop = Break(f"a graph break inside {first.name}", "the mode is on where the graph ends")
        stop.at = first.at
        raise Restart(first.step, stop)


def _open(vm: Interpreter, owner: object, name: str, target: EagerBoundary, nonconstant: Sequence[object]) -> None:
    refuse_nested_cut(vm, name)
    token = Entered()
    if isinstance(target, EnterInference):
        vm.ambient.begin_enclosing_grad_mode(vm.tensors.graph, not target.mode)
    vm.tensors.note(token, (), False, target, tuple(nonconstant), {})
    if not isinstance(target, EnterInference):
        vm.ambient.begin_enclosing_mode()
    _push(vm, owner, name, token)


def _push(vm: Interpreter, owner: object, name: str, token: Entered | None) -> None:
    vm.work += 1
    region = ModeRegion(owner, name, token, torch.is_grad_enabled(), vm.ambient.inference, vm.step, vm.where())
    vm.python.regions.append(region)


def _close(vm: Interpreter, owner: Any, name: str) -> ModeRegion:
    """Close the region of `owner`, which has to be the innermost one.

    Raises:
        Break: the region is not the innermost one, or it was entered outside of the graph.
    """
    if not vm.python.regions or vm.python.regions[-1].owner is not owner:
        raise Break(f"the end of {name}", "it was entered outside of the graph")
    region: ModeRegion = vm.python.regions.pop()
    vm.work += 1
    if region.token is not None:
        vm.ambient.end_enclosing_mode(vm.tensors.graph)
        vm.tensors.record_boundary(Leave(), (region.token,))
        vm.ambient.dirty = True
    return region


# -- inference mode ------------------------------------------------------------------------------------------------


@special(torch.inference_mode.__enter__)
def enter_inference(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of entering `torch.inference_mode(mode)`, which switches gradients off, or on if `mode` is
    False.
    """
    mode = bool(vm.load_attr(args[0], "mode"))
    _open(vm, args[0], "torch.inference_mode()", EnterInference(mode), ())
    vm.ambient.inference = mode
    vm.ambient.switch(torch_c.set_grad_enabled, (not mode,), {})


@special(torch.inference_mode.__exit__)
def leave_inference(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of leaving `torch.inference_mode(mode)`."""
    gradients = vm.python.regions[-1].gradients if vm.python.regions else torch.is_grad_enabled()
    if vm.python.regions and vm.python.regions[-1].owner is args[0]:
        vm.ambient.switch(torch_c.set_grad_enabled, (gradients,), {})
    vm.ambient.inference = _close(vm, args[0], "torch.inference_mode()").inference


@contextmanager
def outside_inference(vm: Interpreter) -> Iterator[None]:
    """Leave inference mode while the context is open, as PyTorch does where it computes the derivatives of
    `torch.func`.

    Raises:
        Break: inference mode is on where the graph cannot be cut.
    """
    if not vm.ambient.inference:
        yield
        return
    region = object()
    name = "derivatives in torch.inference_mode()"
    gradients = torch.is_grad_enabled()
    _open(vm, region, name, EnterInference(False), ())
    vm.ambient.inference = False
    vm.ambient.switch(torch_c.set_grad_enabled, (gradients,), {})
    try:
        yield
    except UserError:
        vm.ambient.inference = _close(vm, region, name).inference
        raise
    vm.ambient.inference = _close(vm, region, name).inference


# -- hooks on saved tensors ----------------------------------------------------------------------------------------


@special(saved_tensors_hooks.__enter__)
def enter_saved_hooks(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of entering `saved_tensors_hooks(pack, unpack)` or `save_on_cpu`."""
    message = torch_c.saved_tensor_hooks_disabled()
    if message is not None:
        raise UserError(RuntimeError(message))
    hooks = [_hook_argument(vm, vm.load_attr(args[0], name)) for name in ("pack_hook", "unpack_hook")]
    fixed = tuple(hook if isinstance(hook, types.FunctionType) else None for hook in hooks)
    nonconstant = [hook for hook, known in zip(hooks, fixed, strict=True) if known is None]
    _open(vm, args[0], "saved_tensors_hooks", EnterSavedHooks(fixed), nonconstant)


@special(saved_tensors_hooks.__exit__)
def leave_saved_hooks(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of leaving `saved_tensors_hooks(...)`."""
    _close(vm, args[0], "saved_tensors_hooks")


def _hook_argument(vm: Interpreter, hook: object) -> object:
    """A hook as an argument of a node: an input of the graph, or a function that is the same object at each call.

    Raises:
        Break: the hook is made in the frame and refers to variables there.
    """
    source = vm.source_of(hook)
    if source is not None:
        return vm.tensors.object_input(hook, source)
    if isinstance(hook, types.FunctionType):
        if id(hook) not in vm.python.created or hook.__module__ == saved_tensors_hooks.__module__:
            return hook  # guarded by identity; the functions of save_on_cpu refer to the arguments of its constructor
        if not hook.__closure__ and not hook.__defaults__ and not hook.__kwdefaults__:
            return hook
    raise Break("a hook on what autograd saves that is made inside", "the graph cannot be given it")


@special(torch_c.disable_saved_tensor_hooks)
def disable_saved_hooks(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of entering `disable_saved_tensors_hooks(message)`: entering other hooks is then an error."""
    try:
        vm.ambient.switch(torch_c.disable_saved_tensor_hooks, args, kwargs)
    except RuntimeError as error:
        raise UserError(error) from None
    _push(vm, disable_saved_hooks, "disable_saved_tensors_hooks", None)


@special(torch_c.enable_saved_tensor_hooks)
def enable_saved_hooks(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of leaving `disable_saved_tensors_hooks(message)`."""
    _close(vm, disable_saved_hooks, "disable_saved_tensors_hooks")
    vm.ambient.switch(torch_c.enable_saved_tensor_hooks, args, kwargs)
