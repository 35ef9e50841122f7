"""What reaches a library's kernel of attention begins with words, and its rows do, wherever tensors lie."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from smelt.abi.kernels import KERNELS
from smelt.runtime.launch import data_ptr
from smelt.runtime.library.attention_memory import in_words
from smelt.runtime.library.externs import extern, spec_of

aten = torch.ops.aten
HALF = torch.bfloat16


def moved(x: torch.Tensor, by: int = 1) -> torch.Tensor:
    """The same values in the same strides, from another element on."""
    size = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + 1
    memory = torch.empty(size + by, dtype=x.dtype)
    memory[by:] = x.as_strided((size,), (1,))
    return memory[by:].as_strided(x.shape, x.stride())


def is_in_words(x: torch.Tensor) -> bool:
    word = 16 // x.dtype.itemsize
    steps = [step for n, step in zip(x.shape[:-1], x.stride()[:-1], strict=True) if n > 1]
    return data_ptr(x) % 16 == 0 and x.stride(-1) == 1 and all(step % word == 0 for step in steps)


LAYOUTS: dict[str, torch.Tensor] = {
    "plain": torch.randn(2, 3, 4, 16),
    "gaps of one": torch.randn(2, 3, 4, 17)[..., :16],
    "packed": torch.randn(2, 4, 3, 3, 16)[:, :, 1].transpose(1, 2),
    "odd heads": torch.randn(2, 3, 65)[:, :, :64].view(2, 3, 4, 16),
    "transposed": torch.randn(2, 3, 16, 4).transpose(2, 3),
    "repeated": torch.randn(1, 1, 4, 19)[..., :16].expand(2, 3, 4, 16),
    "odd rows": torch.randn(2, 3, 4, 13),
    "one row": torch.randn(2, 3, 1, 16),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [HALF, torch.float32])
@pytest.mark.parametrize("by", [0, 1, 2, 4, 8])
def test_kernel_receives_tensors_aligned_to_words(layout: str, dtype: torch.dtype, by: int) -> None:
    x = LAYOUTS[layout]
    x = torch.empty_strided(x.shape, x.stride(), dtype=dtype).copy_(x) if layout != "repeated" else x.to(dtype)
    given: list[Any] = []
    call = in_words(lambda *tensors: given.extend(tensors), [spec_of(x), None, spec_of(x)])
    whole = moved(x, by)
    call(x, None, whole)
    first, none, last = given
    assert none is None and is_in_words(last) and torch.equal(first, x) and torch.equal(last, x)
    if is_in_words(x):
        assert first is x and last.stride() == x.stride() and (last is whole) == (by * dtype.itemsize % 16 == 0)


def test_sums_keep_their_layout() -> None:
    """Those of cuDNN have four dimensions, of which the last is 1."""
    q, sums = torch.randn(1, 2, 5, 8, dtype=HALF), torch.randn(1, 2, 5, 1)
    in_words(lambda *tensors: None if tensors[1] is sums else pytest.fail(), [spec_of(q), spec_of(sums)])(q, sums)


def test_an_operator_of_attention_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(1, 2, 5, 8, dtype=HALF)
    seen: list[torch.Tensor] = []
    monkeypatch.setitem(
        KERNELS, aten._scaled_dot_product_flash_attention.default, lambda *given: seen.extend(given) or q
    )
    kernel = extern("aten._scaled_dot_product_flash_attention.default", {}, [q, q, q], [spec_of(q)])
    kernel.call(q, moved(q), moved(q, 3))
    assert len(seen) == 3 and all(is_in_words(x) and torch.equal(x, q) for x in seen)
