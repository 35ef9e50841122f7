"""Graph with repeated blocks in; the same graph with four of these blocks out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx
from torch.fx import Node

from smelt.autograd.repeated.blocks import Blocks, find_blocks, results_of
from smelt.graph.ir.module import Graph, GraphModule

KEPT = 2
"""Number of blocks that are kept at the beginning and at the end. The copied block (the second) and the one after it
are then neither first nor last: their values differ only in the inputs of the blocks."""


@dataclass(frozen=True)
class Result:
    """A result of the whole graph.

    Attributes:
        position: its position among the results of the short graph; for a result of a missing block, that of the
            corresponding result of block 1.
        block: the short graph's block that returns it; None if it is returned by no block.
        later: the number of blocks between the block that returns it, and `block`; 0 if that block is not missing.
        slot: which of its block's results it is; -1 if it is returned by no block.
    """

    position: int
    block: int | None = None
    later: int = 0
    slot: int = -1


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
        results: the results of the whole graph.
    """

    module: fx.GraphModule
    examples: list[torch.Tensor]
    blocks: Blocks
    left_out: int
    chain: list[int | None]
    block: list[int | None]
    position: list[int | None]
    results: list[Result]


def with_few_blocks(gm: fx.GraphModule, examples: Sequence[torch.Tensor]) -> Short | None:
    """Returns the graph with four of its repeated blocks; None if it has no repeated blocks."""
    blocks = find_blocks(gm, examples)
    return None if blocks is None else shorten(gm, examples, blocks)


def shorten(gm: fx.GraphModule, examples: Sequence[torch.Tensor], blocks: Blocks) -> Short:
    """Returns the graph without the blocks between the first two and the last two."""
    left_out = blocks.count - 2 * KEPT
    graph, env = Graph(), dict[Node, Node]()
    short = Short(gm, [], blocks, left_out, [], [], [], [])
    _copy_inputs(short, examples, graph, env)
    first, last = (blocks.start + k * blocks.period for k in (KEPT, KEPT + left_out))
    for index, node in enumerate(blocks.calls):
        if not first <= index < last:
            env[node] = graph.node_copy(node, env.__getitem__)
        elif index >= last - blocks.period:
            env[node] = env[blocks.calls[index - left_out * blocks.period]]
    short.results = _results(gm.graph.output_node(), blocks, left_out)
    _copy_output(gm.graph.output_node(), graph, env, short.results)
    short.module = GraphModule(gm, graph)
    return short


def _copy_inputs(short: Short, examples: Sequence[torch.Tensor], graph: Graph, env: dict[Node, Node]) -> None:
    """Copy the inputs, but for those of missing blocks."""
    blocks, left_out = short.blocks, short.left_out
    chain_of = {node: k for k, chain in enumerate(blocks.chains) for node in chain}
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


def _copy_output(output: Node, graph: fx.Graph, env: Mapping[Node, Node], results: Sequence[Result]) -> None:
    """Copy the output node without the results of missing blocks."""
    if not any(result.later for result in results):
        graph.node_copy(output, env.__getitem__)
        return
    values = [v for v, result in zip(results_of(output), results, strict=True) if not result.later]
    graph.output(tuple([env[v] if isinstance(v, Node) else v for v in values])).meta.update(output.meta)


def _results(output: Node, blocks: Blocks, left_out: int) -> list[Result]:
    """Returns the results of the whole graph."""
    found: list[Result] = []
    slots, position = Counter[int](), 0
    by_slot: dict[int, int] = {}
    for value in results_of(output):
        at = blocks.index.get(value, -1) if isinstance(value, Node) else -1
        block = blocks.level_at(at)
        if at < 0 or not 0 <= block < blocks.count:
            found.append(Result(position))
            position += 1
            continue
        slot = slots[block]
        slots[block] += 1
        if KEPT <= block < KEPT + left_out:
            found.append(Result(-1, 1, block - 1, slot))
            continue
        short_block = block if block < KEPT else block - left_out
        if short_block == 1:
            by_slot[slot] = position
        found.append(Result(position, short_block, 0, slot))
        position += 1
    return [replace(each, position=by_slot[each.slot]) if each.later else each for each in found]
