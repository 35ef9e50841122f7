"""`eager_rng`: numbers drawn into an argument are eager's, whatever the layout of its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "rows": lambda: torch.zeros(8, 20),
    "steps": lambda: torch.zeros(8, 40)[:, ::2],
    "gaps": lambda: torch.zeros(8, 41)[:, 3:],
    "every second row": lambda: torch.zeros(16, 20)[::2],
    "columns": lambda: torch.zeros(20, 8).t(),
    "columns with gaps": lambda: torch.zeros(20, 9).t()[1:],
    "offset": lambda: torch.zeros(41)[1:],
    "few": lambda: torch.zeros(30)[::3],
    "none": lambda: torch.zeros(30, 0)[::3],
    "double": lambda: torch.zeros(8, 40, dtype=torch.float64)[:, ::2],
}
DRAWS = ("normal_", "uniform_", "exponential_", "random_", "cauchy_", "log_normal_")


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_draws_into_memory_of_any_layout(layout: str, draw: str) -> None:
    """`normal_` draws other numbers where memory has gaps than where it has none."""

    def inside(x: torch.Tensor) -> Any:
        return getattr(x, draw)() + 1, torch.rand(2)

    results = []
    for run in (inside, smelt.compile(inside, options={"eager_rng": True})):
        torch.manual_seed(3)
        x = LAYOUTS[layout]()
        results.append((run(x), x, run(x)))
    torch.testing.assert_close(*results, rtol=0, atol=0)


INTO: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "uniform_": lambda x: x.uniform_(-1, 2),
    "normal_": lambda x: x.normal_(1, 2),
    "bernoulli_": lambda x: x.bernoulli_(0.3),
    "bernoulli_ of a tensor": lambda x: x.bernoulli_(
        torch.full(x.shape[::-1], 0.3).permute(list(reversed(range(x.ndim))))
    ),
    "exponential_": lambda x: x.exponential_(2.0),
    "geometric_": lambda x: x.geometric_(0.4),
    "cauchy_": lambda x: x.cauchy_(1, 2),
    "log_normal_": lambda x: x.log_normal_(1, 0.5),
    "random_": lambda x: x.random_(3, to=17),
    "trunc_normal_": lambda x: torch.nn.init.trunc_normal_(x),
}
FRESH = LAYOUTS | {
    "images": lambda: torch.zeros(2, 3, 4, 6).contiguous(memory_format=torch.channels_last),
    "one": lambda: torch.zeros(()),
    "shared": lambda: torch.zeros(10).as_strided((4, 6), (1, 1)),
    "broadcast": lambda: torch.zeros(1, 6).expand(4, 6),
}


@pytest.mark.parametrize("draw", INTO)
@pytest.mark.parametrize("layout", FRESH)
def test_draws_into_memory_that_the_program_makes(layout: str, draw: str) -> None:
    """The memory, a copy of an argument (which has no gaps), a view of a part, and twice the same."""
    if (layout, draw) == ("shared", "trunc_normal_") and torch.__version__ < "2.13":
        pytest.skip("it computes in place behind the draw, in elements that share memory in the order of vectors")

    def inside(x: torch.Tensor) -> Any:
        made = x if layout == "broadcast" else INTO[draw](FRESH[layout]())
        copy = INTO[draw](x.clone())
        again = x * 2
        if again.ndim > 1:
            INTO[draw](again[..., 1:3])
        INTO[draw](again)
        INTO[draw](again)
        return made, made + 1, copy * 1, again, torch.rand(2)

    _compare(inside, FRESH[layout])


@pytest.mark.parametrize("draw", INTO)
def test_draws_into_repeated_memory_are_refused(draw: str) -> None:
    def inside(x: torch.Tensor) -> Any:
        return INTO[draw](x)

    for run in (inside, smelt.compile(inside, options={"eager_rng": True})):
        with pytest.raises(RuntimeError, match="more than one element"):
            run(FRESH["broadcast"]())


LIKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rand_like": torch.rand_like,
    "rand_like in rows": lambda x: torch.rand_like(x, memory_format=torch.contiguous_format),
    "randn_like": lambda x: torch.randn_like(x * 2 + 1),
    "randn_like of a part": lambda x: torch.randn_like((x + 1)[..., :3]),
    "randint_like": lambda x: torch.randint_like(x, 3, 17),
    "bernoulli": lambda x: torch.bernoulli(x * 0 + 0.4),
    "bernoulli of a number": lambda x: torch.bernoulli(x + 1, 0.3),
    "dropout": lambda x: torch.nn.functional.dropout(x + 1, 0.4),
    "alpha_dropout": lambda x: torch.nn.functional.alpha_dropout(x + 1, 0.4, True),
    "normal": lambda x: torch.normal(x + 1, 0.5),
    "poisson": lambda x: torch.poisson(x * 0 + 3),
    "gamma": lambda x: torch._standard_gamma(x * 0 + 2),
    "rrelu": lambda x: torch.nn.functional.rrelu(x - 1, 0.1, 0.4, True),
    "empty_like": lambda x: torch.empty_like(x).normal_(),
}


@pytest.mark.parametrize("draw", LIKE)
@pytest.mark.parametrize("layout", [name for name in FRESH if name not in ("one", "offset", "few", "none")])
def test_draws_like_another_tensor(layout: str, draw: str) -> None:
    """In the order of eager's memory; `poisson`, gamma and `rrelu` give rows, also for columns."""
    _compare(lambda x: (LIKE[draw](x), torch.rand(2)), FRESH[layout])


def test_unused_random_numbers_are_drawn() -> None:
    def inside(x: torch.Tensor) -> Any:
        torch.rand(3)
        torch.randn_like(x)
        torch.zeros(3).uniform_()
        torch.nn.functional.dropout(x, 0.5)
        return x.clone().normal_().exponential_(), torch.rand(2)

    _compare(inside, LAYOUTS["gaps"])


def test_draws_for_every_size() -> None:
    def inside(x: torch.Tensor) -> Any:
        return x.clone().t().normal_(), torch.zeros_like(x)[:, ::2].uniform_(), torch.bernoulli(x + 0.5)

    run = smelt.compile(inside, options={"eager_rng": True}, dynamic=True)
    for size in (5, 7, 8):
        torch.manual_seed(size)
        expected = inside(torch.zeros(size, size + 2))
        torch.manual_seed(size)
        torch.testing.assert_close(run(torch.zeros(size, size + 2)), expected, rtol=0, atol=0)


def _compare(inside: Callable[[torch.Tensor], Any], make: Callable[[], torch.Tensor]) -> None:
    results = []
    for run in (inside, smelt.compile(inside, options={"eager_rng": True})):
        torch.manual_seed(3)
        out = run(make()), run(make())
        strides = [t.stride() for each in out for t in each]
        results.append((out, strides, torch.get_rng_state()))
    assert results[0][1] == results[1][1]
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-6, atol=1e-6)
    assert torch.equal(results[0][2], results[1][2])
