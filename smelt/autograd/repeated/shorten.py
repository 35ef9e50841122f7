"""Graph with repeated blocks in; the same graph with four of these blocks out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch.fx import Node

from smelt.autograd.repeated.blocks import Blocks, find_blocks
from smelt.graph.ir.module import Graph, GraphModule

KEPT = 2
"""Number of blocks that are kept at the beginning and at the end. The copied block (the second) and the one after it
are then neither first nor last: their values differ only in the inputs of the blocks."""


@dataclass
class Short:
    """A graph with four blocks, 0 to 3, of which 2 and 3 are the last two blocks of the whole graph.

    Attributes:
        module: the graph; its nodes have the names that they have in the whole graph.
        examples: its inputs.
        blocks: the blocks of the whole graph.
        left_out: number of the whole graph's blocks that are missing, between blocks 1 and 2.
        chain: for each input of the whole graph, the number of its chain in `blocks`; None for others.
        block: for each input of the whole graph that has a chain, its block in the short graph; None for inputs of the
            missing blocks.
        position: for each input of the whole graph, its position in the short graph; None for inputs of the missing
            blocks.
    """

    module: fx.GraphModule
    examples: list[torch.Tensor]
    blocks: Blocks
    left_out: int
    chain: list[int | None]
    block: list[int | None]
    position: list[int | None]


def with_few_blocks(gm: fx.GraphModule, examples: Sequence[torch.Tensor]) -> Short | None:
    """Returns the graph with four of its repeated blocks; None if it has no repeated blocks."""
    blocks = find_blocks(gm, examples)
    return None if blocks is None else shorten(gm, examples, blocks)


def shorten(gm: fx.GraphModule, examples: Sequence[torch.Tensor], blocks: Blocks) -> Short:
    """Returns the graph without the blocks between the first two and the last two."""
    left_out = blocks.count - 2 * KEPT
    graph, env = Graph(), dict[Node, Node]()
    chain_of = {node: k for k, chain in enumerate(blocks.chains) for node in chain}
    short = Short(gm, [], blocks, left_out, [], [], [])
    for node, example in zip(blocks.inputs, examples, strict=True):
        level = blocks.level.get(node)
        kept = level if level is None or level < KEPT else None if level < KEPT + left_out else level - left_out
        short.chain.append(chain_of.get(node))
        short.block.append(kept)
        if level is None or kept is not None:
            short.position.append(len(short.examples))
            short.examples.append(example)
            env[node] = graph.node_copy(node)
        else:
            short.position.append(None)
            if level == KEPT + left_out - 1:  # the only missing block that the next one may read
                chain = blocks.chains[chain_of[node]]
                env[node] = env[chain[chain.index(node) - left_out]]
    first, last = (blocks.start + k * blocks.period for k in (KEPT, KEPT + left_out))
    for at, node in enumerate(blocks.calls):
        if not first <= at < last:
            env[node] = graph.node_copy(node, env.__getitem__)
        elif at >= last - blocks.period:
            env[node] = env[blocks.calls[at - left_out * blocks.period]]
    output = gm.graph.output_node()
    graph.node_copy(output, env.__getitem__)
    short.module = GraphModule(gm, graph)
    return short
