"""Random programs of views, writes and arithmetic, and the inputs that they get: what `test_random_programs` draws."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tests.autograd.compare import nonleaf

Step = tuple[str, int, int, int]

VIEWS = (
    "select slice transpose view unsqueeze expand diagonal chunk flatten as_strided unbind split movedim squeeze "
    "unfold narrow_copy view_dtype alias"
).split()
WRITES = (
    "mul_ add_ copy_ fill_ zero_ assign t_ masked_fill_ sub_other_ index_put_ scatter_ assign_slice assign_mask clamp_ "
    "unsqueeze_ squeeze_ transpose_ as_strided_ out foreach_ index_fill_ copy_other_ neg_ augmented lerp_"
).split()
PURE = "sin mul sum clone detach cat add_other where flip index stack matmul cumsum".split()
STATE = (
    "detach_ data data_write data_assign data_part_write detach_write set_ set_view resize_ resize_smaller "
    "requires_grad_ grad assign_flag"
).split()
FUNC = "func_grad func_vjp func_jvp func_vmap vmap_write vmap_of_grad".split()
MODES = ("no_grad", "enable_grad", "inference_mode")


def apply(step: Step, values: list[torch.Tensor]) -> None:
    """Run one step on a value chosen by number; appends what it makes."""
    name, a, b, c = step
    x = values[a % len(values)]
    other = values[b % len(values)]
    dim = c % max(x.dim(), 1)
    if name in VIEWS:
        _view(name, x, b, dim, values)
    elif name in WRITES:
        _write(name, x, other, b, dim, values)
    elif name in PURE:
        _pure(name, x, other, dim, values)
    elif name in FUNC:
        _func(name, x, b, dim, values)
    else:
        _state(name, x, other, values)


def _view(name: str, x: torch.Tensor, b: int, dim: int, values: list[torch.Tensor]) -> None:
    match name:
        case "select":
            values.append(x.select(dim, b % x.shape[dim]) if x.dim() else x.view(1))
        case "slice":
            start = b % x.shape[dim] if x.dim() else 0
            values.append(x.narrow(dim, start, x.shape[dim] - start) if x.dim() else x[None])
        case "narrow_copy":
            values.append(x[..., ::2] if x.dim() else x[None])
        case "transpose":
            values.append(x.transpose(dim, b % max(x.dim(), 1)) if x.dim() else x.expand(2))
        case "movedim":
            values.append(x.movedim(dim, -1) if x.dim() else x.T)
        case "view":
            values.append(x.view(-1) if x.is_contiguous() else x.reshape(-1))
        case "flatten":
            values.append(x.flatten())
        case "unsqueeze":
            values.append(x.unsqueeze(dim))
        case "squeeze":
            values.append(x.squeeze())
        case "expand":
            values.append(x.unsqueeze(0).expand(2, *x.shape))
        case "diagonal":
            values.append(x.diagonal() if x.dim() == 2 else x.view_as(x))
        case "chunk":
            values.extend(x.chunk(2, dim) if x.dim() else [x])
        case "unbind":
            values.extend(x.unbind(dim)[:3] if x.dim() else [x])
        case "split":
            values.extend(x.split([1, x.shape[dim] - 1], dim) if x.dim() and x.shape[dim] > 1 else [x])
        case "unfold":
            values.append(x.unfold(dim, 2, 2) if x.dim() and x.shape[dim] > 1 else x.view_as(x))
        case "as_strided":
            values.append(x.as_strided((2,), (1,)) if x.is_contiguous() and x.numel() > 1 else x.view_as(x))
        case "view_dtype":
            values.append(x.detach().view(torch.int64).view(torch.float64))
        case "alias":
            values.append(x[:] if x.dim() else x[...])


def _write(name: str, x: torch.Tensor, other: torch.Tensor, b: int, dim: int, values: list[torch.Tensor]) -> None:
    match name:
        case "mul_":
            x.mul_(1.0 + b % 3)
        case "neg_":
            x.neg_()
        case "clamp_":
            x.clamp_(-0.5, 0.5)
        case "add_":
            x.add_(other.sum())
        case "augmented":
            x += other.mean()
        case "lerp_":
            x.lerp_(other.mean().expand_as(x), 0.25)
        case "sub_other_":
            x.sub_(other.flatten()[: x.numel()].sum())
        case "copy_":
            x.copy_(other.sum().expand_as(x))
        case "copy_other_":
            if other.shape == x.shape:
                x.copy_(other)
        case "fill_":
            x.fill_(float(b % 5))
        case "zero_":
            x.zero_()
        case "assign":
            if x.dim():
                x[b % x.shape[0]] = other.mean()
        case "assign_slice":
            if x.dim():
                x[..., 1:] = 0.5
        case "assign_mask":
            if x.dim():  # one flag is read as a number, unless capture says it another way: `assign_flag`
                x[x > 0] = 0.125
        case "t_":
            if x.dim() == 2 and len(values) > 3:
                x.t_()
        case "transpose_":
            if x.dim() > 1 and len(values) > 3:
                x.transpose_(0, dim)
        case "unsqueeze_":
            if len(values) > 3:
                x.unsqueeze_(dim)
        case "squeeze_":
            if len(values) > 3:
                x.squeeze_()
        case "as_strided_":
            if len(values) > 3 and x.is_contiguous() and x.numel() > 1:
                x.as_strided_((2, x.numel() // 2), (1, 2))
        case "masked_fill_":
            x.masked_fill_(x > 0.5, 0.25)
        case "index_put_":
            if x.dim():
                x.index_put_((torch.tensor([0, x.shape[0] - 1]),), other.mean(), accumulate=bool(b % 2))
        case "index_fill_":
            if x.dim():
                x.index_fill_(dim, torch.tensor([0]), 2.0)
        case "scatter_":
            if x.dim() == 1:
                x.scatter_(0, torch.tensor([0]), other.sum()[None])
        case "foreach_":
            torch._foreach_add_([x, other], 0.25)
        case "out":
            if not x.requires_grad and not other.requires_grad and x.shape == other.shape:
                torch.add(x, 1.0, out=other)


def _pure(name: str, x: torch.Tensor, other: torch.Tensor, dim: int, values: list[torch.Tensor]) -> None:
    match name:
        case "sin":
            values.append(x.sin())
        case "mul":
            values.append(x * 2)
        case "sum":
            values.append(x.sum(dim) if x.dim() else x * 1)
        case "cumsum":
            values.append(x.cumsum(dim))
        case "clone":
            values.append(x.clone())
        case "detach":
            values.append(x.detach())
        case "cat":
            values.append(torch.cat([x.flatten(), other.flatten()]))
        case "stack":
            values.append(torch.stack([x, x * other.mean()]))
        case "where":
            values.append(torch.where(x > 0, x, other.mean()))
        case "flip":
            values.append(x.flip(0) if x.dim() else x + 1)
        case "index":
            values.append(x[[0, -1]] if x.dim() else x - 1)
        case "matmul":
            values.append(x.flatten() @ x.flatten())
        case "add_other":
            values.append(x + other.sum())


def _state(name: str, x: torch.Tensor, other: torch.Tensor, values: list[torch.Tensor]) -> None:
    """What changes a tensor beside its values: its history, its memory, its shape."""
    match name:
        case "detach_":
            x.detach_()
        case "data":
            values.append(x.data)
        case "data_write":
            x.data.mul_(2.0)
        case "data_assign":
            if not x.requires_grad:  # else eager's gradients are those of the new data, and depend on who looked when
                x.data = other.data.clone()
        case "data_part_write":
            x.data[..., :1].add_(other.detach().mean())
        case "detach_write":
            x.detach().mul_(0.5)
        case "set_" | "set_view" if torch.is_inference_mode_enabled():
            pass  # an inference tensor in the memory of another one; a graph's is none
        case "set_view":
            made = x.detach().clone()
            made.set_(other.detach()[..., :1] if other.dim() else other.detach())
            values.append(made)
        case "resize_smaller":
            made = x.detach().clone().flatten()
            values.append(made.resize_((max(made.numel() // 2, 1),)) if made.numel() else made)
        case "set_":
            made = x.detach().clone()
            made.set_(other.detach())
            values.append(made)
        case "resize_":
            made = torch.empty(0, dtype=x.dtype)
            made.resize_(x.shape)
            values.append(made.copy_(x.detach()))
        case "requires_grad_":
            values.append(x.detach().requires_grad_())
        case "assign_flag":
            x[x.detach().sum() > 0] = other.mean()
        case "grad":
            if x.requires_grad and torch.is_grad_enabled():
                leaf = x.detach().requires_grad_()
                values.append(torch.autograd.grad((leaf * leaf).sum(), leaf)[0])


def _func(name: str, x: torch.Tensor, b: int, dim: int, values: list[torch.Tensor]) -> None:
    """Transforms of functions that write to what they compute, or to their argument."""

    def writes(t: torch.Tensor) -> torch.Tensor:
        y = t * 2
        part = y[..., :1] if y.dim() else y
        part.mul_(1.0 + b)
        y.add_(t.sum())
        with torch.no_grad():
            part.clamp_(-3, 3)
        return (y * t).sum()

    def rows(t: torch.Tensor) -> torch.Tensor:
        y = t.clone()
        y.add_(t.sum()).t_() if y.dim() == 2 else y.unsqueeze_(0)
        return y

    plain = x.detach()
    match name:
        case "func_grad":
            values.append(torch.func.grad(writes)(x))
        case "func_vjp":
            _, pull = torch.func.vjp(writes, x)
            values.append(pull(x.sum())[0])
        case "func_jvp":
            values.extend(torch.func.jvp(writes, (plain,), (plain * 0.5,)))
        case "func_vmap":
            values.append(torch.func.vmap(rows, dim)(x) if x.dim() else rows(x))
        case "vmap_write":
            if x.dim() and not x.is_inference():
                torch.func.vmap(lambda row: row.mul_(1.5), dim)(x)
        case "vmap_of_grad":
            if x.dim():
                values.append(torch.func.vmap(torch.func.grad(writes), dim)(x))


def program(steps: Sequence[Step], outputs: Sequence[int], modes: Sequence[tuple[int, int, str]]) -> Callable[..., Any]:
    """A function that runs `steps`; those from the first to the second number of a mode run in it."""

    def block(values: list[torch.Tensor], start: int, stop: int) -> None:
        at = start
        while at < stop:
            mode = next((m for m in modes if m[0] == at and m[1] > at), None)
            if mode is None or start == at and stop == mode[1]:
                apply(steps[at], values)
                at += 1
                continue
            with getattr(torch, mode[2])():
                block(values, at, min(mode[1], stop))
            at = min(mode[1], stop)

    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        block(values, 0, len(steps))
        return tuple(values[o % len(values)] for o in outputs)

    return run


INPUTS = ("plain", "nonleaf", "leaf", "same", "view", "view of nonleaf", "strided", "twin leaf")


def make_inputs(kinds: Sequence[str]) -> list[torch.Tensor]:
    """Three inputs of fixed kinds, then one of each of `kinds`; in float64, where no sine shows the order of a sum."""
    base = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
    inputs = [base.clone(), nonleaf(base * 0.5), (base + 0.3).requires_grad_()]
    for kind in kinds:
        match kind:
            case "plain":
                inputs.append(base * 3)
            case "nonleaf":
                inputs.append(nonleaf(base[0] * 2))
            case "leaf":
                inputs.append((base[:2] - 0.2).requires_grad_())
            case "same":
                inputs.append(inputs[0])
            case "twin leaf":
                inputs.append(inputs[2])
            case "view":
                inputs.append(inputs[0][1:])
            case "view of nonleaf":
                inputs.append(inputs[1][0])
                inputs[-1].leaf = inputs[1].leaf
            case "strided":
                inputs.append(base.clone().t()[::2])
    return inputs


@contextlib.contextmanager
def grad_mode_kept() -> Any:
    """No program may leave the caller in another mode."""
    before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    yield
    assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
