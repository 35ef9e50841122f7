"""Example inputs in; trace tensors with the same identity, overlap and history out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from smelt.autograd.trace.functionalize import GraphRecorder
from smelt.base.errors import Unsupported
from smelt.base.torch_c import share_counter
from smelt.graph.ir.meta import OpaqueMeta, TensorMeta
from smelt.graph.ir.storage_view import StorageView, layout_of
from smelt.graph.trace.overlap import address, cover_of, overlapping
from smelt.graph.trace.trace import TraceTensor, computed_before, trace_like


@dataclass
class Input:
    """One primal: its graph input, the leaf that gets its gradient, and the tensor that the program sees.

    Attributes:
        storage_view, history: the storage view and the history of the program's tensor at the start.
        counts: whether it has a separate version counter, not that of another input that covers it.
    """

    node: fx.Node
    leaf: TraceTensor
    seen: TraceTensor
    storage_view: StorageView
    history: Any
    counts: bool = True

    @property
    def wants_gradient(self) -> bool:
        """Whether the input gets a gradient. False for an input that does not require a gradient, even if values that
        do were written to it.
        """
        return self.leaf.requires_grad and self.leaf.is_leaf


def make_inputs(
    rec: GraphRecorder, examples: Sequence[torch.Tensor], shared: bool, metas: Sequence[TensorMeta | None] = ()
) -> list[Input]:
    """Make trace tensors for the examples; an example that occurs twice gives one object.

    Args:
        metas: metadata with symbolic sizes, for examples that have dynamic sizes.
        shared: whether examples that overlap in memory become views of the one that covers the others.
    """
    made: dict[int, Input] = {}
    covers = _covers(examples) if shared else {}
    inputs: list[Input | None] = []
    for i, example in enumerate(examples):
        meta = metas[i] if metas else None
        val = layout_of(example).val if meta is None else replace(meta, requires_grad=False)
        if type(val) is OpaqueMeta:
            raise Unsupported(f"a {val} tensor in a compiled piece of a graph")
        node = rec.placeholder(f"primals_{i}", val)
        if id(example) not in made and i not in covers:
            made[id(example)] = _root_input(rec, example, val, node)
        inputs.append(made.get(id(example)))
    for i, cover in covers.items():
        if id(examples[i]) not in made:
            base = inputs[cover]
            assert base is not None
            made[id(examples[i])] = _view_input(base, examples[cover], examples[i])
        inputs[i] = made[id(examples[i])]
    return [one for one in inputs if one is not None]


def _root_input(rec: GraphRecorder, example: torch.Tensor, val: TensorMeta, node: fx.Node) -> Input:
    leaf = trace_like(val, requires_grad=example.requires_grad)
    rec.bind(leaf, node)
    seen = leaf
    if example.requires_grad and not example.is_leaf:
        seen = computed_before(leaf)
    return Input(node, leaf, seen, seen.storage_view, seen.grad_fn)


def _view_input(base: Input, cover: torch.Tensor, view: torch.Tensor) -> Input:
    if cover.requires_grad or view.requires_grad:
        raise Unsupported(
            "two arguments share memory, one of them is written and one requires grad",
            hint="pass the base tensor and take the view inside the compiled function",
        )
    if base.leaf.storage_view.layout.val.symbolic:
        raise Unsupported("arguments of symbolic size that share memory, one of them written", hint="dynamic=False")
    offset = (address(view) - address(cover)) // view.dtype.itemsize
    counts = not share_counter(cover, view)
    seen = (base.seen.data if counts else base.seen).as_strided(view.shape, view.stride(), offset)
    assert isinstance(seen, TraceTensor)
    return Input(base.node, seen, seen, seen.storage_view, None, counts)


def _covers(examples: Sequence[torch.Tensor]) -> dict[int, int]:
    """Returns, for the index of an example that overlaps with others, the index of the example that covers them, which
    is not itself a key.
    """
    covers: dict[int, int] = {}
    for group in overlapping(examples):
        cover = cover_of([examples[i] for i in group])
        if cover is None:
            raise Unsupported(
                "arguments that overlap in memory, none of which covers the others, and one is written",
                hint="pass the base tensor and take the views inside the compiled function",
            )
        covers |= {i: group[cover] for i in group if examples[i] is not examples[group[cover]]}
    return covers
