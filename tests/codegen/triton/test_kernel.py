"""Triton kernels of whole programs, through Triton's interpreter, against the prims' eager references."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from smelt.base.options import Options
from smelt.base.report import Report
from smelt.driver import compile_program
from tests.loops import graphs
from tests.loops.graphs import GraphBuilder, real_inputs, run_eager
from tests.loops.random_graphs import RandomGraph
from tests.machines import tune

pytest.importorskip("triton")


def check(gm: fx.GraphModule, tolerance: float = 1e-4, high: int = 4) -> str:
    """Compile for Triton, run twice and compare; the text of the kernels is returned."""
    report = Report("test")
    program = compile_program(gm, Options(target="triton"), report)
    inputs = real_inputs(gm, high)
    want = run_eager(gm, inputs)
    for _ in range(2):
        for w, g in zip(want, program(list(inputs)), strict=True):
            torch.testing.assert_close(g, w, atol=tolerance, rtol=tolerance, equal_nan=True)
    return report.artefacts["6_forward_kernels.py"]()


def kernels(text: str) -> int:
    return text.count("\ndef kernel(")


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows do not fit into tiles."""
    tune(monkeypatch, "tiles", max_row_elements=64, walked_block_elements=32)


def layer_norm() -> fx.GraphModule:
    g = GraphBuilder()
    x, w, b, seed = g.input(6, 96), g.input(96), g.input(96), g.input(dtype=torch.int64)
    dropped, keep = graphs.dropout(g, g.reshape(x, (6, 96)), seed, 1, 0.1)
    return g.build(*graphs.layer_norm(g, dropped, w, b), keep)


def test_layer_norm_with_dropout_is_one_kernel_without_a_loop():
    text = check(layer_norm())
    assert kernels(text) == 1 and "for rstart" not in text


def test_long_rows_are_walked_once_a_phase(walked):
    text = check(layer_norm())
    assert kernels(text) == 1 and text.count("for rstart") == 3  # mean, variance, result


def test_layer_norm_backward_folds_rows_and_columns_in_one_kernel():
    g = GraphBuilder()
    x, grad, w, mean, rstd = g.input(40, 96), g.input(40, 96), g.input(96), g.input(40), g.input(40)
    check(g.build(*graphs.layer_norm_backward(g, grad, x, mean, rstd, w)), 1e-3)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_softmax(dim: int):
    g = GraphBuilder()
    x, grad = g.input(3, 20, 24), g.input(3, 20, 24)
    out = graphs.softmax(g, x, dim)
    check(g.build(out, graphs.softmax_backward(g, grad, out, dim)))


@pytest.mark.parametrize("shape", [(300, 130), (7, 200, 40), (500, 8)])
def test_columns(shape: tuple[int, ...]):
    g = GraphBuilder()
    x = g.input(*shape)
    check(g.build(g.sum(x, (len(shape) - 2,)), g.amax(g.mul(x, 2.0), (len(shape) - 2,))), 1e-3)


def test_tiles_follow_two_strides():
    g = GraphBuilder()
    x, y = g.input(2, 48, 40), g.input(2, 40, 48)
    text = check(g.build(g.add(g.permute(x, (0, 2, 1)), y)))
    assert "yindex" in text


def test_indices_and_nan(walked):
    g = GraphBuilder()
    x = g.input(5, 100)
    text = check(g.build(g.argmax(x, 1), g.argmin(x, 1), g.amax(x, (1,)), g.any(g.gt(x, 2.0), (1,))))
    assert "best_max" in text
    g = GraphBuilder()
    x = g.input(3, 8)
    program = compile_program(g.build(g.argmax(x, 1), g.amax(x, (1,))), Options(target="triton"), Report("t"))
    value = torch.randn(3, 8)
    value[1, 5] = value[1, 2] = float("nan")
    places, largest = program([value])
    assert torch.equal(places, value.argmax(1)) and largest.isnan().tolist() == [False, True, False]


def test_embedding_and_its_gradient_add_atomically():
    g = GraphBuilder()
    table, ids, grad, zeros = g.input(50, 16), g.input(12, dtype=torch.int64), g.input(12, 16), g.input(50, 16)
    text = check(g.build(g.index(table, (ids, None)), g.index_put(zeros, (ids, None), grad, True)), high=50)
    assert "tl.atomic_add" in text


def test_an_index_out_of_range_is_an_error():
    g = GraphBuilder()
    gm = g.build(g.index(g.input(5, 4), (g.input(3, dtype=torch.int64), None)))
    program = compile_program(gm, Options(target="triton"), Report("test"))
    with pytest.raises(IndexError):
        program([torch.randn(5, 4), torch.tensor([0, 9, 1])])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_whole_numbers(dtype: torch.dtype):
    g = GraphBuilder()
    x, y = g.input(4, 20, dtype=dtype), g.input(4, 20, dtype=dtype)
    nonzero = g.add(y, 1)
    check(
        g.build(
            g.floor_div(x, nonzero), g.remainder(x, nonzero), g.mul(x, y), g.bitwise_xor(x, y), g.sum(x, (1,)),
            g.maximum(x, y), g.shift_left(x, 1), g.neg(x), g.amin(x, (0,)),
        )
    )  # fmt: skip


def test_layers_that_draw_from_streams_of_their_own_share_a_kernel():
    g = GraphBuilder()
    x, seed = g.input(12, 48), g.input(dtype=torch.int64)
    for stream in (7, 3, 2**40):
        x = g.cumsum(g.mul(x, g.random(seed, stream, (12, 48))), 1)
    text = check(g.build(x))
    assert text.count("random_key(t") == 1 and kernels(text) < 6


def test_random_numbers_are_those_of_the_cpu():
    g = GraphBuilder()
    gm = g.build(g.random(g.input(dtype=torch.int64), 3, (7, 33)))
    seed = torch.tensor(-5)
    one, other = (compile_program(gm, Options(target=t), Report("t"))([seed])[0] for t in ("triton", "cpp"))
    assert torch.equal(one, other)


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(seed: int):
    check(RandomGraph(seed, torch.bfloat16 if seed % 2 else torch.float32).build(12), 2e-1 if seed % 2 else 3e-2)


def test_one_number_through_functions_of_the_device_library():
    g = GraphBuilder()
    x = g.input()
    check(g.build(g.sub(g.exp(g.tanh(x)), g.pow(g.abs(x), 1.5))))
