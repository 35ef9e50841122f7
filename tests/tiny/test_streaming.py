"""Chains of convolutions that are computed row by row: the same bits, in less memory, only where that is less."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from smelt.tiny import simulate
from smelt.tiny.graph import AveragePool, Conv, Flatten, Head, Int8Graph, Parameter, Tensor
from smelt.tiny.host import HostModel
from smelt.tiny.infer import add_forward, infer_program, inference_of
from smelt.tiny.plan import calls_in_use, lay_out
from smelt.tiny.program import Builder, Program, Saved, StepOptions
from smelt.tiny.project.figures import Runs, measured
from smelt.tiny.render_c import render
from smelt.tiny.scheme import Scheme
from smelt.tiny.step import step_program
from smelt.tiny.streaming import Chain, may_overwrite, scratch_bytes
from tests.tiny.emulated import board_or_skip

DUAL_MAC = "-DTINY_DUAL_MAC=1"

Layer = tuple[str, int, tuple[int, int], int, tuple[int, int, int, int]]
"""Kind, outputs, kernel, stride, padding above, left, below and right."""

POINTWISE = (1, 1), 1, (0, 0, 0, 0)
NETWORKS: dict[str, tuple[tuple[int, int, int], tuple[Layer, ...]]] = {
    "a first block": (
        (15, 12, 3),
        (("conv", 8, (3, 3), 2, (1, 1, 1, 1)), ("own", 8, (3, 3), 1, (1, 1, 1, 1)), ("conv", 5, *POINTWISE)),
    ),
    "two blocks": (
        (17, 16, 2),
        (
            ("conv", 6, (3, 3), 1, (1, 1, 1, 1)),
            ("own", 6, (5, 5), 2, (2, 2, 2, 2)),
            ("conv", 4, *POINTWISE),
            ("conv", 7, *POINTWISE),
            ("own", 7, (3, 3), 2, (1, 1, 1, 1)),
            ("conv", 3, *POINTWISE),
        ),
    ),
    "uneven kernels and paddings": (
        (11, 9, 1),
        (
            ("conv", 4, (2, 5), 1, (1, 0, 2, 3)),
            ("own", 4, (4, 1), 1, (0, 0, 3, 0)),
            ("conv", 3, (3, 2), 2, (2, 1, 0, 0)),
            ("own", 3, (1, 6), 1, (0, 3, 0, 3)),
        ),
    ),
    "a stride beyond the kernel": (
        (13, 7, 2),
        (
            ("own", 2, (2, 2), 1, (0, 1, 0, 1)),
            ("conv", 5, (1, 1), 3, (0, 0, 0, 0)),
            ("own", 5, (1, 1), 2, (1, 0, 1, 0)),
        ),
    ),
    "images of one row and one column": (
        (1, 6, 3),
        (("conv", 4, (3, 3), 1, (1, 1, 1, 1)), ("own", 4, (3, 6), 1, (1, 0, 1, 0)), ("conv", 2, *POINTWISE)),
    ),
}


def network(name: str) -> Int8Graph:
    """A chain of convolutions, a mean and a classifier of three classes."""
    shape, layers = NETWORKS[name]
    random = np.random.default_rng(len(name))
    tensors, operators = {"image": Tensor("image", shape, "int8", 0.02, 3)}, []
    x = "image"
    for number, (kind, outputs, kernel, stride, (top, left, below, right)) in enumerate(layers):
        height, width, inputs = tensors[x].shape
        y = (
            (height + top + below - kernel[0]) // stride + 1,
            (width + left + right - kernel[1]) // stride + 1,
            outputs,
        )
        form = (*kernel, outputs) if kind == "own" else (outputs, *kernel, inputs)
        scales = random.uniform(0.002, 0.006, outputs).astype(np.float32) / (kernel[0] * kernel[1]) ** 0.5
        weight = Parameter(f"{number}.weight", random.integers(-127, 128, form).astype(np.int8), scales)
        bias = Parameter(f"{number}.bias", random.integers(-500, 500, outputs).astype(np.int32))
        tensors[f"y{number}"] = Tensor(f"y{number}", y, "int8", 0.03, -5 * number)
        window = (kernel, stride, (top, left), kind == "own", -100, 110, (below, right))
        operators.append(Conv(f"l{number}", x, f"y{number}", weight, bias, *window))
        x = f"y{number}"
    height, width, channels = tensors[x].shape
    tensors["mean"] = Tensor("mean", (1, 1, channels), scale=0.02)
    tensors["flat"] = Tensor("flat", (channels,), scale=0.02)
    tensors["logits"] = Tensor("logits", (3,), "float32")
    parameters = [
        Parameter(f"head.{part}", random.normal(size=form).astype(np.float32))
        for part, form in (("weight", (3, channels)), ("bias", (3,)))
    ]
    pool = AveragePool("pool", x, "mean", (height, width), (1, 1))
    rest = (pool, Flatten("flatten", "mean", "flat"), Head("head", "flat", "logits", *parameters))
    graph = Int8Graph(name, tensors, (*operators, *rest), "image", "logits")
    graph.verify()
    return graph


def images(graph: Int8Graph, count: int = 3) -> np.ndarray:
    return np.random.default_rng(5).integers(-128, 128, (count, *graph.tensors["image"].shape)).astype(np.int8)


def streamed(graph: Int8Graph, *chains: Chain) -> Program:
    """An inference with these chains, whether or not they lower the peak."""
    builder = Builder(graph)
    logits = add_forward(builder, Saved(), chains)
    return Program(graph, builder.values, tuple(builder.calls), logits)


def layers_of(graph: Int8Graph) -> tuple[Conv, ...]:
    return tuple(layer for layer in graph.layers if isinstance(layer, Conv))


def chains_of(graph: Int8Graph, shortest: int = 2) -> list[Chain]:
    """All chains of a network, also those in the operand's memory that may be there."""
    layers = layers_of(graph)
    spans = [layers[a:b] for a, b in itertools.combinations(range(len(layers) + 1), 2) if b - a >= shortest]
    return [Chain(one, over) for one in spans for over in (False, True) if not over or may_overwrite(graph, one)]


def in_c(program: Program, given: Sequence[np.ndarray], *flags: str) -> np.ndarray:
    model = HostModel(render(program), program, ("-O1", *flags))
    return np.stack([model.infer(image) for image in given])


@pytest.mark.parametrize("name", NETWORKS)
def test_rows_have_the_bits_of_whole_results(name: str) -> None:
    graph = network(name)
    given = images(graph)
    expected = simulate.infer(streamed(graph), given).numpy()
    assert len(np.unique(expected)) > 5
    chains = chains_of(graph)
    programs = [streamed(graph, chain) for chain in chains]
    assert all(np.array_equal(simulate.infer(program, given).numpy(), expected) for program in programs)
    for number, program in list(enumerate(programs))[:: -(len(chains) // 5 + 1)]:  # the longest, and some others
        assert np.array_equal(in_c(program, given, *[DUAL_MAC] * (number % 2)), expected), chains[number]


def test_some_chains_write_over_their_operand_and_some_may_not() -> None:
    layers = layers_of(graph := network("two blocks"))
    assert may_overwrite(graph, layers) and may_overwrite(graph, layers[2:5])
    assert not may_overwrite(graph, layers[2:4])  # more channels
    assert not may_overwrite(graph, layers[1:3])  # fewer elements, but a row of them is longer than two that are read


@pytest.mark.parametrize("name", ["two blocks", "uneven kernels and paddings"])
def test_the_planner_streams_where_that_lowers_the_peak(name: str) -> None:
    graph = network(name)
    program, whole = infer_program(graph), streamed(graph)
    chains = [call for call in program.calls if call.stages]
    assert chains and max(calls_in_use(program)) < max(calls_in_use(whole))
    assert lay_out(program).size == lay_out(program).least
    for call in chains:
        others = [Chain(one.stages, one.in_place is not None) for one in chains if one is not call]
        assert max(calls_in_use(streamed(graph, *others))) > max(calls_in_use(program))
    assert not any(call.stages for call in infer_program(graph, enough=lay_out(whole).size).calls)


def test_nothing_is_streamed_where_rows_take_as_much_as_the_whole() -> None:
    graph = network("images of one row and one column")
    assert not any(call.stages for call in infer_program(graph).calls)


def trained_alike(graph: Int8Graph, scheme: Scheme, options: StepOptions) -> Program:
    """The step of a scheme, after some steps with the same bits in C and in the simulation."""
    program = step_program(graph, scheme, options)
    model = HostModel(render(inference_of(program), program), program, ("-O1", DUAL_MAC))
    training = simulate.Training(program)
    for number, image in enumerate(images(graph, 4)):
        assert training.step(image, number % 3, 0.05) == model.train_step(image, number % 3, 0.05)
    held = model.trained()
    assert all(np.array_equal(training.state[name], value) for name, value in held.items())
    for image in images(graph, 2):
        assert np.array_equal(model.infer(image), simulate.infer(inference_of(program), image[None], training.state)[0])
    return program


@pytest.mark.parametrize("backward", ["float32", "int8"])
def test_frozen_layers_are_streamed_in_training(backward: str) -> None:
    graph, options = network("two blocks"), StepOptions(seed=3, backward=backward)
    for scheme in (
        Scheme("classifier"),
        Scheme("the last bias, with a mask at the end of a chain", 1),
        Scheme("two", 2, {5: Fraction(1, 2)}),
        Scheme("weights of the second block", 0, {4: Fraction(1)}),
    ):
        program = trained_alike(graph, scheme, options)
        trained = {one.removesuffix(".weight") for one in program.trained if one.endswith(".weight")}
        streamed_layers = {stage.name[1:] for call in program.calls for stage in call.stages}
        assert streamed_layers and not streamed_layers & trained
        assert max(calls_in_use(program)) < max(calls_in_use(streamed(graph)))


def test_a_chain_ends_where_the_backward_needs_a_result() -> None:
    graph = network("two blocks")
    for biases in range(len(graph.layers) + 1):
        program = step_program(graph, Scheme("biases", biases))
        frozen = {f"l{number}" for number in range(len(graph.layers) - biases)}
        for call in program.calls:
            assert {stage.name for stage in call.stages[:-1]} <= frozen
            if call.stages and call.stages[-1].name not in frozen:
                assert call.writes[1] == f"{call.stages[-1].name}.mask"


def test_a_result_with_several_readers_is_whole() -> None:
    graph = network("two blocks")
    layers = list(graph.operators)
    again = dataclasses.replace(layers[5], name="again", y="again")
    tensors = {**graph.tensors, "again": dataclasses.replace(graph.tensors["y5"], name="again")}
    forked = Int8Graph("forked", tensors, (*layers[:5], again, *layers[5:]), "image", "logits")
    forked.verify()
    assert all("l4" not in [s.name for s in call.stages[:-1]] for call in infer_program(forked).calls)


def test_scratch_memory_holds_the_rows_and_a_plane() -> None:
    layers = layers_of(graph := network("a first block"))
    rows = 3 * 6 * 8 + 1 * 6 * 8  # three rows of 6 x 8 for the depthwise convolution, one for the pointwise
    assert scratch_bytes(graph, layers) == rows + 3 * 8 + 8  # a plane of three rows of 8 columns, and its slack


@pytest.mark.parametrize("name", ["mps2-an500", "rv32-virt"])
def test_boards_have_the_bits_of_the_simulation(name: str) -> None:
    board, graph, scheme = board_or_skip(name), network("two blocks"), Scheme("the last bias", 1)
    assert any(call.in_place and call.stages for call in step_program(graph, scheme).calls)
    measured(graph, scheme, Runs(board, steps=2, check=True))  # an error where bits differ
