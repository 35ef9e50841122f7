"""Random programs of views, writes and arithmetic, compiled against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.autograd.compare import check, nonleaf

Step = tuple[str, int, int, int]

VIEWS = ("select", "slice", "transpose", "view", "unsqueeze", "expand", "diagonal", "chunk", "flatten", "as_strided")
WRITES = ("mul_", "add_", "copy_", "fill_", "zero_", "assign", "t_", "masked_fill_", "sub_other_")
PURE = ("sin", "mul", "sum", "clone", "detach", "cat", "add_other")


def apply(step: Step, values: list[torch.Tensor], no_grad: bool) -> None:
    """Run one step on a value chosen by number; appends what it makes."""
    name, a, b, c = step
    x = values[a % len(values)]
    other = values[b % len(values)]
    dim = c % max(x.dim(), 1)
    match name:
        case "select":
            values.append(x.select(dim, b % x.shape[dim]) if x.dim() else x.view(1))
        case "slice":
            start = b % x.shape[dim] if x.dim() else 0
            values.append(x.narrow(dim, start, x.shape[dim] - start) if x.dim() else x[None])
        case "transpose":
            values.append(x.transpose(dim, b % max(x.dim(), 1)) if x.dim() else x.expand(2))
        case "view":
            values.append(x.view(-1) if x.is_contiguous() else x.reshape(-1))
        case "flatten":
            values.append(x.flatten())
        case "unsqueeze":
            values.append(x.unsqueeze(dim))
        case "expand":
            values.append(x.unsqueeze(0).expand(2, *x.shape))
        case "diagonal":
            values.append(x.diagonal() if x.dim() == 2 else x.view_as(x))
        case "chunk":
            values.extend(x.chunk(2, dim) if x.dim() else [x])
        case "as_strided":
            values.append(x.as_strided((2,), (1,)) if x.is_contiguous() and x.numel() > 1 else x.view_as(x))
        case "mul_":
            x.mul_(1.0 + b % 3)
        case "add_":
            x.add_(other.sum())
        case "sub_other_":
            x.sub_(other.flatten()[: x.numel()].sum())
        case "copy_":
            x.copy_(other.sum().expand_as(x))
        case "fill_":
            x.fill_(float(b % 5))
        case "zero_":
            x.zero_()
        case "assign":
            if x.dim():
                x[b % x.shape[0]] = other.mean()
        case "t_":
            if x.dim() == 2 and len(values) > 3:
                x.t_()
        case "masked_fill_":
            x.masked_fill_(x > 0.5, 0.25)
        case "sin":
            values.append(x.sin())
        case "mul":
            values.append(x * 2)
        case "sum":
            values.append(x.sum(dim) if x.dim() else x * 1)
        case "clone":
            values.append(x.clone())
        case "detach":
            values.append(x.detach())
        case "cat":
            values.append(torch.cat([x.flatten(), other.flatten()]))
        case "add_other":
            values.append(x + other.sum())


def program(steps: list[Step], outputs: list[int], quiet: frozenset[int]) -> Callable[..., Any]:
    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for i, step in enumerate(steps):
            if i in quiet:
                with torch.no_grad():
                    apply(step, values, True)
            else:
                apply(step, values, False)
        return tuple(values[o % len(values)] for o in outputs)

    return run


def inputs() -> list[torch.Tensor]:
    base = torch.linspace(-1, 1, 12).reshape(3, 4)
    return [base.clone(), nonleaf(base * 0.5), (base + 0.3).requires_grad_()]


numbers = st.integers(0, 11)
steps = st.tuples(st.sampled_from(VIEWS + WRITES + PURE), numbers, numbers, numbers)


def runs_in_eager(run: Callable[..., Any]) -> bool:
    """Some random programs are errors in eager too (a leaf written in place, a saved value overwritten)."""
    try:
        given_ = inputs()
        outputs = run(*given_)
        heads = [t for t in (*outputs, *given_) if t.requires_grad and t.grad_fn]
        if heads:
            torch.autograd.grad(sum(t.sum() for t in heads), [given_[1].leaf, given_[2]], allow_unused=True)
    except (RuntimeError, IndexError):
        return False
    return all(a.shape == b.shape for a, b in zip(given_, inputs(), strict=True))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    st.lists(steps, min_size=1, max_size=7),
    st.lists(numbers, min_size=1, max_size=3),
    st.frozensets(st.integers(0, 6), max_size=2),
)
def test_random_program(steps: list[Step], outputs: list[int], quiet: frozenset[int]) -> None:
    run = program(steps, outputs, quiet)
    assume(runs_in_eager(run))
    check(run, inputs)
