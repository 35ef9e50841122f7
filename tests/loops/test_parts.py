"""Graphs in parts: which of them may write over inputs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from smelt.loops.parts import Chain, split_at_reads
from tests.loops.graphs import GraphBuilder

CUDA = torch.device("cuda:0")


def on_gpu(g: GraphBuilder, *shape: int) -> fx.Node:
    node = g.input(*shape)
    node.meta["val"] = replace(node.meta["val"], device=CUDA)
    return node


def chain_of(g: GraphBuilder, *results: fx.Node) -> Chain:
    gm = g.build(*results)
    gm.graph.output_node().meta["val"] = tuple(node.meta["val"] for node in results)
    chain = split_at_reads(gm)
    assert chain is not None
    return chain


class Step:
    """A step count on the CPU, from which the GPU gets its rate; a parameter and a gradient on the GPU."""

    def __init__(self) -> None:
        self.g = g = GraphBuilder()
        self.count, self.p, self.grad = g.input(), on_gpu(g, 8), on_gpu(g, 8)
        self.counted = g.add(self.count, 1.0)
        rate = g.broadcast_in_dim(g.to_device(self.counted, CUDA), (8,), ())
        self.new = g.sub(self.p, g.mul(self.grad, rate))

    def chain(self, *results: fx.Node) -> Chain:
        chain = chain_of(self.g, *results)
        assert len([part for part in chain.parts if part.module is not None]) == 2
        return chain


def test_the_last_graph_writes_over_inputs() -> None:
    step = Step()
    chain = step.chain(step.counted, step.new)
    assert chain.parts[-1].outputs[0].name == step.new.name
    assert chain.updates_at_the_end({0: step.count.name, 1: step.p.name}) == {0: step.p.name}


def test_an_input_that_is_a_result_too_is_left_alone() -> None:
    step = Step()
    assert step.chain(step.counted, step.new, step.p).updates_at_the_end({1: step.p.name}) == {}


def test_a_value_that_is_two_results_is_not_written_over_an_input() -> None:
    step = Step()
    assert step.chain(step.new, step.new).updates_at_the_end({0: step.p.name}) == {}


def test_an_input_that_the_host_still_moves_is_left_alone() -> None:
    step = Step()
    back = step.g.to_device(step.new, torch.device("cpu"))
    old = step.g.to_device(step.p, torch.device("cpu"))
    chain = chain_of(step.g, step.new, step.g.add(back, old))
    assert chain.updates_at_the_end({0: step.p.name}) == {}
