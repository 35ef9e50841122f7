"""Signs of numbers of 16 bits, which a GPU changes two at a time: ptxas 12.8 forgets one where the halves part."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import smelt

pytest.importorskip("triton")
pytestmark = pytest.mark.gpu


def _scaled_but_the_first(x: Tensor) -> Tensor:
    y = x / 3
    y.view(-1)[1:].mul_(2)
    return y


PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "all but the first": lambda x: (-_scaled_but_the_first(x).abs()).exp(),
    "all but the last": lambda x: torch.cat([-(x.flatten()[:-1].abs()).exp() * 2, x.flatten()[-1:]]),
    "a column": lambda x: (-(x.where(torch.arange(x.shape[1], device=x.device) > 0, x * 2)).abs()).exp(),
    "turned": lambda x: -(x * x.flip(1)).abs() * x.roll(1, 0),
    "every second": lambda x: -(x[:, ::2].abs() * 2) * x[:, 1::2],
    "all": lambda x: (-x.abs()).exp() * -x,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    function, f = PROGRAMS[name], smelt.compile(PROGRAMS[name])
    for shape in ((16, 16), (2, 4), (31, 6), (128, 130)):
        x = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
        got, want = f(x), function(x)
        tangent = torch.randn_like(want)
        (mine,), (theirs,) = (torch.autograd.grad(y, x, tangent) for y in (got, want))
        close = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(got, want, rtol=close, atol=close)
        torch.testing.assert_close(mine, theirs, rtol=close, atol=4 * close)
