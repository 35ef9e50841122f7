"""Errors that eager raises for an operator's arguments: found by running the operator on small real tensors.

Meta kernels check shapes, but not everything that a kernel checks: `torch.mm` of two dtypes, `copy_` of a tensor that
is too large, `rand_like` of integers. Some raise errors with another text. A program that catches such an error must
get it at the operator, after all earlier effects, and not when the whole graph runs; so the error must be found during
capture.

For small CPU tensors the operator runs once for each new layout of its arguments. An error that it raises for zeros as
well as for ones does not depend on values: any call with these layouts raises it. For large arguments, if no number
among them is a size, it runs on smaller ones (see `Sizes`): errors about dtypes and numbers do not depend on sizes. If
a number may be a size, it also runs on smaller ones, and is treated as refused only if it refuses several floating
types and accepts a single one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from smelt.base.errors import SmeltError, Unsupported
from smelt.base.process_state import keep
from smelt.base.torch_private import OpOverload, name_in_namespace, schema_of
from smelt.base.warned import heard
from smelt.graph.ir.meta import TensorMeta, extent
from smelt.graph.ir.schema import Kind, OpInfo
from smelt.graph.ir.storage_view import Layout, Storage, ViewedTensor
from smelt.graph.meta_rules.kernel_warnings import only_warns
from smelt.shapes.real import Real
from smelt.shapes.size import Size, hint

MAX_RUN_ELEMENTS = 1 << 12
"""Maximum number of elements of all arguments together for which an operator is run only for its error."""

_CPU = torch.device("cpu")
_DTYPES = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
})  # fmt: skip
SLOW_NAMES = ("convolution", "lstm", "gru", "rnn", "mkldnn", "linalg", "svd", "eig", "fft", "attention", "backward")
"""Substrings of the names of operators that initialise a library at their first call, or that programs do not call."""
_MARK = "_smelt_refused"


def refusal(
    func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any], doubted: Exception | None = None
) -> Exception | None:
    """Returns the error that the operator raises for any tensors of these layouts; None if it raises none, or it is not
    known.

    Args:
        doubted: the error of a metadata rule; if given, the operator runs on larger tensors as well. (It also does if
            it writes to memory that it reads.)

    Raises:
        Unsupported: the operator accepts what the metadata rule refused.
    """
    if not _may_run(func, info, args, kwargs, doubted is not None):
        return None
    if _is_large(info, args, kwargs, doubted is not None):
        if doubted is not None or _has_sizes(func) and not _is_refused_for_types(func, info, args, kwargs):
            return None
        return _refusal_of_smaller(func, info, args, kwargs)
    error = _attempt(func, info, args, kwargs, 0)
    if error is None and doubted is not None:
        raise Unsupported(f"{func} cannot be traced", why=f"its metadata rule refuses what it accepts: {doubted}")
    if error is None or isinstance(error, torch.linalg.LinAlgError):  # a matrix with other values may be accepted
        return None
    second = _attempt(func, info, args, kwargs, 1)
    if type(second) is not type(error) or str(second) != str(error):
        return None
    return marked(second)


def _refusal_of_smaller(
    func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Exception | None:
    """Returns the error that the operator raises for smaller tensors of any sizes, or None."""
    error = None
    for step, fill in ((1, 0), (1, 1), (3, 1)):
        attempt = _attempt(func, info, args, kwargs, fill, Sizes((*args, *kwargs.values()), step))
        if attempt is None or (error is not None and (type(attempt) is not type(error) or str(attempt) != str(error))):
            return None
        error = attempt
    if error is None or (_not_on_cpu((*args, *kwargs.values())) and any(name in str(error) for name in _CPU_ONLY)):
        return None
    return marked(error)


def _is_refused_for_types(func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether only a mix of floating types can be the reason for the refusal: smaller tensors of one type are
    accepted."""
    values = (*args, *kwargs.values())
    found = list(filter(_is_inexact, (tensor.storage_view.layout.val.dtype for tensor in tensors_among(values))))
    if len(set(found)) < 2:
        return False
    return not any(_attempt(func, info, args, kwargs, 1, Sizes(values, step), found[0]) for step in (1, 3))


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


class Sizes:
    """Small sizes that replace those of large tensors: in the same order, equal where those are equal; 0 and 1 stay."""

    def __init__(self, values: Sequence[Any], step: int) -> None:
        shapes = [map(hint, tensor.storage_view.layout.val.shape) for tensor in tensors_among(values)]
        found = sorted({n for shape in shapes for n in shape} - {0, 1})
        self.small = {n: min(n, 2 + step * at) for at, n in enumerate(found)} | {0: 0, 1: 1}

    def shrink(self, shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns a shape of small sizes, and strides in the same order as before."""
        sizes, steps, step = [self.small[n] for n in shape], [0] * len(shape), 1
        for dim in sorted(range(len(shape)), key=lambda d: (stride[d], -d)):
            if stride[dim]:
                steps[dim], step = step, step * max(sizes[dim], 1)
        return tuple(sizes), tuple(steps)


@functools.cache
def _has_sizes(func: OpOverload) -> bool:
    """Whether numbers among the operator's arguments are sizes or indices, which would not fit smaller tensors."""
    if any(fragment in name_in_namespace(func) for fragment in _SIZE_DEPENDENT):
        return True
    return any(a.name not in _NO_SIZE_PARAMETERS and "int" in str(a.type).lower() for a in schema_of(func).arguments)


_NO_SIZE_PARAMETERS = frozenset(
    "dim dims reduction ignore_index correction low high num_samples dtype layout memory_format "
    "normalized_shape input_dtype".split()
)
_SIZE_DEPENDENT = (
    "fold",
    "shuffle",
    "pool",
    "pad",
    "upsample",
    "embedding_bag",
    "grid",
    "unpool",
    "glu",
    "multinomial",
)
"""Substrings of names of operators whose results or checks depend on sizes themselves, not only on their order."""

_CPU_ONLY = ("Half", "BFloat16", "CPU", "cpu")
"""Substrings of errors that only CPU kernels raise."""


def too_large(answer: Any) -> Exception | None:
    """Returns the error that eager raises before it allocates, if the number of bytes of a result exceeds 64 bits; else
    None.
    """
    if isinstance(answer, (list, tuple)):
        return next(filter(None, map(too_large, answer)), None)
    if not isinstance(answer, Layout) or answer.val.symbolic:
        return None
    shape, stride = answer.val.shape, answer.val.stride
    if extent(shape, stride) * answer.val.dtype.itemsize < 2**63:
        return None
    text = f"Storage size calculation overflowed with sizes={list(shape)}"
    error = RuntimeError(text)
    return marked(error)


def marked(error: Exception) -> Exception:
    """Returns the error, marked as one that eager raises at this operator."""
    setattr(error, _MARK, True)
    return error


def is_refusal(error: Exception) -> bool:
    """Whether an error has the mark of `marked`, which is removed."""
    return bool(error.__dict__.pop(_MARK, False))


@functools.cache
def takes_lengths(func: OpOverload) -> bool:
    """Whether some arguments contain lengths of others, so that neither zeros nor ones need be valid."""
    if torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags:
        return True
    tensors = [a.name for a in schema_of(func).arguments if "Tensor" in str(a.type)]
    return any(fragment in name for name in tensors for fragment in ("length", "offset", "repeats", "batch_sizes"))


def _may_run(func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any], doubted: bool) -> bool:
    if func.namespace != "aten" or takes_lengths(func) or kwargs.get("generator") is not None:
        return False
    if not doubted and info.kind is Kind.VIEW:
        return False
    if not doubted and not info.outs and any(fragment in name_in_namespace(func) for fragment in SLOW_NAMES):
        return _is_unusual(func, (*args, *kwargs.values()))  # meta kernels accept an `out=` of any dtype
    # whether the operator is refused depends on this mode, not only on layouts
    if torch.are_deterministic_algorithms_enabled():
        return False
    return _run_is_conclusive(func, info, args, kwargs, doubted)


def _run_is_conclusive(
    func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any], doubted: bool
) -> bool:
    """Whether the error of a run on CPU tensors also applies to the arguments."""
    values = (*args, *kwargs.values())
    if _not_on_cpu(values) or kwargs.get("device") not in (None, _CPU):
        about_arguments = info.random or name_in_namespace(func) in _ALIKE_ON_DEVICES
        if doubted or not about_arguments or not all(map(_is_known, tensors_among(values))):
            return False
    if next(tensors_among(values), None) is None and not doubted:
        return info.random and any(isinstance(value, (list, tuple)) for value in args)
    return all(tensor.storage_view.layout.val.dtype in _DTYPES for tensor in tensors_among(values))


def _is_unusual(func: OpOverload, values: Sequence[Any]) -> bool:
    """Whether an operator of a library gets a dtype that LAPACK and most derivatives do not support,
    or several dtypes.
    """
    dtypes = [tensor.storage_view.layout.val.dtype for tensor in tensors_among(values)]
    if not dtypes or _not_on_cpu(values):
        return False
    dtype = dtypes[0]
    if len(set(filter(_is_inexact, dtypes))) > 1:
        return "backward" not in func.name()  # derivatives of layers have statistics in another dtype
    if not _is_inexact(dtype):
        return "embedding" not in func.name()
    return "linalg" in func.name() and dtype.itemsize < 4


_ALIKE_ON_DEVICES = frozenset(
    "argmax argmin nll_loss_forward nll_loss2d_forward smooth_l1_loss huber_loss binary_cross_entropy".split()
)
"""Operators that check dtypes and numbers in the same way on every device; random operators also do so."""


def _is_known(tensor: ViewedTensor) -> bool:
    return tensor.storage_view.layout.val.device.type in ("cpu", "cuda")


def _not_on_cpu(values: Sequence[Any]) -> bool:
    """Whether a tensor is not on the CPU: errors of a CPU run then apply only if they are about dtypes and numbers."""
    return any(tensor.storage_view.layout.val.device != _CPU for tensor in tensors_among(values))


def _is_large(info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any], doubted: bool) -> bool:
    """Whether a run on tensors of these sizes would take long, or much memory."""
    values = (*args, *kwargs.values())
    if _not_on_cpu(values):
        return True
    most = MAX_RUN_ELEMENTS << 10 if doubted or info.kind is Kind.WRITE and bool(sharing(values)) else MAX_RUN_ELEMENTS
    layouts = [tensor.storage_view.layout for tensor in tensors_among(values)]
    # an expanded tensor has many elements in little memory
    return sum(max(_memory(layout), hint(layout.val.numel)) for layout in layouts) > most


def _memory(layout: Layout) -> int:
    val = layout.val
    return extent(tuple(map(hint, val.shape)), tuple(map(hint, val.stride)))


def sharing(values: Sequence[Any]) -> tuple[int, ...]:
    """Returns for each tensor among `values` the position of the first in the same memory; () if no two share
    memory.
    """
    storages = [tensor.storage_view.storage for tensor in tensors_among(values)]
    first = tuple(map(storages.index, storages))
    return () if first == tuple(range(len(first))) else first


def _shared_memory(values: Sequence[Any], fill: int) -> dict[Storage, torch.Tensor]:
    """Returns memory for tensors that share it and have one dtype: operators check the overlap of their arguments."""
    found: dict[Storage, list[Layout]] = {}
    for tensor in tensors_among(values):
        found.setdefault(tensor.storage_view.storage, []).append(tensor.storage_view.layout)
    out = {}
    for storage, layouts in found.items():
        dtypes = {layout.val.dtype for layout in layouts}
        if len(layouts) > 1 and len(dtypes) == 1:
            size = max(hint(layout.offset) + _memory(layout) for layout in layouts)
            out[storage] = torch.full((size,), fill, dtype=dtypes.pop(), device=_CPU)
    return out


def tensors_among(values: Sequence[Any]) -> Iterator[ViewedTensor]:
    for value in values:
        if isinstance(value, ViewedTensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_among(value)


def _type_of(val: TensorMeta, inexact: torch.dtype | None) -> torch.dtype:
    return inexact if inexact is not None and _is_inexact(val.dtype) else val.dtype


def _attempt(
    func: OpOverload,
    info: OpInfo,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    fill: int,
    sizes: Sizes | None = None,
    inexact: torch.dtype | None = None,
) -> Exception | None:
    """Returns the error of one run, or None; `inexact`: the dtype that replaces all floating and complex ones."""
    shared = _shared_memory((*args, *kwargs.values()), fill) if sizes is None else {}
    creates = next(tensors_among((*args, *kwargs.values())), None) is None
    named = {a.name: value for a, value in zip(schema_of(func).arguments, args, strict=False)} | dict(kwargs)
    shape_of_rows = named.get("normalized_shape")  # must equal the last sizes of the first tensor

    def real(value: Any) -> Any:
        kind = type(value)
        if issubclass(kind, ViewedTensor):
            val, memory = value.storage_view.layout.val, shared.get(value.storage_view.storage)
            shape, stride = tuple(map(hint, val.shape)), tuple(map(hint, val.stride))
            if memory is not None:
                return memory.as_strided(shape, stride, hint(value.storage_view.layout.offset))
            small = (shape, stride) if sizes is None else sizes.shrink(shape, stride)
            return torch.empty_strided(*small, dtype=_type_of(val, inexact), device=_CPU).fill_(fill)
        if kind is Size:
            return hint(value)
        if kind is Real:
            return value.hint
        if sizes is not None and shape_of_rows is not None and value is shape_of_rows:
            return kind(sizes.small.get(hint(n), n) for n in shape_of_rows)
        if isinstance(value, (list, tuple)):
            return kind(min(real(n), 1) if creates and isinstance(n, (int, Size)) else real(n) for n in value)
        return _CPU if kind is torch.device else value

    state = torch.get_rng_state() if info.random else None
    if state is not None:
        keep(functools.partial(torch.set_rng_state, state))
    try:
        positional, others = [*map(real, args)], {k: real(v) for k, v in kwargs.items()}
        if only_warns(func, positional, others):
            return None  # the operator would warn: a warning from this run goes to the process's stderr
        with heard(None):
            func(*positional, **others)
    except SmeltError:
        return None
    except Exception as error:
        return error.with_traceback(None)
    finally:
        if state is not None:
            torch.set_rng_state(state)
    return None
