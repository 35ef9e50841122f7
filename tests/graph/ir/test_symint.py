"""Symbolic sizes inside PyTorch: what C++ asks a node about itself."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch

import smelt
from smelt.graph.ir.symint import SizeNode


@pytest.mark.parametrize("kind", [int, float, bool])
def test_the_kind_of_a_node_is_read_without_python_code(kind: type) -> None:
    """An interrupt that came into it would leave C++ in the middle of a value: `torch.arange(n)` ended processes so."""
    node, entered = SizeNode(kind(1), kind), []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        told = node.is_int(), node.is_float(), node.is_bool()
    finally:
        sys.setprofile(None)
    assert told == (kind is int, kind is float, kind is bool)
    assert not entered


def test_texts_of_messages_that_are_never_shown_leave_sizes_symbolic() -> None:
    """`torch.rms_norm` writes the text of its error before it checks its arguments."""
    run = smelt.compile(lambda x, w: torch.rms_norm(x, w.shape, w, 1e-6), dynamic=True, fullgraph=True)
    graphs = smelt.stats()["graphs"]
    for rows, columns in ((3, 4), (5, 9), (2, 7)):
        x, weight = torch.randn(rows, columns, 8, requires_grad=True), torch.randn(8, requires_grad=True)
        torch.testing.assert_close(run(x, weight), torch.rms_norm(x, (8,), weight, 1e-6))
    assert smelt.stats()["graphs"] == graphs + 1


def _refused(x: torch.Tensor) -> str | None:
    try:
        torch.rms_norm(x, (7,))
    except RuntimeError as error:
        return str(error)


def _resized(x: torch.Tensor) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.add(x, 1, out=torch.empty(2, device=x.device))
    return [str(each.message).splitlines()[0] for each in caught]


@pytest.mark.parametrize("message", [_refused, _resized])
@pytest.mark.parametrize("dynamic", [True, None])
def test_texts_of_messages_that_are_shown_have_the_sizes_of_the_call(message, dynamic) -> None:
    run = smelt.compile(message, dynamic=dynamic)
    for rows in (3, 4, 5):
        x = torch.ones(rows, rows + 4, 8)
        assert run(x) == message(x)
