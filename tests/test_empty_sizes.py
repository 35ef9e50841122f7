"""Data-dependent sizes, where they are 0: eager's results, and not operator by operator at each call."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt
from smelt import driver, program


def places(x: Tensor, w: Tensor) -> Any:
    found = (x > 0).nonzero()
    return found + 1, x[found[:, 0]].sum(0) * w, found.shape[0] * w, x[found[:, 0]]


def selected(x: Tensor, w: Tensor) -> Any:
    found = torch.masked_select(x, x > 0)
    return found * w[0], found.sum(), found.mean(), torch.cat([found, w]), found.cumsum(0)


def rows(x: Tensor, w: Tensor) -> Any:
    found = x[x[:, 0] > 0]
    return torch.relu(found @ x.t()).softmax(-1), found.t() @ found, found.softmax(0), F.layer_norm(found, (8,), w)


def columns(x: Tensor, w: Tensor) -> Any:
    found = x[:, x[0] > 0]
    return found * 2, found @ found.t() + 1, found.t() + 1, found.sum(1), F.pad(found, (1, 2))


def distinct(x: Tensor, w: Tensor) -> Any:
    values, inverse, counts = x.detach()[x[:, 0] > 0].round().unique(return_inverse=True, return_counts=True)
    return values * 2, inverse + 1, counts.sum() * w, x * w


def several(x: Tensor, w: Tensor) -> Any:
    a, b, c = x[x > 0], x[x < -0.5], x[x[:, 0] > 0]
    return a * 2, b.exp().sum() * a.sum(), c @ w, torch.cat([a, b]) + 1, c.reshape(-1) * 3


def written(x: Tensor, w: Tensor) -> Any:
    y, mask = x * 1, x > 0
    y[mask] = x[mask] * 3 + 1
    y[:, 0].index_add_(0, (x[:, 0] > 0).nonzero()[:, 0], x[x[:, 0] > 0].sum(1).to(x.dtype))
    return y, y[mask]


def input_written(x: Tensor, w: Tensor) -> Any:
    y = x + w
    x.detach().mul_(2)
    return y[y[:, 0] > 0].sin(), y.sum()


def in_place(x: Tensor, w: Tensor) -> Any:
    found = x[x[:, 0] > 0]
    found.mul_(2)
    found[:, 1:] += 1
    return found, found.view(-1, 4), found.unsqueeze(1).expand(-1, 3, 8) + 1


def attended(x: Tensor, w: Tensor) -> Any:
    found = x[x[:, 0] > 0].view(1, -1, 2, 4).transpose(1, 2)
    keys = x.view(1, -1, 2, 4).transpose(1, 2)
    return F.scaled_dot_product_attention(found, keys, keys), found.amax(-1), found.argmax(-1)


def images(x: Tensor, w: Tensor) -> Any:
    found = x[x[:, 0] > 0].view(-1, 1, 2, 4)
    return F.conv2d(found, w.view(2, 1, 2, 2), padding=1), F.max_pool2d(found, 2), F.interpolate(found, scale_factor=2)


FUNCTIONS = [places, selected, rows, columns, distinct, several, written, input_written, in_place, attended, images]

KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "some": lambda x: x,
    "none": lambda x: -x.abs() - 1,
    "all": lambda x: x.abs() + 0.1,
    "few": lambda x: -x.abs() * 0.1 - 0.01,
    "first": lambda x: torch.where(torch.arange(len(x))[:, None] == 0, 1.0, -1.0).to(x.dtype).expand_as(x).clone(),
}


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "steps": lambda x: torch.stack([x, x], -1)[..., 0],
    "offset": lambda x: torch.cat([x, x])[3 : 3 + len(x)],
}


def outcome(f: Callable[..., Any], x: Tensor, w: Tensor, grad: bool) -> list[Any]:
    x, w = x.detach().clone(memory_format=torch.preserve_format), w.detach().clone()
    if grad:
        x.requires_grad_(), w.requires_grad_()
    results = list(f(x, w))
    if grad:
        wanted = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
        loss = sum((r.double() ** 2).nan_to_num().sum() for r in wanted)
        results += torch.autograd.grad(loss, [x, w], allow_unused=True, materialize_grads=True)
    return [*results, x.detach()]


def check(have: list[Any], want: list[Any], told: str) -> None:
    for i, (a, b) in enumerate(zip(have, want, strict=True)):
        if not isinstance(b, Tensor):
            assert a == b and type(a) is type(b), (told, i)
            continue
        assert (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad), (told, i)
        if b.numel() and i < len(want) - 3:  # gradients and the input may have others
            steps = [(p, q) for n, p, q in zip(b.shape, a.stride(), b.stride(), strict=True) if n > 1]
            assert all(p == q for p, q in steps), (told, i, b.shape, steps)
        torch.testing.assert_close(a, b, equal_nan=True, rtol=2e-2 if b.dtype is torch.bfloat16 else 1e-4, atol=1e-3)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_empty_and_not_by_turns(f: Callable[..., Any], grad: bool, dynamic: bool) -> None:
    compiled = smelt.compile(f, dynamic=dynamic)
    x, w = torch.randn(40, 8), torch.randn(8)
    held: list[tuple[list[Any], list[Any], str]] = []
    for turn, name in enumerate("some none none first none all few few none some few".split()):
        given = KINDS[name](x)
        held.append((outcome(compiled, given, w, grad), outcome(f, given, w, grad), f"{turn} {name}"))
    for have, want, told in held:
        check(have, want, told)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("f", [places, several, written, in_place, columns], ids=lambda f: f.__name__)
def test_layouts_and_dtypes(f: Callable[..., Any], layout: str, dtype: torch.dtype) -> None:
    compiled = smelt.compile(f)
    x, w = (torch.randn(40, 8) * 4).to(dtype), (torch.randn(8) * 4).to(dtype)
    for turn, name in enumerate(["none", "none", "none", "some", "none"]):
        given = LAYOUTS[layout]((x.abs() + 1) * (-1 if name == "none" else 1))
        check(outcome(compiled, given, w, False), outcome(f, given, w, False), f"{turn} {name}")


@pytest.fixture
def by_operators(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each call that runs operator by operator."""
    calls: list[int] = []
    make = driver.eager_program

    def counted(graph: Any) -> Any:
        run = make(graph)

        def call(inputs: list[Any]) -> list[Any]:
            calls.append(1)
            return run(inputs)

        return call

    monkeypatch.setattr(driver, "eager_program", counted)
    return calls


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("f", [places, rows, columns, several, written, in_place], ids=lambda f: f.__name__)
def test_a_set_of_empty_sizes_is_compiled_once(f: Callable[..., Any], grad: bool, by_operators: list[int]) -> None:
    compiled = smelt.compile(f)
    x, w = torch.randn(40, 8), torch.randn(8)
    outcome(compiled, x, w, grad)
    for _ in range(2):
        outcome(compiled, KINDS["none"](x), w, grad)
    seen, built = len(by_operators), smelt.stats()["stage_s"]["loops"]
    for _ in range(3):
        outcome(compiled, KINDS["none"](x), w, grad)
        outcome(compiled, x, w, grad)
    assert seen and len(by_operators) == seen
    assert smelt.stats()["stage_s"]["loops"] == built


def parts(x: Tensor, limits: Tensor) -> list[Tensor]:
    found = [x[x > limits[i]] for i in range(3)]
    return [torch.cat([a, b]) * 2 for a, b in itertools.pairwise(found)]


def test_sets_without_end_are_not_compiled(by_operators: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As many sets of sizes as a program keeps are compiled, and all give what eager does."""
    monkeypatch.setattr(program, "MAX_EMPTIED", 3)
    compiled = smelt.compile(parts)
    x = torch.randn(300)
    for turn in range(4):
        before = len(by_operators)
        for hits in itertools.product([0.0, 9.0], repeat=3):
            for have, want in zip(compiled(x, torch.tensor(hits)), parts(x, torch.tensor(hits)), strict=True):
                assert torch.equal(have, want)
        assert len(by_operators) - before == (4 if turn else 7)


@pytest.mark.parametrize("f", [rows, several, in_place], ids=lambda f: f.__name__)
def test_triton(f: Callable[..., Any]) -> None:
    compiled = smelt.compile(f, options={"target": "triton"})
    x, w = torch.randn(40, 8), torch.randn(8)
    for turn, name in enumerate("some none none first none all few few none some few".split()):
        given = KINDS[name](x)
        check(outcome(compiled, given, w, True), outcome(f, given, w, True), f"{turn} {name}")
