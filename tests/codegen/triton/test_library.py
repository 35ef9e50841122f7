"""Functions that Triton kernels compute by themselves: exact to some units in the last place, in few instructions."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import torch

import smelt
from smelt.abi.kernel_source import KernelSource
from smelt.base.options import Options
from smelt.base.report import Report
from smelt.codegen.triton.host import render_triton
from smelt.codegen.triton.library import FUNCTIONS
from smelt.driver import compile_program
from smelt.loops.lower import lower
from smelt.schedule.machine import GPU
from smelt.schedule.plan import schedule
from tests.loops.graphs import GraphBuilder, run_eager

pytest.importorskip("triton")

from tests.codegen.triton.machine_code import instructions
from tests.machines import tune

EXACT = {"erf": scipy.special.erf, "sigmoid": scipy.special.expit}
EDGES = torch.tensor([0.0, -0.0, 0.75, np.nextafter(0.75, 0), 4.0, 1e-30, 100.0, float("inf"), float("-inf")])


def computed(name: str, x: torch.Tensor) -> torch.Tensor:
    g = GraphBuilder()
    gm = g.build(getattr(g, name)(g.input(*x.shape, dtype=x.dtype)))
    return compile_program(gm, Options(target="triton"), Report("test"))([x])[0]


@pytest.mark.parametrize(("name", "largest"), [("erf", 2.5), ("sigmoid", 3.0)])
def test_errors_in_ulps(name: str, largest: float) -> None:
    """As exact as CUDA's."""
    x = torch.cat([torch.linspace(-6, 6, 40001), torch.logspace(-20, 1.9, 20000), -torch.logspace(-20, 1.9, 20000)])
    x = torch.cat([x, EDGES.float()])
    want = EXACT[name](x.double().numpy())
    got = computed(name, x).numpy()
    unit = np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)
    assert (np.abs(got.astype(np.float64) - want) / unit).max() < largest
    assert np.abs(got).max() <= 1


def test_gelu_of_large_negative_inputs_is_accurate_to_the_last_bit_of_erf() -> None:
    """`x / 2 * (1 + erf(x / sqrt(2)))` as float32 has it: nearly all erf are rounded correctly there, as CUDA's are."""
    x = torch.linspace(-6, -3.5, 40001)
    y = x * math.sqrt(0.5)
    best = torch.from_numpy(scipy.special.erf(y.double().numpy())).float()
    assert (computed("erf", y) != best).float().mean() < 0.01
    fn = smelt.compile(torch.nn.functional.gelu, options={"target": "triton"})
    slope = torch.full_like(x, 1.0)
    given = x.clone().requires_grad_()
    made = fn(given)
    made.backward(slope)
    assert (made.detach() != x * 0.5 * (best + 1)).float().mean() < 0.01
    density = (-0.5 * x.double() ** 2).exp() * x.double() / math.sqrt(2 * math.pi)
    assert given.grad is not None
    assert (given.grad - (0.5 * (best + 1) + density)).abs().max() < 4e-8  # a bit of erf is 3e-8


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nan_signs_and_double_precision(name: str, dtype: torch.dtype) -> None:
    x = torch.cat([EDGES.to(dtype), torch.tensor([float("nan")], dtype=dtype)])
    got, want = computed(name, x), getattr(torch, name)(x)
    torch.testing.assert_close(got, want, equal_nan=True)
    if name == "erf":
        assert torch.equal(got.signbit(), want.signbit())


def test_a_gelu_and_a_sigmoid_are_about_forty_instructions(tmp_path: Path) -> None:
    """As many as memory's speed leaves for six bytes: 132 multiprocessors, 128 lanes, 1.75 GHz, 4.2 TB/s."""
    g = GraphBuilder()
    x, y = (g.convert(g.input(4096, 4096, dtype=torch.bfloat16), torch.float32) for _ in range(2))
    gelu = g.mul(g.mul(x, 0.5), g.add(g.erf(g.mul(x, 0.70710678)), 1.0))
    gm = g.build(g.convert(g.mul(gelu, g.sigmoid(y)), torch.bfloat16))
    (source,) = render_triton(schedule(lower(gm), Options(target="triton"), None, GPU), torch.device("cpu")).kernels
    config = source.configs[0]
    elements = dict(config.constants)["XBLOCK"] // (32 * config.num_warps)
    names = instructions(source, tmp_path)
    assert len(names) / elements < 41
    assert not {name for name in names if name.startswith(("BRA.U", "CALL"))}


DIVISORS = [3.0, -6.0, 1.7, 255.0, 1.0000001, 1.9999999, 2.0**64]


@pytest.mark.parametrize("divisor", DIVISORS)
def test_quotients_by_a_number_are_rounded_as_a_division_rounds(
    divisor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, "tiles", flat_block_elements=1 << 16)  # the interpreter takes its time for each program
    significands = torch.arange(1 << 23, dtype=torch.int32)[:: 1 if divisor == 3 else 37] | (127 << 23)
    sizes = torch.logspace(-35, 38, 5001)
    edges = torch.tensor([math.inf, math.nan, 0.0, 3.4028234e38, 1e-45, 3e-45])
    x = torch.cat([significands.view(torch.float32), sizes, edges])
    x = torch.cat([x, -x])
    g = GraphBuilder()
    gm = g.build(g.div(g.input(*x.shape), divisor))
    got = compile_program(gm, Options(target="triton"), Report("test"))([x])[0]
    want = x / torch.tensor(divisor)
    number = ~want.isnan()
    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(got[number], want[number])
    assert torch.equal(got[number].signbit(), want[number].signbit())


def test_a_division_by_a_number_has_no_branch(tmp_path: Path) -> None:
    """The gradient of a hard swish in a reduction of a batch: one division took four times the kernel."""
    g = GraphBuilder()
    x, grad = (g.convert(g.input(64, 196, 672, dtype=torch.bfloat16), torch.float32) for _ in range(2))
    gm = g.build(g.convert(g.mul(grad, g.add(g.div(x, 3.0), 0.5)), torch.bfloat16))
    (source,) = render_triton(schedule(lower(gm), Options(target="triton"), None, GPU), torch.device("cpu")).kernels
    assert "m_div_by(" in source.source
    assert not [name for name in instructions(source, tmp_path) if name.startswith(("CALL", "BSSY", "MUFU.RCP"))]


def test_digamma_to_double_precision() -> None:
    x = torch.tensor([-0.5, -2.25, -7.75, 1e-3, 0.5, 3.0, 40.0], dtype=torch.float64)
    torch.testing.assert_close(computed("digamma", x), torch.digamma(x), rtol=1e-13, atol=0)


def test_digamma_at_its_poles() -> None:
    x = torch.tensor([0.0, -0.0, -1.0])
    assert str(computed("digamma", x).tolist()) == "[-inf, inf, nan]"


def test_rsqrt_of_numbers_next_to_0() -> None:
    x = torch.tensor([0.0, -0.0, 5.877471754111438e-39, 1e-45, 1.1754943508222875e-38, 4.0, -1.0, math.inf])
    torch.testing.assert_close(computed("rsqrt", x), torch.rsqrt(x), rtol=1e-6, atol=0, equal_nan=True)


def test_numbers_of_the_library_are_no_variables() -> None:
    """`pi = 3.14` in a kernel is a value of float32."""
    number = re.compile(r"^ +\w+ = -?[\d.e-]+( *#.*)?$", re.M)
    assert not [name for name, (text, _) in FUNCTIONS.items() if number.search(text)]


@pytest.mark.parametrize("name", ["fmod", "remainder"])
def test_subnormals_are_kept_where_a_function_distinguishes_them_from_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """0 % 6e-39 would be NaN."""
    g = GraphBuilder()
    gm = g.build(getattr(g, name)(g.input(8), g.input(8)))
    (source,) = render_triton(schedule(lower(gm), Options(target="triton"), None, GPU), torch.device("cpu")).kernels
    assert not [op for op in instructions(source, tmp_path) if ".FTZ" in op]
    monkeypatch.setattr(KernelSource, "flushes", True)
    assert [op for op in instructions(source, tmp_path) if ".FTZ" in op]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_powers_are_as_exact_as_their_result(dtype: torch.dtype):
    """CUDA's own `exp`, but for results that are rounded to low precision at once."""
    wide = torch.float64 if dtype is torch.float64 else torch.float32

    def source(at_once: bool) -> str:
        g = GraphBuilder()
        power = g.exp(g.input(7, 40, dtype=wide))
        gm = g.build(g.convert(power if at_once else g.mul(power, 3.0), dtype))
        report, x = Report("test"), torch.randn(7, 40, dtype=wide) * 20
        (got,) = compile_program(gm, Options(target="triton"), report)([x])
        torch.testing.assert_close(got, run_eager(gm, [x])[0])
        return report.artefacts["6_forward_kernels.py"]()

    low = dtype in (torch.float16, torch.bfloat16)
    assert ("tl.exp(" in source(at_once=True)) == low
    assert "libdevice.exp(" in source(at_once=False) and "tl.exp(" not in source(at_once=False)
