"""Rewrites torch functions whose C++ code needs plain sizes or values, which trace tensors lack, as other operators."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from smelt.graph.ir.storage_view import ViewedTensor
from smelt.graph.ir.symint import from_torch, to_torch, whole_product
from smelt.graph.meta_rules.constant_values import known_value
from smelt.graph.meta_rules.eager_errors import marked
from smelt.graph.meta_rules.least_squares import with_gradients
from smelt.graph.meta_rules.recurrent import recurrent_layers
from smelt.graph.trace.value_check_forms import in_checked_form
from smelt.shapes.size import known_equal

aten = torch.ops.aten


def for_trace_tensors(target: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None) -> Any:
    """Returns the function to call instead of `target` on trace tensors: `target` itself, unless it needs a rewrite."""
    # a Python function may share its name with a C function, but not its arguments: `torch.masked.prod`
    name = "" if type(target) is FunctionType else getattr(target, "__name__", "")
    form = in_checked_form(name, args, kwargs or {})
    if form is not None:
        return form
    rules: tuple[Callable[..., Any], ...] = (with_gradients, recurrent_layers, _without_kernel, _by_its_arguments)
    for rule in rules:
        other = rule(target, args, kwargs or {})
        if other is not None:
            return other
    form = _REWRITES.get(target) if args and target.__hash__ is not None else None
    if form is None or not isinstance(args[0], ViewedTensor) or not args[0].storage_view.layout.val.symbolic:
        return target
    return form


def _by_its_arguments(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """Returns a function to call instead, for functions that need a rewrite only for some arguments; else None."""
    if target is functional.one_hot:
        return _one_hot
    if target in _GRIDS and _has_one_line(*args, **kwargs):
        return partial(_grid_of_one_line, target)
    if target is operator.setitem:
        return next((form for form, fits in _ASSIGNMENTS.items() if fits(*args)), None)
    if any(isinstance(each, torch.SymInt) for each in (*args[1:2], *map(kwargs.get, _EXPONENTS))):
        return partial(_with_power, target) if _is_power(target) else None
    return None


_POWERS = frozenset("pow pow_ ipow float_power float_power_ __pow__ __ipow__ _foreach_pow _foreach_pow_".split())
_POOLS_BY_POWERS = (functional.lp_pool1d, functional.lp_pool2d, functional.lp_pool3d)


def _is_power(target: Any) -> bool:
    if type(target) is FunctionType:
        return target in _POOLS_BY_POWERS
    return getattr(target, "__name__", "") in _POWERS


def _with_power(target: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a power with a plain exponent if it is differentiated: PyTorch's formula compares the exponent with 0."""
    tensors = x if isinstance(x, (list, tuple)) else [x]
    if any(isinstance(each, torch.Tensor) and each.requires_grad for each in tensors):
        args = tuple(int(n) if isinstance(n, torch.SymInt) else n for n in args[:1]) + args[1:]
        kwargs = {k: int(n) if k in _EXPONENTS and isinstance(n, torch.SymInt) else n for k, n in kwargs.items()}
    return target(x, *args, **kwargs)


_EXPONENTS = ("exponent", "norm_type")


def _one_hot(x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """Compute `functional.one_hot`, which omits its check of the classes if it cannot read them; here `gather` checks
    them.
    """
    if num_classes == -1 or x.dtype is not torch.int64 or isinstance(num_classes, (float, torch.SymFloat)):
        return functional.one_hot(x, num_classes)
    classes = torch.arange(num_classes, device=x.device)
    checked = torch.gather(classes, 0, x.reshape(-1)).reshape(x.shape)
    return (checked.unsqueeze(-1) == classes).long()


def _writes_all_or_nothing(x: Any, key: Any, value: Any) -> bool:
    """Whether the assignment is `x[flag] = value` with a flag without dimensions, which the indexing code reads as a
    Python bool.
    """
    if not isinstance(x, ViewedTensor) or not isinstance(key, ViewedTensor):
        return False
    if key.dtype is not torch.bool or key.ndim or key.device != x.device or not _fits_whole(x, value):
        return False
    return known_value(key) is None


def _fits_whole(x: ViewedTensor, value: Any) -> bool:
    if isinstance(value, (bool, int, float)):
        return True
    if not isinstance(value, ViewedTensor) or value.dtype is not x.dtype or value.device != x.device:
        return False
    shape, own = x.storage_view.layout.val.shape, value.storage_view.layout.val.shape
    rest = shape[len(shape) - len(own) :]
    return len(own) <= len(shape) and all(
        known_equal(a, 1) or known_equal(a, b) for a, b in zip(own, rest, strict=True)
    )


def _fill_if(x: torch.Tensor, flag: torch.Tensor, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        value = torch.full((), value, dtype=x.dtype, device=x.device)
    x.copy_(torch.where(flag, value, x))


def _writes_where_true(x: Any, key: Any, value: Any) -> bool:
    """Whether the assignment is `x[mask] = values`, for which the indexing code reads whether there is one value."""
    return (
        isinstance(key, ViewedTensor)
        and key.dtype is torch.bool
        and isinstance(value, ViewedTensor)
        and value.ndim > 0
        and value.storage_view.layout.val.symbolic
    )


def _writes_one_row(x: Any, key: Any, value: Any) -> bool:
    """Whether the assignment is `x[mask] = row`, for which the number of true elements does not matter."""
    if not all(isinstance(each, ViewedTensor) for each in (x, key, value)) or key.dtype is not torch.bool:
        return False
    target, chosen, row = (each.storage_view.layout.val for each in (x, key, value))
    if not 0 < chosen.ndim <= target.ndim or row.ndim > target.ndim - chosen.ndim or row.dtype is not target.dtype:
        return False
    if row.device != target.device or chosen.device != target.device:
        return False
    rest = target.shape[target.ndim - row.ndim :]
    fits = all(known_equal(a, 1) or known_equal(a, b) for a, b in zip(row.shape, rest, strict=True))
    return fits and all(map(known_equal, chosen.shape, target.shape))


def _fill(x: torch.Tensor, mask: torch.Tensor, row: torch.Tensor) -> None:
    x.copy_(torch.where(mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim)), row, x))


def _put(x: torch.Tensor, mask: torch.Tensor, values: torch.Tensor) -> None:
    x.index_put_((mask,), values)


def _interpolate(
    x: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> torch.Tensor:
    space = x.dim() - 2
    op = _UPSAMPLES.get((mode, space))
    if op is None or recompute_scale_factor or antialias or (size is None) == (scale_factor is None):
        return functional.interpolate(x, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    scales: list[float | None] = [None] * space
    if size is None:
        factors = [float(s) for s in _each(scale_factor, space)]
        size = [whole_product(n, s) for n, s in zip(from_torch(tuple(x.shape[2:])), factors, strict=True)]
        scales = [*factors]
    options = [] if mode.startswith("nearest") else [bool(align_corners)]
    return op(x, to_torch(list(_each(size, space))), *options, *scales)


def _upsample(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    warnings.warn("`nn.functional.upsample` is deprecated. Use `nn.functional.interpolate` instead.", stacklevel=1)
    return _interpolate(x, *args, **kwargs)


def _each(value: Any, count: int) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value] * count


_UPSAMPLES: dict[tuple[str, int], Any] = {
    **{("nearest", n): getattr(aten, f"upsample_nearest{n}d").default for n in (1, 2, 3)},
    **{("nearest-exact", n): getattr(aten, f"_upsample_nearest_exact{n}d").default for n in (1, 2, 3)},
    ("linear", 1): aten.upsample_linear1d.default,
    ("bilinear", 2): aten.upsample_bilinear2d.default,
    ("trilinear", 3): aten.upsample_trilinear3d.default,
    ("bicubic", 2): aten.upsample_bicubic2d.default,
}


def _max_pool1d(
    x: torch.Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Compute `max_pool1d` as a pooling of images with one row."""

    def wide(value: Any, otherwise: int) -> Any:
        return None if value is None else (otherwise, value[0] if isinstance(value, (list, tuple)) else value)

    windows = (wide(kernel_size, 1), wide(stride or None, 1), wide(padding, 0), wide(dilation, 1))
    out: Any = functional.max_pool2d(x.unsqueeze(-2), *windows, ceil_mode, return_indices)  # type: ignore[call-overload]
    return tuple(each.squeeze(-2) for each in out) if return_indices else out.squeeze(-2)


_POOLS = (functional.max_pool1d, torch.max_pool1d)


def _without_kernel(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
    """Returns a function to call for `max_pool1d` of integers on a CPU, which has no kernel without gradients; else
    None.
    """
    x = args[0] if args else None
    if target not in _POOLS or not isinstance(x, ViewedTensor) or x.ndim not in (2, 3):
        return None
    return _refused_by_pools if x.is_cpu and not x.dtype.is_floating_point else None


def _refused_by_pools(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    _max_pool1d(x, *args, **kwargs)  # raises other errors about the arguments
    with _disable_current_modes():
        try:
            torch.max_pool1d(torch.zeros((1, 1, 1), dtype=x.dtype), 1)
        except NotImplementedError as error:
            raise marked(error.with_traceback(None)) from None


_GRIDS = (functional.affine_grid, torch.affine_grid_generator)


def _has_one_line(theta: Any = None, size: Any = (), align_corners: Any = None) -> bool:
    """Whether gradients go through a grid with size 1 in some dimension, which PyTorch would convert to a tensor."""
    traced = isinstance(theta, ViewedTensor) and theta.requires_grad and theta.is_floating_point()
    return traced and any(type(n) is int and n == 1 for n in tuple(size)[2:])


def _grid_of_one_line(target: Any, theta: torch.Tensor, size: Any, align_corners: Any = None) -> torch.Tensor:
    """Compute `affine_grid` by its definition: a product of grid points and matrices."""
    target(theta.detach(), size, align_corners)  # raises the errors about the arguments
    lines, space = [], tuple(size)[2:]
    for dim, n in reversed(list(enumerate(space))):
        line = torch.linspace(-1, 1, n, dtype=theta.dtype, device=theta.device) if n != 1 else theta.new_zeros(1)
        line = line if align_corners else line * ((n - 1) / n)
        lines.append(line.reshape(*[1] * dim, n, *[1] * (len(space) - dim - 1)).expand(space))
    points = torch.stack([*lines, torch.ones_like(lines[0])], -1).reshape(1, -1, len(space) + 1)
    return points.expand(size[0], -1, -1).bmm(theta.transpose(1, 2)).reshape(size[0], *space, len(space))


_REWRITES: dict[Any, Callable[..., Any]] = {
    functional.interpolate: _interpolate,
    functional.upsample: _upsample,
    functional.max_pool1d: _max_pool1d,
    torch.max_pool1d: _max_pool1d,
}


_ASSIGNMENTS: dict[Callable[..., Any], Callable[..., bool]] = {
    _fill_if: _writes_all_or_nothing,
    _fill: _writes_one_row,
    _put: _writes_where_true,
}
"""Rewrites of an assignment to elements of a tensor, each with its condition, in order."""
