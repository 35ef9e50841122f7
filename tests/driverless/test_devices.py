"""Tensors of two devices in one operator, and dtypes without a kernel on a GPU: refused where eager refuses them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt
from tests.driverless.conftest import ACTIVE

GPU = "cuda" if ACTIVE in os.environ else "cpu"  # collected everywhere, run where there is a CUDA runtime
ON_GPU, ON_CPU = torch.zeros(3, 4, device=GPU), torch.zeros(3, 4)
NUMBER_ON_GPU, NUMBER = torch.zeros((), device=GPU), torch.zeros(())
PLACES_ON_GPU, PLACES = torch.zeros(3, dtype=torch.long, device=GPU), torch.zeros(3, dtype=torch.long)

Case = Callable[[Any, Any, Any, Any, Any, Any], Any]
CASES: dict[str, Case] = {
    "add": lambda g, c, g0, c0, ig, ic: g + c,
    "add a number": lambda g, c, g0, c0, ig, ic: g + c0,
    "add a GPU's number": lambda g, c, g0, c0, ig, ic: c + g0,
    "add arange": lambda g, c, g0, c0, ig, ic: g + torch.arange(4),
    "add numbers": lambda g, c, g0, c0, ig, ic: g0 + c0,
    "add_": lambda g, c, g0, c0, ig, ic: (g * 1).add_(c),
    "where": lambda g, c, g0, c0, ig, ic: torch.where(c > 0, g, g),
    "where number": lambda g, c, g0, c0, ig, ic: torch.where(g > 0, g, c0),
    "where of a number": lambda g, c, g0, c0, ig, ic: torch.where(c0 > 0, g, g),
    "index": lambda g, c, g0, c0, ig, ic: g[ic],
    "index by a GPU's": lambda g, c, g0, c0, ig, ic: c[ig],
    "index_put": lambda g, c, g0, c0, ig, ic: g.index_put((ic,), c),
    "index_put a number": lambda g, c, g0, c0, ig, ic: g.index_put((ic,), c0),
    "index_add": lambda g, c, g0, c0, ig, ic: g.index_add(0, ic, g),
    "index_select by a number": lambda g, c, g0, c0, ig, ic: g.index_select(0, c0.long()),
    "index_fill": lambda g, c, g0, c0, ig, ic: g.index_fill(0, ig, c0),
    "masked_fill": lambda g, c, g0, c0, ig, ic: g.masked_fill(c > 0, 1),
    "masked_fill a number": lambda g, c, g0, c0, ig, ic: g.masked_fill(g > 0, c0),
    "masked_fill by a number": lambda g, c, g0, c0, ig, ic: g.masked_fill(c0 > 0, 1.0),
    "masked_select": lambda g, c, g0, c0, ig, ic: g.masked_select(c > 0),
    "cat": lambda g, c, g0, c0, ig, ic: torch.cat([g, c]),
    "cat nothing": lambda g, c, g0, c0, ig, ic: torch.cat([g, torch.zeros(0)]),
    "stack": lambda g, c, g0, c0, ig, ic: torch.stack([g0, c0]),
    "mm": lambda g, c, g0, c0, ig, ic: g @ c.t(),
    "addmm": lambda g, c, g0, c0, ig, ic: torch.addmm(c0, g, g.t()),
    "linear": lambda g, c, g0, c0, ig, ic: F.linear(g, c),
    "embedding": lambda g, c, g0, c0, ig, ic: F.embedding(ic, g),
    "gather": lambda g, c, g0, c0, ig, ic: g.gather(0, ic[:, None]),
    "take_along_dim": lambda g, c, g0, c0, ig, ic: torch.take_along_dim(g, ic[:, None], 0),
    "cross_entropy": lambda g, c, g0, c0, ig, ic: F.cross_entropy(g, ic),
    "cross_entropy weights": lambda g, c, g0, c0, ig, ic: F.cross_entropy(g, ig, weight=torch.ones(4)),
    "layer_norm": lambda g, c, g0, c0, ig, ic: F.layer_norm(g, (4,), torch.ones(4)),
    "batch_norm": lambda g, c, g0, c0, ig, ic: F.batch_norm(g, c[0], c[1]),
    "clamp": lambda g, c, g0, c0, ig, ic: torch.clamp(g, c0, c0),
    "lerp": lambda g, c, g0, c0, ig, ic: torch.lerp(g, g, c0),
    "addcmul": lambda g, c, g0, c0, ig, ic: torch.addcmul(g, g, c0),
    "addcmul, first": lambda g, c, g0, c0, ig, ic: torch.addcmul(g, c0, g),
    "addcdiv": lambda g, c, g0, c0, ig, ic: torch.addcdiv(g, c0, g),
    "foreach": lambda g, c, g0, c0, ig, ic: torch._foreach_add([g], [c]),
    "foreach by a number": lambda g, c, g0, c0, ig, ic: torch._foreach_mul([g], c0),
    "foreach by numbers": lambda g, c, g0, c0, ig, ic: torch._foreach_add([g], [c0]),
    "foreach copy": lambda g, c, g0, c0, ig, ic: torch._foreach_copy_([g * 1], [c]),
    "copy_": lambda g, c, g0, c0, ig, ic: (g * 1).copy_(c),
    "to": lambda g, c, g0, c0, ig, ic: g + c.to(g.device),
    "fill_": lambda g, c, g0, c0, ig, ic: (g * 1).fill_(c0),
    "slice_scatter": lambda g, c, g0, c0, ig, ic: g.slice_scatter(c[:1], 0, 0, 1),
    "mse_loss": lambda g, c, g0, c0, ig, ic: F.mse_loss(g, c),
    "dot": lambda g, c, g0, c0, ig, ic: torch.dot(g[0], c[0]),
    "bucketize": lambda g, c, g0, c0, ig, ic: torch.bucketize(g, c[0]),
    "generator": lambda g, c, g0, c0, ig, ic: torch.rand(3, device="cuda", generator=torch.Generator()),
    "nearest of bools": lambda g, c, g0, c0, ig, ic: F.interpolate((g > 0)[None], scale_factor=2),
    "product of whole numbers": lambda g, c, g0, c0, ig, ic: g.long() @ g.long().t(),
    "sum of bools": lambda g, c, g0, c0, ig, ic: (g > 0).cumsum(0),
}


class Kept(Exception):
    """The whole graph was captured."""


def only_capture(gm: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
    def run(*_: Any) -> Any:
        raise Kept

    return run


@pytest.mark.parametrize("name", CASES)
def test_a_mix_of_devices_is_refused_where_eager_refuses_it(name: str) -> None:
    case = CASES[name]
    inputs = (ON_GPU, ON_CPU, NUMBER_ON_GPU, NUMBER, PLACES_ON_GPU, PLACES)

    def run(*inputs: torch.Tensor) -> Any:
        try:
            return case(*inputs)
        except (NotImplementedError, RuntimeError) as error:
            return type(error).__name__

    expected = run(*inputs)
    compiled = smelt.compile(run, backend=only_capture)
    if isinstance(expected, str):
        assert compiled(*inputs) == expected
    else:
        with pytest.raises(Kept):
            compiled(*inputs)


def test_questions_leave_the_generators_as_they_are() -> None:
    before = torch.get_rng_state(), torch.cuda.get_rng_state()
    for name in ("nearest of bools", "product of whole numbers", "masked_fill by a number"):
        test_a_mix_of_devices_is_refused_where_eager_refuses_it(name)
    assert torch.equal(before[0], torch.get_rng_state()) and torch.equal(before[1], torch.cuda.get_rng_state())
