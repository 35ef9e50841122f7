"""Elementwise metadata against the real CPU operators."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.graph.ir.schema import op_info
from smelt.graph.meta_rules.elementwise import elementwise_rule
from smelt.graph.trace.trace import TraceMode, trace_like
from tests.graph.real_answers import check

aten = torch.ops.aten

dtypes = st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float64])


@st.composite
def operands(draw: Any) -> list[torch.Tensor]:
    """Two tensors that broadcast, with dimensions in any order in memory, sliced, expanded, or without any."""
    shape = draw(st.lists(st.integers(1, 3), max_size=4))
    out = []
    for _ in range(2):
        own = [n if draw(st.booleans()) else 1 for n in shape][draw(st.integers(0, len(shape))) :]
        order = draw(st.permutations(range(len(own))))
        gaps = draw(st.integers(1, 2))
        base = torch.ones([own[d] for d in order] + [gaps], dtype=draw(dtypes))[..., 0]
        tensor = base.permute([order.index(d) for d in range(len(own))])
        if draw(st.booleans()) and len(own) == len(shape):
            tensor = tensor.expand(shape)
        out.append(tensor)
    return out


@settings(max_examples=300, deadline=None, derandomize=True)
@given(operands())
def test_elementwise_of_two(pair: list[torch.Tensor]) -> None:
    for op in (aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.eq.Tensor, aten.maximum.default):
        if op is aten.add.Tensor or pair[0].dtype is not torch.bool:
            check(op, *pair)
    check(aten.where.self, pair[0] > 0, *pair)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(operands())
def test_elementwise_of_one(pair: list[torch.Tensor]) -> None:
    x = pair[0]
    for op, number in itertools.product((aten.mul.Tensor, aten.pow.Tensor_Scalar, aten.add.Tensor), (2, 0.5)):
        check(op, x, number)
    for op in (aten.exp.default, aten.isnan.default, aten.sigmoid.default):
        check(op, x)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(operands())
def test_elementwise_of_complex_numbers(pair: list[torch.Tensor]) -> None:
    """The angles are the real part of a complex result, in rows."""
    x = torch.complex(pair[0].float(), pair[1].float()) if pair[0].shape == pair[1].shape else pair[0].cfloat()
    for layout in (x, pair[0].to(torch.complex128)):
        for op in (aten.angle.default, aten.abs.default, aten.neg.default, aten.exp.default, aten.sgn.default):
            check(op, layout)


def test_in_place_checks_the_cast() -> None:
    check(aten.mul_.Tensor, torch.ones(2, 3), 2)
    check(aten.add_.Tensor, torch.ones(2, 3).half(), torch.ones(3))
    with pytest.raises(RuntimeError, match="can't be cast"):
        check(aten.mul_.Tensor, torch.ones(2, dtype=torch.int64), 0.5)
    check(aten.mul_.Tensor, torch.ones(1).expand(3), 2, answered=False)
    check(aten.add_.Tensor, torch.ones(1), torch.ones(3), answered=False)


def test_random_operators_have_no_rule() -> None:
    assert elementwise_rule(aten.rrelu_with_noise.default, op_info(aten.rrelu_with_noise.default)) is None


def test_masked_fill_is_laid_out_row_by_row():
    for x in (torch.rand(3, 5, 4).permute(2, 0, 1), torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)):
        with TraceMode():
            traced = trace_like(x).masked_fill(trace_like(x > 0.5), 1.0)
        assert traced.stride() == x.masked_fill(x > 0.5, 1.0).stride()


def test_lists_are_answered_row_by_row():
    rows = [torch.rand(2, 3), torch.rand(4, 5).t(), torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)]
    others = [torch.rand_like(row) for row in rows]
    for op, rest in (
        (aten._foreach_sqrt.default, ()),
        (aten._foreach_mul.Scalar, (0.5,)),
        (aten._foreach_add.List, (others,)),
        (aten._foreach_lerp.Scalar, (others, 0.3)),
    ):
        rule = elementwise_rule(op, op_info(op))
        with TraceMode():
            traced = [trace_like(row) for row in rows]
            given = [[trace_like(o) for o in rest[0]], *rest[1:]] if rest and rest[0] is others else rest
        answers = rule(op, (traced, *given), {})
        assert [a.val.stride for a in answers] == [each.stride() for each in op(rows, *rest)]
