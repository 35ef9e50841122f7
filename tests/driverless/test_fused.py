"""What eager runs as one operator on "cuda" is captured and gets kernels: cells, attention without gradients, norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt import driver
from smelt.abi.rendered import Rendered

Shape = tuple[int, ...]


class Rendering(Exception):
    """The programs are text."""


@contextmanager
def rendering(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Rendered]]:
    """The programs of the calls inside, which end when these would be loaded."""
    made: list[Rendered] = []

    def load(rendered: Rendered, *_: Any) -> Any:
        made.append(rendered)

        def run(inputs: list[Any]) -> Any:
            raise Rendering

        return run

    monkeypatch.setattr(driver, "load", load)
    with pytest.raises(Rendering):
        yield made


def rendered(monkeypatch: pytest.MonkeyPatch, fn: Callable[..., Any], *inputs: torch.Tensor) -> list[Rendered]:
    with rendering(monkeypatch) as made:
        smelt.compile(fn, fullgraph=True)(*inputs)
    return made


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="cuda")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("grad", [True, False])
def test_cells(monkeypatch: pytest.MonkeyPatch, cell: Any, bias: bool, grad: bool):
    model = cell(4, 5, bias=bias, device="cuda")
    with torch.set_grad_enabled(grad):
        programs = rendered(monkeypatch, model, tensor(2, 4))
    assert len(programs) == 1 + grad and "_thnn" not in programs[0].host_source


def test_an_encoder_layer_in_evaluation_is_one_operator(monkeypatch: pytest.MonkeyPatch):
    model = nn.TransformerEncoderLayer(16, 4, batch_first=True, device="cuda").eval()
    with torch.no_grad():
        (program,) = rendered(monkeypatch, model, tensor(2, 3, 16))
    assert "aten._transformer_encoder_layer_fwd.default" in program.host_source


ATTENTION: dict[str, Callable[..., torch.Tensor]] = {
    "plain": F.scaled_dot_product_attention,
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "mask": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, q[:, :1, :, :1] > k[:, :1, :, 0].unsqueeze(-2)),
    "scale": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.5),
}


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_attention_without_gradients(
    monkeypatch: pytest.MonkeyPatch, name: str, rows: int, dtype: torch.dtype, mode: Any
):
    """Without them the library's kernels compute no logsumexp, which PyTorch's meta kernels may not know."""
    with mode():
        q, k = tensor(2, 4, rows, 64, dtype=dtype), tensor(2, 4, 9, 64, dtype=dtype)
        programs = rendered(monkeypatch, ATTENTION[name], q, k, k)
    assert len(programs) == 1 and "extern('attention_" in programs[0].host_source


@pytest.mark.parametrize("dims", [-2, 1, (0, -2), None])
def test_norms_over_one_element(monkeypatch: pytest.MonkeyPatch, dims: Any):
    assert rendered(monkeypatch, lambda x: torch.linalg.vector_norm(x, 2, dims), tensor(7, 1, 9))


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_batch_norm_gives_its_statistics_in_evaluation_too(shape: Shape, dtype: torch.dtype):
    x, running = tensor(*shape, dtype=dtype), tensor(3)
    _, mean, rstd = torch.native_batch_norm(x, running, running, running, running, False, 0.1, 1e-5)
    seen = []

    def backend(gm: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        seen.extend(n.meta["val"] for n in gm.graph.output_node().args[0])
        return gm.forward

    smelt.compile(
        lambda x, r: torch.native_batch_norm(x, r, r, r, r, False, 0.1, 1e-5), backend=backend, fullgraph=True
    )(x, running)
    assert [tuple(s.shape) for s in seen[1:]] == [tuple(mean.shape), tuple(rstd.shape)]
    assert [s.dtype for s in seen[1:]] == [mean.dtype, rstd.dtype]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_whole_numbers_over_zero_raise_nothing_on_a_gpu(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype):
    """Eager has no check there; divisors that are known stay as they are."""

    def fn(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return a // b, a % b, torch.fmod(a, b), torch.div(a, b, rounding_mode="trunc"), a // 0, a % 3

    (program,) = rendered(monkeypatch, fn, tensor(40, dtype=dtype), tensor(40, dtype=dtype))
    text = "\n".join(kernel.source for kernel in program.kernels)
    assert "fault" not in program.host_source
    assert all(f"m_{op}_any(" in text for op in ("trunc_div", "fmod"))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16])
def test_narrow_sums_at_indices(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype):
    def fn(base: torch.Tensor, places: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return base.scatter_add(0, places, x), base.index_put((places[:, 0],), x, accumulate=True)

    places = torch.zeros(6, 4, dtype=torch.int64, device="cuda")
    (program,) = rendered(monkeypatch, fn, tensor(3, 4, dtype=dtype), places, tensor(6, 4, dtype=dtype))
    assert sum("atomic_add" in kernel.source for kernel in program.kernels) == 2


LOOKS: dict[str, Callable[..., Any]] = {
    "normal": lambda x, i: torch.normal(0.0, x),
    "normal of a mean": lambda x, i: torch.normal(x, x.exp()),
    "unused": lambda x, i: (torch.normal(0.0, x), x * 2)[1],
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", LOOKS)
def test_values_that_eager_looks_at_first(monkeypatch: pytest.MonkeyPatch, name: str, dynamic: bool | None):
    """No kernel checks a deviation, the look comes before the kernels, and nobody tries to record it."""
    smelt.reset()
    with rendering(monkeypatch) as made:
        smelt.compile(LOOKS[name], dynamic=dynamic)(tensor(6, 4), torch.zeros(3, dtype=torch.int64, device="cuda"))
    (program,) = made
    assert "smelt_forms.in_range" in program.host_source
    assert not any("m_refuse" in kernel.source for kernel in program.kernels)
    assert any("waits for the GPU" in reason for reason in smelt.stats()["cuda_graph_reasons"])


NO_LOOKS: dict[str, Callable[..., Any]] = {
    "index": lambda x, i: x[i] * 2,
    "index_put": lambda x, i: x.index_put((i,), x[0]) * 2,
    "sums by index_put": lambda x, i: x.index_put((i,), x[0], accumulate=True) * 2,
    "sums by index_put_": lambda x, i: x.index_put_((i,), x[0] * 2, accumulate=True).sum(),
    "sums that nobody uses": lambda x, i: (x.index_put((i,), x[0], accumulate=True), x * 2)[1],
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None], x) * 2,
    "bernoulli": lambda x, i: torch.bernoulli(x),
    "multinomial": lambda x, i: torch.multinomial(x + 1, 2),
    "derivative": lambda x, i: torch.autograd.grad(x[i].pow(2).sum(), x)[0],
}


@pytest.mark.parametrize("name", NO_LOOKS)
def test_values_that_eager_asserts_in_kernels(monkeypatch: pytest.MonkeyPatch, name: str):
    smelt.reset()
    x = tensor(6, 4).requires_grad_(name in ("index", "derivative"))
    with rendering(monkeypatch) as made:
        smelt.compile(NO_LOOKS[name])(x, torch.zeros(3, dtype=torch.int64, device="cuda"))
    assert not any("in_range" in program.host_source for program in made)
    assert any("m_refuse" in kernel.source for program in made for kernel in program.kernels)
    assert not any("waits for the GPU" in reason for reason in smelt.stats()["cuda_graph_reasons"])
