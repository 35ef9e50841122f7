"""Answers of operators as layouts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.fx.immutable_collections import immutable_list
from torch.utils._python_dispatch import _get_current_dispatch_mode

import smelt
from smelt.base.errors import Unsupported
from smelt.graph.meta_rules import infer
from smelt.graph.meta_rules.infer import DataDependent, infer_meta
from smelt.graph.trace.trace import trace_like

aten = torch.ops.aten


def test_answers_are_layouts_and_remembered() -> None:
    x = trace_like(torch.zeros(2, 3))
    first = infer_meta(aten.exp.default, (x,), {})
    assert first.val.shape == (2, 3)
    assert infer_meta(aten.exp.default, (trace_like(torch.ones(2, 3)),), {}) is first


def test_lists_of_graphs_are_remembered_by_layouts() -> None:
    """Else each trace has an answer of its own, which keeps its tensors for ever."""
    for _ in range(2):
        before = len(infer._answers)
        infer_meta(torch.ops.aten.cat.default, (immutable_list([trace_like(torch.ones(2, 5)) for _ in range(3)]),), {})
    assert len(infer._answers) == before


def test_numbers_of_different_types_have_different_answers() -> None:
    x = trace_like(torch.zeros(2, dtype=torch.int64))
    assert infer_meta(aten.add.Tensor, (x, 1), {}).val.dtype is torch.int64
    assert infer_meta(aten.add.Tensor, (x, 1.0), {}).val.dtype is torch.float32
    assert infer_meta(aten.add.Tensor, (x, True), {}).val.dtype is torch.int64


def test_default_dtype_counts() -> None:
    x = trace_like(torch.zeros(2, dtype=torch.int64))
    torch.set_default_dtype(torch.float64)
    try:
        assert infer_meta(aten.div.Tensor, (x, x), {}).val.dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert infer_meta(aten.div.Tensor, (x, x), {}).val.dtype is torch.float32


def test_several_results() -> None:
    values, indices = infer_meta(aten.sort.default, (trace_like(torch.zeros(3)),), {})
    assert (values.val.dtype, indices.val.dtype) == (torch.float32, torch.int64)


def test_creation_knows_its_device() -> None:
    layout = infer_meta(aten.zeros.default, ([2],), {"device": torch.device("cpu"), "pin_memory": False})
    assert layout.val.device == torch.device("cpu")


def test_no_answer() -> None:
    with pytest.raises(DataDependent):
        infer_meta(aten.nonzero.default, (trace_like(torch.zeros(2)),), {})


def test_an_operator_without_a_meta_kernel_is_named() -> None:
    lib = torch.library.Library("smelt_test_answers", "DEF")
    lib.define("mystery(Tensor x) -> Tensor")
    lib.impl("mystery", lambda x: x + 1, "CPU")
    with pytest.raises(Unsupported, match="mystery"):
        infer_meta(torch.ops.smelt_test_answers.mystery.default, (trace_like(torch.zeros(2)),), {})


def test_user_errors_stay_user_errors() -> None:
    x = trace_like(torch.zeros(2, 3))
    with pytest.raises(RuntimeError, match="same reduction dim|cannot be multiplied"):
        infer_meta(aten.mm.default, (x, x), {})


def test_a_kernel_is_asked_where_no_metadata_rule_is() -> None:
    a = trace_like(torch.zeros(4, 3))
    one, other = infer_meta(aten.geqrf.default, (a,), {})
    real = torch.geqrf(torch.ones(4, 3))
    assert (one.val.shape, one.val.stride) == (real[0].shape, real[0].stride())
    assert other.val.shape == (3,)


def test_strides_are_those_of_the_cpu_kernel() -> None:
    images = torch.zeros(1, 2, 3, 4).to(memory_format=torch.channels_last)
    indices = torch.zeros(1, 2, 3, 4, dtype=torch.int64).to(memory_format=torch.channels_last)
    found = infer_meta(aten.max_unpool2d.default, (trace_like(images), trace_like(indices), [6, 8]), {})
    assert found.val.stride == aten.max_unpool2d.default(images, indices, [6, 8]).stride()


def test_a_huber_loss_is_of_its_input_s_dtype() -> None:
    """Its meta kernel says the common one."""
    low, full = torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(2, 3)
    for reduction in range(3):
        for x, y in ((low, full), (full, low)):
            answer = infer_meta(aten.huber_loss.default, (trace_like(x), trace_like(y), reduction), {})
            assert answer.val.dtype is aten.huber_loss(x, y, reduction).dtype


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 6, 5), (4, 3, 3, 3), (1, 4, 5, 6)])
def test_pooling_of_one_volume_without_a_batch_keeps_channels_last(shape: tuple[int, ...], dynamic: bool) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.nn.functional.max_pool3d(x, 2, 1, padding=1, return_indices=True)  # type: ignore[return-value]

    batch = torch.arange(float(math.prod(shape))).sin().view(1, *shape)
    volumes = [batch.contiguous(memory_format=torch.channels_last_3d)[0], batch[0], batch[0].mT.contiguous().mT]
    for x in volumes:
        for made, expected in zip(smelt.compile(f, dynamic=dynamic)(x), f(x), strict=True):
            assert made.stride() == expected.stride()
            assert torch.equal(made, expected)


@pytest.mark.parametrize("name", ["select", "slice", "diagonal", "as_strided", "unfold"])
def test_no_trace_listens_while_an_operator_is_asked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take the tensors of the question for constants of the program, and read a single number out of them."""
    views: dict[str, Any] = {
        "select": lambda y: y[0],
        "slice": lambda y: y[:, ::2],
        "diagonal": lambda y: y.diagonal(),
        "as_strided": lambda y: y.as_strided((1,), (1,)),
        "unfold": lambda y: y.unfold(0, 1, 2)[0],
    }
    asked, ask = [], infer._infer

    def spy(*given: Any) -> Any:
        asked.append(_get_current_dispatch_mode())
        return ask(*given)

    monkeypatch.setattr(infer, "_infer", spy)
    monkeypatch.setattr(infer, "_answers", {})
    x = torch.randn(3, 1, requires_grad=True)
    smelt.compile(lambda x: views[name](x.sigmoid()))(x).sum().backward()
    assert asked and not any(asked)
