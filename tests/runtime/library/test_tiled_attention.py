"""Attention kernels of our own, under Triton's interpreter or on a GPU, against the references of their prims."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from smelt.base.options import Options
from smelt.base.report import Report
from smelt.base.torch_c import below_autograd
from smelt.driver import compile_program
from smelt.graph.ir.meta import meta_of
from smelt.loops.lower import lower
from smelt.prims.builder import Builder
from smelt.prims.ops import PRIMS
from smelt.runtime.library.externs import Spec, extern, spec_of
from smelt.runtime.library.tiled_attention import AttentionKernel, columns_kernel, forward_kernel, rows_kernel
from smelt.runtime.triton.build import build
from smelt.schedule.plan import schedule

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("triton_device")
DEVICE = "cpu"


@dataclass(frozen=True)
class Case:
    """One call. `bias`: shape of what is broadcast to (batch, heads, rows, columns)."""

    rows: int = 70
    columns: int = 70
    width: int = 16
    width_v: int = 16
    bias: tuple[int, ...] | None = None
    causal: bool = False
    scale: float | None = None
    dropout: float = 0.0
    dtype: torch.dtype = torch.float32
    turned: bool = False


CASES = {
    "plain": Case(64, 128),
    "odd lengths": Case(33, 75, 20, 12),
    "one row": Case(1, 5, 8, 8),
    "causal": Case(causal=True, scale=0.3),
    "causal, more columns": Case(40, 90, causal=True),
    "causal, more rows": Case(150, 40, causal=True),
    "bias of a row": Case(bias=(2, 1, 1, 70)),
    "bias for each head": Case(96, 80, bias=(1, 2, 96, 80)),
    "whole bias": Case(bias=(2, 2, 70, 70)),
    "dropout": Case(dropout=0.25),
    "dropout, causal": Case(90, 90, causal=True, dropout=0.1),
    "dropout and bias": Case(64, 64, bias=(1, 2, 64, 64), dropout=0.3, dtype=torch.float16),
    "as models lay it out": Case(48, 64, 32, 32, turned=True),
    "bfloat16": Case(64, 64, 32, 32, dtype=torch.bfloat16, turned=True),
    "float16": Case(50, 64, 24, 24, (2, 1, 1, 64), dtype=torch.float16),
}


def tensors(case: Case) -> dict[str, Any]:
    def make(length: int, width: int) -> Tensor:
        shape = (2, length, 2, width) if case.turned else (2, 2, length, width)
        found = torch.randn(shape, device=DEVICE).to(case.dtype)
        return found.transpose(1, 2) if case.turned else found

    q, k = make(case.rows, case.width), make(case.columns, case.width)
    v, grad = make(case.columns, case.width_v), make(case.rows, case.width_v)
    bias = None
    if case.bias is not None:
        bias = torch.randn(case.bias, device=DEVICE).to(case.dtype).expand(2, 2, case.rows, case.columns)
    seed = torch.tensor(12345, device=DEVICE) if case.dropout else None
    return {"q": q, "k": k, "v": v, "bias": bias, "seed": seed, "grad": grad}


def parameters(case: Case) -> dict[str, Any]:
    shared = {"causal": case.causal, "scale": case.scale, "dropout": case.dropout}
    return shared | {"stream": 7 if case.dropout else 0, "precision": "ieee"}


def called(name: str, given: dict[str, Any], static: dict[str, Any]) -> tuple[Any, ...]:
    """The results of the external kernel, which have what the prim's meta rule says."""
    prim = PRIMS[name]
    args = [static[p] if p in static else given[p] for p in prim.parameters]
    metas = prim.meta(*(meta_of(x) if isinstance(x, Tensor) else x for x in args))
    kernel = extern(name, static, [given[p] for p in prim.parameters if p not in static], list(metas))
    with torch.no_grad(), below_autograd():
        found = kernel(*(given[p] for p in prim.parameters if p not in static))
    for got, meta in zip(found, metas, strict=True):
        assert got is meta is None or spec_of(got) == spec_of(meta)
    return found


def wanted(name: str, given: dict[str, Any], static: dict[str, Any]) -> tuple[Any, ...]:
    """What the reference gives for the same values in float32, or wider."""
    prim = PRIMS[name]
    wide = {p: x.float() if isinstance(x, Tensor) and x.is_floating_point() else x for p, x in given.items()}
    return prim.reference(*(static[p] if p in static else wide[p] for p in prim.parameters))


def close(found: tuple[Any, ...], expected: tuple[Any, ...], dtype: torch.dtype) -> None:
    error = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    for got, want in zip(found, expected, strict=True):
        assert got is want is None or torch.allclose(got.float(), want.float(), rtol=error, atol=error)


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_what_the_prims_do(name: str) -> None:
    case = CASES[name]
    if case.dtype is torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter multiplies bfloat16 as whole numbers")
    given, static = tensors(case), parameters(case)
    out, sums = called("attention_tiled", given, static | {"sums": True})
    close((out, sums), wanted("attention_tiled", given, static | {"sums": True}), case.dtype)
    given |= {"out": out, "sums": sums}
    static |= {"mask": (True, True, True, case.bias is not None)}
    found = called("attention_tiled_backward", given, static)
    close(found, wanted("attention_tiled_backward", given, static), case.dtype)


def test_dropout_drops_as_many_and_others_for_another_seed() -> None:
    case = Case(64, 64, dropout=0.25)
    given, static = tensors(case), parameters(case) | {"sums": False}
    given |= {"q": torch.zeros(2, 2, 64, 16, device=DEVICE), "v": torch.eye(64, device=DEVICE).expand(2, 2, 64, 64)}
    first, sums = called("attention_tiled", given, static)
    assert sums.numel() == 0
    again, _ = called("attention_tiled", given, static)
    other, _ = called("attention_tiled", given | {"seed": given["seed"] + 1}, static)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert 0.72 < (first != 0).float().mean() < 0.78 and torch.allclose(first[first != 0] * 64, torch.tensor(4 / 3))


def test_rows_that_see_nothing_are_zero() -> None:
    case = Case(40, 70, bias=(2, 1, 40, 70))
    given, static = tensors(case), parameters(case)
    hidden = given["bias"].clone()
    hidden[1, :, 3:20] = -torch.inf
    given["bias"] = hidden
    out, sums = called("attention_tiled", given, static | {"sums": True})
    assert not out[1, :, 3:20].any() and out[0].all() and torch.isinf(sums[1, :, 3:20]).all()
    given |= {"out": out, "sums": sums}
    static |= {"mask": (True, True, True, True)}
    found = called("attention_tiled_backward", given, static)
    assert all(torch.isfinite(x).all() for x in found) and not found[0][1, :, 3:20].any()
    close(found, wanted("attention_tiled_backward", given, static), case.dtype)


def test_nan_reaches_its_rows_alone() -> None:
    given, static = tensors(Case(40, 40)), parameters(Case()) | {"sums": False}
    given["q"][0, 1, 5] = torch.nan
    out, _ = called("attention_tiled", given, static)
    assert out[0, 1, 5].isnan().all() and out.isnan().sum() == out.shape[3]


def test_memory_that_begins_anywhere() -> None:
    """Wide loads are for aligned pointers: another kernel takes the others."""
    case = Case(32, 32)
    given, static = tensors(case), parameters(case) | {"sums": True}
    room = torch.empty(given["k"].numel() + 1, device=DEVICE)
    given["k"] = room[1:].view_as(given["k"]).copy_(given["k"])
    close(called("attention_tiled", given, static), wanted("attention_tiled", given, static), case.dtype)


def test_unused_gradients() -> None:
    case = Case(32, 32)
    given, static = tensors(case), parameters(case)
    out, sums = called("attention_tiled", given, static | {"sums": True})
    given |= {"out": out, "sums": sums}
    static |= {"mask": (False, False, True, False)}
    found = called("attention_tiled_backward", given, static)
    assert found[0] is found[1] is found[3] is None
    close(found, wanted("attention_tiled_backward", given, static), case.dtype)


def program(values: tuple[Tensor, ...], bias: Callable[[Builder, Any], Any]) -> torch.fx.GraphModule:
    """Attention of x with itself, twice its result: (x, what the bias is made of, seed)."""
    graph = torch.fx.Graph()
    p = Builder(graph)
    nodes = []
    for name, value in zip(("x", "mask", "seed"), values, strict=True):
        nodes.append(graph.placeholder(name))
        nodes[-1].meta["val"] = meta_of(value)
    x, mask, seed = nodes
    out, _ = p.attention_tiled(x, x, x, bias(p, mask), seed, False, False, None, 0.2, 9, "ieee")
    result = p.mul(out, 2.0)
    graph.output((result,)).meta["val"] = (result.meta["val"],)
    return torch.fx.GraphModule({}, graph)


def strides_of_bias(module: torch.fx.GraphModule) -> tuple[int, ...]:
    """As the kernel is given it."""
    plan = schedule(lower(module), Options())
    (extern_node,) = plan.externs.values()
    bias = extern_node.args[3].name
    return plan.views[bias].stride if bias in plan.views else plan.strides[bias]


def test_a_program_with_a_mask_that_is_never_expanded() -> None:
    """The broadcast of a mask is strides of 0; the result of the kernel is read by a generated one."""
    values = torch.randn(2, 2, 40, 16, device=DEVICE), torch.randn(2, 40, device=DEVICE), torch.tensor(3, device=DEVICE)
    module = program(values, lambda p, mask: p.broadcast_in_dim(mask, (2, 2, 40, 40), (0, 3)))
    assert strides_of_bias(module) == (40, 0, 0, 1)
    (found,) = compile_program(module, Options(target="triton"), Report.for_graph("attention"))(list(values))
    torch.testing.assert_close(found, module(*values)[0], rtol=1e-5, atol=1e-5)


def test_a_bias_with_heads_innermost_is_copied() -> None:
    """As T5 makes it of an embedding: every load of a row would be as many as it has elements."""
    values = torch.randn(2, 2, 40, 16), torch.randn(40, 40, 2), torch.tensor(3)

    def turned(p: Builder, mask: Any) -> Any:
        return p.broadcast_in_dim(p.permute(mask, (2, 0, 1)), (2, 2, 40, 40), (1, 2, 3))

    assert strides_of_bias(program(values, turned))[-1] == 1


def kernels_of(dtype: torch.dtype, width: int) -> list[AttentionKernel]:
    """The three kernels of BERT's size, with everything that takes registers."""
    x = Spec((16, 12, 512, width), (512 * 12 * width, width, 12 * width, 1), dtype)
    bias, seed = Spec((16, 12, 512, 512), (0, 512 * 512, 512, 1), dtype), Spec((), (), torch.int64)
    sums = Spec((16, 12, 512), (12 * 512, 512, 1), torch.float32)
    scores = Spec((16, 12, 512, 512), (12 * 512 * 512, 512 * 512, 512, 1), dtype)
    static = {"causal": False, "scale": None, "dropout": 0.1, "stream": 1, "precision": "tf32", "sums": True}
    given, results = [x, x, x, x, bias, x, sums, seed], [x, x, x, scores]
    forward = forward_kernel(static, [x, x, x, bias, seed], [x, sums])
    return [forward, rows_kernel(static, given, results), columns_kernel(static, given, results)]


@pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 64), (torch.bfloat16, 64), (torch.float32, 128)])
def test_kernels_fit_a_gpu(dtype: torch.dtype, width: int, tmp_path: Path) -> None:
    """Built for compute capability 9.0: tensor cores' products, shared memory that a block may have, few spills."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    sources = [kernel.source() for kernel in kernels_of(dtype, width)]
    for started in [build(source, source.configs[0], 90) for source in sources]:
        cubin = started.result()
        assert cubin.shared <= 227 << 10
        file = tmp_path / f"{cubin.name}.cubin"
        file.write_bytes(cubin.image)
        told = subprocess.run([tool, "--dump-resource-usage", file], capture_output=True, text=True, check=True).stdout
        registers, stack = (int(re.search(rf"{kind}:(\d+)", told).group(1)) for kind in ("REG", "STACK"))
        assert registers * cubin.threads <= 65536 and stack <= 64


def test_layers_share_their_kernels() -> None:
    """What differs between layers, the stream of the dropout, is an argument."""
    case = Case(dropout=0.1)
    given = [spec_of(x) for name, x in tensors(case).items() if name != "grad"]
    out = Spec((2, 2, 70, 16), (70 * 32, 70 * 16, 16, 1), torch.float32)
    sums = Spec((2, 2, 96), (192, 96, 1), torch.float32)
    first, second = (
        forward_kernel(parameters(case) | {"stream": n, "sums": True}, given, [out, sums]).source() for n in (1, 2)
    )
    assert first == second
