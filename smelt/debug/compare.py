"""Compares results and gradients of a compiled function with those of eager, and finds the first that differs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from smelt.base.errors import SmeltError
from smelt.bench.accuracy import FLOOR, NUDGES
from smelt.bench.randomness import SingleDraws
from smelt.bench.verdict import distances, judge

Function = Callable[..., Any]
Named = list[tuple[str, Tensor]]


@dataclasses.dataclass(frozen=True)
class Difference:
    """A tensor that differs beyond rounding (`result 0`, `gradient of input 2`, `new value of input 1`), and how."""

    what: str
    how: str

    def __str__(self) -> str:
        return f"{self.what}: {self.how}"


class EagerFails(SmeltError):
    """Eager raises for these inputs, so there is nothing to compare with."""


def first_difference(compiled: Function, eager: Function, inputs: Sequence[Any]) -> Difference | None:
    """The first tensor that differs between a compiled and an eager run on copies of the inputs, from one random state.

    Raises:
        EagerFails: eager raises an error for these inputs.
    """
    state = _random_state()
    gradients, expected = run_eager(eager, inputs)
    drawn = not _same_state(state, _random_state())
    _set_random_state(state)
    actual = run(compiled, copies(inputs), gradients)
    _set_random_state(state)
    reference = _reference(eager, inputs, gradients, drawn)
    found = differ(expected, actual, reference)
    if found is not None and reference is not None:  # Does eager differ as much for inputs changed by rounding?
        perturbed = []
        for seed in range(NUDGES):
            _set_random_state(state)
            perturbed.append(dict(run(eager, _perturbed(copies(inputs), seed), gradients)))
        found = differ(expected, actual, reference, perturbed)
    _set_random_state(state)
    return found


def _perturbed(inputs: list[Any], seed: int) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    for x in inputs:
        if isinstance(x, Tensor) and x.is_floating_point():
            with torch.no_grad():
                noise = torch.randn(x.shape, generator=generator).to(x.device, torch.float64)
                x.data = x.data * (1 + torch.finfo(x.dtype).eps * noise).to(x.dtype)
    return inputs


def run_eager(eager: Function, inputs: Sequence[Any]) -> tuple[bool, Named]:
    """Whether gradients can be computed (they cannot if the function writes to a tensor that its backward reads), and
    the result of `run`.

    Raises:
        EagerFails: eager raises an error for these inputs.
    """
    try:
        return True, run(eager, copies(inputs))
    except Exception as error:
        try:
            return False, run(eager, copies(inputs), gradients=False)
        except Exception:
            raise EagerFails(f"eager raises {type(error).__name__}: {error}") from error


def run(function: Function, inputs: Sequence[Any], gradients: bool = True) -> Named:
    """The results of a function, new values of inputs that it wrote, and gradients for tangents from a fixed seed."""
    needing = {i: x for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad}
    before = {i: x.detach().clone() for i, x in enumerate(inputs) if isinstance(x, Tensor)}
    results = [x for x in pytree.tree_leaves(function(*inputs)) if isinstance(x, Tensor)]
    found = [(f"result {i}", x.detach().clone()) for i, x in enumerate(results)]
    written = {i: inputs[i].detach() for i, was in before.items() if not torch.equal(was, inputs[i].detach())}
    found += [(f"new value of input {i}", x.clone()) for i, x in written.items()]
    return found + (_gradients(results, needing) if gradients else [])


def _gradients(results: Sequence[Tensor], needing: dict[int, Tensor]) -> Named:
    ends = [x for x in results if x.requires_grad]
    if not ends or not needing:
        return []
    generator = torch.Generator().manual_seed(1)
    tangents = [torch.randn(x.shape, generator=generator).to(x) for x in ends]
    made = torch.autograd.grad(ends, [*needing.values()], tangents, allow_unused=True)
    named = zip(needing, made, strict=True)
    return [(f"gradient of input {i}", x.detach().clone()) for i, x in named if x is not None]


def differ(
    expected: Named, actual: Named, reference: Named | None, perturbed: Sequence[dict[str, Tensor]] = ()
) -> Difference | None:
    """The first tensor that differs from eager by more than eager's own error against float64 allows; None without one.

    Args:
        expected, actual: tensors of the eager and of the compiled run.
        reference: tensors of the float64 run; None if it failed.
        perturbed: tensors of eager runs on inputs that were changed by rounding errors.
    """
    known = dict(actual)
    exact = dict(reference or ())
    for what, tensor in expected:
        found = known.get(what)
        if found is None:
            return Difference(what, "not there")
        if found.shape != tensor.shape or found.dtype != tensor.dtype:
            shown = (f"{x.dtype}{list(x.shape)}" for x in (found, tensor))
            return Difference(what, " where eager has ".join(shown))
        how = _differs(tensor, found, exact.get(what), [n[what] for n in perturbed if what in n])
        if how is not None:
            return Difference(what, how)
    more = sorted(known.keys() - dict(expected).keys())
    return Difference(more[0], "not there in eager") if more else None


def _differs(expected: Tensor, found: Tensor, exact: Tensor | None, perturbed: list[Tensor]) -> str | None:
    if not expected.is_floating_point() and not expected.is_complex():
        wrong = int((expected != found).sum())
        return f"{wrong} of {found.numel()} elements differ" if wrong else None
    narrow = expected.dtype in (torch.float16, torch.bfloat16) or expected.dtype.itemsize == 1
    floor = FLOOR["amp" if narrow else "fp32"]
    exact = expected if exact is None or exact.shape != expected.shape else exact
    moved = [distances({"output.0": exact}, {"output.0": each}) for each in perturbed if each.shape == exact.shape]
    verdict = judge({"output.0": exact}, {"output.0": expected}, {"output.0": found}, floor, perturbed=moved)
    return None if verdict.ok else verdict.failures[0].removeprefix("output.0: ")


def copies(inputs: Sequence[Any], widened: bool = False) -> list[Any]:
    """Copies of the inputs in new memory; inputs that share memory have copies that share memory.

    Args:
        widened: whether copies of floating-point tensors have dtype float64.
    """
    memories: dict[tuple[Any, ...], Tensor] = {}
    made = []
    for x in inputs:
        if not isinstance(x, Tensor):
            made.append(x)
            continue
        with torch.no_grad():
            copy = _copy(x, memories, widened)
        if x.requires_grad:
            copy.requires_grad_()
        made.append(copy if x.is_leaf else copy.clone())  # a leaf must not be written
    return made


def _copy(x: Tensor, memories: dict[tuple[Any, ...], Tensor], widened: bool) -> Tensor:
    if type(x) not in (Tensor, torch.nn.Parameter) or x.layout != torch.strided or x.is_quantized:
        return x.detach().clone()
    storage = x.untyped_storage()
    key = (storage.data_ptr() or id(x), x.dtype)
    if key not in memories:
        flat = torch.empty(0, dtype=x.dtype, device=x.device)
        flat.set_(storage, 0, (storage.nbytes() // x.dtype.itemsize,), (1,))
        wide = widened and x.is_floating_point()
        memories[key] = flat.to(torch.float64) if wide else flat.clone()
    return memories[key].as_strided(x.shape, x.stride(), x.storage_offset()).detach()


def _reference(eager: Function, inputs: Sequence[Any], gradients: bool, drawn: bool) -> Named | None:
    """The tensors of an eager run in float64; None if the function fails in float64, as code that names float32 may."""
    try:
        with SingleDraws() if drawn else contextlib.nullcontext():
            return run(eager, copies(inputs, widened=True), gradients)
    except Exception:
        return None


def _random_state() -> list[Tensor]:
    state = [torch.get_rng_state()]
    return [*state, *torch.cuda.get_rng_state_all()] if torch.cuda.is_initialized() else state


def _set_random_state(state: list[Tensor]) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state_all(state[1:])


def _same_state(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=False))
