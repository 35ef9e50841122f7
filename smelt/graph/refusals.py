"""What an operator refuses: asked of the operator itself, on small real memory, before the program runs.

Meta kernels know shapes, but not all that a kernel checks: `torch.mm` of two dtypes, `copy_` of a tensor that is too
large, `rand_like` of whole numbers. Some word their errors in another way. A program that catches such an error has to
meet it where it stands, with what it did before it done, and not when a whole graph runs; so capture must know. For
tensors on the CPU that are small the operator runs once for each new layout of its arguments. An error that it raises
for zeros and for ones alike does not come from values: any call with these layouts raises it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from smelt.base.errors import SmeltError, Unsupported
from smelt.graph.meta import extent
from smelt.graph.place import Layout, PlacedTensor, Storage
from smelt.graph.schema import Kind, OpInfo
from smelt.shapes.real import Real
from smelt.shapes.size import Size, hint

ELEMENTS = 1 << 12
"""The largest arguments, together, on which an operator runs only to see whether it refuses them."""

_CPU = torch.device("cpu")
_DTYPES = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
})  # fmt: skip
_SLOW = ("convolution", "lstm", "gru", "rnn", "mkldnn", "linalg", "svd", "eig", "fft", "attention", "backward")
"""In the names of operators that set up a library at their first call, or that no program calls by itself."""
_MARK = "_smelt_refused"


def refusal(
    func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any], doubted: Exception | None = None
) -> Exception | None:
    """The error that the operator raises for every tensor of these layouts; None: it may run, or nobody knows.

    Args:
        doubted: what a metadata rule raised already; the operator then runs on larger tensors as well, and so it does
            when it writes to memory that it reads.

    Raises:
        Unsupported: the operator accepts what the metadata rule refused.
    """
    if not _may_run(func, info, args, kwargs, doubted is not None):
        return None
    error = _attempt(func, info, args, kwargs, 0)
    if error is None and doubted is not None:
        raise Unsupported(f"{func} cannot be traced", why=f"its metadata rule refuses what it accepts: {doubted}")
    if error is None or isinstance(error, torch.linalg.LinAlgError):  # a matrix of other values may do
        return None
    again = _attempt(func, info, args, kwargs, 1)
    if type(again) is not type(error) or str(again) != str(error):
        return None
    setattr(again, _MARK, True)
    return again


def is_refusal(error: Exception) -> bool:
    """Whether `error` came from here: eager raises it as it is. Takes the mark off."""
    return bool(error.__dict__.pop(_MARK, False))


@functools.cache
def _takes_lengths(func: OpOverload) -> bool:
    """Some of its tensors say how long others are: neither zeros nor ones need fit."""
    if torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags:
        return True
    tensors = [a.name for a in func._schema.arguments if "Tensor" in str(a.type)]
    return any(part in name for name in tensors for part in ("length", "offset", "repeats", "batch_sizes"))


def _may_run(func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any], doubted: bool) -> bool:
    if func.namespace != "aten" or _takes_lengths(func) or kwargs.get("generator") is not None:
        return False
    if not doubted and (info.kind is Kind.VIEW or any(part in func._opname for part in _SLOW)):
        return False
    if torch.are_deterministic_algorithms_enabled():  # the same layouts may be refused for that, now but not later
        return False
    layouts = [tensor.place.layout for tensor in _tensors((*args, *kwargs.values()))]
    if (not layouts and not doubted) or kwargs.get("device") not in (None, _CPU):
        return False
    large = doubted or info.kind is Kind.WRITE and bool(sharing((*args, *kwargs.values())))
    total = 0
    for layout in layouts:
        if layout.val.device != _CPU or layout.val.dtype not in _DTYPES:
            return False
        total += _memory(layout)
    return total <= (ELEMENTS << 10 if large else ELEMENTS)


def _memory(layout: Layout) -> int:
    val = layout.val
    return extent(tuple(map(hint, val.shape)), tuple(map(hint, val.stride)))


def sharing(values: Sequence[Any]) -> tuple[int, ...]:
    """Which of the tensors among `values` lie in one memory: for each the place of the first in it; () when none do."""
    storages = [tensor.place.storage for tensor in _tensors(values)]
    first = tuple(map(storages.index, storages))
    return () if first == tuple(range(len(first))) else first


def _shared_memory(values: Sequence[Any], fill: int) -> dict[Storage, torch.Tensor]:
    """Memory for tensors that share it and have one dtype: operators look at how what they write lies to the rest."""
    found: dict[Storage, list[Layout]] = {}
    for tensor in _tensors(values):
        found.setdefault(tensor.place.storage, []).append(tensor.place.layout)
    out = {}
    for storage, layouts in found.items():
        dtypes = {layout.val.dtype for layout in layouts}
        if len(layouts) > 1 and len(dtypes) == 1:
            size = max(hint(layout.offset) + _memory(layout) for layout in layouts)
            out[storage] = torch.full((size,), fill, dtype=dtypes.pop(), device=_CPU)
    return out


def _tensors(values: Sequence[Any]) -> Iterator[PlacedTensor]:
    for value in values:
        if isinstance(value, PlacedTensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _attempt(
    func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any], fill: int
) -> Exception | None:
    shared = _shared_memory((*args, *kwargs.values()), fill)

    def real(value: Any) -> Any:
        kind = type(value)
        if issubclass(kind, PlacedTensor):
            val = value.place.layout.val
            shape, stride = tuple(map(hint, val.shape)), tuple(map(hint, val.stride))
            memory = shared.get(value.place.storage)
            if memory is not None:
                return memory.as_strided(shape, stride, hint(value.place.layout.offset))
            return torch.empty_strided(shape, stride, dtype=val.dtype, device=_CPU).fill_(fill)
        if kind is Size:
            return hint(value)
        if kind is Real:
            return value.hint
        if isinstance(value, (list, tuple)):
            return kind(map(real, value))
        return value

    state = torch.get_rng_state() if info.random else None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            func(*map(real, args), **{k: real(v) for k, v in kwargs.items()})
    except SmeltError:
        return None
    except Exception as error:
        return error.with_traceback(None)
    finally:
        if state is not None:
            torch.set_rng_state(state)
    return None
