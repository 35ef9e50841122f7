"""Opaque values: sparse and quantised tensors in a trace; a graph has only their layout, shape and dtype.

They have no strides over memory that generated code could use. An operator that takes or returns one runs in eager, as
one call between the compiled pieces of a graph (`nodes/eager_call.py`), so a trace needs only the result's layout,
shape and dtype. The operator itself is run for these, once on an example without (stored) elements for each new kind of
arguments. The number of elements that a sparse tensor stores is not known before the program runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt.base.errors import SmeltError, Unsupported
from smelt.base.torch_private import OpOverload, name_in_namespace
from smelt.graph.ir.memo import remember
from smelt.graph.ir.meta import OpaqueMeta, is_opaque
from smelt.graph.ir.schema import Kind, op_info
from smelt.graph.ir.storage_view import META, Layout, ViewedTensor, layout_for, layout_of
from smelt.graph.ir.symint import has_size
from smelt.graph.meta_rules.infer import depends_on_values

aten = torch.ops.aten
_CPU = torch.device("cpu")
_compressed: Any = torch.sparse_compressed_tensor


def has_opaque(values: Sequence[Any]) -> bool:
    """Whether an opaque tensor is among the arguments."""
    for value in values:
        if isinstance(value, ViewedTensor):
            if type(value.storage_view.layout.val) is OpaqueMeta:
                return True
        elif isinstance(value, (list, tuple)) and has_opaque(value):
            return True
    return False


def opaque_answer(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the results of an operator that takes or returns opaque tensors, with a Layout for each tensor.

    Raises:
        DataDependent: the result depends on values.
        Unsupported: the operator writes to its arguments, or refuses the example.
    """
    question = _METADATA_QUERIES.get(func)
    if question is not None:
        return question(args[0].storage_view.layout.val)
    if name_in_namespace(func) in _ABOUT_ELEMENTS:
        raise depends_on_values(f"{func}")
    if name_in_namespace(func) in _CHECKS:
        return None
    if func is aten._coalesce.default:  # an example without elements is already coalesced
        return args[0].storage_view.layout
    if op_info(func).kind is Kind.WRITE:
        raise Unsupported(f"{func} on a sparse or quantised tensor", why="a graph's values never change")
    key = (func, *map(_key, args), *((k, _key(v)) for k, v in kwargs.items()))
    known = _answers.get(key)
    if known is None:
        known = remember(_answers, key, _run_example(func, args, kwargs))
    return known


_answers: dict[Any, Any] = {}


def _key(value: Any) -> Any:
    if isinstance(value, ViewedTensor):
        return value.storage_view.layout
    if isinstance(value, (list, tuple)):
        return tuple(map(_key, value))
    return (value, type(value))


def _run_example(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    def real(value: Any) -> Any:
        if isinstance(value, ViewedTensor):
            return _example(value.storage_view.layout)
        return type(value)(map(real, value)) if isinstance(value, (list, tuple)) else value

    if has_size(tuple(args)) or has_size(tuple(kwargs.values())):
        raise Unsupported(f"{func} with a size that changes", why="it makes a tensor without strides")
    try:
        with torch.no_grad():
            return _layouts(func(*map(real, args), **{k: real(v) for k, v in kwargs.items()}))
    except SmeltError:
        raise
    except Exception as error:
        raise Unsupported(f"{func} on these tensors", why=next(iter(str(error).splitlines()), "")) from error


def _layouts(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if is_opaque(value):
            return layout_of(value)
        return layout_for(tuple(value.shape), value.dtype, tuple(value.stride()), value.device)
    return type(value)(map(_layouts, value)) if isinstance(value, (list, tuple)) else value


def _example(layout: Layout) -> torch.Tensor:
    val = layout.val
    if val.device != _CPU:
        raise Unsupported(f"a {val} tensor", why="only those on the CPU can be asked what operators make of them")
    if type(val) is OpaqueMeta:
        return opaque_tensor(val, _CPU)
    shape, stride = tuple(map(int, val.shape)), tuple(map(int, val.stride))
    return torch.empty_strided(shape, stride, dtype=val.dtype).zero_()


def opaque_tensor(val: OpaqueMeta, device: torch.device) -> torch.Tensor:
    """Returns a tensor of this kind: sparse without elements, or quantised."""
    if val.layout is torch.sparse_coo:
        sparse, dense = val.details
        return aten._sparse_coo_tensor_with_dims.default(
            sparse, dense, list(val.shape), dtype=val.dtype, layout=val.layout, device=device
        )
    if val.layout is torch.strided:
        return _quantised(val, device)
    index_dtype, dense, *block = val.details
    batch = val.ndim - dense - 2
    by_rows = val.layout in (torch.sparse_csr, torch.sparse_bsr)
    rows = val.shape[batch + (not by_rows)] // (block[not by_rows] if block else 1)
    lead, inner = val.shape[:batch], val.shape[batch + 2 :]
    return _compressed(
        torch.zeros((*lead, rows + 1), dtype=index_dtype, device=device),
        torch.zeros((*lead, 0), dtype=index_dtype, device=device),
        torch.zeros((*lead, 0, *block, *inner), dtype=val.dtype, device=device),
        val.shape,
        layout=val.layout,
        check_invariants=False,
    )


def _quantised(val: OpaqueMeta, device: torch.device) -> torch.Tensor:
    scheme, *axis = val.details
    if axis:
        count = val.shape[axis[0]]
        scales, points = torch.ones(count, dtype=torch.float64), torch.zeros(count, dtype=torch.int64)
        make: Any = torch._empty_per_channel_affine_quantized
        return make(val.shape, scales=scales, zero_points=points, axis=axis[0], dtype=val.dtype, device=device)
    if scheme is not torch.per_tensor_affine:
        raise Unsupported(f"a tensor quantised by {scheme}")
    empty: Any = torch._empty_affine_quantized
    return empty(val.shape, scale=1.0, zero_point=0, dtype=val.dtype, device=device)


def stand_in(cls: type[ViewedTensor], val: OpaqueMeta) -> ViewedTensor:
    """Returns an object of a tensor class that C++ code treats as such a tensor, and that sends every operator to the
    class.
    """
    if val.layout is torch.strided:
        made = torch.Tensor._make_wrapper_subclass(cls, val.shape, dtype=val.dtype, device=val.device)
    else:
        make: Any = torch.Tensor._make_subclass
        shell = opaque_tensor(val, META)
        made = make(cls, shell, False, dispatch_device=True, device_for_backend_keys=val.device)
    return made


def _sparse_dims(val: OpaqueMeta) -> int:
    return val.details[0] if val.layout is torch.sparse_coo else 2


def _dense_dims(val: OpaqueMeta) -> int:
    return val.details[1]


_METADATA_QUERIES: dict[OpOverload, Any] = {
    torch.ops.prim.device.default: lambda val: val.device,
    aten.sparse_dim.default: _sparse_dims,
    aten.dense_dim.default: _dense_dims,
    aten.qscheme.default: lambda val: val.details[0],
    # composite operators read this to save work; their result is of the same kind in both cases
    aten.is_coalesced.default: lambda val: False,
    aten.size.default: lambda val: list(val.shape),
    aten.sym_size.default: lambda val: list(val.shape),
    aten.is_pinned.default: lambda val: False,
}

_ABOUT_ELEMENTS = frozenset(
    "_nnz _indices _values indices values crow_indices col_indices ccol_indices row_indices _local_scalar_dense equal "
    "q_scale q_zero_point q_per_channel_scales q_per_channel_zero_points q_per_channel_axis".split()
)
"""Operators whose result, or number of elements, depends on values."""

_CHECKS = frozenset(
    [
        "_validate_sparse_coo_tensor_args",
        "_validate_sparse_compressed_tensor_args",
        "_validate_compressed_sparse_indices",
    ]
    + [f"_validate_sparse_{kind}_tensor_args" for kind in ("csr", "csc", "bsr", "bsc")]
)
"""Operators that only check their arguments; the whole call makes these checks when it runs."""

MAKERS = _CHECKS | frozenset(
    [f"{prefix}to_sparse{kind}" for prefix in ("", "_") for kind in ("", "_csr", "_csc", "_bsr", "_bsc")]
    + ["_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors", "_sparse_coo_tensor_unsafe"]
    + ["_sparse_compressed_tensor_with_dims", "_sparse_compressed_tensor_unsafe", "sparse_compressed_tensor"]
    + [f"_sparse_{kind}_tensor_unsafe" for kind in ("csr", "csc", "bsr", "bsc")]
    + ["quantize_per_tensor", "quantize_per_channel", "quantize_per_tensor_dynamic"]
    + ["_empty_affine_quantized", "_empty_per_channel_affine_quantized", "_make_per_tensor_quantized_tensor"]
)
"""Operators that make opaque tensors from others, or from none, and those that check their arguments."""
