"""Writes of one value to elements that share memory: no order decides what they hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import smelt

WRITES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "zero": lambda v, x: v.zero_(),
    "fill": lambda v, x: v.fill_(3.0),
    "fill with a value": lambda v, x: v.fill_(x[0, 0]),
    "copy of a value": lambda v, x: v.copy_(x[0, 1].expand(v.shape)),
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "unfolded": lambda y: y.unfold(-1, 2, 1),
    "windows": lambda y: y.as_strided((3, 4), (1, 1)),
    "repeated": lambda y: y.as_strided((2, 3, 5), (5, 0, 1)),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", WRITES)
def test_one_value(name: str, view: str, gradients: bool) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.abs().pow(1.5)
        WRITES[name](VIEWS[view](y), x)
        return y.sin()

    found: list[object] = []
    for run in (function, smelt.compile(function, fullgraph=True)):
        x = torch.linspace(-1, 1, 20).view(4, 5).requires_grad_(gradients)
        try:
            y = run(x)
            if gradients:
                (y * torch.arange(20.0).view(4, 5)).sum().backward()
            found.append((y.detach(), x.grad))
        except RuntimeError as error:
            found.append(type(error))
        if found[0] is RuntimeError:
            pytest.skip("eager refuses it")
    torch.testing.assert_close(found[1], found[0])


def test_other_values_end_the_graph() -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        y.unfold(-1, 2, 1).copy_(x[:, :4, None].expand(4, 4, 2) + x[:, 1:, None])
        return y

    with pytest.raises(smelt.Unsupported, match="elements that share memory"):
        smelt.compile(function, fullgraph=True)(torch.linspace(-1, 1, 20).view(4, 5))
