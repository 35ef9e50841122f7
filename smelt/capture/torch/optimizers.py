"""`torch.optim` in captured code: the step of an optimizer is plain Python over parameters, so it joins the graph.

This module has captured forms for code that would prevent that: regions of the profiler, wrappers that end graphs of
torch's compiler, reads of the step count as a number, creation of state in the first step, and clearing of gradients.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any, TypeGuard

import torch
from torch import fx
from torch.optim import adam
from torch.optim import optimizer as torch_optimizer

from smelt.base.class_tables import isinstance
from smelt.base.python_text import module_name
from smelt.capture.calls import calls
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import CALL, made_by, special
from smelt.graph.ir.symint import to_torch
from smelt.graph.trace.trace import TraceTensor
from smelt.shapes.real import Real


@special(torch.autograd.profiler.record_function)
def record_function(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of a profiler region, which is opened around the whole graph, since compiled operations are
    fused.
    """
    named = dict(zip(("name", "args"), args, strict=False)) | kwargs
    name, more = named.get("name"), named.get("args")
    if len(named) != len(args) + len(kwargs) or not named.keys() <= {"name", "args"}:
        raise Break("a region of the profiler with other arguments", "PyTorch refuses them", "record_function(name)")
    if not _is_named(name) or more is not None and not _is_named(more):
        raise Break("a region of the profiler with a name that is no text", "PyTorch refuses it", "name it by a str")
    if name not in vm.tensors.named:
        vm.tensors.named.append(name)
    return vm.call(contextlib.nullcontext, (), {})


def _is_named(name: object) -> TypeGuard[str]:
    """Whether a region name is a string that C++ accepts: a lone surrogate has no encoding."""
    return type(name) is str and not any("\ud800" <= each <= "\udfff" for each in name)


# -- clearing gradients --------------------------------------------------------------------------------------------


@special(torch.optim.Optimizer.zero_grad)
def zero_grad(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `optimizer.zero_grad(set_to_none=True)`, with the same code for parameters with and without
    gradients.
    """
    if _keeps_zeros(*args, **kwargs):
        return calls.inline(vm, inspect.unwrap(torch.optim.Optimizer.zero_grad), args, kwargs)
    return calls.inline(vm, _clear_groups, args[:1], {})


@special(torch.nn.Module.zero_grad)
def module_zero_grad(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `module.zero_grad(set_to_none=True)`."""
    if _keeps_zeros(*args, **kwargs) or getattr(args[0], "_is_replica", False):
        return calls.inline(vm, torch.nn.Module.zero_grad, args, kwargs)
    return calls.inline(vm, _clear, (vm.call(vm.load_attr(args[0], "parameters"), (), {}),), {})


def _keeps_zeros(owner: object, set_to_none: bool = True) -> bool:
    return not set_to_none


def _clear_groups(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _clear(parameters: Iterable[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


# -- the step ------------------------------------------------------------------------------------------------------


def _inner_code(function: FunctionType) -> CodeType | None:
    """The code of the function that a decorator returns; None if there is none."""
    return next((c for c in function.__code__.co_consts if isinstance(c, CodeType)), None)


@made_by(_inner_code(torch_optimizer._use_grad_for_differentiable))  # type: ignore[arg-type]
def step(vm: Interpreter, fn: FunctionType, args: Args, kwargs: Kwargs) -> Any:
    """Captured form of `optimizer.step(...)`, which runs without gradients unless the optimizer is differentiable.

    Each `step` of torch.optim has a wrapper that breaks the graph of torch's compiler before and after the step;
    capture skips the wrapper.
    """
    wrapped = next(c.cell_contents for c in fn.__closure__ or () if isinstance(c.cell_contents, FunctionType))
    optimizer = args[0]
    if hasattr(type(optimizer), "_init_group"):  # other optimizers may call the closure several times
        args, kwargs = _with_closure_called(vm, *args, **kwargs)
    _make_state(vm, optimizer)
    differentiable = vm.call(vm.load_attr(vm.load_attr(optimizer, "defaults"), "__getitem__"), ("differentiable",), {})
    with vm.ambient.gradients(bool(differentiable)):
        return vm.call(wrapped, args, kwargs)


class _CalledClosure:
    """A closure that has been called already, and its result `value`."""

    def __init__(self, value: object) -> None:
        self.value = value


@CALL(_CalledClosure)
def call_loss(vm: Interpreter, loss: _CalledClosure, args: Args, kwargs: Kwargs) -> object:
    """Call a `_CalledClosure`: returns the result of the closure."""
    return loss.value


def _with_closure_called(
    vm: Interpreter, optimizer: object, closure: object = None, **others: object
) -> tuple[Args, Kwargs]:
    """The arguments of a step with the closure replaced by its result: each step calls the closure first, before it
    creates state.
    """
    if closure is None or isinstance(closure, _CalledClosure):
        return (optimizer,), {"closure": closure, **others}
    with vm.ambient.gradients(True):
        loss = vm.call(closure, (), {})
    return (optimizer,), {"closure": _CalledClosure(loss), **others}


def _make_state(vm: Interpreter, optimizer: object) -> None:
    """Create the state that the first step would create (moments, counts), so that all steps have the same graph.

    The optimizer's own code creates it: zeros, from which the captured step then starts.
    """
    if not module_name(type(optimizer).__module__).startswith("torch.optim.") or not isinstance(
        optimizer, torch.optim.Optimizer
    ):
        return
    if id(optimizer.state) in vm.sources:  # the program has read the state
        return
    for group in optimizer.param_groups:
        new = [p for p in group["params"] if not optimizer.state.get(p) and _gets_gradient(vm, p)]
        if isinstance(optimizer, torch.optim.SGD):
            if group["momentum"] != 0 and group["dampening"] == 0:
                for p in new:
                    optimizer.state[p]["momentum_buffer"] = torch.zeros_like(_like_gradient(vm, p))
        elif new:
            _initialise(vm, optimizer, {**group, "params": new})


def _gets_gradient(vm: Interpreter, parameter: torch.Tensor) -> bool:
    """Whether the parameter has a gradient at the beginning of the captured step."""
    traced = vm.tensors.traced.get(id(parameter))
    if traced is not None and (id(traced), "grad") in vm.reads:
        return vm.reads[id(traced), "grad"] is not None
    return parameter.grad is not None


def _like_gradient(vm: Interpreter, parameter: torch.Tensor) -> torch.Tensor:
    """A tensor with the layout of the parameter's gradient, for `zeros_like`; its elements are not read."""
    traced = vm.tensors.traced.get(id(parameter))
    gradient = vm.reads.get((id(traced), "grad"), parameter.grad) if traced is not None else parameter.grad
    like = parameter.detach()
    if gradient is not None and all(type(n) is int for n in (*gradient.shape, *gradient.stride())):
        if not gradient.is_contiguous() and gradient.dtype == like.dtype and gradient.shape == like.shape:
            if gradient.stride() == like.stride():
                return like
            return torch.empty_strided(like.shape, gradient.stride(), dtype=like.dtype, device=like.device)
    return torch.zeros((), dtype=like.dtype, device=like.device).expand(like.shape)


def _initialise(vm: Interpreter, optimizer: Any, group: dict[str, Any]) -> None:
    wanted = list(inspect.signature(optimizer._init_group).parameters)[1:]
    real = [p.grad for p in group["params"]]
    try:
        for p in group["params"]:
            p.grad = _like_gradient(vm, p)
        with torch.no_grad():
            optimizer._init_group(group, *([] for _ in wanted))
    finally:
        for p, gradient in zip(group["params"], real, strict=True):
            p.grad = gradient


# -- step counts ---------------------------------------------------------------------------------------------------


@special(torch_optimizer._get_value)
def get_value(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of reading a step count as a Python number: as in eager, bias corrections use double precision."""
    (value,) = args
    if type(value) is not TraceTensor:
        return value
    counted = _count(vm, value)
    return vm.call(vm.load_attr(value, "item"), (), {}) if counted is None else counted


@special(torch_optimizer._stack_if_compiling)
def stack_if_compiling(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `_stack_if_compiling(numbers)`: returns the numbers unchanged, as in eager."""
    return args[0]


_ADDS = (operator.iadd, "add_", torch._foreach_add_)
_MULTIPLIES = (operator.imul, "mul_", torch._foreach_mul_)


def _count(vm: Interpreter, step: TraceTensor) -> object:
    """The value of a CPU input with one element that the graph has changed only by adding integers or multiplying with
    numbers.

    The result is None for other tensors.
    """
    real, source = vm.tensors.real.get(id(step)), vm.sources.get(id(step))
    if real is None or source is None or real.numel() != 1 or real.device.type != "cpu" or real.requires_grad:
        return None
    own = vm.tensors.nodes[id(step)]
    writers = vm.tensors.writers.get(id(step.storage_view.storage), ())
    changes = [change for node in writers if (change := _change(node, own)) is not None]
    if len(changes) < len(writers) or not real.dtype.is_floating_point:
        return None
    value = vm.step_counts(real, source)
    for compute, number in changes:
        value = compute(value, number)
    return value


def _change(node: fx.Node, own: fx.Node) -> tuple[Any, Any] | None:
    """(operator, number) of a node that adds a number to the count `own` or multiplies it; None for other nodes."""
    if node.kwargs or len(node.args) != 2:
        return None
    written, number = node.args
    if isinstance(written, list):
        if written.count(own) != 1:
            return None
        number = number[written.index(own)] if isinstance(number, list) else number
    elif written is not own:
        return None
    if node.target in _ADDS:
        return (operator.add, number) if type(number) is int else None
    if isinstance(number, fx.Node) and isinstance(number.meta.get("val"), Real):
        number = to_torch(number.meta["val"])
    return (
        (operator.mul, number)
        if node.target in _MULTIPLIES and (type(number) is float or type(number) is torch.SymFloat)
        else None
    )


_FUSED_ADAM = getattr(adam._fused_adam, "_torchdynamo_orig_callable", adam._fused_adam)
"""PyTorch's fused Adam, without the wrapper for torch's compiler."""


@special(_FUSED_ADAM)
def fused_adam(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of fused Adam: PyTorch's fused kernel for plain numbers; the list form for symbolic numbers, as a
    schedule makes.

    With scaled gradients, the fused kernel is always used.
    """
    changing = any(type(kwargs.get(name)) is torch.SymFloat for name in ("lr", "beta1", "beta2"))
    if not changing or kwargs.get("grad_scale") is not None or kwargs.get("found_inf") is not None:
        return calls.inline(vm, _FUSED_ADAM, args, kwargs)
    params = vm.effects.mirror(args[0]) if not isinstance(args[0], list) else args[0]
    on_cpu = all(type(p) is TraceTensor and p.device.type == "cpu" for p in params)
    return vm.call(adam._multi_tensor_adam, args, {**kwargs, "capturable": not on_cpu})


@special(torch_optimizer._default_to_fused_or_foreach)
def default_implementation(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """(fused, foreach) for an optimizer whose arguments choose no implementation: the list form, with one node for each
    step of the formula.

    Both forms compute the same in a graph; the list form is captured faster, though eager uses it on GPUs only. It is
    not used with Nesterov momentum, where it writes to the gradients, which eager on a CPU does not.
    """
    caller = vm.frames[-1]
    variables = dict(zip(caller.code.co_varnames, caller.locals, strict=False))
    lists = _can_use_lists(*args, **kwargs) and variables.get("nesterov") is not True
    return False, lists and not (vm.subclasses.present and vm.subclasses.holds_instance(args[0]))


def _can_use_lists(params: Iterable[object], differentiable: bool, use_fused: bool = False) -> bool:
    return not differentiable and all(type(p) is TraceTensor and p.is_floating_point() for p in params)
