"""Results of operators that keep the gaps of their operand (`select_scatter`): they lie in memory with these gaps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

LAYOUTS: dict[str, Callable[[Any, int, int], torch.Tensor]] = {
    "gaps": lambda make, a, b: make(a, b + 2)[:, :b],
    "steps": lambda make, a, b: make(2 * a, 2 * b)[::2, ::2],
    "transposed with gaps": lambda make, a, b: make(b, a + 3)[:, :a].t(),
    "offset": lambda make, a, b: make(a + 3, b + 5)[2 : 2 + a, 3 : 3 + b],
    "expanded": lambda make, a, b: make(a, 1).expand(a, b),
    "rows": lambda make, a, b: make(a, b),
}

WRITES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "select": lambda x: torch.select_scatter(x, x[:, 0].flip(0), 1, -1),
    "slice": lambda x: torch.slice_scatter(x, x[:, :2].flip(0), 1, 0, 2),
    "all of it": lambda x: torch.slice_scatter(x, x.flip(1), 1),
    "nothing": lambda x: torch.slice_scatter(x, x[:, :0], 1, 0, 0),
    "diagonal": lambda x: torch.diagonal_scatter(x, x.diagonal().flip(0)),
    "as strided": lambda x: torch.as_strided_scatter(
        x, x[:2, :2].flip(0), x[:2, :2].shape, x.stride(), x.storage_offset()
    ),
}


def values(dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    return lambda *shape: (torch.arange(torch.Size(shape).numel()).reshape(shape) % 7 - 2).to(dtype)


def check(got: Any, want: Any) -> None:
    for ours, theirs in zip(got, want, strict=True):
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout(compiled: Callable[..., Any], write: str, layout: str) -> None:
    for shape in ((4, 6), (5, 3), (1, 6), (4, 1), (0, 6), (4, 0)):
        if 0 in shape and write in ("select", "as strided"):
            continue
        torch.manual_seed(0)
        x = LAYOUTS[layout](values(torch.float32), *shape)
        if write == "as strided" and layout == "expanded":
            continue  # eager writes elements that share their memory
        smelt.reset()
        check([compiled(WRITES[write])(x)], [WRITES[write](x)])


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
def test_dtypes(compiled: Callable[..., Any], dtype: torch.dtype) -> None:
    for layout in ("gaps", "transposed with gaps"):
        x = LAYOUTS[layout](values(dtype), 4, 6)
        smelt.reset()
        check([compiled(WRITES["select"])(x)], [WRITES["select"](x)])


@pytest.mark.parametrize("layout", ["gaps", "steps", "transposed with gaps", "offset"])
def test_every_size(compiled: Callable[..., Any], layout: str) -> None:
    """Strides with gaps are numbers; that sizes fit between them is asked once, and checked by each call."""
    write = compiled(WRITES["select"], dynamic=True)
    for shape in ((4, 6), (4, 5), (3, 6), (9, 4)):
        x = LAYOUTS[layout](values(torch.float32), *shape)
        check([write(x)], [WRITES["select"](x)])
    windows = torch.arange(20.0).as_strided((3, 8), (4, 1))  # the same strides may be those of windows that overlap
    fits = torch.arange(20.0).as_strided((3, 4), (4, 1))
    apart = torch.arange(20.0).as_strided((3, 3), (4, 1))
    write = compiled(lambda x: torch.slice_scatter(x, x[:, :0], 1, 0, 0), dynamic=True)
    for x in (apart, fits, windows):
        assert torch.equal(write(x), x)


def test_results_with_references_seen_through_views(compiled: Callable[..., Any]) -> None:
    def several(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        whole = torch.select_scatter(x, x[:, 0] * 2, 1, 1)
        return whole, whole[1:], whole.t(), whole.flip(0), torch.slice_scatter(whole, x[:1], 0, 1, 2)

    run = compiled(several)
    given = [LAYOUTS["gaps"](values(torch.float32), 4, 6) + k for k in range(4)]
    given = [torch.as_strided(torch.zeros(40), (4, 6), (9, 1)).copy_(x) for x in given]
    held = [run(x) for x in given]
    for x, got in zip(given, held, strict=True):
        check(got, several(x))
        whole, rows, turned = got[:3]
        whole.fill_(7.0)
        assert rows.eq(7).all() and turned.eq(7).all() and not got[3].eq(7).all() and not got[4].eq(7).all()
        assert whole.untyped_storage().nbytes() >= (3 * 9 + 6) * 4
    memory = [one.untyped_storage().data_ptr() for got in held for one in (got[0], got[3], got[4])]
    assert len({*memory}) == len(memory)


def test_gradients(compiled: Callable[..., Any]) -> None:
    """What the backward reads is no result with gaps; a gradient that comes for one may have any strides."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = torch.select_scatter(x * 1, y, 1, 1)
        kept = torch.select_scatter(x, y, 1, 1)
        return kept, (kept * kept).exp() + whole.sin()

    base, source = torch.randn(4, 9), torch.randn(4)
    found = []
    for run in (program, compiled(program)):
        x = base[:, :6].detach().requires_grad_()
        y = source.clone().requires_grad_()
        results = run(x, y)
        incoming = [torch.arange(24.0).reshape(6, 4).t(), torch.arange(40.0).as_strided((4, 6), (8, 1))]
        found.append((results, torch.autograd.grad(results, (x, y), incoming)))
    (want, want_grads), (got, got_grads) = found
    for ours, theirs in zip([*got, *got_grads], [*want, *want_grads], strict=True):
        torch.testing.assert_close(ours, theirs)
    assert got[0].stride() == want[0].stride() == (9, 1)


def test_values_inside_and_written_inputs_have_no_gaps(compiled: Callable[..., Any]) -> None:
    """Only what the caller gets of the operator itself: what is computed of it, and new values of inputs, are dense."""

    def program(x: torch.Tensor) -> torch.Tensor:
        x[:, 1] = x[:, 0]
        return torch.select_scatter(x, x[:, 2], 1, 0) + 1

    run = compiled(program)
    for _ in range(3):
        base = torch.arange(36.0).reshape(4, 9)
        other = base.clone()
        check([run(base[:, :6])], [program(other[:, :6])])
        assert torch.equal(base, other)


def test_memory_that_a_program_makes_with_gaps(compiled: Callable[..., Any]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        made = torch.empty_strided((4, 6), (10, 1))
        made.copy_(x)
        made[:, 2] = 0
        return made

    for x in (torch.randn(4, 6), torch.randn(6, 4).t()):
        check([compiled(program)(x)], [program(x)])


def test_after_a_break(compiled: Callable[..., Any]) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = torch.select_scatter(x, x[:, 0] + 1, 1, 1)
        smelt.graph_break()
        second = torch.diagonal_scatter(first, first.diagonal() * 2)
        return first, second, second.contiguous()

    for layout, shape in itertools.product(("gaps", "steps"), ((4, 6), (2, 3))):
        x = LAYOUTS[layout](values(torch.float32), *shape)
        check(compiled(program)(x), program(x))


@pytest.mark.parametrize("dynamic", [False, True])
def test_windows_share_what_is_written(dynamic: bool) -> None:
    """Eager writes into a copy with the strides of the windows: one element shows in several. Where a stride is 0 it
    takes a dense copy."""

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        windows = x.unfold(0, 3, 1)
        return (
            torch.select_scatter(windows, y, 1, 0) * 2,
            torch.slice_scatter(windows, windows[1:3] + 7, 0, 0, 2),
            torch.diagonal_scatter(windows, y[:3]),
            torch.select_scatter(x[:5].expand(4, 5), y[:4], 1, 0),
        )

    run = smelt.compile(program, dynamic=dynamic)
    for n in (7, 9, 8):
        given = [torch.arange(float(k)).requires_grad_() for k in (n, n - 2)]
        want, got = program(*given), run(*given)
        for a, b in zip(got, want, strict=True):
            assert a.stride() == b.stride() and torch.equal(a, b)
        grads = [torch.autograd.grad(sum(t.square().sum() for t in r[:1] + r[3:]), given) for r in (want, got)]
        torch.testing.assert_close(grads[1], grads[0])
