"""One row: all samples of an operator in one dtype, in eager and through `smelt.compile`, forward and backward.

Compiling costs far more than running, so many samples go into one graph. A graph that fails is halved until the
sample that fails is alone.
"""

from __future__ import annotations

import collections
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import smelt

from .cases import Case, Sample, rounded, single, widened
from .judge import difference, plain

TOGETHER = 32
"""Samples in one graph."""
ENOUGH = 3
"""Samples that may fail before the rest of the row is left."""
LOW = (torch.bfloat16, torch.float16)
"""Dtypes in which eager does not compute."""
UNWRITTEN = ("empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted", "resize_")
"""Operators whose values are whatever lay in memory."""


@dataclass
class Row:
    """What is known of a row.

    Attributes:
        samples: how many were compared.
        wrong: samples with another value, dtype, shape or stride than eager's, with the difference.
        errors: samples that did not compile or run, with the error.
        skipped: samples that eager refuses.
        fallbacks: the ATen operators that ran in eager inside the graph, with how often.
    """

    samples: int = 0
    wrong: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    skipped: int = 0
    left: int = 0
    fallbacks: collections.Counter[str] = field(default_factory=collections.Counter)

    @property
    def status(self) -> str:
        return "wrong" if self.wrong else "error" if self.errors else "right" if self.samples else "no samples"


@dataclass
class _Expected:
    sample: Sample
    outputs: Any
    gradients: list[torch.Tensor | None]
    exact: list[tuple[Any, list[torch.Tensor | None]]]
    random: bool


def judge(case: Case, samples: Sequence[Sample] | None = None) -> Row:
    """Compare a row's samples."""
    row = Row()
    expected: dict[bool, list[_Expected]] = {False: [], True: []}
    for sample in case.samples() if samples is None else samples:
        try:
            one = _expect(case, sample)
        except Exception:
            row.skipped += 1
            continue
        expected[one.random].append(one)
    for i, group in enumerate(expected.values()):
        for start in range(0, len(group), TOGETHER):
            if len(row.errors) < ENOUGH:
                _together(case, group[start : start + TOGETHER], row, bool(i))
            else:
                row.left += len(group[start : start + TOGETHER])
    return row


def _expect(case: Case, sample: Sample) -> _Expected:
    """Eager's results, and what tells how far off they are."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    outputs, gradients = _run(call_of(case), [sample])
    random = not torch.equal(before, torch.get_rng_state())
    exact: list[tuple[Any, list[torch.Tensor | None]]] = []
    for change in _measures(case, random):
        torch.manual_seed(1)
        try:
            found = _run(call_of(case), [sample], change)
        except Exception:  # an operator that wants its dtype, or no other values: eager alone is the measure
            continue
        exact.append((found[0][0], found[1][0]))
        if case.dtype not in LOW:
            break
    return _Expected(sample, outputs[0], gradients[0], exact or [(None, [None] * len(gradients[0]))], random)


def _measures(case: Case, random: bool) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    """Changes of the arguments after which eager's results show its error: a wider dtype, else one rounding more.

    For a low precision the dtype in which eager computes is a measure as well: some operators take constants from it
    (`rms_norm`, whose epsilon is that of the dtype).
    """
    if not (case.dtype.is_floating_point or case.dtype.is_complex):
        return []
    if random or case.dtype is torch.float64:
        return [rounded]
    return [widened, single] if case.dtype in LOW else [widened, rounded]


def call_of(case: Case) -> Callable[..., Any]:
    """The function that is compiled: the operator on each sample."""
    op = case.info.op

    def call(given: Any) -> Any:
        return [process(op(x, *args, **kwargs)) for (x, args, kwargs), process in given]

    return call


def _run(
    call: Callable[..., Any],
    samples: Sequence[Sample],
    change: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> tuple[list[Any], list[list[torch.Tensor | None]]]:
    """The results for each sample, and the gradients of its arguments."""
    given = [sample.fresh(change) for sample in samples]
    outputs = call([(g, s.process) for g, s in zip(given, samples, strict=True)])
    leaves = [[x for x in tree_leaves(g) if _differentiable(x) and x.is_leaf] for g in given]
    heads = [x for out in outputs for x in tree_leaves(out) if _differentiable(x)]
    found: list[torch.Tensor | None] = [None] * sum(map(len, leaves))
    if heads and found:
        tangents = [tangent for out in outputs for tangent in _tangents(out)]
        found = list(torch.autograd.grad(heads, [x for xs in leaves for x in xs], tangents, allow_unused=True))
    each = iter(found)
    return outputs, [[next(each) for _ in xs] for xs in leaves]


def _differentiable(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _tangents(out: Any) -> Iterator[torch.Tensor]:
    """For each differentiable result of a sample the same numbers whatever graph it is in, in any dtype."""
    generator = torch.Generator().manual_seed(2)
    for x in filter(_differentiable, tree_leaves(out)):
        real = torch.randn(x.shape, generator=generator, dtype=torch.float32)
        yield (torch.complex(real, real.flip(0) if real.dim() else real) if x.is_complex() else real).to(x.dtype)


def _together(case: Case, group: list[_Expected], row: Row, random: bool) -> None:
    """Compare samples in one graph; when it fails, in two."""
    if not group or len(row.errors) >= ENOUGH:
        row.left += len(group)
        return
    try:
        outputs, gradients = _compiled(case, [e.sample for e in group], row, random)
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        if len(group) == 1:
            row.samples += 1
            row.errors[group[0].sample.number] = _told(error)
            return
        for half in (group[: len(group) // 2], group[len(group) // 2 :]):
            _together(case, half, row, random)
        return
    row.samples += len(group)
    values = case.info.name not in UNWRITTEN
    for one, out, grads in zip(group, outputs, gradients, strict=True):
        scale = 0.0 if case.dtype in LOW else _usual_gradient(one)
        wrong = [
            difference(out, one.outputs, exact, "result", values=values)
            or difference(grads, one.gradients, exact_gradients, "gradient", layout=False, values=values, scale=scale)
            for exact, exact_gradients in one.exact
        ]
        if wrong[0] and all(wrong):
            row.wrong[one.sample.number] = wrong[0]


def _usual_gradient(one: _Expected) -> float:
    """How large a derivative is for results and arguments of this size, which it may divide by or multiply with.

    Where larger parts cancel, eager may happen to give 0.
    """
    given = [x for x in tree_leaves((one.sample.input, one.sample.args, one.sample.kwargs)) if _differentiable(x)]
    largest = [size for size in map(_size, given) if size]
    made = max((_size(x) for x in tree_leaves(one.outputs) if _differentiable(x)), default=0.0)
    found = made * max((_size(t) for t in _tangents(one.outputs)), default=0.0)
    found *= max(*largest, 1 / min(largest)) if largest else 1.0
    return found if math.isfinite(found) else 0.0


def _size(x: torch.Tensor) -> float:
    """The largest absolute value that is finite."""
    return float(plain(x).abs().nan_to_num(0.0, 0.0, 0.0).max()) if x.numel() else 0.0


def _compiled(case: Case, samples: list[Sample], row: Row, random: bool) -> Any:
    """Random operators are compared bit by bit, one graph a sample, and their fallbacks are those of plain options."""
    smelt.reset()
    if not random:
        got = _run(smelt.compile(call_of(case), fullgraph=True), samples)
        row.fallbacks.update(smelt.stats()["extern_ops"])
        return got
    both: tuple[list[Any], list[Any]] = ([], [])
    for sample in samples:
        smelt.reset()
        torch.manual_seed(1)
        exactly = smelt.compile(call_of(case), fullgraph=True, options={"eager_rng": True})
        for part, found in zip(both, _run(exactly, [sample]), strict=True):
            part.extend(found)
    smelt.reset()
    _run(smelt.compile(call_of(case), fullgraph=True), samples)
    row.fallbacks.update(smelt.stats()["extern_ops"])
    return both


def _told(error: Exception) -> str:
    """The error in one line, with where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = " | ".join(str(error).splitlines()[:3])
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {text}"[:400]
