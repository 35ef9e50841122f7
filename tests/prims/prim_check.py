"""Primitives held against their metadata, and prim graphs of one function that gets a Lowering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_map

from smelt.graph.ir.meta import meta_of
from smelt.prims.registry import Lowering
from smelt.prims.table import PRIMS
from tests.prims.aten_check import CheckedInterpreter, metas


def to_meta(value: Any) -> Any:
    """An argument of a prim as its meta rule gets it."""
    if isinstance(value, torch.Tensor):
        return meta_of(value)
    return tuple(map(to_meta, value)) if isinstance(value, tuple) else value


def agree(value: Any, meta: Any) -> None:
    """Shape, dtype and device of a result are those of its metadata."""
    if isinstance(meta, tuple):
        for v, m in zip(value, meta, strict=True):
            agree(v, m)
    elif meta is None:
        assert value is None
    else:
        assert (tuple(value.shape), value.dtype, value.device) == (meta.shape, meta.dtype, meta.device)


def checked(name: str, *args: Any) -> Any:
    """What a prim's reference gives, which the meta rule has told."""
    value = PRIMS[name](*args)
    agree(value, PRIMS[name].meta(*map(to_meta, args)))
    return value


def names(gm: fx.GraphModule) -> list[str]:
    """The prims of a graph, in order."""
    return [n.target.name for n in gm.graph.nodes if n.op == "call_function" and hasattr(n.target, "name")]


def emitted(compute: Callable[..., Any], *args: Any, out: Any = None) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """The graph of `compute(p, *args)`, with tensors as inputs. `out`: the result of the operator at hand."""
    p, inputs = Lowering(fx.Graph()), []

    def place(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        node = p.graph.placeholder(f"x{len(inputs)}")
        node.meta["val"] = meta_of(x)
        inputs.append(x)
        return node

    ready = tree_map(place, args)
    p.result = metas(out)
    p.graph.output(compute(p, *ready))
    return fx.GraphModule(torch.nn.Module(), p.graph), inputs


def evaluated(compute: Callable[..., Any], *args: Any, out: Any = None) -> Any:
    """What the prims of `compute(p, *args)` give; every value is held against its metadata."""
    gm, inputs = emitted(compute, *args, out=out)
    return CheckedInterpreter(gm).run(*inputs)
