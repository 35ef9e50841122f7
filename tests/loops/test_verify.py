"""Each rule of loop programs is held: a program that breaks it is refused, with the node's name and the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from smelt.loops.ir import LoopProgram
from smelt.loops.lower import lower
from smelt.loops.verify import InvalidLoops, verify
from tests.loops.graphs import GraphBuilder, layer_norm
from tests.loops.random_graphs import RandomGraph


def program() -> LoopProgram:
    """A product, values around it, a reduction, a choice, a scatter and an extern of several results."""
    g = GraphBuilder()
    x, w = g.input(8, 16), g.input(16, 4)
    product = g.mm(g.exp(x), w)
    chosen = g.where(g.gt(product, 0.0), product, 1.0)
    values, _ = g.sort(chosen, 1, False, True)
    rows = g.scatter_add(g.exp(w), 0, g.convert(g.sub(w, w), torch.int64), g.neg(w))
    return lower(g.build(values, g.sum(chosen, (0,)), rows))


def changed(node: str, **fields: Any) -> Callable[[LoopProgram], None]:
    def change(loops: LoopProgram) -> None:
        loops.nodes[node] = replace(loops.nodes[node], **fields)

    return change


def output_of_another_type(loops: LoopProgram) -> None:
    meta = loops.outputs[1].meta
    assert meta is not None
    loops.outputs[1] = replace(loops.outputs[1], meta=replace(meta, dtype=torch.float64))


def earlier_waits(loops: LoopProgram) -> None:
    loops.after["exp"] = "mm"


def operands_last(loops: LoopProgram) -> None:
    loops.nodes["exp"] = loops.nodes.pop("exp")


WRONG: dict[str, tuple[Callable[[LoopProgram], None], str]] = {
    "name": (changed("exp", name="log"), "exp.*says that it is log"),
    "operand": (changed("exp", inputs=("x9",)), "exp.*reads x9"),
    "order": (operands_last, "mm.*reads exp"),
    "load": (changed("exp", inputs=("x1",)), r"exp.*reads x0, its inputs are \('x1',\)"),
    "rank": (changed("exp", body=lambda ops, index: ops.load("x0", index[:1])), r"exp.*reads x0\['i0'\]"),
    "type of a body": (changed("exp", body=lambda ops, index: ops.constant(1, torch.int64)), "makes torch.int64"),
    "type of an operand": (
        changed("exp", body=lambda ops, index: ops.apply("exp", torch.float64, ops.load("x0", index))),
        "exp of torch.float64 is applied to torch.float32",
    ),
    "type of a conversion": (
        changed("exp", body=lambda ops, i: ops.convert(ops.load("x0", i), torch.int64, torch.float32)),
        "converted as if",
    ),
    "both ways": (
        changed("exp", body=lambda ops, i: ops.masked((), lambda: ops.load("x0", i), ops.constant(0, torch.int64))),
        "where a condition holds, else",
    ),
    "condition": (
        changed("where", body=lambda ops, i: ops.apply("where", torch.float32, *[ops.load("mm", i)] * 3)),
        "where chooses by torch.float32",
    ),
    "fold": (changed("sum_1", kind="exp"), "no fold is called exp"),
    "folded": (changed("sum_1", dims=(2,)), "folds dimensions"),
    "kept": (changed("sum_1", dims=(1,)), "what it keeps"),
    "arguments": (changed("mm", inputs=("exp",)), "its arguments hold"),
    "shares": (changed("mm", shares=("x0",)), "it shares memory with"),
    "result": (changed("sort_1", position=1), "result 1 of"),
    "target": (changed("scatter_add", target=lambda ops, index: index[:1]), "writes at 1 indices"),
    "parallel": (changed("scatter_add", parallel=(5,)), "are its own"),
    "index": (
        changed("scatter_add", target=lambda ops, i: (ops.indirect(ops.load("exp_1", i), 16, False), i[1])),
        "torch.float32 is an index",
    ),
    "inputs": (lambda loops: loops.inputs.pop(), "its inputs are"),
    "output": (output_of_another_type, "output sum"),
    "after": (earlier_waits, "exp waits for mm"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_loops_are_refused(name: str) -> None:
    loops = program()
    verify(loops)
    change, why = WRONG[name]
    change(loops)
    with pytest.raises(InvalidLoops, match=f"(?s){why}"):
        verify(loops)


@pytest.mark.parametrize("seed", range(20))
def test_lowered_graphs_are_valid(seed: int) -> None:
    verify(lower(RandomGraph(seed, torch.bfloat16 if seed % 2 else torch.float32).build()))


def test_folds_and_broadcasts_are_right() -> None:
    g = GraphBuilder()
    verify(lower(g.build(*layer_norm(g, g.input(6, 32), g.input(32), g.input(32)))))
