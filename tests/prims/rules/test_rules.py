"""Every decomposition against eager, on the table of example calls, in float32 and in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.utils._pytree import tree_map

import smelt
from smelt.base.options import Options
from smelt.graph.ir.functional_form import flat_form
from smelt.graph.ir.meta import meta_of
from smelt.prims.decompose import decompose, fallbacks
from smelt.prims.ops import PRIMS
from smelt.prims.registry import DECOMPOSITIONS
from smelt.prims.rules.layers import normalization
from smelt.prims.rules.reductions import shifted_moments
from tests.prims.aten_check import aten_graph, check, hold
from tests.prims.kernel_calls import kernel_calls
from tests.prims.rules.cases import Call, all_cases

aten = torch.ops.aten
CASES = all_cases() | {str(PRIMS[name].kernel).removeprefix("aten."): calls for name, calls in kernel_calls().items()}
TARGETS = {str(target).removeprefix("aten."): target for target in DECOMPOSITIONS}


def run(target: Callable[..., Any], case: Call, scale: float = 1.0) -> None:
    args, kwargs = case
    with torch.no_grad():
        result = rms_norm_gradients(*args) if target is RMS_BACKWARD else target(*args, **kwargs)
    gm, inputs = aten_graph(target, args, kwargs, result)
    prims = decompose(gm, Options())
    assert not fallbacks(prims), f"{target} stayed ATen"
    hold(target, prims, inputs, result, scale)


RMS_BACKWARD = torch.ops.aten._fused_rms_norm_backward.default  # has no kernel on the CPU


@torch.enable_grad()
def rms_norm_gradients(g: Any, x: Any, sizes: Any, rstd: Any, weight: Any, mask: Any) -> tuple[Any, Any]:
    """The gradients that autograd finds for x * rstd(x) * weight with the eps of the table's calls."""
    x = x.clone().requires_grad_()
    weight = None if weight is None else weight.clone().requires_grad_()
    out = torch.nn.functional.rms_norm(x, sizes, weight, 1e-6)
    out.backward(g)
    return x.grad, None if weight is None else weight.grad


def lowered(case: Call) -> Call:
    """The call with bfloat16 for float32."""

    def cast(x: Any) -> Any:
        if isinstance(x, torch.Tensor) and x.dtype is torch.float32:
            return x.bfloat16()
        return torch.bfloat16 if x is torch.float32 else x

    return tree_map(cast, case)


def test_every_decomposition_has_a_case():
    assert set(TARGETS) == set(CASES) | STRIDED | LISTED | ON_CUDA_ONLY | CHECKS


KINDS = ("flash", "efficient", "cudnn")
STRIDED = {"as_strided.default", "as_strided_copy.default"}
ON_CUDA_ONLY = {
    *(f"_scaled_dot_product_{kind}_attention{way}.default" for kind in KINDS for way in ("", "_backward")),
    "_thnn_fused_lstm_cell.default",
    "_thnn_fused_lstm_cell_backward_impl.default",
    "_thnn_fused_gru_cell.default",
    "_thnn_fused_gru_cell_backward.default",
}
"""No kernel of the CPU to compare with: tests/prims/test_attention.py and test_cells.py compare with formulas."""
CHECKS = {"smelt_forms.in_range.default"}
"""Not an operator of PyTorch: what is left of one whose result nobody uses. tests/test_dead_checks.py"""
LISTED = {"_amp_foreach_non_finite_check_and_unscale.default"}
"""They return lists beside tensors: a graph holds their flat form."""


@pytest.mark.parametrize("spoilt", [None, torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_that_are_not_finite(dtype: torch.dtype, spoilt: float | None):
    (name,) = LISTED
    gradients = [torch.randn(3, 4).to(dtype), torch.randn(()).to(dtype), torch.empty(0, 2).to(dtype)]
    if spoilt is not None:
        gradients[0][1, 2] = spoilt
    for found in (0.0, 1.0):
        call = (gradients, torch.tensor(found), torch.tensor(0.125))
        check(flat_form(TARGETS[name], (3, None)), *call)


@pytest.mark.parametrize("turn", [(0, 1, 2), (2, 0, 1)])
@pytest.mark.parametrize("name", sorted(STRIDED))
@pytest.mark.parametrize(
    ("sizes", "strides", "offset"), [([3, 4], [4, 1], 12), ([5, 3], [2, 3], 0), ([2, 2], [1, 5], 3)]
)
def test_as_strided(name: str, turn: tuple[int, ...], sizes: list[int], strides: list[int], offset: int):
    """Of a fresh value and of a view of all of it; of an input it stays as it is."""
    x = torch.randn(2, 3, 4)
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = meta_of(x)
    want = x
    steps = [(aten.exp.default, ()), (aten.permute.default, (list(turn),)), (TARGETS[name], (sizes, strides, offset))]
    for op, args in steps:
        want = op(want, *args)
        node = graph.call_function(op, (node, *args))
        node.meta["val"] = meta_of(want)
    graph.output((node,))
    prims = decompose(fx.GraphModule(torch.nn.Module(), graph))
    assert not fallbacks(prims)
    torch.testing.assert_close(prims(x)[0], want)
    gm, _ = aten_graph(TARGETS[name], (x, sizes, strides, offset), {}, TARGETS[name](x, sizes, strides, offset))
    assert fallbacks(decompose(gm))


@pytest.mark.parametrize("name", sorted(set(TARGETS) - STRIDED - LISTED - ON_CUDA_ONLY - CHECKS))
def test_float32_and_integers(name: str):
    for case in CASES[name]:
        run(TARGETS[name], case)


HALF_DECLINED = {"addbmm.default", "nextafter.default"}


@pytest.mark.parametrize("name", sorted(set(TARGETS) - STRIDED - LISTED - ON_CUDA_ONLY - CHECKS - HALF_DECLINED))
def test_bfloat16(name: str):
    for case in map(lowered, CASES[name]):
        try:
            TARGETS[name](*case[0], **case[1])
        except (RuntimeError, NotImplementedError):
            continue  # eager has no bfloat16 kernel, or wants other dtypes together
        run(TARGETS[name], case, scale=2.0)


def test_batch_norm_in_evaluation_returns_no_statistics() -> None:
    x, mean, var = torch.randn(2, 3, 4), torch.zeros(3), torch.ones(3)
    fn = torch.ops.aten._native_batch_norm_legit.default
    for training in (False, True):
        got = smelt.compile(lambda x: fn(x, None, None, mean, var, training, 0.1, 1e-5), fullgraph=True)(x)  # noqa: B023
        assert [t.shape for t in got] == [t.shape for t in fn(x, None, None, mean, var, training, 0.1, 1e-5)]


@pytest.mark.parametrize("offset", [0.0, 30.0, -3000.0])
def test_batch_statistics_in_one_pass(offset: float, monkeypatch: pytest.MonkeyPatch):
    """As a GPU takes them; with means far from zero, and first elements far from the mean."""
    monkeypatch.setattr(normalization, "moments", lambda p, x, dims: shifted_moments(p, x, dims))
    x = torch.randn(16, 5, 9, 9) + offset
    x[0, :, 0, 0] += torch.tensor([0.0, 3.0, -6.0, 12.0, 0.5])
    args = (x, torch.randn(5), torch.randn(5), torch.zeros(5), torch.ones(5), True, 0.1, 1e-5)
    exact = aten._native_batch_norm_legit_functional(*(a.double() if isinstance(a, torch.Tensor) else a for a in args))
    result = aten._native_batch_norm_legit_functional(*args)
    gm, inputs = aten_graph(aten._native_batch_norm_legit_functional.default, args, {}, result)
    got = decompose(gm, Options())(*inputs)
    for mine, eager, want in zip(got, result, exact, strict=True):
        error, usual = (mine - want).abs().max(), (eager - want).abs().max()
        # a first element 12 deviations away costs a factor of 144 of the rounding of float32
        assert error <= 16 * usual + 2e-5 * want.abs().max()
