"""Compare a metadata rule with the real CPU operator."""

from __future__ import annotations

from typing import Any

import torch

from smelt.graph.ir.schema import op_info
from smelt.graph.meta_rules.rules import rule_for
from smelt.graph.trace.trace import trace_like


def traced(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return trace_like(value, requires_grad=False)
    return [traced(v) for v in value] if isinstance(value, list) else value


def check(op: Any, *args: Any, answered: bool = True) -> None:
    rule = rule_for(op, op_info(op))
    assert rule is not None
    answer = rule(op, tuple(map(traced, args)), {})
    if answer is None:
        assert not answered, "the rule gave no answer"
        return
    results = op(*args)
    many = isinstance(results, (tuple, list))
    for layout, real in zip(answer if many else [answer], results if many else [results], strict=True):
        if layout is None or real is None:
            assert layout is real or layout is None
            continue
        assert (layout.val.shape, layout.val.dtype) == (tuple(real.shape), real.dtype)
        if real.numel() > 1:
            assert layout.val.stride == real.stride()
