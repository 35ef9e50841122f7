"""Facts from an operator's schema: whether it is pure, a view or a write, random, or composite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from smelt.base.torch_c import Argument, counts_inside, is_composite, is_derived_inside
from smelt.base.torch_private import OpOverload, schema_of
from smelt.graph.ir.functional_form import functional_form


class Kind(Enum):
    """The effect of an operator on memory."""

    PURE = "pure"  # fresh results, nothing written
    VIEW = "view"  # results alias the first argument
    WRITE = "write"  # some arguments are written


@dataclass(frozen=True, slots=True)
class OpInfo:
    """Facts about one operator overload, read once from its schema.

    Attributes:
        kind: its effect on memory.
        random: whether it draws from a generator.
        composite: whether it is implemented by other operators, which are recorded instead.
        moves: whether it changes which elements its first argument views (`t_`, `squeeze_`).
        written: names of the arguments that it writes, in schema order.
        returned: for each result the name of the written argument that it is, or None for a fresh one.
        functional: for WRITE, the operator without writes: it returns the fresh results, then the new value of each
            written argument; for an operator that `moves`, the view operator. None if there is no such operator.
        silent: for PURE, whether it has an effect besides its results.
        outs: whether its written arguments are those of an `out=`.
        counts_inside: whether it increments version counters only through the operators that it calls.
        derived_inside: whether autograd follows it only through the operators that it calls.
        picks: for VIEW, whether its results depend on tensors other than the first argument, or alias other arguments.
    """

    kind: Kind
    random: bool
    composite: bool
    moves: bool = False
    written: tuple[str, ...] = ()
    returned: tuple[str | None, ...] = ()
    functional: OpOverload | None = None
    silent: bool = False
    outs: bool = False
    counts_inside: bool = False
    derived_inside: bool = False
    picks: bool = False


_aten = torch.ops.aten
PLAIN_SIZE_QUERIES = (_aten.size.default, _aten.stride.default)
"""Queries of sizes by C++ code without support for symbolic sizes; they have no kernel."""

_QUERIES = (*PLAIN_SIZE_QUERIES, torch.ops.prim.device.default)
"""Queries that C++ code makes of a Python tensor class in the form of operators."""

_infos: dict[OpOverload, OpInfo] = {op: OpInfo(Kind.PURE, False, False) for op in _QUERIES}


def op_info(op: OpOverload) -> OpInfo:
    """Returns the facts about `op`."""
    info = _infos.get(op)
    if info is None:
        info = _infos[op] = _read(op)
    return info


def _read(op: OpOverload) -> OpInfo:
    schema = schema_of(op)
    written = tuple(a.name for a in schema.arguments if _is_written(a))
    random = torch.Tag.nondeterministic_seeded in op.tags
    composite = is_composite(op)
    inside = _space(op) not in _OWN and is_derived_inside(op)
    if written:
        by_set = {_alias_set(a): a.name for a in schema.arguments if _is_written(a)}
        returned = tuple(by_set.get(_alias_set(r)) if r.alias_info is not None else None for r in schema.returns)
        return OpInfo(
            Kind.WRITE,
            random,
            composite,
            torch.Tag.inplace_view in op.tags,
            written,
            returned,
            _functional(op, written),
            outs=all(a.kwarg_only for a in schema.arguments if a.name in written),
            counts_inside=counts_inside(op),
            derived_inside=inside,
        )
    if any(r.alias_info is not None for r in schema.returns):
        picks = _space(op) not in _OWN and _depends_on_others(schema)
        return OpInfo(Kind.VIEW, random, composite, picks=picks, derived_inside=inside)
    silent = _space(op) not in _OWN and _has_effects(schema.returns)
    return OpInfo(Kind.PURE, random, composite, silent=silent, derived_inside=inside)


def _depends_on_others(schema: Any) -> bool:
    """Whether the results of a view operator depend on tensors other than the first, or alias other arguments."""
    first, *others = schema.arguments
    one = first.alias_info is not None and all(r.alias_info is not None for r in schema.returns)
    return not one or any("Tensor" in str(a.real_type) for a in others)


def _has_effects(returns: Sequence[Any]) -> bool:
    """Whether an operator has effects other than on tensors: it returns no tensor, or a handle to wait for."""
    types = [str(each.type) for each in returns]
    return not any("Tensor" in each for each in types) or any(each.endswith(".c10d.Work") for each in types)


def depends_on_strides(op: OpOverload) -> bool:
    """Whether the operator may depend on the strides of its arguments: it may not support some, or give other results.

    Kernels of libraries often rely on arguments that the program made contiguous. So do some of PyTorch's own, among
    them all collectives, which transfer memory.
    """
    space, _, name = op.name().partition("::")
    if space == "smelt_forms":
        space, of_another, name = name.partition("__")
        if not of_another:  # smelt itself has defined the operator
            return False
    return space not in _OWN or space in COLLECTIVES or "embedding_bag" in name


def _space(op: OpOverload) -> str:
    return op.name().partition("::")[0]


def _alias_set(value: Argument) -> frozenset[str]:
    assert value.alias_info is not None
    return frozenset(value.alias_info.before_set) | frozenset(value.alias_info.after_set)


_FUNCTIONAL_NAMES = {
    "aten::bernoulli_.float": "aten::bernoulli.p",
    "aten::normal_": "aten::normal_functional",
    "aten::_native_batch_norm_legit": "aten::_native_batch_norm_legit_functional",
    "aten::_batch_norm_with_update": "aten::_batch_norm_with_update_functional",
    "aten::rrelu_with_noise": "aten::rrelu_with_noise_functional",
}
"""In-place operators whose functional form has another name."""


def is_collective(target: Any) -> bool:
    """Whether the target is an operator that other processes take part in, or that waits for one.

    Each call has to run, once and in the program's order, whether its results are used or not: the calls of the
    processes are matched by their order.
    """
    return isinstance(target, OpOverload) and _space(target) in COLLECTIVES


def is_wait(target: Any) -> bool:
    """Whether the target is the operator that waits for the result of a collective."""
    return is_collective(target) and bool(target.name().endswith("::wait_tensor"))


def find_op(name: str) -> OpOverload | None:
    """Returns the overload named `ns::op.overload`, or None."""
    space, _, rest = name.partition("::")
    packet_name, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, space), packet_name, None)
    return None if packet is None else getattr(packet, overload or "default", None)


def _functional(op: OpOverload, written: tuple[str, ...]) -> OpOverload | None:
    """Returns the overload with the same arguments that returns the values that `op` writes (for `t_` the view
    operator), or None.
    """
    if op.name() in _FUNCTIONAL_NAMES:
        return find_op(_FUNCTIONAL_NAMES[op.name()])
    space, _, base = schema_of(op).name.partition("::")
    outs = {a.name for a in schema_of(op).arguments if a.name in written and a.kwarg_only}
    inputs = [(a.name, str(a.real_type)) for a in schema_of(op).arguments if a.name not in outs]
    for candidate in [base] if outs else [base.removesuffix("_"), f"{base}functional"]:
        packet = getattr(getattr(torch.ops, space), candidate, None)
        for overload in packet.overloads() if packet is not None else ():
            found = getattr(packet, overload)
            arguments = [(a.name, str(a.real_type)) for a in schema_of(found).arguments]
            if arguments in (inputs, [*inputs, *_OF_NEW_TENSORS]) and not any(
                map(_is_written, schema_of(found).arguments)
            ):
                return found
    return None if space in _OWN else functional_form(op, written)


_OF_NEW_TENSORS = [
    ("dtype", "Optional[ScalarType]"),
    ("layout", "Optional[Layout]"),
    ("device", "Optional[Device]"),
    ("pin_memory", "Optional[bool]"),
]
"""Parameters of factory operators (which take no tensor) that their `out=` overloads lack: the `out` tensor defines
them."""

COLLECTIVES = ("_c10d_functional", "c10d", "c10d_functional", "smelt_collectives")
"""Namespaces of collectives: PyTorch's, and ours of `graph.ir.collective_calls`."""

_OWN = ("aten", "prims", "prim", "quantized", *COLLECTIVES)
"""Namespaces of PyTorch itself: a write operator in these without a functional form has effects other than its
writes.
"""


def _is_written(argument: Argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def is_random(target: Any) -> bool:
    """Whether the target is an operator that draws from one of PyTorch's generators."""
    return isinstance(target, OpOverload) and torch.Tag.nondeterministic_seeded in target.tags
