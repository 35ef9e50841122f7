"""C++ that reads a tensor's memory while it is captured gets an error in place of address 0: the graph ends there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import smelt


def lengths_of(cell: type[nn.RNNBase], bidirectional: bool) -> Callable[..., Any]:
    model = cell(3, 4, batch_first=True, bidirectional=bidirectional)

    def run(packed: Any) -> Any:
        return model(packed)[0].data

    return run


@pytest.mark.parametrize("cell", [nn.GRU, nn.LSTM, nn.RNN])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
def test_packed_sequences_of_several_lengths(cell: type[nn.RNNBase], bidirectional: bool, dynamic: bool | None) -> None:
    """C++ reads `batch_sizes` through a constant pointer: with symbolic sizes that was 0, and the process died."""
    run = lengths_of(cell, bidirectional)
    c = smelt.compile(run, dynamic=dynamic)
    for longest in (5, 6, 3, 1):
        packed = pack_padded_sequence(torch.randn(3, longest, 3), torch.tensor([longest, 1, 1]), True)
        torch.testing.assert_close(c(packed), run(packed))


@pytest.mark.parametrize("dynamic", [None, True])
def test_padding_packed_sequences_of_several_lengths(dynamic: bool | None) -> None:
    def pad(data: torch.Tensor, sizes: torch.Tensor) -> Any:
        return torch._VF._pad_packed_sequence(data * 2, sizes, True, 0.0, 0)  # type: ignore[attr-defined]

    c = smelt.compile(pad, dynamic=dynamic)
    for longest in (5, 6, 2):
        packed = pack_padded_sequence(torch.randn(3, longest, 3), torch.tensor([longest, 2, 1]), True)
        for got, right in zip(c(packed.data, packed.batch_sizes), pad(packed.data, packed.batch_sizes), strict=True):
            assert torch.equal(got, right)
