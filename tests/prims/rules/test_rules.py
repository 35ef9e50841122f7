"""Every decomposition against eager, on the table of example calls, in float32 and in bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from smelt.base.options import Options
from smelt.prims.decompose import decompose, fallbacks
from smelt.prims.registry import DECOMPOSITIONS
from tests.prims.aten_check import aten_graph, hold
from tests.prims.rules.cases import Call, all_cases

CASES = all_cases()
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
    assert set(TARGETS) == set(CASES)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_float32_and_integers(name: str):
    for case in CASES[name]:
        run(TARGETS[name], case)


HALF_DECLINED = {"addbmm.default"}


@pytest.mark.parametrize("name", sorted(set(TARGETS) - HALF_DECLINED))
def test_bfloat16(name: str):
    for case in map(lowered, CASES[name]):
        try:
            TARGETS[name](*case[0], **case[1])
        except (RuntimeError, NotImplementedError):
            continue  # eager has no bfloat16 kernel, or wants other dtypes together
        run(TARGETS[name], case, scale=2.0)
