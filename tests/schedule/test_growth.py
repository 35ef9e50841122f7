"""The text of kernels grows with the number of operators, and not with the number of ways between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.codegen.cpp import host as cpp_host


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lines of each kernel that is rendered."""
    found: list[int] = []
    render = cpp_host.render_kernel

    def counted(*args: Any) -> Any:
        kernel = render(*args)
        found.append(len(kernel.lines))
        return kernel

    monkeypatch.setattr(cpp_host, "render_kernel", counted)
    return found


def recurrence(y: torch.Tensor) -> torch.Tensor:
    z = y * 1
    for i in range(1, len(y)):
        z[i] += z[i - 1]
    return z


def gradient(y: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(recurrence(y).square().sum(), y)[0]


def neighbours(y: torch.Tensor) -> torch.Tensor:
    z = y * 1
    for i in range(1, len(y) - 1):
        z[i] = (z[i - 1] + z[i] + z[i + 1]) * 0.3
    return z


def rolls(y: torch.Tensor) -> torch.Tensor:
    x = y
    for _ in range(len(y)):
        x = (x + x.roll(1, -1) + x.roll(1, 0)) * 0.3
    return x


def gradient_of_rolls(y: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(rolls(y).square().sum(), y)[0]


@pytest.mark.parametrize("function", [recurrence, gradient, neighbours, rolls, gradient_of_rolls])
def test_writes_and_reads_of_rows_one_after_the_other(function: Callable[..., Any], lines: list[int]) -> None:
    """Eight rows took half a minute in the C++ compiler, of whose 19,000 lines each row doubled the number."""
    most = []
    for rows in (8, 24):
        lines.clear()
        y = torch.rand(rows, 5, dtype=torch.float64, requires_grad=True)
        torch.testing.assert_close(smelt.compile(function)(y), function(y))
        most.append(sum(lines))
    assert most[0] < 2000
    assert most[1] < 8 * most[0]


# -- many parts


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_many_slices_are_concatenated_by_a_library(dtype: torch.dtype, dim: int, lines: list[int]) -> None:
    """A loop over the result would look for each element's part among all: 1,000 took 27 times as long as in eager."""
    parts = [torch.randint(0, 2, (2, 3 if dim else 1 + i % 3, 2)).to(dtype).movedim(0, dim) for i in range(100)]
    function = lambda *x: torch.cat(x, dim) if dim else torch.cat([y.flatten() for y in x])  # noqa: E731
    torch.testing.assert_close(smelt.compile(function)(*parts), function(*parts))
    assert not lines


def test_many_computed_operands_and_their_gradients() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        found = torch.cat([(x * i)[: i % 4] for i in range(100)])
        stacked = torch.stack([x.roll(i) for i in range(100)])
        return found, stacked, torch.autograd.grad(found.square().sum() + stacked.sin().sum(), x)[0]

    x = torch.rand(5, 3, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(smelt.compile(function)(x), function(x))


def test_many_images_with_channels_last_keep_their_layout() -> None:
    parts = [torch.rand(1, 3, 4, 2).contiguous(memory_format=torch.channels_last) for _ in range(70)]
    function = lambda *x: torch.cat(x)  # noqa: E731
    got, want = smelt.compile(function)(*parts), function(*parts)
    torch.testing.assert_close(got, want)
    assert got.stride() == want.stride()


@pytest.mark.parametrize("count", [65, 400])
def test_many_outputs_inputs_and_writes(count: int) -> None:
    def function(x: torch.Tensor, *more: torch.Tensor) -> list[torch.Tensor]:
        rows = torch.zeros(count, 3)
        for i in range(count):
            rows[i] = x * i
        return [rows, *(y.sin() * 2 + 1 for y in more), *(x + i for i in range(count))]

    given = (torch.rand(3), *(torch.rand(2 + i % 3) for i in range(count)))
    torch.testing.assert_close(smelt.compile(function)(*given), function(*given))


# -- many writes to parts of one value

Write = Callable[[torch.Tensor, torch.Tensor, int], None]
WRITES: dict[str, Write] = {
    "rows": lambda z, x, i: z.__setitem__(i, x[0] * i),
    "columns": lambda z, x, i: z.__setitem__((slice(None), i), x[:, 0] + i),
    "steps": lambda z, x, i: z.__setitem__((slice(i % 3, None, 2), slice(i % 5, None, 7)), x[0, 0] * i),
    "blocks": lambda z, x, i: z[i : i + 2, 3:7].copy_(x[:2, :4] * i),
    "one element": lambda z, x, i: z[i, i].fill_(x[1, 1] + i),
    "nothing": lambda z, x, i: z[i:i, 1:].copy_(x[:0, 1:]) if i % 2 else z[i].add_(x[1]),
    "added": lambda z, x, i: z[:, i].mul_(2),
    "reads between": lambda z, x, i: z.__setitem__(i, z.sum(0) * 0.01 if i % 50 == 7 else x[1] - i),
}


STARTS = [("computed", torch.float64), ("argument", torch.int32), ("columns", torch.bfloat16), ("result", torch.bool)]


@pytest.mark.parametrize(
    ("name", "start", "dtype"),
    [(name, *STARTS[(number + turn) % 4]) for number, name in enumerate(WRITES) for turn in (0, 1)],
)
def test_many_writes_to_slices(name: str, start: str, dtype: torch.dtype) -> None:
    if name in ("added", "nothing", "reads between") and dtype is torch.bool:
        pytest.skip("bools are not added")

    def function(z: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        first = z * 1
        z = {"computed": first, "columns": (z * 1).t().contiguous().t()}.get(start, z)
        for i in range(66):
            WRITES[name](z, x, i)
        return [z, *([first] if start == "result" else []), z[3] == x[0]]

    def fresh() -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(2)
        z = torch.randint(0, 3, (70, 70)).to(dtype)
        return (z.t() if start == "argument" else z), torch.randint(0, 3, (70, 70)).to(dtype)

    run = smelt.compile(function)
    held: list[Any] = []
    for _ in range(2):
        given, same = fresh(), fresh()
        held.append((run(*given), function(*same), given, same))
    for got, want, given, same in held:
        torch.testing.assert_close((got, given), (want, same))


PARTS = [
    (slice(2, 5), slice(1, 3)), (3, 4), (slice(1, None, 3), slice(0, 6, 2)), (0, slice(2, 2)), (slice(4, 4), 1),
    (slice(0, 1), slice(None)), (-1, slice(-3, None)), (..., slice(6, None)),
]  # fmt: skip


@pytest.mark.parametrize("dims", [2, 3])
def test_writes_to_slices_of_slices(dims: int, lines: list[int]) -> None:
    """Each write was computed for all sets of conditions of the later ones: nine took 2,456 lines, twelve a minute."""

    def function(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        z = z * 1
        for i, part in enumerate(PARTS * 4):
            at = (*part[:1], slice(0, 1), *part[1:]) if dims == 3 and part[0] is not ... else part
            z[at] = z[at] * 0.5 + x[0, 0] * i
            z[1:6][1:3].narrow(dims - 1, 1, 3)[..., ::2].copy_(x[:2, :2].unsqueeze(1) if dims == 3 else x[:2, :2])
        return z

    shape = (8, 8) if dims == 2 else (8, 3, 8)
    z, x = torch.rand(*shape, dtype=torch.float64), torch.rand(8, 8, dtype=torch.float64)
    torch.testing.assert_close(smelt.compile(function)(z, x), function(z, x))
    assert max(lines) < 1500


@pytest.mark.parametrize("count", [3, 12, 40])
def test_values_that_are_used_under_many_conditions_alone(count: int, lines: list[int]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for i in range(count):
            one, two = torch.zeros_like(x), torch.zeros_like(x)
            one[i % 5 :], two[:, i % 7 :] = x[i % 5 :] + 1, x[:, i % 7 :] * 0.5
            x = one + two
        return x

    x = torch.rand(9, 9, dtype=torch.float64)
    torch.testing.assert_close(smelt.compile(function)(x), function(x))
    assert max(lines) < 100 * count


def test_gradients_of_many_writes_and_sizes() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        z = torch.zeros(100, x.shape[0], dtype=x.dtype)
        for i in range(100):
            z[i] = x * i
        return (z * z.cos()).sum()

    run = smelt.compile(function, dynamic=True)
    for size in (3, 5, 1):
        x, y = (torch.linspace(0.1, 1, size, dtype=torch.float64, requires_grad=True) for _ in range(2))
        run(x).backward()
        function(y).backward()
        torch.testing.assert_close(x.grad, y.grad)


def test_no_element_looks_for_its_write_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand rows took 14 times as long as in eager at each call."""
    found: list[str] = []
    render = cpp_host.render_kernel

    def kept(*args: Any) -> Any:
        kernel = render(*args)
        found.extend(kernel.lines)
        return kernel

    def function(x: torch.Tensor) -> torch.Tensor:
        z = torch.zeros(100, 3)
        for i in range(100):
            z[i] = x * i
        return z

    monkeypatch.setattr(cpp_host, "render_kernel", kept)
    x = torch.rand(3)
    torch.testing.assert_close(smelt.compile(function)(x), function(x))
    assert not any(" ? " in line for line in found)
