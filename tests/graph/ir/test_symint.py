"""Symbolic sizes inside PyTorch: what C++ asks a node about itself."""

from __future__ import annotations

import sys

import pytest

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
