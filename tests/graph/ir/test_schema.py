"""Facts read from operator schemas."""

from __future__ import annotations

import pytest
import torch

from smelt.graph.ir.schema import Kind, find_op, op_info

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        (aten.add.Tensor, Kind.PURE),
        (aten.clone.default, Kind.PURE),
        (aten.view.default, Kind.VIEW),
        (aten.split.Tensor, Kind.VIEW),
        (aten.detach.default, Kind.VIEW),
        (aten.add_.Tensor, Kind.WRITE),
        (aten.add.out, Kind.WRITE),
        (aten._foreach_add_.List, Kind.WRITE),
    ],
)
def test_kind(op: object, kind: Kind) -> None:
    assert op_info(op).kind is kind


@pytest.mark.parametrize(
    ("op", "functional"),
    [
        (aten.add_.Tensor, aten.add.Tensor),
        (aten.add.out, aten.add.Tensor),
        (aten.bernoulli_.float, aten.bernoulli.p),
        (aten.normal_.default, aten.normal_functional.default),
        (aten.uniform_.default, aten.uniform.default),
        (aten.transpose_.default, aten.transpose.int),
        (aten.t_.default, aten.t.default),
        (aten.index_put_.default, aten.index_put.default),
        (aten._foreach_add_.List, aten._foreach_add.List),
        (aten._native_batch_norm_legit.default, aten._native_batch_norm_legit_functional.default),
        (aten.max.dim_max, aten.max.dim),
    ],
)
def test_functional_form(op: object, functional: object) -> None:
    assert op_info(op).functional is functional


def test_written_and_returned() -> None:
    info = op_info(aten._native_batch_norm_legit.default)
    assert info.written == ("running_mean", "running_var")
    assert info.returned == (None, None, None)
    assert op_info(aten.add_.Tensor).returned == ("self",)
    assert op_info(aten._foreach_add_.List).returned == ()


def test_flags() -> None:
    assert op_info(aten.bernoulli.p).random and not op_info(aten.mul.Tensor).random
    assert op_info(aten.linear.default).composite and not op_info(aten.mm.default).composite
    assert op_info(aten.t_.default).moves and not op_info(aten.add_.Tensor).moves


def test_find_op() -> None:
    assert find_op("aten::add.Tensor") is aten.add.Tensor
    assert find_op("aten::exp") is aten.exp.default
    assert find_op("aten::no_such_operator") is None


def test_in_place_operators_have_a_functional_form() -> None:
    for name in ("relu_", "mul_", "clamp_", "scatter_", "masked_fill_", "addmm_", "fill_", "cumsum_", "index_add_"):
        packet = getattr(aten, name)
        for overload in packet.overloads():
            if "t" != overload:  # a TorchScript overload for numbers
                assert op_info(getattr(packet, overload)).functional is not None, (name, overload)
