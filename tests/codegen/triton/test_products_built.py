"""Templates of matrix products, built for compute capability 9.0 without a GPU: they fit a multiprocessor."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from smelt.abi.kernel_source import Config, KernelSource
from smelt.base.options import Options
from smelt.codegen.triton.host import render_triton
from smelt.loops.lower import lower
from smelt.runtime.triton.build import Build, build
from smelt.schedule.machine import GPU, H100
from smelt.schedule.plan import schedule
from tests.loops.graphs import GraphBuilder

triton = pytest.importorskip("triton")

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def template(dtype: torch.dtype, sizes: tuple[int, int, int], rounded: bool, factor: torch.dtype) -> KernelSource:
    """A linear layer with bias, GELU and a cast behind it; the factors may be cast before it."""
    m, k, n = sizes
    g = GraphBuilder()
    x, w, b = g.input(m, k, dtype=factor), g.input(n, k, dtype=dtype), g.input(n, dtype=dtype)
    x = x if factor is dtype else g.convert(x, dtype)
    y = g.convert(g.mm(x, g.permute(w, (1, 0))), torch.float32)
    y = g.add(y, g.broadcast_in_dim(g.convert(b, torch.float32), (m, n), (1,)))
    y = g.mul(g.mul(y, 0.5), g.add(g.erf(g.mul(y, 0.7071)), 1.0))
    plan = schedule(lower(g.build(g.convert(y, dtype))), Options(gemm="template", max_autotune=True), None, GPU)
    rendered = render_triton(plan, torch.device("cpu"), True, rounded)
    return next(source for source in rendered.kernels if "tl.dot" in source.source)


def smallest(source: KernelSource) -> Config:
    return min(source.configs, key=lambda config: dict(config.constants)["YBLOCK"] * dict(config.constants)["XBLOCK"])


def resources(built: Build, folder: Path) -> dict[str, int]:
    """Registers and bytes of stack of a thread, as the assembler has noted them."""
    path = folder / "kernel.cubin"
    path.write_bytes(built.result().image)
    tool = TOOLS / "cuobjdump"
    if not tool.exists():
        pytest.skip("this Triton has no cuobjdump")
    text = subprocess.run([tool, "--dump-resource-usage", path], capture_output=True, text=True, check=True).stdout
    line = next(line for line in text.splitlines() if "REG:" in line)
    return {name: int(number) for name, number in (part.split(":")[:2] for part in line.split()[:2])}


@pytest.mark.parametrize(
    ("dtype", "sizes", "rounded", "factor"),
    [
        (torch.bfloat16, (512, 768, 384), False, torch.bfloat16),
        (torch.float16, (1000, 333, 77), False, torch.float16),
        (torch.float32, (512, 256, 256), True, torch.float32),
        (torch.float32, (300, 100, 200), False, torch.float32),
        (torch.bfloat16, (512, 768, 384), False, torch.float32),
    ],
)
def test_templates_build_and_fit(
    dtype: torch.dtype, sizes: tuple[int, int, int], rounded: bool, factor: torch.dtype, tmp_path: Path
) -> None:
    source = template(dtype, sizes, rounded, factor)
    built = build(source, smallest(source), 90)
    assert built.result().shared <= H100.shared_bytes
    used = resources(built, tmp_path)
    assert used["REG"] <= 255 and used["STACK"] <= 8  # nothing is spilled (but two registers of float32 in parts)


def test_half_precision_runs_on_tensor_cores(tmp_path: Path) -> None:
    source = template(torch.bfloat16, (512, 768, 384), False, torch.bfloat16)
    config = next(c for c in source.configs if dict(c.constants)["YBLOCK"] >= 64)
    image = tmp_path / "kernel.cubin"
    image.write_bytes(build(source, config, 90).result().image)
    text = subprocess.run([TOOLS / "nvdisasm", image], capture_output=True, text=True, check=True).stdout
    assert "HGMMA" in text and "LDGSTS" in text  # warp-group products, and copies that run ahead of them
