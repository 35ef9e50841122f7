"""Compares a node's recorded metadata with that inferred from its operands, for `verify`.

Shape, dtype and device follow from the operands. Strides follow from them as well, or are dense in an order that a pass
has chosen, since a value is stored with the strides that its own node records. A pass cannot choose the strides of a
view of another value's memory. Strides with gaps or repeated elements must follow from the operands, except those of
copies that are only returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import fx

from smelt.base.torch_private import OpOverload
from smelt.graph.ir.meta import OpaqueMeta, TensorMeta, is_dense, same_steps
from smelt.graph.ir.storage_view import Layout
from smelt.graph.meta_rules.infer import infer_meta
from smelt.graph.trace.trace import trace_like
from smelt.shapes.size import known_equal


def not_derived(node: fx.Node) -> str | None:
    """Describe the difference of a node's metadata from that inferred from its operands; None if it agrees, or no rule
    applies.
    """
    if node.op != "call_function":
        return None
    if getattr(node.target, "__module__", "") == "smelt.prims.ops":
        want = node.target.meta(*map(_metas, node.args))  # type: ignore[union-attr]
        return _differs(node.meta["val"], _promised(node, want))
    if not isinstance(node.target, OpOverload) or node.target.namespace != "aten":
        return None
    operands = [node.meta["val"], *(n.meta["val"] for n in node.all_input_nodes)]
    if not all(map(_is_plain, operands)):
        return None
    try:
        want = inferred(node.target, node.args, node.kwargs)
    # the metadata depends on values, or the operator refuses strides that a pass has chosen and eager never has
    except Exception:
        return None
    return _differs(node.meta["val"], want)


def _promised(node: fx.Node, want: Any) -> Any:
    """Returns the metadata that a node should have. A copy that is only returned has the gaps that the caller was
    promised.
    """
    if getattr(node.target, "name", "") != "clone":
        return want
    strides = []
    for user in node.users:
        if user.op != "output":
            return want
        results: Any = user.args[0]
        strides += [val.stride for one, val in zip(results, user.meta["val"], strict=True) if one is node]
    return replace(want, stride=strides[0]) if strides else want


def inferred(target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the metadata of an operator's results, inferred from the metadata that the argument nodes record.

    Raises:
        SmeltError: no rule applies, or the operator refuses the arguments.
    """
    return _vals(infer_meta(target, tuple(map(_traced, args)), {k: _traced(v) for k, v in kwargs.items()}))


def _is_plain(val: Any) -> bool:
    """Whether rules can decide without comparing symbolic sizes."""
    if isinstance(val, (tuple, list)):
        return all(map(_is_plain, val))
    return val is None or type(val) is TensorMeta and not val.symbolic


def _metas(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return value.meta["val"]
    return tuple(map(_metas, value)) if isinstance(value, (tuple, list)) else value


def _traced(value: Any) -> Any:
    if isinstance(value, fx.Node):
        return trace_like(value.meta["val"], requires_grad=False)
    return type(value)(map(_traced, value)) if isinstance(value, (tuple, list)) else value


def _vals(answer: Any) -> Any:
    if isinstance(answer, Layout):
        return answer.val
    return tuple(map(_vals, answer)) if isinstance(answer, (tuple, list)) else answer


def _differs(have: Any, want: Any) -> str | None:
    if isinstance(have, (tuple, list)):
        if not isinstance(want, (tuple, list)) or len(have) != len(want):
            return f"it records {len(have)} results, its operands give {want}"
        return next(filter(None, map(_differs, have, want)), None)
    if not isinstance(have, TensorMeta) or not isinstance(want, TensorMeta) or isinstance(have, OpaqueMeta):
        return None
    same_shape = len(have.shape) == len(want.shape) and all(map(known_equal, have.shape, want.shape))
    if not same_shape or have.dtype is not want.dtype or have.device != want.device:
        return f"it records {have}, its operands give {want}"
    if same_steps(have.shape, have.stride, want.stride) or is_dense(have.shape, have.stride):
        return None
    if any(known_equal(n, 0) for n in have.shape):  # without elements all strides are correct
        return None
    return f"it records strides {have.stride}, its operands give {want.stride}"
