"""The form of a prim node: its computation without the names of its operands. Equal forms have equal loops."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import fx

from smelt.graph.ir.meta import TensorMeta
from smelt.prims.known_sizes import with_known_sizes
from smelt.prims.table import Prim
from smelt.shapes.size import IntLike, Size

Form = Hashable
"""A hashable description that is compared by equality."""

_PLAIN = frozenset({str, int, bool, torch.dtype, torch.device, torch.memory_format, torch.layout, type(None)})


def form_of(node: fx.Node) -> Form:
    """Returns the form of a call, without the stream from which it draws random numbers."""
    args: tuple[Any, ...] = node.args
    if stream_of(node) is not None:
        args = (args[0], *args[2:])
    names: dict[fx.Node, int] = {}
    return node.target, _form(args, names), _form(node.kwargs, names) if node.kwargs else None


def stream_of(node: fx.Node) -> int | None:
    """Returns the stream from which a call draws random numbers; None if it draws none."""
    if not (isinstance(node.target, Prim) and node.target.name == "random"):
        return None
    stream = node.args[1]
    assert isinstance(stream, int)
    return stream


def form_of_meta(meta: Any) -> Form:
    """Returns the form of a node's meta. Sizes are compared as expressions; the comparison adds no guard."""
    if isinstance(meta, tuple):
        return tuple(map(form_of_meta, meta))
    if type(meta) is TensorMeta:
        return numbers(meta.shape), numbers(meta.stride), meta.dtype, meta.device, meta.requires_grad
    return None if meta is None else object()


def numbers(values: Sequence[IntLike]) -> Form:
    """Returns sizes or strides as comparable expressions."""
    return tuple([value.terms if isinstance(value, Size) else value for value in values])


def _form(value: Any, names: dict[fx.Node, int]) -> Form:
    """Returns the form of an argument: operands become their order of appearance; equal numbers of different types have
    different forms.
    """
    if value.__class__ in _PLAIN:
        return type(value), value
    match value:
        case fx.Node() if isinstance(value.meta["val"], Size):
            return _form(with_known_sizes(value), names)
        case fx.Node():
            return fx.Node, names.setdefault(value, len(names))
        case Size():
            return Size, with_known_sizes(value).terms
        case tuple() | list():
            return (type(value), *[_form(item, names) for item in value])
        case dict():
            return (dict, *[(key, _form(item, names)) for key, item in value.items()])
        case float() | complex():
            return type(value), repr(value)  # 0.0 and -0.0 differ, NaNs are equal
    return object()  # an unknown object: equal to no other
