"""smelt/codegen/cpp/kernel.py: C++ kernels of whole programs, built and run, against the prims' eager references."""

import functools
import math

import pytest
import torch
from torch import fx

import smelt
from smelt.base.options import Options
from smelt.base.report import Report
from smelt.driver import compile_program
from smelt.loops.lower import lower
from smelt.schedule.plan import schedule
from tests.loops import graphs
from tests.loops.graphs import GraphBuilder, real_inputs, run_eager
from tests.loops.random_graphs import RandomGraph

LAST = (3136 * 8, 1, 448, 8)


def check(gm: fx.GraphModule, tolerance: float = 1e-4, high: int = 4) -> str:
    """Compile, run twice and compare; the text of the kernels is returned."""
    report = Report("test")
    program = compile_program(gm, Options(), report)
    inputs = real_inputs(gm, high)
    want = run_eager(gm, inputs)
    for _ in range(2):
        boxed = list(inputs)
        got = program(boxed)
        assert boxed == []
        for w, g in zip(want, got, strict=True):
            torch.testing.assert_close(g, w, atol=tolerance, rtol=tolerance, equal_nan=True)
    return report.artefacts["6_forward_kernels.cpp"]()


def count_kernels(text: str) -> int:
    return text.count('extern "C" void kernel')


def test_layer_norm_with_residual_and_dropout_is_one_kernel():
    g = GraphBuilder()
    x, w, b, r, seed = g.input(4, 16, 96), g.input(96), g.input(96), g.input(64, 96), g.input(dtype=torch.int64)
    dropped, keep = graphs.dropout(g, g.reshape(r, (4, 16, 96)), seed, 1, 0.1)
    y = g.add(x, dropped)
    text = check(g.build(*graphs.layer_norm(g, y, w, b), y, keep))
    assert count_kernels(text) == 1


def test_layer_norm_backward_is_one_kernel_and_small_sums():
    g = GraphBuilder()
    x, grad, w, mean, rstd = g.input(8, 64, 96), g.input(8, 64, 96), g.input(96), g.input(8, 64), g.input(8, 64)
    text = check(g.build(*graphs.layer_norm_backward(g, grad, x, mean, rstd, w)), 1e-3)
    assert count_kernels(text) == 2  # the two sums over parts have equal text


@pytest.mark.parametrize("dim", [0, 1, 3])
def test_softmax(dim):
    g = GraphBuilder()
    x, grad = g.input(2, 3, 40, 24), g.input(2, 3, 40, 24)
    out = graphs.softmax(g, x, dim)
    check(g.build(out, graphs.softmax_backward(g, grad, out, dim)))


def test_log_softmax_and_loss():
    g = GraphBuilder()
    x, target = g.input(32, 5003), g.input(32, dtype=torch.int64)
    picked = g.gather(graphs.log_softmax(g, x), 1, g.reshape(target, (32, 1)))
    check(g.build(g.div(g.neg(g.sum(picked, (0, 1))), 32.0)), high=5003)


@pytest.mark.parametrize("stride", [None, LAST])
def test_batch_norm(stride):
    g = GraphBuilder()
    x, w, b = g.input(4, 8, 56, 56, stride=stride), g.input(8), g.input(8)
    check(g.build(*graphs.batch_norm(g, x, w, b)), 1e-3)
    g = GraphBuilder()
    x, grad, w, mean, rstd = (
        g.input(4, 8, 56, 56, stride=stride), g.input(4, 8, 56, 56, stride=stride), g.input(8), g.input(8), g.input(8)
    )  # fmt: skip
    check(g.build(*graphs.batch_norm_backward(g, grad, x, mean, rstd, w)), 1e-2)


def test_attention_math():
    g = GraphBuilder()
    x, w = g.input(2, 16, 32), g.input(96, 32)
    qkv = g.mm(g.reshape(x, (32, 32)), g.permute(w, (1, 0)))
    parts = [g.slice(g.reshape(qkv, (2, 16, 96)), (0, 0, 32 * i), (2, 16, 32 * i + 32), (1, 1, 1)) for i in range(3)]
    heads = [g.permute(g.reshape(p, (2, 16, 4, 8)), (0, 2, 1, 3)) for p in parts]
    q, k, v = (g.reshape(h, (8, 16, 8)) for h in heads)
    scores = g.mul(g.bmm(q, g.permute(k, (0, 2, 1))), 8**-0.5)
    mixed = g.bmm(graphs.softmax(g, scores, 2), v)
    out = g.reshape(g.permute(g.reshape(mixed, (2, 4, 16, 8)), (0, 2, 1, 3)), (2, 16, 32))
    check(g.build(graphs.gelu(g, out)))


def test_embedding_and_its_gradient():
    g = GraphBuilder()
    table, ids, grad = g.input(50, 96), g.input(4, 16, dtype=torch.int64), g.input(4, 16, 96)
    zeros = g.full((50, 96), 0.0, torch.float32, torch.device("cpu"))
    check(g.build(g.index(table, (ids, None)), g.index_put(zeros, (ids, None), grad, True)), high=50)


@pytest.mark.parametrize("place", [50, -51, 2**40])
def test_index_out_of_range_is_an_error(place):
    g = GraphBuilder()
    table, ids, grad = g.input(50, 96), g.input(4, 16, dtype=torch.int64), g.input(4, 16, 96)
    flat = g.gather(g.reshape(table, (4800,)), 0, g.reshape(ids, (64,)))
    zeros = g.full((50, 96), 0.0, torch.float32, torch.device("cpu"))
    rows, put = g.index(table, (ids, None)), g.index_put(zeros, (ids, None), grad, True)
    program = compile_program(g.build(rows, put, flat), Options(), Report("test"))
    inputs = [torch.randn(50, 96), torch.randint(0, 50, (4, 16)), torch.randn(4, 16, 96)]
    program(list(inputs))
    inputs[1][2, 3] = place
    with pytest.raises(IndexError):
        program(list(inputs))
    inputs[1][2, 3] = 0
    program(list(inputs))


def test_reductions_to_a_scalar_and_arg_kinds():
    g = GraphBuilder()
    x = g.input(37, 4099)
    m = g.gt(x, 0.0)
    check(g.build(g.sum(x, (0, 1)), g.amax(x, (0, 1)), g.argmax(x, 1), g.argmin(x, 0), g.any(m, (0,)), g.all(m, (1,))),
          1e-2)  # fmt: skip


def test_nan_and_infinity():
    g = GraphBuilder()
    x = g.input(3, 40)
    gm = g.build(g.amax(x, (1,)), g.amin(x, (0,)), g.maximum(x, 0.0), g.argmax(x, 1), g.exp(x), g.log(x), g.sign(x))
    program = compile_program(gm, Options(), Report("test"))
    value = torch.randn(3, 40)
    value[0, 3], value[1, 5], value[1, 7], value[2, 0] = float("nan"), float("inf"), -float("inf"), 0.0
    for want, got in zip(run_eager(gm, [value]), program([value]), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool])
def test_integers(dtype):
    g = GraphBuilder()
    x, y = g.input(5, 9, dtype=dtype), g.input(5, 9, dtype=dtype)
    results = [g.maximum(x, y), g.eq(x, y), g.convert(x, torch.float32), g.bitwise_xor(x, y), g.mul(x, y), g.add(x, y)]
    if dtype is not torch.bool:
        one = g.add(g.remainder(y, 3), 1)
        results += [g.floor_div(x, one), g.remainder(x, one), g.sub(x, y), g.sum(g.convert(x, torch.int64), (1,))]
    check(g.build(*results))


def test_empty_and_scalar_shapes():
    g = GraphBuilder()
    x, e, s = g.input(3, 1, 1), g.input(4, 0, 3), g.input()
    check(g.build(g.sum(x, (1, 2)), g.add(e, 1.0), g.sum(e, (1,)), g.mul(s, 2.0), g.sum(e, (0, 1, 2))))


def test_nothing_but_empty_outputs():
    g = GraphBuilder()
    check(g.build(g.mul(g.input(0, 4), 2.0), g.cumsum(g.input(5), 0)))


def test_a_pooled_map_of_one_element_whose_gradient_comes_through_a_view():
    """(5, 8) seen as (5, 8, 1, 1) can be read as channels last, while the kernel answers row-major."""
    g = GraphBuilder()
    x, grad, scale = g.input(5, 8, 2, 2), g.input(5, 8), g.input(8)
    windows = ((2, 2), (2, 2), (0, 0), (1, 1))
    scale = g.broadcast_in_dim(scale, (5, 8, 2, 2), (1,))
    _, places = g.max_pool2d(x, *windows, False)
    back = g.reshape(grad, (5, 8, 1, 1))
    spread = g.avg_pool2d_backward(back, (5, 8, 2, 2), (2, 2), (2, 2), (0, 0), False, True, None)
    check(g.build(g.mul(g.max_pool2d_backward(back, places, (5, 8, 2, 2), *windows), scale), g.mul(spread, scale)))


def test_outputs_that_are_inputs_and_repeated_outputs():
    g = GraphBuilder()
    x = g.input(6)
    y = g.neg(x)
    gm = g.build(x, y, y)
    inputs = real_inputs(gm)
    got = compile_program(gm, Options(), Report("test"))(list(inputs))
    assert got[0] is inputs[0] and got[1] is got[2]


def test_fallback_operator_and_several_results():
    g = GraphBuilder()
    x = g.input(4, 9)
    values, places = g.topk(g.neg(x), 3, 1, True, True)
    check(g.build(g.mul(values, 2.0), places, g.cumsum(g.exp(x), 1)))


def test_layers_that_draw_from_streams_of_their_own_share_a_kernel():
    g = GraphBuilder()
    x, w, seed = g.input(12, 48), g.input(48, 48), g.input(dtype=torch.int64)
    for stream in (7, 3, 2**40):
        x, _ = graphs.dropout(g, g.mm(x, w), seed, stream, 0.5)
    a, b = g.random(seed, 1, (12, 48)), g.random(seed, 2, (12, 48))
    text = check(g.build(x, g.sub(a, b), g.sub(b, a)))
    assert count_kernels(text) == 2 and "u1" in text


def test_random_does_not_depend_on_fusion():
    g = GraphBuilder()
    x, seed = g.input(33, 70), g.input(dtype=torch.int64)
    mask = g.random(seed, 2, (33, 70))
    gm = g.build(mask, g.mul(mask, x), g.sum(g.permute(mask, (1, 0)), (1,)), g.reshape(mask, (70, 33)))
    check(gm, 1e-5)


def test_equal_layers_share_kernels():
    g = GraphBuilder()
    x = g.input(32, 48)
    weights = [g.input(48, 48) for _ in range(4)]
    for w in weights:
        x = graphs.gelu(g, g.mm(x, w))
    assert count_kernels(check(g.build(x), 1e-2)) == 1


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(seed):
    dtype = torch.float64 if seed == 5 else torch.bfloat16 if seed == 4 else torch.float32
    check(RandomGraph(seed, dtype).build(14), 5e-2 if seed == 4 else 1e-3)


@pytest.mark.parametrize(("count", "window"), [(2, 2), (3, 2), (2, 3), (4, 2), (2, 5)])
def test_masked_sums_over_short_windows(count, window):
    """The gradient of a pool under a mask, summed per channel: the innermost loop runs over one row of a window."""
    g = GraphBuilder()
    size = count * window
    small, h, x = g.input(2, 3, count, count), g.input(2, 3, size, size), g.input(2, 3, size, size)
    spread = graphs.repeated(g, small, (2, 3, count, window, count, window), (3, 5))
    positive = g.maximum(g.mul(x, 0.5), 0.0)
    masked = g.where(g.le(positive, 0.0), 0.0, g.add(g.mul(h, x), g.reshape(spread, (2, 3, size, size))))
    total = g.sum(masked, (0, 2, 3))
    centred = g.sub(masked, g.broadcast_in_dim(total, (2, 3, size, size), (1,)))
    check(g.build(total, g.sum(g.mul(masked, x), (0, 2, 3)), centred))


@pytest.mark.parametrize("shifts", [(2, 1), (1, 1), (4, 0), (3, 1)])
def test_masked_loads_in_a_short_loop(shifts: tuple[int, int]) -> None:
    x = torch.arange(60.0).reshape(5, 6, 2)
    fn = smelt.compile(lambda x: torch.roll(x, shifts, (0, 2)), fullgraph=True)
    assert torch.equal(fn(x), torch.roll(x, shifts, (0, 2)))


def test_norms_of_rows_without_elements() -> None:
    x = torch.ones(5, 0)
    for norm in (2, 1):
        fn = smelt.compile(functools.partial(torch.linalg.vector_norm, ord=norm), fullgraph=True)
        assert torch.equal(fn(x), torch.zeros(()))


@pytest.mark.parametrize("rows", [32, 4096])
def test_rows_are_added_to_a_product(rows):
    """Small: in the arena; large: in what becomes the result, where nothing is copied."""
    g = GraphBuilder()
    grad, x = g.input(rows, 64), g.input(64, 256)
    places, values = g.input(32, dtype=torch.int64), g.input(32, 256)
    mm = g.mm(g.exp(grad), x)
    total = g.index_put(mm, (places, None), values, True)
    text = check(g.build(total), 1e-3)
    assert text.count("for (int64_t i0") == (rows == 32)  # the copy of a small base


@pytest.mark.parametrize("made", ["kernel", "product"])
def test_an_intermediate_with_memory_of_its_own(made):
    g = GraphBuilder()
    x, w = g.input(1024, 256), g.input(256, 8)
    large = g.exp(x) if made == "kernel" else g.mm(g.input(1024, 8), g.input(8, 256))
    early = g.mul(g.mm(large, w), 1e-3)
    built = g.build(g.mm(g.mul(g.mm(g.input(64, 1024), early), 1e-3), g.input(8, 16384)))
    kernel = "exp" if made == "kernel" else "mm"
    assert kernel in schedule(lower(built), Options()).dedicated
    check(built, 1e-3)


def test_a_value_of_another_shape_has_memory_of_its_own():
    """It could be written over what it is computed from, but a product takes it by its own shape."""
    g = GraphBuilder()
    a = g.exp(g.input(1024, 256))
    wide = (4, 256, 256)
    b = g.mul(g.reshape(a, wide), g.reshape(g.mm(a, g.input(256, 256)), wide))
    early = g.reshape(g.mul(g.bmm(b, g.input(4, 256, 8)), 1e-6), (1024, 8))
    built = g.build(g.mm(g.mul(g.mm(g.input(64, 1024), early), 1e-3), g.input(8, 16384)))
    plan = schedule(lower(built), Options())
    assert "mul" in plan.dedicated and "mul" not in plan.over_others
    check(built, 1e-3)


def test_a_base_that_is_read_again_is_copied():
    g = GraphBuilder()
    grad, x = g.input(4096, 64), g.input(64, 256)
    places, values = g.input(32, dtype=torch.int64), g.input(32, 256)
    mm = g.mm(grad, x)
    total = g.index_put(mm, (places, None), values, True)
    check(g.build(total, g.sum(g.mul(mm, total), (1,))), 1e-2)


def test_a_result_takes_over_a_product_and_is_read_by_kernels_and_products():
    g = GraphBuilder()
    a, b, c = g.input(1024, 64), g.input(64, 1024), g.input(1024, 1024)
    product = g.mul(g.mm(a, b), c)
    check(g.build(product, g.mm(product, a), g.sum(product, (0,))), 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bound", [math.nan, math.inf, -math.inf], ids=str)
def test_bounds_without_a_number_have_the_type_of_what_they_bound(bound: float, dtype: torch.dtype) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        higher = torch.maximum(x, torch.full((), bound, dtype=dtype))
        return x.clamp(bound, 1.0), x.clamp(0.0, bound), higher, torch.where(x > 0, x, bound)

    for count in (3, 40):
        x = torch.linspace(-3, 3, count).to(dtype)
        torch.testing.assert_close(smelt.compile(f)(x), f(x), equal_nan=True, rtol=0, atol=0)
