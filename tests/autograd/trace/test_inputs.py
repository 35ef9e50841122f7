"""Which examples become one trace tensor, and which become views of another."""

from __future__ import annotations

import pytest
import torch

from smelt.autograd.trace.functionalize import GraphRecorder
from smelt.autograd.trace.inputs import make_inputs
from smelt.base.errors import Unsupported
from smelt.graph.trace.overlap import overlapping


def test_groups_of_overlap() -> None:
    base = torch.zeros(4, 4)
    parts = [base[:2], base[2:], base[1:3], torch.zeros(3), base[:0]]
    assert overlapping(parts) == [[0, 2, 1]]
    assert overlapping([base, base]) == []
    assert overlapping([base[0], base[1]]) == []


def test_one_object_for_the_same_tensor() -> None:
    x = torch.zeros(3, requires_grad=True)
    a, b, c = make_inputs(GraphRecorder(), [x, torch.zeros(3), x], shared=False)
    assert a is c and a is not b and a.leaf.requires_grad and a.seen is a.leaf


def test_nonleaf_keeps_history() -> None:
    x = torch.zeros(3, requires_grad=True) * 2
    (one,) = make_inputs(GraphRecorder(), [x], shared=False)
    assert one.seen is not one.leaf and one.history is one.seen.grad_fn is not None
    one.seen.add_(1)
    assert one.seen.grad_fn is not one.history


def test_overlap_is_a_view_of_the_one_that_covers() -> None:
    base = torch.zeros(4, 4)
    row, whole = make_inputs(GraphRecorder(), [base[1], base], shared=True)
    assert row.storage_view.storage is whole.storage_view.storage and whole.storage_view.parent is None
    assert row.storage_view.layout.offset == 4


def test_overlap_without_cover_or_with_gradients_is_refused() -> None:
    base = torch.zeros(4, 4)
    with pytest.raises(Unsupported, match="none of which covers"):
        make_inputs(GraphRecorder(), [base[:3], base[1:]], shared=True)
    base = torch.zeros(4, 4, requires_grad=True)
    with pytest.raises(Unsupported, match="requires grad"):
        make_inputs(GraphRecorder(), [base, base.detach()[0]], shared=True)
