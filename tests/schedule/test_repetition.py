"""smelt/schedule/repetition.py: equal layers are found wherever they stand, and only where nothing differs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from torch import fx

from smelt.loops.ir import LoopProgram
from smelt.loops.lower import lower
from smelt.schedule.repetition import BLOCK_KINDS, MIN_BLOCKS, Repetition, find_repetition, longest_run
from tests.loops.graphs import GraphBuilder

Layer = Callable[[GraphBuilder, fx.Node, int], fx.Node]


def plain(g: GraphBuilder, x: fx.Node, at: int) -> fx.Node:
    w, b = g.input(8, 8), g.input(8)
    return g.exp(g.add(g.mm(x, w), g.broadcast_in_dim(b, (4, 8), (1,))))


def program(layers: int, layer: Layer = plain, end: bool = True) -> LoopProgram:
    g = GraphBuilder()
    x = g.input(4, 8)
    for at in range(layers):
        x = layer(g, x, at)
    return lower(g.build(g.sum(x, (0, 1)) if end else x))


def checked(found: Repetition | None, loops: LoopProgram) -> Repetition:
    """Of each value of a block but the last one, the value with its place in the next one computes the same."""
    assert found is not None
    blocks: dict[int, list[str]] = {}
    for name, number in found.block.items():
        if found.first <= number <= found.last:
            blocks.setdefault(number, []).append(name)
    assert sorted(blocks) == list(range(found.first, found.last + 1))
    for number in range(found.first, found.last):
        following = []
        for name in blocks[number]:
            chain, at = found.positions[name]
            assert chain[at] == name and found.block[chain[at + 1]] == number + 1
            one, other = loops.nodes[name], loops.nodes[chain[at + 1]]
            assert (type(one), one.meta, getattr(one, "op", "")) == (type(other), other.meta, getattr(other, "op", ""))
            following.append(other.name)
        assert sorted(following) == sorted(blocks[number + 1])
    return found


@pytest.mark.parametrize("layers", [MIN_BLOCKS + 4, 40])
def test_equal_layers_one_after_the_other(layers: int) -> None:
    loops = program(layers)
    found = checked(find_repetition(loops), loops)
    assert layers - 3 <= found.last - found.first + 1 <= layers
    middle = [name for name, number in found.block.items() if number == (found.first + found.last) // 2]
    assert sorted(type(loops.nodes[name]).__name__ for name in middle) == [
        "Extern",
        "Input",
        "Input",
        *["Pointwise"] * 3,
    ]


@pytest.mark.parametrize("layers", [0, 1, MIN_BLOCKS - 1])
def test_few_layers_are_not_looked_for(layers: int) -> None:
    assert find_repetition(program(layers)) is None


def test_layers_of_several_kinds_that_take_turns() -> None:
    """Their products are alike; what follows these differs."""
    for kinds in (2, 3):
        ops = ["exp", "sin", "neg"][:kinds]

        def layer(g: GraphBuilder, x: fx.Node, at: int, ops: list[str] = ops) -> fx.Node:
            return getattr(g, ops[at % len(ops)])(g.mm(x, g.input(8, 8)))

        loops = program(kinds * (MIN_BLOCKS + 4), layer)
        found = checked(find_repetition(loops), loops)
        inside = [name for name, number in found.block.items() if number == found.first + 3]
        assert len([name for name in inside if name.startswith("mm")]) == kinds
    assert max(BLOCK_KINDS) == 3


def test_layers_without_calls_are_found_by_their_folds() -> None:
    def layer(g: GraphBuilder, x: fx.Node, at: int) -> fx.Node:
        return g.sub(x, g.broadcast_in_dim(g.sum(g.mul(x, x), (1,)), (4, 8), (0,)))

    loops = program(MIN_BLOCKS + 6, layer)
    checked(find_repetition(loops), loops)


def another(g: GraphBuilder, x: fx.Node, at: int) -> fx.Node:
    return g.neg(plain(g, x, at)) if at == 20 else plain(g, x, at)


def number(g: GraphBuilder, x: fx.Node, at: int) -> fx.Node:
    return g.mul(plain(g, x, at), 2.0 if at < 20 else 3.0)


def transposed(g: GraphBuilder, x: fx.Node, at: int) -> fx.Node:
    w = g.input(8, 8, stride=(1, 8) if at == 20 else (8, 1))
    return g.exp(g.mm(x, w))


@pytest.mark.parametrize("layer", [another, number, transposed])
def test_blocks_end_where_something_differs(layer: Layer) -> None:
    loops = program(36, layer)
    found = checked(find_repetition(loops), loops)
    assert found.last - found.first + 1 <= 21, "the odd layer or the change is in no block but the last"
    assert find_repetition(program(18, lambda g, x, at: layer(g, x, at + 11))) is None, "too few on either side"


def test_a_result_of_one_layer_alone_ends_the_blocks() -> None:
    g = GraphBuilder()
    x, early = g.input(4, 8), []
    for at in range(40):
        x = plain(g, x, at)
        early += [x] if at == 12 else []
    loops = lower(g.build(g.sum(x, (0, 1)), *early))
    found = find_repetition(loops)
    assert MIN_BLOCKS <= checked(found, loops).last - found.first + 1 <= 28


def test_additional_reader_of_one_layer_ends_the_repeated_blocks() -> None:
    g = GraphBuilder()
    x, early = g.input(4, 8), []
    for at in range(40):
        x = plain(g, x, at)
        early += [g.neg(x)] if at == 12 else []
    loops = lower(g.build(g.sum(x, (0, 1)), *early))
    found = checked(find_repetition(loops), loops)
    assert MIN_BLOCKS <= found.last - found.first + 1 <= 28
    for name, number in found.block.items():
        if found.first <= number < found.last:
            users = [len(loops.users()[each]) for each in found.positions[name][0][found.positions[name][1] :][:2]]
            assert users[0] == users[1]


def test_blocks_begin_and_end_where_the_chains_do() -> None:
    loops = program(30)
    found = checked(find_repetition(loops), loops)
    products = [name for name in loops.nodes if name.startswith("mm")]
    assert [found.positions[name] for name in products] == [(products, at) for at in range(30)]
    assert [found.block[name] - found.block[products[0]] for name in products] == [*range(30)]
    assert found.last - found.first + 1 >= 28


def test_every_layer_reads_one_value_or_gives_a_result() -> None:
    g = GraphBuilder()
    x, shared, results = g.input(4, 8), g.input(8, 8), []
    for _ in range(20):
        x = g.exp(g.mm(x, shared))
        results.append(g.sum(x, (1,)))
    loops = lower(g.build(*results))
    found = checked(find_repetition(loops), loops)
    assert "x1" not in found.block


def test_value_shared_by_all_layers_is_in_no_block_and_waiting_kernels_are_refused() -> None:
    g = GraphBuilder()
    x, made = g.input(4, 8), []
    for at in range(24):
        x = plain(g, x, at)
        made.append(x)
        x = g.add(x, made[0])
    loops = lower(g.build(x))
    found = checked(find_repetition(loops), loops)
    assert made[0].name not in found.block and made[12].name in found.block
    loops.after["mm_3"] = "mm_1"
    assert find_repetition(loops) is None, "kernels that wait for each other"


def test_the_longest_run_is_the_longest_of_all_pairs() -> None:
    draw = random.Random(3)
    for _ in range(60):
        keys = draw.choices(range(draw.randint(1, 3)), k=draw.randint(0, 12))
        for step in range(1, 5):
            equal = [keys[i] == keys[i + step] for i in range(max(len(keys) - step, 0))]
            spans = [(j - i, -i) for i, j in itertools.combinations(range(len(equal) + 1), 2) if all(equal[i:j])]
            length, begin = max(spans, default=(0, 0))
            assert longest_run(keys, step) == (length, -begin)
