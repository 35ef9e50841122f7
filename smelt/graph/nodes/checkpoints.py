"""Turns the marked regions of a captured graph into calls of `torch.utils.checkpoint`, for backends that use autograd.

Capture inlines calls of `checkpoint` and marks the nodes inside with the number of the call. A backend that partitions
the graph reads the marks. For a backend that runs the graph under autograd, this pass moves the nodes between the first
and the last mark of a call into a function, and calls it through `checkpoint`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch.utils.checkpoint
from torch import fx

from smelt.base.torch_private import version_of
from smelt.graph.ir.module import Graph, GraphModule
from smelt.graph.nodes.modes import MODE_CHANGES


def with_checkpoints(module: fx.GraphModule) -> fx.GraphModule:
    """Returns the graph with each marked region as one call of `checkpoint`; the module itself if nothing is marked."""
    nodes = list(module.graph.nodes)
    spans = [span for span in _spans(nodes) if not _is_partial(span)]
    if not spans:
        return module
    span_at = {span[0]: span for span in spans}
    inside = {node for span in spans for node in span}
    graph, env = Graph(), dict[fx.Node, fx.Node]()
    for node in nodes:
        if node in span_at:
            _call(module, graph, env, span_at[node])
        elif node not in inside:
            env[node] = graph.node_copy(node, env.__getitem__)
    return GraphModule(module, graph)


def _spans(nodes: Sequence[fx.Node]) -> Iterable[list[fx.Node]]:
    """Returns the nodes from the first to the last mark of each number."""
    first, last = dict[int, int](), dict[int, int]()
    for i, node in enumerate(nodes):
        region = node.meta.get("checkpoint")
        if region is not None:
            first.setdefault(region, i)
            last[region] = i
    return [list(nodes[at : last[region] + 1]) for region, at in first.items()]


def _is_partial(span: Sequence[fx.Node]) -> bool:
    """Whether a span cannot be a function: it contains an input, or only one half of a pair of nodes that enter and
    leave a mode.
    """
    own = set(span)
    return any(
        node.op in ("placeholder", "output")
        or (node.target in MODE_CHANGES and not own.issuperset([*node.all_input_nodes, *node.users]))
        for node in span
    )


def _call(module: fx.GraphModule, graph: fx.Graph, env: dict[fx.Node, fx.Node], span: Sequence[fx.Node]) -> None:
    own = set(span)
    operands = list(dict.fromkeys(n for node in span for n in node.all_input_nodes if n not in own))
    operands.sort(key=lambda node: node.op != "placeholder")
    num_buffers = sum(node.op == "placeholder" for node in operands)
    results = [node for node in span if any(user not in own for user in node.users)]
    body, inner = Graph(), dict[fx.Node, fx.Node]()
    for node in operands:
        inner[node] = body.placeholder(node.name)
    for node in span:
        inner[node] = body.node_copy(node, inner.__getitem__)
    body.output(tuple(inner[node] for node in results))
    function: Any = GraphModule(module, body)
    made = graph.call_function(_checkpointed(function, num_buffers), tuple(env[node] for node in operands))
    for i, node in enumerate(results):
        env[node] = graph.call_function(_item, (made, i))
        env[node].meta = dict(node.meta)


def _item(results: Sequence[Any], index: int) -> Any:
    return results[index]


class _checkpointed:  # noqa: N801  it is called like a function, and shown so in a graph
    """Computes a span of a graph, and recomputes it when gradients need values inside of it.

    Args:
        body: the nodes of the span.
        num_buffers: the number of its first arguments that are inputs of the whole graph. They are treated like a
            module's buffers: the body may write to them, which autograd forbids for saved tensors.
    """

    def __init__(self, body: fx.GraphModule, num_buffers: int) -> None:
        self.body, self.num_buffers = body, num_buffers
        self.__name__ = self.__qualname__ = "checkpointed"
        self.__module__ = __name__

    def __call__(self, *args: Any) -> Any:
        buffers, operands = args[: self.num_buffers], args[self.num_buffers :]
        untouched: list[tuple[torch.Tensor, int]] | None = None

        def run(*operands: Any) -> Any:
            nonlocal untouched
            if untouched is not None:
                _check(untouched)
                return self.body(*buffers, *operands)
            before = _versions(buffers)
            out = self.body(*buffers, *operands)
            after = _versions(buffers)
            untouched = [(t, b) for (t, b), (_, a) in zip(before, after, strict=True) if a == b]
            return out

        return torch.utils.checkpoint.checkpoint(run, *operands, use_reentrant=False)


def _versions(values: Iterable[Any]) -> list[tuple[torch.Tensor, int]]:
    return [(v, version_of(v)) for v in values if isinstance(v, torch.Tensor) and not v.is_inference()]


def _check(untouched: Iterable[tuple[torch.Tensor, int]]) -> None:
    for tensor, version in untouched:
        if version_of(tensor) != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{tensor.type()} {list(tensor.shape)}] is at version {version_of(tensor)}; expected version {version}"
            )
