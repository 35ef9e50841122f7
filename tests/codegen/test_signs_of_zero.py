"""Every pointwise operator and reduction of OpInfo on 0.0 and -0.0: the results' zeros have eager's signs.

Where eager's vector code and its code for single elements disagree (`torch.maximum(0.0, -0.0)`), both are right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from tests.opinfo import database as infos

TOGETHER = 24
"""Operators in one graph."""
VALUES = [0.0, -0.0, 1.5, -1.5, 0.5, -0.5, 2.0, -2.0, 3.0, float("inf"), -float("inf"), 0.25, -0.25, -0.75, 7.0, -9.0]
Call = tuple[str, Callable[..., Any], tuple[torch.Tensor, ...]]


def plain(found: Any) -> list[torch.Tensor]:
    """The floating-point tensors of a result."""
    parts = found if isinstance(found, (tuple, list)) else [found]
    return [x for x in parts if isinstance(x, torch.Tensor) and x.dtype.is_floating_point]


def calls(dtype: torch.dtype) -> list[Call]:
    """What eager does not refuse."""
    x = torch.tensor(VALUES).to(dtype)
    pairs = x.repeat_interleave(len(x)), x.repeat(len(x))
    rows = torch.tensor([[0.0] * 16, [-0.0] * 16, [0.0, -0.0] * 8, [-0.0, 0.0] * 8, [1.0, -1.0] * 8, [-2.0] * 16]).to(
        dtype
    )
    made: list[Call] = [(op.full_name, op.op, (x,)) for op in infos.unary_ufuncs if dtype in op.dtypes]
    made += [(op.full_name, op.op, pairs) for op in infos.binary_ufuncs if dtype in op.dtypes]
    for op in infos.reduction_ops:
        if dtype in op.dtypes:
            made.append((f"{op.full_name} of a row", lambda x, op=op.op: op(x, dim=1), (rows,)))
            made.append((f"{op.full_name} of all", lambda x, op=op.op: op(x), (rows[1],)))
    bounds: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "clamp": lambda x: torch.clamp(x, 0, 0), "clamp below": lambda x: torch.clamp(x, 0),
        "clamp above": lambda x: torch.clamp(x, max=0), "hardtanh": lambda x: torch.nn.functional.hardtanh(x, -1, 0),
    }  # fmt: skip
    made += [(name, call, (x,)) for name, call in bounds.items()]
    return [each for each in made if not each[0].startswith("_refs") and _runs(each)]


def _runs(each: Call) -> bool:
    try:
        return bool(plain(each[1](*each[2])))
    except Exception:
        return False


def differs(each: Call, got: torch.Tensor, number: int) -> list[str]:
    name, call, args = each
    want = plain(call(*args))[number]
    if got.shape != want.shape:
        return [f"{name}: {got.shape} instead of {want.shape}"]
    wrong = (want == 0) & (got == 0) & (got.signbit() != want.signbit())
    found = []
    for at in wrong.nonzero().tolist():
        alone = tuple(x[at[0]][None] for x in args)
        if want.ndim and want.shape == args[0].shape and alone[0].numel() == 1:
            single = plain(call(*alone))[number]
            if bool(single.signbit()) != bool(want[tuple(at)].signbit()):
                continue
        found.append(f"{name}({[x[tuple(at)].tolist() for x in args if x.shape == want.shape]}): {got[tuple(at)]}")
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_signs_of_zero(dtype: torch.dtype) -> None:
    every, wrong = calls(dtype), []
    assert len(every) > 100
    left = 0
    for start in range(0, len(every), TOGETHER):
        group = every[start : start + TOGETHER]
        for each, results in zip(group, compiled(group), strict=True):
            left += results is None
            wrong += [text for number, got in enumerate(results or []) for text in differs(each, got, number)]
    assert not wrong and left <= 4


def compiled(group: list[Call]) -> list[list[torch.Tensor] | None]:
    """The results of each in one graph; where one of them cannot be in it, in graphs of half as many."""

    def together(given: list[tuple[torch.Tensor, ...]]) -> list[list[torch.Tensor]]:
        return [plain(call(*args)) for (_, call, _), args in zip(group, given, strict=True)]

    smelt.reset()
    try:
        found = smelt.compile(together, fullgraph=True)([args for _, _, args in group])
        return list(found)
    except smelt.Unsupported:
        if len(group) == 1:
            return [None]
        half = len(group) // 2
        return compiled(group[:half]) + compiled(group[half:])
