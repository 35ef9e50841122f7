"""Function transforms of torch (`torch.func`, `torch.vmap`, `torch.autograd.functional`): a transformed call is one
node.

Making a transformed function is plain Python; only its call becomes a node, wherever the function was made. See
`tensors.transform_node` for the node and `transform_body` for the function inside.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from contextlib import nullcontext
from types import CodeType, FunctionType
from typing import Any

import torch
import torch.autograd.functional
from torch.utils._pytree import SUPPORTED_NODES, TreeSpec, tree_flatten, tree_unflatten

from smelt.base import torch_c
from smelt.base.class_tables import isinstance
from smelt.capture.core.breaks import Break, Restart, user
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import CALL, REBUILD, TRANSFORMED, Rebuilder, special
from smelt.capture.python.attribute_reads import function_source
from smelt.capture.python.effects import CONTAINERS
from smelt.capture.tensors import transform_node
from smelt.capture.tensors.thread_modes import outside_inference
from smelt.capture.tensors.transform_node import BLANK, Pullback, PullbackCall, Transform, TransformCall
from smelt.capture.torch.transform_body import InnerTensors, capture_call, is_made

MAKERS = (torch.func.vmap, torch.func.grad, torch.func.grad_and_value, torch.func.jacrev, torch.func.jacfwd)
"""Transforms that take a function and return a function."""

DIRECT: dict[Any, Transform] = {torch.func.vjp: transform_node.vjp} | {
    fn: functools.partial(functools.partial, fn)
    for fn in (
        torch.func.jvp,
        *(getattr(torch.autograd.functional, name) for name in torch.autograd.functional.__all__),
    )
}
"""Transforms that take a function and call it."""


def transformed(
    vm: Interpreter, name: str, transform: Transform, function: object, args: Args, kwargs: Kwargs
) -> object:
    """`transform(function)(*args, **kwargs)` as one node."""
    leaves, spec, traced = _flat(vm, args, kwargs)
    name = f"{name}_of_{getattr(function, '__name__', type(function).__name__)}"
    region = TransformCall(_NO_NAME.sub("_", name), transform, leaves, spec)
    out = capture_call(vm, region, function, traced)
    for each in out:
        if type(each) is Pullback:
            each.born = vm.step
    assert region.result is not None
    return tree_unflatten(out, region.result)


def _flat(vm: Interpreter, args: Args, kwargs: Kwargs) -> tuple[list[object], TreeSpec, list[object]]:
    """(flat arguments with blanks for values of the graph, nesting of the arguments, values for the blanks)."""

    def foreign(value: object) -> bool:
        if id(value) in vm.sources and type(value) in SUPPORTED_NODES and not isinstance(value, CONTAINERS):
            raise Break(
                f"a {type(value).__name__} given to a transform",
                "it was made outside of the function and is taken apart",
            )
        return False

    plain = vm.effects.plain
    flat, spec = user(tree_flatten, (tuple(map(plain, args)), {k: plain(v) for k, v in kwargs.items()}), foreign)
    traced = [leaf for leaf in flat if is_made(leaf)]
    return [BLANK if is_made(leaf) else leaf for leaf in flat], spec, traced


@CALL(Pullback)
def call_pullback(vm: Interpreter, pullback: Pullback, args: Args, kwargs: Kwargs) -> object:
    """Call the pullback that `torch.func.vjp` returned."""
    leaves, spec, traced = _flat(vm, args, kwargs)
    target = PullbackCall(leaves, spec, pullback.born)
    with outside_inference(vm):
        out = vm.tensors.run(target, (pullback, traced), {})
    assert target.result is not None
    return tree_unflatten(out, target.result)


@REBUILD(Pullback)
def rebuild_pullback(r: Rebuilder, pullback: Pullback) -> str:
    """Refuse to let a pullback leave the frame: it refers to values inside a graph.

    Raises:
        Restart: always; capture stops before the call of `torch.func.vjp`.
    """
    stop = Break("the function that torch.func.vjp gives leaves the frame", "it belongs to a graph")
    raise Restart(pullback.born, stop)


def _maker(make: Callable[..., Any]) -> None:
    """Register a transform that returns a function, and the call of that function."""
    sample: Any = make(len)
    code: CodeType = sample.__code__

    def made(vm: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        plain = vm.effects.plain
        out = user(make, *map(plain, args), **{k: plain(v) for k, v in kwargs.items()})
        vm.python.created.add(id(out))
        vm.keep(out)
        return out

    def called(vm: Interpreter, fn: FunctionType, args: Args, kwargs: Kwargs) -> Any:
        options = _captured(vm, fn)
        function = options.pop("func")
        options.pop("eager_transforms", None)  # a module that the function imports, not an option
        with nullcontext() if make is torch.func.vmap else outside_inference(vm):
            return transformed(vm, make.__name__, lambda body: make(body, **options), function, args, kwargs)

    special(make)(made)
    TRANSFORMED[id(code)] = called
    _kept.append(code)


def _captured(vm: Interpreter, fn: FunctionType) -> dict[str, object]:
    """The values in a function's closure, by name."""
    if id(fn) not in vm.python.created:
        vm.adopt_cells(fn, function_source(vm, fn))
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    return {name: vm.effects.plain(vm.cell(cell, name)) for name, cell in cells}


_kept: list[CodeType] = []
_NO_NAME = re.compile(r"\W+")
for _make in MAKERS:
    _maker(_make)


def _direct(fn: Callable[..., object], transform: Transform) -> None:
    def called(vm: Interpreter, args: Args, kwargs: Kwargs) -> Any:
        if not args:
            return user(fn, **kwargs)
        with outside_inference(vm) if fn in (torch.func.vjp, torch.func.jvp) else nullcontext():
            return transformed(vm, fn.__name__, transform, args[0], args[1:], kwargs)

    special(fn)(called)


for _fn, _transform in DIRECT.items():
    _direct(_fn, _transform)


@special(torch.func.hessian)
def hessian(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch.func.hessian(func, argnums)`: forward-mode derivatives of reverse-mode derivatives."""
    function, argnums = user(_of_hessian, *args, **kwargs)
    return vm.call(torch.func.jacfwd, (vm.call(torch.func.jacrev, (function, argnums), {}), argnums), {})


def _of_hessian(func: object, argnums: object = 0) -> tuple[Any, Any]:
    return func, argnums


@special(torch_c.functorch_transforms_active)
def transforms_active(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Whether the captured program is inside a transform. Only transforms entered within the capture count: a guard on
    the modes ensures that none is active around the frame.
    """
    return isinstance(vm.tensors, InnerTensors)
