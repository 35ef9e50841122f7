"""Graphs in parts: which of them may write over inputs."""

from __future__ import annotations

import operator
from dataclasses import replace

import torch
from torch import fx

from smelt.loops.split_by_device import PartSequence, split_at_reads
from tests.loops.graphs import GraphBuilder

CUDA = torch.device("cuda:0")


def on_gpu(g: GraphBuilder, *shape: int) -> fx.Node:
    node = g.input(*shape)
    node.meta["val"] = replace(node.meta["val"], device=CUDA)
    return node


def chain_of(g: GraphBuilder, *results: fx.Node) -> PartSequence:
    gm = g.build(*results)
    gm.graph.output_node().meta["val"] = tuple(node.meta["val"] for node in results)
    chain = split_at_reads(gm)
    assert chain is not None
    return chain


class Step:
    """A step count on the CPU, from which the GPU gets its rate; a parameter and a gradient on the GPU.

    Args:
        idle: it gets its rate from an input instead.
    """

    def __init__(self, idle: bool = False) -> None:
        self.g = g = GraphBuilder()
        self.count, self.p, self.grad = g.input(), on_gpu(g, 8), on_gpu(g, 8)
        self.counted = g.input() if idle else g.add(self.count, 1.0)
        rate = g.broadcast_in_dim(g.to_device(self.counted, CUDA), (8,), ())
        self.new = g.sub(self.p, g.mul(self.grad, rate))

    def chain(self, *results: fx.Node) -> PartSequence:
        chain = chain_of(self.g, *results)
        assert len([part for part in chain.parts if part.module is not None]) == 2
        return chain


def test_the_last_graph_writes_over_inputs() -> None:
    step = Step()
    chain = step.chain(step.counted, step.new)
    assert chain.parts[-1].outputs[0].name == step.new.name
    assert chain.in_place_updates({0: step.count.name, 1: step.p.name}) == {1: {0: step.p.name}}


def counts(step: Step) -> list[fx.Node]:
    """Two counts that the GPU does not wait for, as an optimizer that works on lists makes them."""
    g = step.g.graph
    inputs = [step.count, step.g.input()]
    both = g.call_function(torch.ops.aten._foreach_add.Scalar, (inputs, 1))
    both.meta["val"] = [n.meta["val"] for n in inputs]
    each = [g.call_function(operator.getitem, (both, i)) for i in range(2)]
    for node, counted in zip(each, inputs, strict=True):
        node.meta["val"] = counted.meta["val"]
    return each


def test_counts_that_no_gpu_waits_for_come_last() -> None:
    step = Step(idle=True)
    one, other = counts(step)
    chain = step.chain(one, step.new, other)
    gpu, last = [part for part in chain.parts if part.module is not None]
    assert not gpu.counts and [n.name for n in gpu.outputs] == [step.new.name]
    assert last.counts and {n.name for n in last.outputs} == {one.name, other.name}
    assert chain.in_place_updates({0: step.count.name, 1: step.p.name}) == {0: {0: step.p.name}}


def test_counts_of_which_something_else_is_computed_come_first() -> None:
    step = Step(idle=True)
    one, _ = counts(step)
    chain = step.chain(one, step.new, step.g.neg(one))
    first, gpu = [part for part in chain.parts if part.module is not None]
    assert not first.counts and [n.name for n in gpu.outputs] == [step.new.name]


def test_a_list_of_counts_of_which_the_gpu_needs_one_is_not_torn() -> None:
    """Nor another list of which the elements are results."""
    step = Step(idle=True)
    one, other = counts(step)
    highest = step.g.graph.call_function(torch.ops.aten.max.dim, (step.count, 0))
    highest.meta["val"] = (step.count.meta["val"], step.count.meta["val"])
    value = step.g.graph.call_function(operator.getitem, (highest, 0))
    value.meta["val"] = step.count.meta["val"]
    new = step.g.sub(step.new, step.g.broadcast_in_dim(step.g.to_device(one, CUDA), (8,), ()))
    chain = step.chain(one, new, other, value)
    first, gpu = [part for part in chain.parts if part.module is not None]
    assert {n.name for n in first.outputs} == {one.name, other.name, value.name}
    assert not first.counts and [n.name for n in gpu.outputs] == [new.name]
    assert not any(isinstance(n.meta["val"], (tuple, list)) for part in chain.parts for n in part.inputs)


def test_results_of_one_operator_on_two_devices_are_taken_apart_beside_it() -> None:
    for swapped in (False, True):
        step = Step(idle=True)
        source = step.count if swapped else step.p
        both = step.g.graph.call_function(torch.ops.aten.max.dim, (source, 0))
        metas = [step.p.meta["val"], step.count.meta["val"]]
        both.meta["val"] = tuple(reversed(metas) if swapped else metas)
        gpu, cpu = (step.g.graph.call_function(operator.getitem, (both, int(at != swapped))) for at in (0, 1))
        gpu.meta["val"], cpu.meta["val"] = metas
        chain = chain_of(step.g, step.g.neg(gpu), step.g.neg(cpu), gpu, cpu)
        made = [names for part in chain.parts if {gpu.name, cpu.name} & (names := {n.name for n in part.outputs})]
        assert len(made) == 1 and {gpu.name, cpu.name} <= made[0]
        assert all(isinstance(n.meta["val"], type(metas[0])) for part in chain.parts for n in part.inputs)


def test_an_input_that_is_a_result_too_is_left_alone() -> None:
    step = Step()
    assert step.chain(step.counted, step.new, step.p).in_place_updates({1: step.p.name}) == {}


def test_a_value_that_is_two_results_is_not_written_over_an_input() -> None:
    step = Step()
    assert step.chain(step.new, step.new).in_place_updates({0: step.p.name}) == {}


def test_an_input_that_the_host_still_moves_is_left_alone() -> None:
    step = Step()
    back = step.g.to_device(step.new, torch.device("cpu"))
    old = step.g.to_device(step.p, torch.device("cpu"))
    chain = chain_of(step.g, step.new, step.g.add(back, old))
    assert chain.in_place_updates({0: step.p.name}) == {}
