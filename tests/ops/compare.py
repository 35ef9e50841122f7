"""One row: all samples of an operator in one dtype and layout, in eager and through `smelt.compile`, both ways.

Compared are results, gradients, and what results share memory with; then the same compiled function runs twice more
with other values, and the results of the first call, which are held meanwhile, must be what they were.

Compiling costs far more than running, so many samples go into one graph. A graph that fails is halved until the
sample that fails is alone.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

import smelt

from .cases import Case, Change, Sample, copy, reversed_values, rounded, shifted_values, single, widened
from .judge import difference, plain, same_bits, shared_memory

TOGETHER = 32
"""Samples in one graph."""
ENOUGH = 3
"""Samples that may fail before the rest of the row is left."""
LOW = (torch.bfloat16, torch.float16)
"""Dtypes in which eager does not compute."""
UNWRITTEN = ("empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted", "resize_")
"""Operators whose values are whatever lay in memory."""
WITH_SEEDS = ("torch.ops.aten._flash_attention_forward", "torch.ops.aten._efficient_attention_forward")
"""Operators whose results from the third on nobody writes without dropout."""
WITH_MEANS = ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update")
"""Operators with means among their results: values cancel in them, so they are as exact as the largest value allows."""
OTHER_FORMULAS = ("masked_select", "ormqr")
"""Operators whose formula goes another way for tensors of a class of their own, and leaves other strides."""
WRITTEN_TWICE = ("as_strided_scatter", *(f"nn.functional.max_unpool{n}d" for n in (1, 2, 3)))
"""Operators that write several values to one element, in any order where values differ: those of the samples do not."""


@dataclass
class Row:
    """What is known of a row.

    Attributes:
        samples: how many were compared.
        wrong: samples with another value, dtype, shape or stride than eager's, with the difference.
        errors: samples that did not compile or run, with the error.
        skipped: samples that eager refuses.
        fallbacks: the ATen operators that ran in eager inside the graph, with how often.
        lost: the error after which the device computed no more.
    """

    samples: int = 0
    wrong: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    skipped: int = 0
    left: int = 0
    fallbacks: collections.Counter[str] = field(default_factory=collections.Counter)
    lost: str = ""

    @property
    def status(self) -> str:
        if self.lost:
            return "crash"
        return "wrong" if self.wrong else "error" if self.errors else "right" if self.samples else "no samples"


class Lost(Exception):
    """The device's context is gone: this process computes nothing right any more."""


@dataclass
class _Results:
    """Of some samples, each in its place: the results, the gradients of the arguments, what shares memory."""

    outputs: list[Any]
    gradients: list[list[torch.Tensor | None]]
    shared: list[list[str]]


@dataclass
class _Expected:
    sample: Sample
    outputs: Any
    gradients: list[torch.Tensor | None]
    shared: list[str]
    exact: list[tuple[Any, list[torch.Tensor | None]]]
    random: bool


def judge(case: Case, samples: Sequence[Sample] | None = None) -> Row:
    """Compare a row's samples."""
    row = Row()
    expected: dict[bool, list[_Expected]] = {False: [], True: []}
    try:
        given = list(case.samples()) if samples is None else samples
    except Exception:  # OpInfo makes none on this device
        row.skipped, given = 1, []
    for sample in given:
        try:
            one = _expect(case, sample)
        except Lost as lost:
            row.skipped, row.lost = row.skipped + 1, str(lost)
            return row
        except Exception:
            row.skipped += 1
            continue
        expected[one.random].append(one)
    try:
        for random, group in expected.items():
            for start in range(0, len(group), TOGETHER):
                _together(case, group[start : start + TOGETHER], row, random)
    except Lost as lost:
        row.lost = str(lost)
    return row


def _expect(case: Case, sample: Sample) -> _Expected:
    """Eager's results, and what tells how far off they are."""
    torch.manual_seed(1)
    before = _generator_state(case.device)
    found = _run(call_of(case), [sample])
    if case.device != "cpu":
        _require_device(case.device, RuntimeError("eager ends the device's context"))
    random = not torch.equal(before, _generator_state(case.device))
    exact: list[tuple[Any, list[torch.Tensor | None]]] = []
    for change in _measures(case, random):
        torch.manual_seed(1)
        try:
            measured = _run(call_of(case), [sample], change)
        except Exception:  # an operator that wants its dtype, or no other values: eager alone is the measure
            continue
        exact.append((measured.outputs[0], measured.gradients[0]))
        if case.dtype not in LOW:
            break
    exact = exact or [(None, [None] * len(found.gradients[0]))]
    return _Expected(sample, found.outputs[0], found.gradients[0], found.shared[0], exact, random)


def _generator_state(device: str) -> torch.Tensor:
    """Where the generators are that a sample may draw from: the device's, and the CPU's that it may name."""
    states = [torch.get_rng_state()] if device == "cpu" else [torch.get_rng_state(), torch.cuda.get_rng_state(device)]
    return torch.cat(states)


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
    change: Change | None = None,
) -> _Results:
    fresh = [sample.fresh(change) for sample in samples]
    leaves = [[x for x in tree_leaves(g) if _differentiable(x) and x.is_leaf] for g in fresh]
    found: dict[int, torch.Tensor] = {}
    given = [_computed(g, found) if s.number % 2 else g for g, s in zip(fresh, samples, strict=True)]
    outputs = call([(g, s.process) for g, s in zip(given, samples, strict=True)])
    heads = [x for out in outputs for x in tree_leaves(out) if _differentiable(x)]
    if heads and any(leaves):
        tangents = [tangent for out in outputs for tangent in _tangents(out)]
        torch.autograd.backward(heads, tangents, inputs=[x for xs in leaves for x in xs])
    gradients = [[found.get(id(x), x.grad) for x in xs] for xs in leaves]
    shared = [shared_memory(out, g) for out, g in zip(outputs, given, strict=True)]
    return _Results(list(outputs), gradients, shared)


class _Before(torch.autograd.Function):
    """A copy that lies in memory as the original, computed before the operator; the gradient is kept as it comes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, kept: Callable[[torch.Tensor], None]) -> torch.Tensor:
        ctx.kept = kept
        return copy(x.detach())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.kept(gradient)
        return gradient, None


def _computed(values: Any, found: dict[int, torch.Tensor]) -> Any:
    """The arguments with leaves replaced by what is computed from them, whose gradients come into `found`."""

    def compute(x: Any) -> Any:
        if not (_differentiable(x) and x.is_leaf and x.layout is torch.strided):
            return x
        return _Before.apply(x, lambda gradient: found.__setitem__(id(x), gradient))

    return tree_map(compute, values)


def _differentiable(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.requires_grad


def _tangents(out: Any) -> Iterator[torch.Tensor]:
    """For each differentiable result of a sample the same numbers whatever graph it is in, in any dtype."""
    generator = torch.Generator().manual_seed(2)
    for x in filter(_differentiable, tree_leaves(out)):
        real = torch.randn(x.shape, generator=generator, dtype=torch.float32)
        numbers = torch.complex(real, real.flip(0) if real.dim() else real) if x.is_complex() else real
        made = numbers.to(x.device, x.dtype)
        yield torch.empty_like(x).copy_(made) if x.layout is torch.strided else made


def _together(case: Case, group: list[_Expected], row: Row, random: bool) -> None:
    """Compare samples in one graph; when it fails, in two."""
    if not group or len(row.errors) >= ENOUGH:
        row.left += len(group)
        return
    try:
        compiled = _compiled(case, random)
        found = _call(compiled, group, random)
        row.fallbacks.update(smelt.stats()["extern_ops"])
        wrong = _wrong(case, group, found)
        if not random:
            again = _again(case, group, found, compiled)
            wrong = [a or b for a, b in zip(wrong, again, strict=True)]
    except (KeyboardInterrupt, MemoryError):
        raise
    except Exception as error:
        _require_device(case.device, error)
        if len(group) == 1:
            row.samples += 1
            row.errors[group[0].sample.number] = _told(error)
            return
        for half in (group[: len(group) // 2], group[len(group) // 2 :]):
            _together(case, half, row, random)
        return
    row.samples += len(group)
    row.wrong |= {one.sample.number: text for one, text in zip(group, wrong, strict=True) if text}


def _require_device(device: str, error: Exception) -> None:
    """Raise Lost where the device computes no longer."""
    if device != "cpu":
        try:
            torch.cuda.synchronize()
            torch.ones(1, device=device).item()
        except Exception as lost:
            raise Lost(_told(error)) from lost


def _wrong(case: Case, group: list[_Expected], found: _Results) -> list[str | None]:
    """What differs from eager, for each sample."""
    values = case.info.name not in UNWRITTEN
    told: list[str | None] = []
    for i, one in enumerate(group):
        scale = 0.0 if case.dtype in LOW else _usual_gradient(one)
        wrong = [
            difference(
                _written(case, found.outputs[i]),
                _written(case, one.outputs),
                exact,
                "result",
                values=values,
                scale=_size(one.sample.input) if case.info.name in WITH_MEANS else 0.0,
            )
            or difference(
                found.gradients[i],
                one.gradients,
                exact_gradients,
                "gradient",
                values=values,
                layout=case.device == "cpu" and case.info.name not in OTHER_FORMULAS,
                gaps=False,
                scale=scale,
            )
            for exact, exact_gradients in one.exact
        ]
        text = wrong[0] if all(wrong) else None
        if text is not None and case.device != "cpu" and not one.random:
            text = _wrong_by_the_cpu(case, one, found, i, text)
        if text is None and found.shared[i] != one.shared:
            text = f"memory: {found.shared[i]} instead of {one.shared}"
        told.append(text)
    return told


def _wrong_by_the_cpu(case: Case, one: _Expected, found: _Results, place: int, text: str) -> str | None:
    """`text`, or None where a result that differs from the device's is as exact as it by float64 on a CPU.

    Some kernels of a GPU are wrong in every dtype: pooling of transposed sequences, norms of rows with infinities.
    """
    given = tree_map(
        lambda x: _on_the_cpu(x) if isinstance(x, torch.Tensor) else x,
        (one.sample.input, one.sample.args, one.sample.kwargs),
    )
    try:
        exact = _run(call_of(case), [dataclasses.replace(one.sample, input=given[0], args=given[1], kwargs=given[2])])
    except Exception:
        return text
    values = case.info.name not in UNWRITTEN
    got, want = _written(case, found.outputs[place]), _written(case, one.outputs)
    return difference(got, want, exact.outputs[0], "result", values=values) or difference(
        found.gradients[place], one.gradients, exact.gradients[0], "gradient", layout=False, values=values
    )


def _written(case: Case, out: Any) -> Any:
    return out[:2] if case.info.name in WITH_SEEDS and case.device != "cpu" else out


def _on_the_cpu(x: torch.Tensor) -> torch.Tensor:
    made = x.detach().cpu()
    if made.is_floating_point() or made.is_complex():
        made = widened(made)
    return made.requires_grad_(x.requires_grad)


def _again(case: Case, group: list[_Expected], found: _Results, compiled: Any) -> list[str | None]:
    """What differs when other values come, and whether results that are held change meanwhile.

    Operators whose values are whatever lay in memory have no others.
    """
    if case.info.name in UNWRITTEN or case.device != "cpu" and case.info.name in WRITTEN_TWICE:
        return [None] * len(group)
    held = [(found.outputs[i], found.gradients[i]) for i in range(len(group))]
    before = tree_map(lambda x: copy(x.detach()) if isinstance(x, torch.Tensor) else x, held)
    told: list[str | None] = [None] * len(group)
    for change, compared in ((reversed_values, True), (shifted_values, False)):
        others = [dataclasses.replace(one.sample, change=change) for one in group]
        try:
            expected = [_expect(case, sample) for sample in others]
        except Exception:  # values that eager refuses
            continue
        second = _call(compiled, expected, False)
        if compared:
            told = [text and f"second call: {text}" for text in _wrong(case, expected, second)]
    for i, (now, was) in enumerate(zip(held, before, strict=True)):
        if not same_bits(now, was):
            told[i] = "held: the results of the first call changed in later calls"
    return told


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


def _compiled(case: Case, random: bool) -> Callable[..., Any]:
    smelt.reset()
    options: dict[str, Any] = {"target": case.target} | ({"eager_rng": True} if random else {})
    whole = (
        case.layout == "own" and case.device == "cpu" and case.target == "auto"
    )  # elsewhere values count, wherever graphs end
    return smelt.compile(call_of(case), fullgraph=whole, dynamic=True if case.dynamic else None, options=options)


def _call(compiled: Callable[..., Any], group: list[_Expected], random: bool) -> _Results:
    """Random operators are compared bit by bit, one call a sample."""
    if not random:
        return _run(compiled, [one.sample for one in group])
    found = _Results([], [], [])
    for one in group:
        torch.manual_seed(1)
        each = _run(compiled, [one.sample])
        found.outputs += each.outputs
        found.gradients += each.gradients
        found.shared += each.shared
    return found


def _told(error: Exception) -> str:
    """The error in one line, with where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    text = " | ".join(str(error).splitlines()[:3])
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {text}"[:400]
