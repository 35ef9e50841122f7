"""Writes to elements that share memory whose order does not matter: of one value, of one for each place, of draws."""

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
    "copy of ones": lambda v, x: v.copy_(torch.ones(v.shape)),
    "copy of a number": lambda v, x: v.copy_(torch.full(v.shape, 2.5)),
    "copy of other zeros": lambda v, x: v.copy_(torch.zeros(v.shape, dtype=torch.float64)),
    "copy of what is computed of ones": lambda v, x: v.copy_(torch.ones(v.shape).mul(3).neg() + torch.ones(())),
    "copy of a literal": lambda v, x: v.copy_(torch.tensor([2.0, 2.0])),
    "copy of new ones": lambda v, x: v.copy_(x.new_ones(v.shape).clone()),
    "copy of alike elements": lambda v, x: v.copy_((x * 3).contiguous().as_strided(v.shape, v.stride())),
    "copy of a row for each": lambda v, x: v.copy_((x * 3).flatten()[2:].as_strided(v.shape, [0] * v.dim())),
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "unfolded": lambda y: y.unfold(-1, 2, 1),
    "windows": lambda y: y.as_strided((3, 4), (1, 1)),
    "repeated": lambda y: y.as_strided((2, 3, 5), (5, 0, 1)),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_one_value(name: str, view: str, gradients: bool, dynamic: bool) -> None:
    def function(x: Tensor) -> Tensor:
        y = x.abs().pow(1.5)
        WRITES[name](VIEWS[view](y), x)
        return y.sin()

    found: list[object] = []
    for run in (function, smelt.compile(function, fullgraph=True, dynamic=dynamic)):
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


DRAWS: dict[str, Callable[[Tensor], object]] = {
    "normal": lambda v: v.normal_(1.0, 2.0),
    "uniform": lambda v: v.uniform_(1, 2),
    "bernoulli": lambda v: v.bernoulli_(0.5),
    "exponential": lambda v: v.exponential_(),
    "random": lambda v: v.random_(1000),
    "initialised": lambda v: torch.nn.init.uniform_(v, -2, -1),
}


@pytest.mark.parametrize("view", ["unfolded", "windows"])
@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_each_element_has_one_draw(name: str, view: str, dynamic: bool) -> None:
    """Also in the backward, which reads it again, and beside elements that no window shows."""

    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x * 2
        v = VIEWS[view](y)
        with torch.no_grad():
            DRAWS[name](v)
        z = (y.detach() * 0.37).cos() * x
        return y, v * 1, z

    x = torch.linspace(-1, 1, 40).view(4, 10).requires_grad_()
    compiled = smelt.compile(function, fullgraph=True, dynamic=dynamic)
    y, v, z = compiled(x)
    assert torch.equal(VIEWS[view](y), v)
    untouched = torch.ones(4, 10, dtype=torch.bool)
    VIEWS[view](untouched).fill_(False)
    assert torch.equal(y[untouched], (x * 2)[untouched])
    drawn = y[~untouched]
    assert len(drawn.unique()) > (1 if name == "bernoulli" else len(drawn) // 2)
    z.sum().backward()
    torch.testing.assert_close((x.grad - (y.detach() * 0.37).cos())[~untouched], torch.zeros(len(drawn)))
    assert not torch.equal(compiled(x)[0], y)


@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_eager(name: str) -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        DRAWS[name](y.unfold(-1, 3, 1))
        return y + torch.rand(3)

    found = []
    for run in (function, smelt.compile(function, fullgraph=True, options={"eager_rng": True})):
        torch.manual_seed(3)
        found.append(run(torch.ones(7, 3)))
    assert torch.equal(*found)


OTHERS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "two values": lambda v, x: v.copy_(x[:, :4, None].expand(4, 4, 2) + x[:, 1:, None]),
    "ones that were written": lambda v, x: v.copy_(torch.ones(4, 4, 2).add_(x[:, :4, None])),
    "ones beside others": lambda v, x: v.copy_(torch.ones(4, 4, 2) + x[:, :4, None]),
    "elements that other windows share": lambda v, x: v.copy_(x.as_strided((4, 4, 2), (4, 1, 2))),
    "its own elements": lambda v, x: v.copy_(v.flip(0)[:, :1]),
    "numbers of probabilities": lambda v, x: v.bernoulli_(torch.rand(4, 4, 2)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_values_end_the_graph(name: str) -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        OTHERS[name](y.unfold(-1, 2, 1), x)
        return y

    with pytest.raises(smelt.Unsupported, match="elements that share memory"):
        smelt.compile(function, fullgraph=True)(torch.linspace(-1, 1, 20).view(4, 5))
