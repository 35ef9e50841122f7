"""What PyTorch's modules compute with nested tensors in eager, they compute so in compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt


def encoder() -> nn.TransformerEncoder:
    torch.manual_seed(0)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()


def masks(batch: int, length: int) -> list[Tensor | None]:
    padding = torch.zeros(batch, length, dtype=torch.bool)
    padding[0, length // 2 :] = True
    return [padding, padding.flip(1), None]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_padding_is_left_out_where_eager_leaves_it_out(mode: Callable[[], Any]) -> None:
    model = encoder()

    def run(x: Tensor, padding: Tensor | None) -> Tensor:
        return model(x * 2, src_key_padding_mask=padding) + 1

    compiled = smelt.compile(run)
    for batch, length in ((2, 6), (3, 9)):
        x = torch.randn(batch, length, 16)
        for padding in masks(batch, length):
            with mode():
                expected = run(x, padding)
                torch.testing.assert_close(compiled(x, padding), expected)


def test_padding_in_training_stays_in_one_graph() -> None:
    model = encoder()
    compiled = smelt.compile(model, fullgraph=True)
    x, padding = torch.randn(2, 6, 16), masks(2, 6)[0]
    torch.testing.assert_close(
        compiled(x, src_key_padding_mask=padding), model(x, src_key_padding_mask=padding), atol=1e-5, rtol=1e-5
    )
    model.requires_grad_(False)
    with pytest.raises(smelt.SmeltError, match="padding mask"):
        smelt.compile(model, fullgraph=True)(x, src_key_padding_mask=padding)


def test_without_the_fast_path_there_is_one_graph() -> None:
    model = encoder()
    x, padding = torch.randn(2, 6, 16), masks(2, 6)[0]
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            found = smelt.compile(model, fullgraph=True)(x, src_key_padding_mask=padding)
            torch.testing.assert_close(found, model(x, src_key_padding_mask=padding), atol=1e-5, rtol=1e-5)
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
