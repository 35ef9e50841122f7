"""Compares the joint prim graph of which four blocks were traced with that of which all were traced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx, nn

import smelt
from smelt.autograd.repeated.expand import expand
from smelt.autograd.repeated.shorten import with_few_blocks
from smelt.autograd.trace.call_facts import call_facts
from smelt.autograd.trace.joint import Joint, trace_joint
from smelt.base.options import Options
from smelt.graph.ir.gradient_marks import GradientMark
from smelt.graph.verify import verify
from smelt.prims.decompose import decompose


def _target(node: fx.Node) -> Any:
    mark = node.target
    return (type(mark), mark.mask) if isinstance(mark, GradientMark) else mark


def assert_same_graph(one: fx.GraphModule, other: fx.GraphModule) -> None:
    """Check that two graphs have the same calls, arguments and metadata, in the same order."""
    nodes, others = list(one.graph.nodes), list(other.graph.nodes)
    assert len(nodes) == len(others)
    known = dict(zip(nodes, others, strict=True))
    for a, b in known.items():
        assert (a.op, _target(a)) == (b.op, _target(b))
        assert str(fx.node.map_arg((a.args, a.kwargs), lambda n: known[n])) == str((b.args, b.kwargs)), (a, b)
        assert a.meta == b.meta, (a, b)


def assert_same_plan(one: Joint, other: Joint) -> None:
    """Check that two plans are equal, but for their graphs' calls."""
    for field in dataclasses.fields(Joint):
        if field.name not in ("module", "flow", "facts"):
            assert getattr(one, field.name) == getattr(other, field.name), field.name
    assert (one.flow is None) == (other.flow is None)
    if one.flow is not None and other.flow is not None:
        assert (one.flow.count, one.flow.bits) == (other.flow.count, other.flow.bits)
    assert one.output_metas == other.output_metas
    assert one.facts == call_facts(other)
    inputs = [
        [(n.name, n.meta["val"]) for n in joint.module.graph.nodes if n.op == "placeholder"] for joint in (one, other)
    ]
    assert inputs[0] == inputs[1]


def copied_blocks(call: Callable[..., Any], *inputs: Tensor, **options: Any) -> list[bool]:
    """Traces each graph of a call both ways and compares them; returns for each whether blocks were copied.

    Nothing is compiled.
    """
    found = []

    def trace(gm: fx.GraphModule, examples: Sequence[Tensor]) -> tuple[Joint, fx.GraphModule]:
        joint = trace_joint(gm, examples, Options())
        return joint, decompose(joint.module, Options(), apart=True)

    def both(gm: fx.GraphModule, examples: Sequence[Tensor]) -> Callable[..., Any]:
        short = with_few_blocks(gm, examples)
        few = short and expand(*trace(short.module, short.examples), short)
        if few is not None:
            verify(few[1], stage="prims")
            whole = trace(gm, examples)
            assert_same_graph(few[1], whole[1])
            assert_same_plan(few[0], whole[0])
        found.append(few is not None)
        return gm.forward

    smelt.compile(call, backend=both, **options)(*inputs)
    return found


class Block(nn.Module):
    """A layer of width 8 with a skip connection."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.norm: nn.Module = nn.LayerNorm(8)
        self.up, self.down, self.drop = nn.Linear(8, 16), nn.Linear(16, 8), nn.Dropout(p)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x))))) * self.scale


class Net(nn.Module):
    """`count` blocks between two linear layers; `walk` calls the blocks."""

    def __init__(self, count: int, p: float = 0.0, walk: Callable[[Net, Tensor], Any] | None = None) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.layers = nn.ModuleList(Block(p) for _ in range(count))
        self.walk = walk

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        if self.walk is not None:
            return self.walk(self, x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)
