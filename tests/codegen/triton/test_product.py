"""Matrix products as templates, through Triton's interpreter, against float64: factors, epilogues, prologues, sizes."""

from __future__ import annotations

import pytest
import torch
from torch import fx

import smelt
from smelt.base.options import Options
from smelt.base.report import Report
from smelt.codegen.triton import blocks
from smelt.driver import compile_program
from smelt.schedule.machine import GPU
from tests.loops.graphs import GraphBuilder, real_inputs, run_eager
from tests.machines import tune

pytest.importorskip("triton")

TEMPLATE = Options(target="triton", gemm="template")
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks along each side of small products."""
    tune(monkeypatch, "blocks", **dict.fromkeys(("half", "exact", "rounded"), ((32, 16, 16, 4, 2),)))


def check(gm: fx.GraphModule, inputs: list[torch.Tensor] | None = None, options: Options = TEMPLATE) -> Report:
    """Results against the same graph in float64, within a few roundings of their own dtype."""
    report = Report("test")
    program = compile_program(gm, options, report)
    inputs = inputs or real_inputs(gm, 4)
    want = run_eager(gm, [x.double() if x.is_floating_point() else x for x in inputs])
    for _ in range(2):
        for w, g in zip(want, program(list(inputs)), strict=True):
            bound = ROUNDING.get(g.dtype, 0.0) * 4
            torch.testing.assert_close(g.double(), w.double(), atol=bound * float(w.double().abs().max()), rtol=bound)
    return report


def text(report: Report, name: str) -> str:
    return next(make() for key, make in report.artefacts.items() if key.startswith(name))


def kernels(report: Report) -> int:
    return text(report, "6_").count("\ndef kernel(")


def templates(report: Report) -> list[str]:
    """The texts of kernels that compute a product."""
    return [part for part in text(report, "6_").split("# kernel ") if "tl.dot" in part]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("strides", [((1, 0), (1, 0)), ((0, 1), (1, 0)), ((1, 0), (0, 1)), ((0, 1), (0, 1))])
@pytest.mark.parametrize("sizes", [(64, 32, 48), (37, 51, 29), (16, 100, 16)])
def test_factors(small_blocks, dtype: torch.dtype, strides: tuple, sizes: tuple[int, int, int]):
    m, k, n = sizes
    g = GraphBuilder()
    a = g.input(m, k, dtype=dtype, stride=(k, 1) if strides[0] == (1, 0) else (1, m))
    b = g.input(k, n, dtype=dtype, stride=(n, 1) if strides[1] == (1, 0) else (1, k))
    report = check(g.build(g.mm(a, b)))
    assert len(templates(report)) == 1 and "product0" in text(report, "7_")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch(small_blocks, dtype: torch.dtype):
    g = GraphBuilder()
    a, b, c = g.input(3, 20, 40, dtype=dtype), g.input(3, 40, 24, dtype=dtype), g.input(3, 20, 24, dtype=dtype)
    report = check(g.build(g.add(g.bmm(a, b), c)))
    assert kernels(report) == 2 and "tl.program_id(2)" in templates(report)[0]  # the other one is for the library's way


def linear(g: GraphBuilder, x: fx.Node, w: fx.Node, b: fx.Node) -> fx.Node:
    product = g.mm(x, g.permute(w, (1, 0)))
    return g.add(product, g.broadcast_in_dim(b, product.meta["val"].shape, (1,)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bias_activation_and_residual_are_one_kernel(small_blocks, dtype: torch.dtype):
    g = GraphBuilder()
    x, w, b, r = (g.input(*s, dtype=dtype) for s in ((40, 36), (28, 36), (28,), (40, 28)))
    out = g.add(g.maximum(linear(g, x, w, b), 0.0), r)
    report = check(g.build(out))
    (kernel,) = templates(report)
    assert kernel.count("tl.store(") == 1 and kernel.count("tl.load(") == 4
    host = text(report, "7_")
    assert "segment" not in host.replace("kernels.segment", "") and host.count("product0(table") == 1


def test_the_product_is_kept_where_others_need_it(small_blocks):
    g = GraphBuilder()
    x, w, b = g.input(40, 36), g.input(28, 36), g.input(28)
    before = linear(g, x, w, b)
    report = check(g.build(g.tanh(before), before, g.gt(before, 0.0)))
    (kernel,) = templates(report)
    assert kernel.count("tl.store(") == 3  # several results; the product itself is none of them
    g = GraphBuilder()
    x, w = g.input(40, 36), g.input(36, 28)
    product = g.mm(x, w)
    (kernel,) = templates(check(g.build(g.tanh(product), product)))
    assert kernel.count("tl.store(") == 2
    g = GraphBuilder()
    x, w = g.input(40, 36), g.input(36, 28)
    product = g.mm(x, w)
    report = check(g.build(g.tanh(product), g.sum(product, (0,))))
    assert "folds" in text(report, "5_") or templates(report)[0].count("tl.store(") == 2


def test_a_cast_after_the_product_gets_it_rounded(small_blocks):
    g = GraphBuilder()
    x, w = g.input(33, 64, dtype=torch.bfloat16), g.input(64, 20, dtype=torch.bfloat16)
    gm = g.build(g.convert(g.mm(x, w), torch.float32))
    inputs = real_inputs(gm, 4)
    (got,) = compile_program(gm, TEMPLATE, Report("t"))(list(inputs))
    assert torch.equal(got, got.bfloat16().float())  # as eager: the product has a dtype


def test_loops_of_several_dimensions(small_blocks):
    """Heads are taken apart behind a product: its rows are (batch, length), its columns (head, width)."""
    g = GraphBuilder()
    x, w, b = g.input(6 * 8, 32), g.input(40, 32), g.input(40)
    heads = g.permute(g.reshape(linear(g, x, w, b), (6, 8, 5, 8)), (0, 2, 1, 3))
    report = check(g.build(g.mul(heads, 0.5)))
    assert kernels(report) == 2 and len(templates(report)) == 1
    g = GraphBuilder()
    a, c = g.input(10, 8, 24), g.input(10, 24, 16)
    merged = g.reshape(g.permute(g.reshape(g.bmm(a, c), (2, 5, 8, 16)), (0, 2, 1, 3)), (16, 80))
    report = check(g.build(g.neg(merged)))
    assert kernels(report) == 2 and len(templates(report)) == 1


def test_two_products_one_sum(small_blocks):
    """The epilogue is one product's; the other one is computed before."""
    g = GraphBuilder()
    x, w, v = g.input(40, 36), g.input(36, 28), g.input(36, 28)
    report = check(g.build(g.mul(g.sigmoid(g.mm(x, w)), g.mm(x, v))))
    assert len(templates(report)) == 2 and "it is the epilogue of another product" in text(report, "5_")
    assert "product0(table" in text(report, "7_") and "product1(table" in text(report, "7_")


def test_dropout_after_a_product_draws_the_same_numbers(small_blocks):
    g = GraphBuilder()
    x, w, seed = g.input(48, 32), g.input(32, 40), g.input(dtype=torch.int64)
    keep = g.ge(g.random(seed, 2, (48, 40)), 0.25)
    gm = g.build(g.where(keep, g.mul(g.mm(x, w), 1 / 0.75), 0.0), keep)
    inputs = real_inputs(gm, 4)
    dropped, kept = compile_program(gm, TEMPLATE, Report("t"))(list(inputs))
    plain, same = compile_program(gm, Options(target="triton"), Report("t"))(list(inputs))
    assert torch.equal(kept, same)
    torch.testing.assert_close(dropped, plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_factors_are_computed_in_the_kernel(small_blocks, dtype: torch.dtype):
    """Casts of the factors, with something that is not zero where the depth ends."""
    g = GraphBuilder()
    x, w = g.input(40, 41), g.input(41, 28)
    one, other = g.convert(g.add(g.exp(x), 1.0), dtype), g.convert(g.mul(w, 2.0), dtype)
    report = check(g.build(g.mm(one, other)))
    host = text(report, "7_")
    assert host.count("\n        ([") == 2  # with the factors inside, and with kernels before
    inside = templates(report)[0]
    assert "libdevice.exp(" in inside and inside.count("tl.where(") == 2


def test_a_factor_that_others_read_is_not_computed_again(small_blocks):
    g = GraphBuilder()
    x, w = g.input(40, 41), g.input(41, 28)
    made = g.exp(x)
    report = check(g.build(g.mm(made, w), made))
    assert "others need what it makes" in text(report, "5_")
    assert not any("libdevice.exp(" in kernel for kernel in templates(report))


def test_reasons_for_unfused_values(small_blocks):
    g = GraphBuilder()
    x, w = g.input(40, 36), g.input(36, 28)
    product = g.mm(x, w)
    schedule = text(check(g.build(g.sum(g.exp(product), (1,)))), "5_")
    assert "it folds what it computes" in schedule
    g = GraphBuilder()
    product = g.mm(g.input(32, 36), g.input(36, 32))
    schedule = text(check(g.build(g.add(product, g.permute(product, (1, 0))))), "5_")
    assert "reads other elements of" in schedule


def test_products_of_doubles_and_short_ones_are_the_librarys():
    for a, b, dtype in (((20, 40), (40, 24), torch.float64), ((20, 4), (4, 24), torch.float32)):
        g = GraphBuilder()
        gm = g.build(g.mm(g.input(*a, dtype=dtype), g.input(*b, dtype=dtype)))
        report = Report("test")
        program = compile_program(gm, TEMPLATE, report)
        inputs = real_inputs(gm, 4)
        torch.testing.assert_close(program(list(inputs))[0], inputs[0] @ inputs[1])
        assert "product0" not in text(report, "7_") and "mm_0" in text(report, "7_")


def test_float32_follows_the_switch():
    g = GraphBuilder()
    gm = g.build(g.mm(g.input(64, 64), g.input(64, 64)))
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        for value, name in (("tf32", "tf32"), ("ieee", "bf16x6")):
            torch.backends.cuda.matmul.fp32_precision = value
            report = Report("test")
            compile_program(gm, TEMPLATE, report)
            assert f'input_precision="{name}"' in templates(report)[0]
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_the_switch_is_guarded():
    compiled = smelt.compile(torch.mm, options={"target": "triton", "gemm": "template"})
    a, b = torch.randn(32, 32), torch.randn(32, 32)
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        for value, graphs in (("ieee", 1), ("tf32", 2), ("ieee", 2)):
            torch.backends.cuda.matmul.fp32_precision = value
            torch.testing.assert_close(compiled(a, b), a @ b)
            assert smelt.stats()["graphs"] == graphs
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def test_other_modes_have_no_templates():
    g = GraphBuilder()
    gm = g.build(g.tanh(g.mm(g.input(64, 64), g.input(64, 64))))
    for options in (Options(target="triton"), Options(target="triton", max_autotune=True, gemm="aten")):
        report = Report("test")
        compile_program(gm, options, report)
        assert "tl.dot" not in text(report, "6_") and "product" not in text(report, "7_")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(8192, 3072, 768), (768, 768, 8192), (100, 50, 40), (1, 4096, 4096), (16, 8, 100)])
@pytest.mark.parametrize("rounded", [True, False])
def test_configurations_fit(dtype: torch.dtype, sizes: tuple[int, int, int], rounded: bool):
    configs = blocks.product_configs(*sizes, 1, dtype, rounded, True, GPU)
    assert len(set(configs)) == len(configs) >= 1
    assert configs[0] == blocks.product_configs(*sizes, 1, dtype, rounded, False, GPU)[0]
    for config in configs:
        constants = dict(config.constants)
        side = [constants[f"{axis}BLOCK"] for axis in "YXK"]
        assert all(block >= 16 and block & (block - 1) == 0 for block in side)
        assert (side[0] + side[1]) * side[2] * dtype.itemsize * config.num_stages <= 227 << 10


def test_sizes_that_change(small_blocks):
    compiled = smelt.compile(
        lambda x, w, b: torch.relu(x @ w + b), dynamic=True, options={"target": "triton", "gemm": "template"}
    )
    for m, k, n in ((40, 36, 28), (17, 50, 33), (64, 16, 90)):
        x, w, b = torch.randn(m, k), torch.randn(k, n), torch.randn(n)
        torch.testing.assert_close(compiled(x, w, b), torch.relu(x @ w + b), rtol=1e-4, atol=1e-4)
    assert smelt.stats()["graphs"] == 1


def test_a_block_trains(small_blocks):
    """Attention and a feed-forward part with dropout: every product of both programs is a template."""
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
    compiled = smelt.compile(model, options={"target": "triton", "gemm": "template"})
    x = torch.randn(3, 10, 32)
    results = []
    for f in (model, compiled):
        given = x.clone().requires_grad_()
        model.zero_grad()
        out = f(given)
        out.square().sum().backward()
        results.append([out.detach(), given.grad, *(p.grad.clone() for p in model.parameters())])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)
