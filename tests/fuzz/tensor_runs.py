"""Runs a random program of tensors in eager and compiled, several times, and says how they differ."""

from __future__ import annotations

import os
import re
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import smelt
from tests.ops.cases import rounded, widened
from tests.ops.judge import difference, same_bits, shared_memory

from .tensor_grammar import Program, names
from .tensor_programs import has_bits

CALLS = ((0, False), (1, False), (0, False), (2, True), (1, False))
"""Seeds of the values of each call, and whether it has the other sizes: the third and later ones may be replayed."""
_TRACEBACK = 6000
"""Characters of a traceback that results keep, from its end."""


class Invalid(Exception):
    """Eager refuses the program."""


@dataclass
class _Found:
    """What a call gives: its results, then its arguments, which it may have written; gradients; shared memory."""

    values: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    shared: list[str]


def function_of(program: Program, reference: bool = False) -> Callable[..., Any]:
    """The program as a function."""
    space = names(reference)
    exec(compile(program.source(reference), "<program>", "exec"), space)
    made: Callable[..., Any] = space["program"]
    return made


def run(
    fn: Callable[..., Any],
    program: Program,
    sizes: dict[str, int],
    seed: int,
    device: str,
    change: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> _Found:
    """One call, and its backward if something is differentiable."""
    given = [i.make(sizes, seed, device) for i in program.inputs]
    if change is not None:
        given = [_changed(x, change) for x in given]
    # In a reference all dtypes are one: what a cast makes anew in eager, and the program may write to, is the leaf.
    own = [x.clone() if change is not None and x.is_leaf and x.requires_grad else x for x in given]
    results = list(fn(*own))
    leaves = [x for x in given if x.is_leaf and x.requires_grad]
    heads = [x for x in results if x.requires_grad]
    gradients: list[torch.Tensor | None] = []
    if leaves and heads:
        tangents = [_tangent(x, i) for i, x in enumerate(heads)]
        gradients = list(torch.autograd.grad(heads, leaves, tangents, allow_unused=True))
    return _Found(results + given, gradients, shared_memory(results, given))


def _changed(x: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    if not x.is_floating_point():
        return x
    made = change(x.detach())
    if made.stride() != x.stride():
        whole = torch.empty(_extent(x), dtype=made.dtype, device=made.device)
        made = whole.as_strided(x.shape, x.stride()).copy_(made) if 0 not in x.stride() else made
    return made.requires_grad_(x.requires_grad)


def _extent(x: torch.Tensor) -> int:
    return 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0


def _tangent(x: torch.Tensor, number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(x.shape, generator=generator).to(x.device, x.dtype)


def compare(program: Program, device: str = "cpu", target: str = "auto") -> dict[str, Any]:
    """The status of a program, and how it differs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            detail = _difference(program, device, target)
        except Invalid as error:
            return {"status": "invalid", "detail": str(error)}
        except Exception as error:
            lost = device != "cpu" and not alive()
            frames = "".join(traceback.format_exception(error))[-_TRACEBACK:]
            told = {"status": "crash" if lost else "error", "detail": _told(error), "traceback": frames}
            return told | ({"lost": True} if lost else {})
        finally:
            smelt.reset()
    return {"status": "different" if detail else "same", "detail": detail}


def alive() -> bool:
    """Whether the GPU's context still computes."""
    try:
        torch.cuda.synchronize()
        return torch.ones(1, device="cuda").item() == 1
    except Exception:
        return False


def _told(error: Exception) -> str:
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {os.path.basename(at.filename)}:{at.lineno}: {str(error)[:500]}"


def _difference(program: Program, device: str, target: str) -> str | None:
    if device != "cpu" and _races(program):
        raise Invalid("the order of a GPU's threads decides what memory holds")
    plain = function_of(program)
    expected = {}
    for seed, other in CALLS:
        if (seed, other) not in expected and (not other or program.others):
            expected[seed, other] = _expect(plain, program, _sizes(program, other), seed, device)
    if expected[0, False] is None or device != "cpu" and not alive():
        raise Invalid("eager refuses it")
    smelt.reset()
    dynamic = True if program.dynamic else None
    compiled = smelt.compile(function_of(program), dynamic=dynamic, options={"target": target})
    held: list[tuple[int, _Found, list[Any]]] = []
    for number, (seed, other) in enumerate(CALLS):
        want = expected.get((seed, other))
        if want is None:
            continue
        got = run(compiled, program, _sizes(program, other), seed, device)
        told = _compare(program, got, want, _sizes(program, other), seed, device)
        if told:
            return f"call {number}: {told}"
        held.append((number, got, _copies(got)))
    for number, got, before in held:
        if not same_bits([got.values, got.gradients], before):
            return f"held: results of call {number} changed later"
    return None


def _races(program: Program) -> bool:
    """Whether a program writes where elements of its inputs share memory: not every write is of one value.

    Eager refuses most writes to expanded inputs, but not all (`masked_fill_`).
    """
    shared = any(i.layout in ("overlapping", "expanded") for i in program.inputs)
    return shared and any(re.search(r"\w_\(|\] [+*]?= | [+*]= ", line) for line, _ in program.lines)


def _copies(found: _Found) -> list[Any]:
    return [
        [x.detach().clone() for x in found.values],
        [g if g is None else g.detach().clone() for g in found.gradients],
    ]


def _sizes(program: Program, other: bool) -> dict[str, int]:
    return {**program.sizes, **program.others} if other else program.sizes


def _expect(
    plain: Callable[..., Any], program: Program, sizes: dict[str, int], seed: int, device: str
) -> _Found | None:
    try:
        return run(plain, program, sizes, seed, device)
    except Exception:
        return None


def _compare(program: Program, got: _Found, want: _Found, sizes: dict[str, int], seed: int, device: str) -> str | None:
    """How a call differs from eager beyond eager's own error."""
    labels = [*program.results, *(i.name for i in program.inputs)]
    exact = [name in program.exact for name in labels]
    for label, same, g, w in zip(labels, exact, got.values, want.values, strict=True):
        told = difference(g, w, None, label, values=False)
        if not told and same and not same_bits(g, w):
            told = difference(g, w, None, label) or f"{label}: other bits than eager's"
        if told:
            return told
    if got.shared != want.shared:
        return f"memory: {got.shared} instead of {want.shared}"
    measures = [lambda: run(function_of(program, True), program, sizes, seed, device, widened)]
    if not has_bits(program):
        measures.append(lambda: run(function_of(program), program, sizes, seed, device, rounded))
    told = _values(labels, got, want, None)
    if device != "cpu":  # some kernels of a GPU are wrong in every dtype: norms of rows with infinities
        measures.append(lambda: run(function_of(program, True), program, sizes, seed, "cpu", widened))
    for jitter in range(3):
        measures.append(partial(_jittered, program, sizes, seed, device, want, jitter))
    for measure in measures:
        if told is None:
            return None
        try:
            told = _values(labels, got, want, measure())
        except Exception:  # an operator that float64 has not
            continue
    return told


class _Jitter(TorchDispatchMode):
    """Rounds what each operator gives once more: what order and grouping of the same operators may change."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.largest = 1.0
        self._signs = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if any(r.alias_info is not None for r in func._schema.returns):  # a view, or what it wrote to
            return made
        return tree_map_only(torch.Tensor, self._round, made)

    def _round(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point() or not x.numel():
            return x
        self.largest = max(self.largest, float(x.abs().nan_to_num(0, 0, 0).max()))
        signs = torch.randint(0, 2, x.shape, generator=self._signs, dtype=torch.int8).to(x.device).mul(2).sub(1)
        wide = x.double()
        return torch.empty_like(x).copy_(wide + wide * signs * torch.finfo(x.dtype).eps)


def _jittered(program: Program, sizes: dict[str, int], seed: int, device: str, want: _Found, jitter: int) -> _Found:
    """Eager's results where each operator rounds once more; refused where a decision of the program changes by it."""
    with _Jitter(jitter) as mode:
        found = run(function_of(program), program, sizes, seed, device)
    both = zip([*want.values, *want.gradients], [*found.values, *found.gradients], strict=True)
    for w, e in both:
        if w is None or e is None or not w.is_floating_point() or not w.numel():
            continue
        moved = float((w.detach().double() - e.detach().double()).abs().nan_to_num(0, 0, 0).max())
        if moved > _MAX_MOVED * torch.finfo(w.dtype).eps * mode.largest:
            raise Invalid("a rounding decides what the program does")
    return found


_MAX_MOVED = 1000.0
"""Roundings of the largest value by which results may move and still be measured by."""


def _values(labels: list[str], got: _Found, want: _Found, reference: _Found | None) -> str | None:
    """The first value that is further from the reference than eager's may be."""
    values = reference.values if reference else [None] * len(labels)
    gradients = reference.gradients if reference else [None] * len(want.gradients)
    for label, g, w, e in zip(labels, got.values, want.values, values, strict=True):
        told = difference(g, w, e, label, layout=False)
        if told:
            return told
    scale = max((float(w.detach().abs().nan_to_num(0, 0, 0).max()) for w in want.values if _large(w)), default=1.0)
    for number, (g, w, e) in enumerate(zip(got.gradients, want.gradients, gradients, strict=True)):
        told = difference(g, w, e, f"gradient {number}", layout=False, scale=min(scale, 100.0))
        if told:
            return told
    return None


def _large(x: torch.Tensor) -> bool:
    return x.is_floating_point() and x.numel() > 0
