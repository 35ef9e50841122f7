"""Launches of Triton kernels in captured code: `kernel[grid](x, out, n)` becomes one node that writes to `out`.

A launch becomes a call of a registered operator, which is made once for each kernel and combination of argument kinds.
The operator's schema declares which tensors the kernel writes to, so all stages treat it like other in-place operators.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from smelt.base.class_tables import by_class, isinstance
from smelt.base.torch_private import OpOverload
from smelt.capture import _native as native
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.policy import Policy
from smelt.capture.core.registry import BY_POLICY, special
from smelt.capture.tensors.torch_calls import call_torch
from smelt.capture.torch.triton_writes import python_function, written_parameters
from smelt.graph.trace.trace import TraceTensor

Grid = tuple[int, ...]

_library = torch.library.Library("smelt_kernels", "FRAGMENT")
_launches: dict[Any, OpOverload] = {}
_numbers = itertools.count()
_TYPES = by_class({TraceTensor: "Tensor", int: "SymInt", float: "float"})


def launch(vm: Interpreter, args: Args, kwargs: Mapping[str, object]) -> None:
    """Captured form of `kernel.run(*args, grid=grid, warmup=False, **kwargs)`.

    Raises:
        Break: the analysis finds no argument that the kernel writes to, or an argument's type is not supported in
            schemas.
    """
    kernel, *given = args
    source = vm.source_of(kernel)
    if source is not None:
        vm.guards.check(source, native.IS, kernel)
    named = dict(zip(kernel.arg_names, map(vm.effects.plain, given), strict=False))
    named |= {name: vm.effects.plain(value) for name, value in kwargs.items() if name not in ("grid", "warmup")}
    if kwargs.get("warmup"):
        raise Break("a Triton kernel is warmed up", "nothing would be computed", "launch it")
    grids = _grids(vm, kernel, kwargs["grid"], named)
    passed = {name: value for name, value in named.items() if type(value) in _TYPES}
    fixed = {name: value for name, value in named.items() if name not in passed}
    if len(grids) == 1:
        passed_grid, table = list(next(iter(grids.values()))), None
    else:
        passed_grid, table = [], grids
    kinds = tuple((name, _TYPES[type(value)]) for name, value in passed.items())
    call_torch(vm, _operator(kernel, kinds, fixed, table), (*passed.values(), passed_grid), {})


BY_POLICY[Policy.KERNEL] = launch


@special(torch.library.wrap_triton)
def wrap_triton(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `torch.library.wrap_triton(kernel)`: returns the kernel, whose launches are captured in each
    case.
    """
    return [*args, *kwargs.values()][0]


def _grids(vm: Interpreter, kernel: object, grid: object, named: Kwargs) -> dict[tuple[object, ...], Grid]:
    """The grids of a launch, by the tuned arguments on which the grid may depend."""
    grid = vm.effects.plain(grid)
    if isinstance(grid, (tuple, list)):
        return {(): tuple(grid)}
    found = {}
    for tuned, meta in _metas(vm, kernel, named):
        size = vm.effects.plain(vm.call(grid, (meta,), {}))
        if not isinstance(size, (tuple, list)) or not all(type(n) is int for n in size):
            raise Break("the grid of a Triton kernel", "its function gives no tuple of numbers")
        found[tuned] = tuple(size)
    return found if len(set(found.values())) > 1 else {(): next(iter(found.values()))}


def _metas(vm: Interpreter, kernel: Any, named: Kwargs) -> Iterator[tuple[Args, Kwargs]]:
    """Pairs (tuned arguments, all arguments) with which a grid function may be called, one for each configuration of an
    autotuner.
    """
    if hasattr(kernel, "configs"):
        for config in kernel.configs:
            tuned = config.all_kwargs()
            for rest, meta in _metas(vm, kernel.fn, named | tuned):
                yield (*sorted(tuned.items()), *rest), meta
        return
    values = getattr(kernel, "values", None)
    if isinstance(values, dict):  # heuristics
        for name, rule in values.items():
            named = named | {name: vm.call(rule, (dict(named),), {})}
        yield from _metas(vm, kernel.fn, named)
        return
    yield (), dict(named)


def _operator(
    kernel: object,
    kinds: tuple[tuple[str, str], ...],
    fixed: dict[str, object],
    table: dict[tuple[object, ...], Grid] | None,
) -> OpOverload:
    try:
        key = (kernel, kinds, tuple(fixed.items()), None if table is None else tuple(table.items()))
        known = _launches.get(key)
    except TypeError:
        odd = next(name for name, value in fixed.items() if type(value).__hash__ is None or _holds_tensor(value))
        raise Break(f"argument {odd} of a Triton kernel", "it is no tensor and no constant") from None
    if any(_holds_tensor(value) for value in fixed.values()):
        raise Break("a Triton kernel with tensors in containers", "a graph passes tensors one by one")
    return known or _launches.setdefault(key, _register(kernel, kinds, fixed, table))


def _holds_tensor(value: object) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) or _holds_tensor(v) for v in value)


def _register(kernel: Any, kinds: Any, fixed: dict[str, Any], table: dict[tuple[Any, ...], Grid] | None) -> OpOverload:
    function = python_function(kernel)
    written = written_parameters(kernel)
    marks = {name: f"Tensor(a{i}!)" for i, (name, kind) in enumerate(kinds) if kind == "Tensor" and name in written}
    if not marks:
        raise Break(f"the Triton kernel {function.__name__}", "it writes to none of its arguments")
    name = f"{function.__name__}_{next(_numbers)}"
    words = [f"{marks.get(parameter, kind)} {parameter}" for parameter, kind in kinds]
    _library.define(f"{name}({', '.join(words)}, SymInt[] grid_) -> ()")
    _library.impl(name, _launcher(kernel, [name for name, _ in kinds], fixed, table), "CompositeExplicitAutograd")
    _library.impl(name, lambda *args: None, "Meta")
    _library.impl(name, torch.library.fallthrough_kernel, "Autograd")
    operator: OpOverload = getattr(torch.ops.smelt_kernels, name).default
    return operator


def _launcher(
    kernel: Any, names: list[str], fixed: dict[str, Any], table: dict[tuple[Any, ...], Grid] | None
) -> Callable[..., None]:
    order = {name: at for at, name in enumerate(kernel.arg_names)}
    tuned = [] if table is None else [[name for name, _ in key] for key in table]

    def size(meta: Mapping[str, object]) -> Grid:
        assert table is not None
        for names, (key, grid) in zip(tuned, table.items(), strict=True):
            if all(meta.get(name) == value for name, value in zip(names, (v for _, v in key), strict=True)):
                return grid
        raise RuntimeError("the autotuner chose a configuration that the kernel did not have when it was captured")

    def run(*args: Any) -> None:
        *values, grid = args
        named = dict(zip(names, values, strict=True)) | fixed
        positional = []
        for name in kernel.arg_names:  # heuristics and autotuners look for their keys among the positional arguments
            if name not in named:
                break
            positional.append(named.pop(name))
        assert all(name not in order or order[name] >= len(positional) for name in named)
        kernel[tuple(grid) if table is None else size](*positional, **named)

    return run
