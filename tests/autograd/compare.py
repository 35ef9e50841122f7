"""Run a function in eager and through `aot_eager`, and compare everything a caller can see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.autograd.eager import compile_aot_eager
from smelt.base.options import Options
from smelt.base.torch_c import share_counter
from tests.autograd.joint_examples import graph_of_call

Function = Callable[..., Any]
EAGER_RNG = Options(eager_rng=True)


def compiled(fn: Function, inputs: Sequence[torch.Tensor], options: Options = EAGER_RNG) -> Function:
    """`fn` (a function from tensors to a tuple) through joint trace, split and wrap."""
    return compile_aot_eager(graph_of_call(lambda *xs: as_tuple(fn(*xs)), len(inputs)), inputs, options)


def as_tuple(out: Any) -> tuple[Any, ...]:
    return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def check(
    fn: Function, make: Callable[[], Sequence[torch.Tensor]], call: Function | None = None, *, backward: bool = True
) -> None:
    """Compare `fn` with its compiled form (or `call`) on inputs of `make`, twice: the second uses learned plans.

    Compares outputs (values, dtype, strides, requires_grad, identity with inputs, shared memory), inputs afterwards
    (values, requires_grad), and the gradients of the leaves that `make` attaches as `inputs[0].leaves` or of the
    inputs that are leaves.
    """
    torch.manual_seed(0)
    call = call or compiled(fn, make())
    for round_ in range(2):
        seen = []
        for f in (lambda *xs: as_tuple(fn(*xs)), call):
            torch.manual_seed(round_)
            inputs = list(make())
            leaves = leaves_of(inputs)
            outputs = f(*inputs)
            seen.append((inputs, outputs, leaves, gradients(inputs, outputs, leaves) if backward else []))
        same_state(*seen)


def leaves_of(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The leaves that gradients are asked for: behind non-leaf inputs as well (`tensor.leaf`, set by `nonleaf`)."""
    leaves = [getattr(t, "leaf", t) for t in inputs]
    return list({id(t): t for t in leaves if t.requires_grad}.values())


def nonleaf(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with history that may be written in place; `.leaf` is where its gradient arrives."""
    leaf = tensor.detach().requires_grad_()
    out = leaf * 1
    out.leaf = leaf
    return out


def gradients(
    inputs: Sequence[torch.Tensor], outputs: Sequence[Any], leaves: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Gradients of a weighted sum of the outputs and of the inputs as they are now."""
    heads = [t for t in (*outputs, *inputs) if isinstance(t, torch.Tensor) and t.requires_grad and t.grad_fn]
    if not heads or not leaves:
        return []
    total = sum((weights(t) * t).sum() for t in heads)
    return list(torch.autograd.grad(total, leaves, allow_unused=True))


def weights(tensor: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, tensor.numel(), dtype=tensor.dtype).reshape(tensor.shape)


def same_state(eager: Any, other: Any) -> None:
    inputs_e, outputs_e, leaves_e, grads_e = eager
    inputs_o, outputs_o, leaves_o, grads_o = other
    assert len(outputs_e) == len(outputs_o)
    for i, (e, o) in enumerate(zip(outputs_e, outputs_o, strict=True)):
        if not isinstance(e, torch.Tensor):
            assert e == o
            continue
        same_tensor(e, o, f"output {i}")
    for i, (e, o) in enumerate(zip(inputs_e, inputs_o, strict=True)):
        same_tensor(e, o, f"input {i} afterwards")
        if not e.is_inference():
            assert e._version == o._version, f"input {i}: version {o._version} against {e._version}"
    tensors_e = [*inputs_e, *(t for t in outputs_e if isinstance(t, torch.Tensor))]
    tensors_o = [*inputs_o, *(t for t in outputs_o if isinstance(t, torch.Tensor))]
    assert sharing(tensors_e) == sharing(tensors_o), "outputs share memory differently"
    assert counting(tensors_e) == counting(tensors_o), "outputs count their versions differently"
    assert identity(tensors_e) == identity(tensors_o), "outputs are the same objects differently"
    assert len(grads_e) == len(grads_o)
    for i, (e, o) in enumerate(zip(grads_e, grads_o, strict=True)):
        assert (e is None) == (o is None), f"gradient {i}: {e} against {o}"
        if e is not None:
            torch.testing.assert_close(o, e, msg=lambda m, i=i: f"gradient {i}: {m}", equal_nan=True)


def same_tensor(e: torch.Tensor, o: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(o.detach(), e.detach(), msg=lambda m: f"{what}: {m}", equal_nan=True)
    assert o.stride() == e.stride() or e.numel() <= 1, f"{what}: strides {o.stride()} against {e.stride()}"
    assert (o.grad_fn is None) == (e.grad_fn is None), f"{what}: grad_fn {o.grad_fn}, eager {e.grad_fn}"
    if not e._is_view():  # a view taken under no_grad answers for its base
        assert o.requires_grad == e.requires_grad, f"{what}: requires_grad {o.requires_grad}, eager {e.requires_grad}"


def sharing(tensors: Sequence[torch.Tensor]) -> list[int]:
    """For each tensor the first one that has the same storage (tensors without elements share nothing)."""
    keys = [t.untyped_storage()._cdata if t.numel() else ("empty", i) for i, t in enumerate(tensors)]
    return [keys.index(k) for k in keys]


def counting(tensors: Sequence[torch.Tensor]) -> list[int]:
    """For each tensor the first one that notices writes to it."""
    places = sharing(tensors)
    return [
        next(j for j in range(i + 1) if places[j] == places[i] and share_counter(tensors[j], each))
        for i, each in enumerate(tensors)
    ]


def identity(tensors: Sequence[torch.Tensor]) -> list[int]:
    ids = [id(t) for t in tensors]
    return [ids.index(k) for k in ids]
