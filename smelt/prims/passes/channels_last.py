"""Joint prim graph in; the same graph with images in channels-last layout out, which cuDNN's fast kernels need.

Values do not change, only their order in memory: convolutions read and write the channels-last layout, and so do the
pointwise operators, pooling and concatenations between them, whose loops use the strides in the metas. Inputs are
copied to channels-last layout if a convolution reads them, and results are copied back if the caller expects other
strides.

Weights of depthwise convolutions have one channel each. Their innermost dimension is the output channel
(`by_element_stride`), as smelt's kernels read them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.fx import Node

from smelt.base.precision import convolutions_round_to_tf32
from smelt.base.torch_private import OpOverload
from smelt.graph.ir.meta import (
    TensorMeta,
    by_element_stride,
    channels_last_stride,
    is_channels_last,
    is_dense,
    same_steps,
)
from smelt.graph.ir.module import Graph, GraphModule
from smelt.graph.ir.schema import depends_on_strides
from smelt.prims.dtypes import LOW_PRECISION
from smelt.prims.table import PRIMS, Kind, Prim
from smelt.shapes.size import hint, same

MIN_CHANNELS = 8
"""Minimum number of channels of a convolution whose layout changes: tensor cores process eight channels at a time, and
cuDNN would pad fewer channels by copies that cost as much as the faster kernel saves.
"""

ANY_STRIDES = frozenset({Kind.POINTWISE, Kind.COPY, Kind.RANDOM, Kind.CREATION})
"""Kinds of primitives whose results may have any strides, because generated loops store at any offset."""

TENSORS = {"convolution": (0, 1), "convolution_backward": (0, 1, 2)}
"""Argument positions of images and weights of the convolution prims."""


def with_channels_last(gm: fx.GraphModule, pays: Callable[[Node], bool] | None = None) -> fx.GraphModule:
    """Returns the graph with its two-dimensional convolutions in channels-last layout, or `gm` itself if that is not
    faster.

    All convolutions change their layout or none does, because each change of layout between two of them would be a
    copy.

    Args:
        pays: function that decides whether a convolution node is faster in channels-last layout; the default is
            `pays_on_cuda`.
    """
    images = [node for node in gm.graph.nodes if _is_image_convolution(node)]
    worth = sum(_work(node) for node in images if (pays or pays_on_cuda)(node))
    if not worth or 2 * worth < sum(map(_work, images)):
        return gm
    return _Rewrite(gm).run()


def pays_on_cuda(node: Node) -> bool:
    """Whether the convolution is faster in channels-last layout, which cuDNN's tensor-core kernels need.

    These kernels exist for half precision and for float32 rounded to TF32. Depthwise convolutions (one group per
    channel) use no tensor cores: in half precision cuDNN is still faster in channels-last layout, while in float32
    torch's own kernel reads contiguous rows.
    """
    x, w = _images(node)[-2:]
    groups = _groups(node)
    if x.device.type != "cuda" or min(hint(x.shape[1]), hint(w.shape[0])) < MIN_CHANNELS:
        return False
    if x.dtype in LOW_PRECISION:
        return True
    return x.dtype is torch.float32 and groups < hint(x.shape[1]) and convolutions_round_to_tf32()


def _name(node: Node) -> str:
    return node.target.name if isinstance(node.target, Prim) else ""


def _is_image_convolution(node: Node) -> bool:
    return _name(node) in TENSORS and all(len(meta.shape) == 4 for meta in _images(node))


def _images(node: Node) -> list[TensorMeta]:
    """Returns the metas of the images and weights among a convolution's arguments; the last two are x and the
    weight.
    """
    arguments = [node.args[i] for i in TENSORS[_name(node)]]
    return [arg.meta["val"] for arg in arguments if isinstance(arg, Node)]


def _groups(node: Node) -> int:
    groups = node.args[-1] if _name(node) == "convolution" else node.args[-2]
    assert isinstance(groups, int)
    return groups


def _is_depthwise(node: Node) -> bool:
    """Whether the convolution is depthwise: one group per input channel, not transposed."""
    transposed = node.args[-3 if _name(node) == "convolution" else -4]
    return not transposed and same(_groups(node), _images(node)[-2].shape[1])


def _work(node: Node) -> float:
    """Returns the multiplications of a convolution; for its backward, those of one of the two gradients."""
    x, w = _images(node)[-2:]
    out = node.meta["val"] if _name(node) == "convolution" else _images(node)[0]
    # a transposed convolution multiplies each element of its input by the window
    one = x if node.args[-4 if _name(node) == "convolution" else -5] is True else out
    return math.prod(map(hint, one.shape[2:])) * hint(one.shape[0]) * math.prod(map(hint, w.shape))


class _Rewrite:
    """Copies one graph, with images and weights of convolutions in channels-last layout.

    Attributes:
        copies: the copy of each node.
        last: for (copied node, whether by element of the window), the node in that layout.
        changed: copied nodes whose strides differ from the original's.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        self.gm, self.graph = gm, Graph()
        self.copies: dict[Node, Node] = {}
        self.last: dict[tuple[Node, bool], Node] = {}
        self.changed: set[Node] = set()

    def run(self) -> fx.GraphModule:
        for node in self.gm.graph.nodes:
            if node.op == "output":
                self.output(node)
            elif node.op == "call_function":
                self.call(node)
            else:
                self.copies[node] = self.graph.node_copy(node)
        return GraphModule(self.gm, self.graph)

    def call(self, node: Node) -> None:
        copy = self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
        if _is_image_convolution(node):
            with self.graph.inserting_before(copy):
                positions = TENSORS[_name(node)]
                weight = positions[-1] if _is_depthwise(node) else None
                copy.args = tuple(
                    self.in_last(a, i == weight) if i in positions else a for i, a in enumerate(copy.args)
                )
        elif isinstance(node.target, OpOverload) and depends_on_strides(node.target):
            with self.graph.inserting_before(copy):
                for old in node.all_input_nodes:
                    copy.replace_input_with(self.copies[old], self.laid_out(self.copies[old], old.meta["val"]))
        val = self.meta(copy)
        if _differ(val, node.meta["val"]):
            copy.meta["val"] = val
            self.changed.add(copy)

    def meta(self, node: Node) -> Any:
        """Returns the meta of a copied node, given the new metas of its operands."""
        own = node.meta["val"]
        if node.target is operator.getitem:
            source, position = node.args
            return source.meta["val"][position] if isinstance(source, Node) and isinstance(position, int) else own
        convolves = _is_image_convolution(node)
        if not isinstance(node.target, Prim) or not (convolves or self.changed.intersection(node.all_input_nodes)):
            return own
        if node.target is PRIMS["clone"]:  # a clone's strides are required, independent of the operand's
            return own
        if node.target.kind in ANY_STRIDES:
            return self.following(node, own)
        found = node.target.meta(*_metas(node.args))
        if isinstance(found, tuple):  # strides of dimensions of size 1 do not matter
            return tuple(x if _differ(x, y) else y for x, y in zip(found, own, strict=True))
        return found

    def following(self, node: Node, own: Any) -> Any:
        """Returns the meta of a pointwise result: channels last if one of its operands is an image in channels-last
        layout.
        """
        assert isinstance(own, TensorMeta)
        metas = (n.meta["val"] for n in node.all_input_nodes)
        images = any(isinstance(m, TensorMeta) and m.ndim == 4 and is_channels_last(m.shape, m.stride) for m in metas)
        if not images or own.ndim != 4 or not is_dense(own.shape, own.stride):
            return own
        return replace(own, stride=channels_last_stride(own.shape))

    def in_last(self, arg: Any, by_element: bool = False) -> Any:
        """Returns an argument of a convolution in channels-last layout or (`by_element`) with the output channel
        innermost.
        """
        if not isinstance(arg, Node):
            return arg
        known = self.last.get((arg, by_element))
        if known is None:
            val = arg.meta["val"]
            stride = (by_element_stride if by_element else channels_last_stride)(val.shape)
            known = self.last[arg, by_element] = self.laid_out(arg, replace(val, stride=stride))
        return known

    def laid_out(self, node: Node, wanted: Any) -> Node:
        """Returns the value with the strides of the meta `wanted`: a copy, or `node` itself if it has them."""
        val = node.meta["val"]
        if not isinstance(val, TensorMeta) or same_steps(val.shape, val.stride, wanted.stride):
            return node
        copy = self.graph.call_function(PRIMS["clone"], (node,))
        copy.meta.update({**node.meta, "val": replace(val, stride=wanted.stride, requires_grad=False)})
        return copy

    def output(self, node: Node) -> None:
        """Copy the output node: results get the strides that the original graph's metadata promises to the caller."""
        promised: dict[Node, Any] = {}
        _pair(node.args[0], node.meta["val"], promised)
        made = {
            old: self.laid_out(self.copies[old], meta) if self.copies[old] in self.changed else self.copies[old]
            for old, meta in promised.items()
        }
        self.graph.output(fx.node.map_arg(node.args[0], made.__getitem__)).meta.update(node.meta)


def _metas(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(_metas, value))
    return value.meta["val"] if isinstance(value, Node) else value


def _differ(a: Any, b: Any) -> bool:
    """Whether two metas (or tuples of metas) of one value differ in strides."""
    if isinstance(a, (tuple, list)):
        return any(_differ(x, y) for x, y in zip(a, b, strict=True))
    return isinstance(a, TensorMeta) and not same_steps(a.shape, a.stride, b.stride)


def _pair(value: Any, meta: Any, found: dict[Node, Any]) -> None:
    """Collect each node of the output's arguments with its meta in the output's metadata."""
    if isinstance(value, (tuple, list)):
        for one, its in zip(value, meta, strict=True):
            _pair(one, its, found)
    elif isinstance(value, Node):
        found[value] = meta
