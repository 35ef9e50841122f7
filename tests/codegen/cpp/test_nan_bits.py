"""What moves numbers of 16 bits keeps the bits of NaN, as in eager: a view as integers shows them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import smelt

T = torch.Tensor
MOVES: dict[str, Callable[[T, T], T]] = {
    "masked_fill": lambda x, m: x.masked_fill(m, 0.5),
    "where": lambda x, m: torch.where(m, x, x.flip(0)),
    "cat": lambda x, m: torch.cat([x, x.t()]),
    "index": lambda x, m: x[:, [1, 0]],
    "flip and a copy": lambda x, m: x.flip(0).contiguous(),
    "pad": lambda x, m: torch.nn.functional.pad(x, (1, 1), value=2.0),
    "a written part": lambda x, m: x.clone().index_fill_(0, torch.tensor([1]), 3.0),
    "roll": lambda x, m: x.roll(1, 0),
}
BITS = {
    torch.float16: [[0x7E01, 0x7D01, 0x7C00], [-0x1FF, 0x3C00, 0x7FFF], [1, -0x3FF, -0x8000]],
    torch.bfloat16: [[0x7FC1, 0x7F81, 0x7F80], [-0x3F, 0x3C00, 0x7FFF], [1, -0x7F, -0x8000]],
}


@pytest.mark.parametrize("dtype", BITS, ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_moved_bits_are_kept(name: str, dtype: torch.dtype) -> None:
    def program(bits: T, mask: T) -> T:
        return MOVES[name](bits.view(dtype), mask).contiguous().view(torch.int16)

    bits = torch.tensor(BITS[dtype], dtype=torch.int16)
    mask = torch.eye(3, dtype=torch.bool)
    compiled = smelt.compile(program)
    assert compiled(bits, mask).tolist() == program(bits, mask).tolist()
    wide, masks = bits.repeat(50, 1), mask.repeat(50, 1)  # vectors
    if name != "cat":
        assert compiled(wide, masks).tolist() == program(wide, masks).tolist()


def test_float32_whose_bits_do_not_fit_stays_nan() -> None:
    bits = torch.tensor([0x7F800001, 0x7FC00000, -0x7FFFFF, 0x7F800000, 0x7FFFFFFF], dtype=torch.int32)
    found = smelt.compile(lambda b: b.view(torch.float32).half())(bits)
    assert found.isnan().tolist() == [True, True, True, False, True]
