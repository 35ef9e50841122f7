"""Errors that eager raises for the devices of an operator's tensors: a mix of devices, or a dtype without a GPU kernel.

Graphs move values between devices as they need (`prims/mixed`), so no later stage would detect that eager refuses a
mix. One rule covers most operators. For the others the operator itself is run, on small tensors of zeros on the same
devices, once for each combination of dtypes, dimensions and devices. Zeros are valid indices, targets and
probabilities. Operators for which they are invalid (`_REFUSES_ZEROS`) are not run: a failed assertion in a kernel would
end the CUDA context. Only errors about devices or dtypes are reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt.base.torch_private import OpOverload, name_in_namespace
from smelt.graph.ir.schema import Kind, OpInfo
from smelt.graph.ir.storage_view import ViewedTensor
from smelt.graph.meta_rules.eager_errors import SLOW_NAMES, Sizes, marked, takes_lengths, tensors_among
from smelt.shapes.real import Real
from smelt.shapes.size import Size, hint

aten = torch.ops.aten

_CPU = torch.device("cpu")
_MAX_NUMBER = 64
"""Maximum of numbers in lists, which may be sizes of the result, for which an operator is run for its error."""

_INDEXING = frozenset("index _unsafe_index index_put index_put_ _index_put_impl_ _unsafe_index_put".split())
_ANY_MIX = frozenset(
    "copy copy_ _to_copy _foreach_copy _foreach_copy_ slice_scatter select_scatter diagonal_scatter as_strided_scatter "
    "_pack_padded_sequence resize_as_ is_same_size set_ _copy_from".split()
)
"""Operators that copy between devices, or only use sizes."""

_RANDOM = frozenset("normal normal_functional bernoulli binomial poisson".split())
"""Random operators: they are not run, and do not accept CPU numbers among tensors of a GPU."""

_REFUSES_ZEROS = ("lu_unpack", "assert", "validate", "lu_solve", "ldl_solve")
"""Substrings of the names of operators whose GPU kernels assert conditions that zeros violate: pivots count from 1."""

_PRODUCTS = frozenset("mm bmm addmm baddbmm addmv mv dot".split())
_RUN_ON = frozenset({"cuda", "meta"})

_known: dict[tuple[Any, ...], Exception | None] = {}
_MAX_ROWS = 10_000


def devices_among(values: Sequence[Any]) -> set[torch.device]:
    """Returns the devices of the trace tensors among `values`."""
    return {tensor.storage_view.layout.val.device for tensor in tensors_among(values)}


def raise_for_devices(func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise eager's error if the operator does not accept these devices together."""
    error = refused_for_devices(func, info, args, kwargs)
    if error is not None:
        raise error


def refused_for_devices(
    func: OpOverload, info: OpInfo, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Exception | None:
    """Returns the error that eager raises for the devices of these trace tensors; None if it accepts them."""
    tensors = list(tensors_among((*args, *kwargs.values())))
    devices = {tensor.storage_view.layout.val.device for tensor in tensors}
    if func.namespace != "aten" or not devices or devices == {_CPU} or name_in_namespace(func) in _ANY_MIX:
        return None
    if any(device.type == "meta" for device in devices) and len(devices) == 1:
        return None
    error = _by_rule(func, args, tensors) if len(devices) > 1 else None
    if error is None and _may_run(func, info, tensors, devices):
        error = _error_of_run(func, args, kwargs, tensors)
    return None if error is None else marked(error)


def _by_rule(func: OpOverload, args: Sequence[Any], tensors: Sequence[ViewedTensor]) -> Exception | None:
    """Returns the error of the general rule, or None: only numbers (tensors without dimensions) and indices on the CPU
    may be mixed with tensors of a GPU.
    """
    if name_in_namespace(func) in _INDEXING:
        return _of_indices(func, args)
    numbers = name_in_namespace(func) not in _RANDOM
    found: dict[torch.device, None] = {}
    for tensor in tensors:
        val = tensor.storage_view.layout.val
        if val.device.type == "meta":
            return None
        if val.shape or val.device != _CPU or not numbers:
            found[val.device] = None
    if len(found) < 2:
        return None
    first, second = sorted(map(str, found), reverse=True)[:2]
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"
    )


def _of_indices(func: OpOverload, args: Sequence[Any]) -> Exception | None:
    own = args[0].storage_view.layout.val.device
    if name_in_namespace(func).endswith("index"):
        for index in args[1]:
            device = own if index is None else index.storage_view.layout.val.device
            if device not in (_CPU, own):
                message = f"indices should be either on cpu or on the same device as the indexed tensor ({own})"
                return RuntimeError(message)
    values = args[2].storage_view.layout.val if len(args) > 2 and isinstance(args[2], ViewedTensor) else None
    if values is not None and values.device != own and values.shape:
        text = "Expected all tensors to be on the same device, but found at least two devices"
        return RuntimeError(f"{text}, {own} and {values.device}!")
    return None


def _is_usual(func: OpOverload, dtypes: set[torch.dtype]) -> bool:
    """Whether the run can be skipped: the operator is known to accept these dtypes on one device, or takes too long to
    run."""
    usual = all(dtype.is_floating_point for dtype in dtypes) and name_in_namespace(func) in _PRODUCTS
    return dtypes == {torch.float32} or usual or any(name in name_in_namespace(func) for name in SLOW_NAMES)


def _may_run(func: OpOverload, info: OpInfo, tensors: Sequence[ViewedTensor], devices: set[torch.device]) -> bool:
    """Whether a run on small zeros has no side effects, and may find an error that the metadata rule does not."""
    if any(name in name_in_namespace(func) for name in _REFUSES_ZEROS):
        return False
    if info.kind is Kind.VIEW or info.random or info.silent or takes_lengths(func):
        return False
    if not {device.type for device in devices} <= {"cpu", *_RUN_ON}:
        return False
    if len(devices) == 1 and _is_usual(func, {tensor.storage_view.layout.val.dtype for tensor in tensors}):
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def _error_of_run(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[ViewedTensor]
) -> Exception | None:
    key = (func, _kind_of(args), tuple((name, _kind_of(value)) for name, value in kwargs.items()))
    if key not in _known:
        if len(_known) > _MAX_ROWS:
            _known.clear()
        error = _attempt(func, args, kwargs)
        mixed = len({tensor.storage_view.layout.val.device for tensor in tensors}) > 1
        _known[key] = error if error is not None and _is_about_devices(error, mixed) else None
    error = _known[key]
    return None if error is None else type(error)(str(error))


def _kind_of(value: Any) -> Any:
    """Returns the properties of an argument on which an error about dtypes and devices may depend."""
    if isinstance(value, ViewedTensor):
        val = value.storage_view.layout.val
        return val.dtype, len(val.shape), val.device
    if isinstance(value, (list, tuple)):
        return tuple(map(_kind_of, value))
    return value if isinstance(value, (str, bool, torch.dtype)) else type(value)


def _is_about_devices(error: Exception, mixed: bool) -> bool:
    text = str(error)
    if type(error) not in (RuntimeError, NotImplementedError) or "CUDA error" in text or "Could not run" in text:
        return False
    return "not implemented for '" in text or mixed and any(name in text for name in _DEVICE_TEXTS)


_DEVICE_TEXTS = ("same device", "different device", "expected device", "device type", "Device", "CPU Scalar",
               "CPU scalar", "should be the same")  # fmt: skip


def _attempt(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Exception | None:
    """Returns the error of the operator on zeros of small sizes, or None."""
    sizes = Sizes((*args, *kwargs.values()), 1)

    def real(value: Any) -> Any:
        if isinstance(value, ViewedTensor):
            val = value.storage_view.layout.val
            shape, stride = tuple(map(hint, val.shape)), tuple(map(hint, val.stride))
            shape, stride = sizes.shrink(shape, stride)
            return torch.empty_strided(shape, stride, dtype=val.dtype, device=val.device).zero_()
        if isinstance(value, (list, tuple)):
            return type(value)(min(real(n), _MAX_NUMBER) if isinstance(n, (int, Size)) else real(n) for n in value)
        return hint(value) if type(value) is Size else value.hint if type(value) is Real else value

    try:
        with torch.no_grad():
            func(*map(real, args), **{name: real(value) for name, value in kwargs.items()})
    except Exception as error:
        return error.with_traceback(None)
    return None
