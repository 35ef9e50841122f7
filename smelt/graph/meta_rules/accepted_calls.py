"""Calls that need no validation, of operators whose meta kernels are Python programs.

The first call of such a meta kernel loads torch's own compiler or sympy: one to four seconds of a cold start. The rules
for symbolic sizes (`symbolic_rules`) give the same metadata, but do not validate arguments. For the operators that
models call most, this module decides which arguments are certainly valid; all other calls go to the meta kernel, which
also raises eager's error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from smelt.graph.ir.meta import TensorMeta, may_overlap
from smelt.graph.ir.storage_view import ViewedTensor
from smelt.graph.meta_rules.elementwise import broadcast
from smelt.graph.meta_rules.layouts import arguments_by_name, in_range, val_of
from smelt.shapes.size import Size, known_at_most, same_all

aten = torch.ops.aten

Condition = Callable[[Any, Any, dict[str, Any]], bool]
"""Function (the first tensor's metadata, all positional arguments, all arguments by name) -> whether the arguments are
valid.
"""

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_NUMBERS = _FLOATS | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


def is_plain(func: Any, args: Sequence[Any], kwargs: Any) -> bool:
    """Whether the operator certainly accepts the arguments, so that its rule for symbolic sizes can be used."""
    condition = _PLAIN.get(func)
    if condition is None:
        return False
    tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, ViewedTensor)]
    if any(val_of(t).device.type != "cpu" for t in tensors):
        return False
    first = val_of(args[0]) if args and isinstance(args[0], ViewedTensor) else None
    return condition(first, args, arguments_by_name(func, args, kwargs))


def _at_least(least: int, sizes: Iterable[Any]) -> bool:
    """Whether it is certain that the number is at least `least`."""
    return all(isinstance(n, (int, Size)) and known_at_most(least, n) for n in sizes)


def _has_elements(val: TensorMeta) -> bool:
    return _at_least(1, val.shape)


def _are_dims(val: TensorMeta, dims: Any) -> bool:
    """Whether these numbers are distinct dimensions of the tensor."""
    listed = [dims] if isinstance(dims, int) else list(dims or ())
    if not all(type(d) is int and in_range(d, val.ndim) for d in listed):
        return False
    return len({d % max(val.ndim, 1) for d in listed}) == len(listed)


def _reduces(dtypes: frozenset[torch.dtype]) -> Condition:
    """Returns the condition of a reduction over some dimensions, or all of them."""

    def condition(val: Any, args: Any, named: dict[str, Any]) -> bool:
        dtype_too = named.get("dtype") in (None, val.dtype)
        return val.dtype in dtypes and dtype_too and _has_elements(val) and _are_dims(val, named.get("dim"))

    return condition


def _norm(val: Any, args: Any, named: dict[str, Any]) -> bool:
    return isinstance(named["ord"], (int, float)) and _reduces(_FLOATS)(val, args, named)


def _largest(val: Any, args: Any, named: dict[str, Any]) -> bool:
    """The condition of `topk`."""
    dim, k = named["dim"], named["k"]
    if val.dtype not in _NUMBERS or not val.ndim or not _are_dims(val, dim) or not _at_least(1, [k]):
        return False
    return known_at_most(k, val.shape[dim])


def _triangle(val: Any, args: Any, named: dict[str, Any]) -> bool:
    return val.dtype in _NUMBERS | {torch.bool} and val.ndim >= 2 and type(named["diagonal"]) in (int, Size)


def _flips(val: Any, args: Any, named: dict[str, Any]) -> bool:
    """The condition of `flip`."""
    return val.dtype in _NUMBERS | {torch.bool} and _are_dims(val, named["dims"])


def _rolled(val: Any, args: Any, named: dict[str, Any]) -> bool:
    shifts, dims = named["shifts"], named["dims"]
    usual = val.dtype in _NUMBERS | {torch.bool} and _are_dims(val, dims)
    return usual and len(shifts) == max(len(dims), 1) and all(isinstance(n, (int, Size)) for n in shifts)


def _picked(val: Any, args: Any, named: dict[str, Any]) -> bool:
    return val.dtype in _NUMBERS | {torch.bool}


def _repeated(val: Any, args: Any, named: dict[str, Any]) -> bool:
    times = named["repeats"]
    return len(times) >= val.ndim and _at_least(0, times)


def _halves(val: Any, args: Any, named: dict[str, Any]) -> bool:
    """The condition of `glu`."""
    return val.dtype in _FLOATS and val.ndim > 0 and _are_dims(val, named["dim"])


def _pair(val: Any, args: Any, named: dict[str, Any]) -> bool:
    """The condition of a loss of two tensors with the same shape and dtype."""
    other = val_of(args[1])
    alike = val.dtype in _FLOATS and other.dtype is val.dtype and same_all(val.shape, other.shape)
    positive = all(isinstance(named.get(n, 1.0), (int, float)) and named.get(n, 1.0) > 0 for n in ("beta", "delta"))
    weighted = named.get("weight") is not None or named.get("pos_weight") is not None
    return alike and positive and not weighted and named["reduction"] in (0, 1, 2)


def _pair_backward(val: Any, args: Any, named: dict[str, Any]) -> bool:
    """The condition of the backward of such a loss, as autograd calls it: with a gradient that fits the loss."""
    x, y = val_of(args[1]), val_of(args[2])
    return x.dtype in _FLOATS and x.dtype is y.dtype is val.dtype and same_all(x.shape, y.shape)


def _halves_backward(val: Any, args: Any, named: dict[str, Any]) -> bool:
    return val.dtype in _FLOATS and val_of(args[1]).dtype is val.dtype


def _images_and_classes(val: Any, args: Any, named: dict[str, Any]) -> bool:
    """The condition of `nll_loss2d`."""
    target = val_of(named["target"])
    x = val_of(named["self"])
    fits = x.ndim == 4 and target.ndim == 3 and same_all((x.shape[0], *x.shape[2:]), target.shape)
    return fits and x.dtype in _FLOATS and target.dtype is torch.int64 and named["weight"] is None


def _filled(val: Any, args: Any, named: dict[str, Any]) -> bool:
    """The condition of `masked_fill` with a tensor without dimensions."""
    mask, value = val_of(args[1]), val_of(args[2])
    fits = mask.dtype is torch.bool and value.dtype is val.dtype and value.ndim == 0
    return fits and broadcast([val, mask]) is not None


def _filled_in_place(val: Any, args: Any, named: dict[str, Any]) -> bool:
    shape = broadcast([val, val_of(args[1])])
    fits = shape is not None and same_all(shape, val.shape) and not may_overlap(val.shape, val.stride)
    number = isinstance(args[2], (int, float)) and val.dtype in _FLOATS
    return fits and number and val_of(args[1]).dtype is torch.bool


def _scattered(val: Any, args: Any, named: dict[str, Any]) -> bool:
    dim, index, source = named["dim"], val_of(named["index"]), named.get("src")
    if val.dtype not in _FLOATS or index.dtype is not torch.int64 or not val.ndim or index.ndim != val.ndim:
        return False
    if not _are_dims(val, dim):
        return False
    fits = all(
        d == dim % val.ndim or known_at_most(n, m) for d, (n, m) in enumerate(zip(index.shape, val.shape, strict=True))
    )
    if source is None:
        return fits and isinstance(named["value"], (int, float))
    given_there = val_of(source)
    alike = given_there.dtype is val.dtype and given_there.ndim == val.ndim
    return fits and alike and all(map(known_at_most, index.shape, given_there.shape))


def _draws(val: Any, args: Any, named: dict[str, Any]) -> bool:
    """The condition of random numbers written to a floating point tensor, or drawn in its layout."""
    plain = all(isinstance(a, (int, float)) for a in args[1:]) and not may_overlap(val.shape, val.stride)
    return val.dtype in _FLOATS and plain and named.get("std", 1.0) >= 0 and named.get("lambd", 1.0) > 0


def _square(val: Any, args: Any, named: dict[str, Any]) -> bool:
    """The condition of `eye`."""
    return _on_cpu(named) and _at_least(0, args)


def _whole(val: Any, args: Any, named: dict[str, Any]) -> bool:
    """The condition of `randint`."""
    low, high = named.get("low", 0), named["high"]
    dtype = named["dtype"]
    usual = _on_cpu(named) and (dtype is torch.int64 or not isinstance(dtype, torch.dtype))
    return usual and _at_least(0, named["size"]) and type(low) is type(high) is int and low < high


def _on_cpu(named: dict[str, Any]) -> bool:
    usual = named["layout"] in (None, torch.strided) and not named["pin_memory"]
    return usual and torch.device(named["device"] or torch.get_default_device()).type == "cpu"


def _resized(val: Any, args: Any, named: dict[str, Any]) -> bool:
    """The condition of a resampling of images."""
    size = args[1]
    usual = val.dtype in _FLOATS and val.ndim == 4 and len(size) == 2 and _has_elements(val)
    return usual and _at_least(1, size)


def _resized_backward(val: Any, args: Any, named: dict[str, Any]) -> bool:
    return val.dtype in _FLOATS and val.ndim == 4 and _has_elements(val)


def _shuffled(val: Any, args: Any, named: dict[str, Any]) -> bool:
    r = named["upscale_factor"]
    return val.ndim == 4 and type(r) is int and r > 0 and val.shape[1] % (r * r) == 0


_SCALES = ("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d")

_POOLS = ("_adaptive_avg_pool2d", "adaptive_max_pool2d")

_PLAIN: dict[Any, Condition] = {
    **dict.fromkeys((aten.amax.default, aten.amin.default, aten.max.dim, aten.min.dim), _reduces(_NUMBERS)),
    **dict.fromkeys((aten.max.default, aten.min.default, aten.argmax.default, aten.argmin.default), _reduces(_NUMBERS)),
    **dict.fromkeys((aten.var.correction, aten.std.correction, aten.var_mean.correction), _reduces(_FLOATS)),
    **dict.fromkeys((aten.std_mean.correction, aten.logsumexp.default, aten.mean.default), _reduces(_FLOATS)),
    **dict.fromkeys((aten.prod.default, aten.prod.dim_int, aten.cumprod.default), _reduces(_FLOATS)),
    **dict.fromkeys((aten.sort.default, aten.sort.stable), _reduces(_NUMBERS)),
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.any.dims), _reduces(_NUMBERS | {torch.bool})),
    **dict.fromkeys((aten.all.default, aten.all.dim, aten.all.dims), _reduces(_NUMBERS | {torch.bool})),
    **dict.fromkeys((aten.count_nonzero.default, aten.count_nonzero.dim_IntList), _reduces(_NUMBERS | {torch.bool})),
    aten.linalg_vector_norm.default: _norm,
    aten.topk.default: _largest,
    **dict.fromkeys((aten.tril.default, aten.triu.default), _triangle),
    aten.flip.default: _flips,
    aten.roll.default: _rolled,
    aten._unsafe_index.Tensor: _picked,
    aten.repeat.default: _repeated,
    aten.glu.default: _halves,
    aten.glu_backward.default: _halves_backward,
    **dict.fromkeys((aten.mse_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default), _pair),
    aten.binary_cross_entropy_with_logits.default: _pair,
    aten.mse_loss_backward.default: _pair_backward,
    aten.smooth_l1_loss_backward.default: _pair_backward,
    aten.huber_loss_backward.default: _pair_backward,
    **dict.fromkeys((aten.nll_loss2d_forward.default, aten.nll_loss2d_backward.default), _images_and_classes),
    aten.masked_fill.Tensor: _filled,
    aten.masked_fill_.Scalar: _filled_in_place,
    **dict.fromkeys((aten.scatter.src, aten.scatter.value, aten.scatter_add.default), _scattered),
    **dict.fromkeys((aten.normal_.default, aten.exponential_.default, aten.exponential.default), _draws),
    aten.normal_functional.default: _draws,
    **dict.fromkeys((aten.eye.default, aten.eye.m), _square),
    **dict.fromkeys((aten.randint.default, aten.randint.low), _whole),
    **{getattr(aten, name).default: _resized for name in (*_SCALES, *_POOLS)},
    **{getattr(aten, f"{name}_backward").default: _resized_backward for name in (*_SCALES, *_POOLS)},
    aten.pixel_shuffle.default: _shuffled,
}
