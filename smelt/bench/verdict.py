"""The verdict on a contender's tensors, given those of a float64 reference and the errors of eager.

For each tensor (loss, outputs, gradients, buffers that forward changed) with reference r, eager results e and the
contender's result c, the contender passes when

    |c - r| <= FACTOR * chance(n) * max(|e - r|, share * |r|, spread * sqrt(n))        (Euclidean norms, n elements)

`share` is eager's error relative to the reference over all tensors of the group (loss, outputs, buffers, gradients),
`spread` its root mean square error per element over the tensors of the same module. They keep a tensor on which eager
happens to be exact, or whose true value is zero (a bias before a batch norm), from failing every contender. Results
that are None, sparse or not finite must be so on both sides. `chance` is large for a few elements, whose rounding
errors vary most, and near 1 for many.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

FACTOR = 4.0
"""Factor on eager's own error up to which an error is accepted."""

VALUES = " where eager has "
"""Text that every failure about values contains, and failures about missing tensors or their kinds do not."""

Tensors = dict[str, Tensor | None]


@dataclass
class Verdict:
    """`ok`, the worst tensor, and its error as a multiple of eager's own error (accepted up to FACTOR).

    `noise` is eager's relative error over all gradients: a smaller error cannot be distinguished from rounding.
    `reference` is the dtype in which the reference was computed. `dropout` is the treatment of dropout, as in
    `results.Row`.
    """

    ok: bool
    worst: str = ""
    ratio: float = 0.0
    error: float = 0.0
    eager_error: float = 0.0
    noise: float = 0.0
    tensors: int = 0
    dropout: str = "none"
    reference: str = "float64"
    failures: list[str] = field(default_factory=list)
    unlucky: list[str] = field(default_factory=list)


def judge(
    reference: Tensors,
    expected: Tensors,
    actual: Tensors,
    floor: float = 1e-5,
    widening: float = 1.0,
    perturbed: Sequence[Mapping[str, float]] = (),
) -> Verdict:
    """Compare the contender's tensors with the float64 reference, relative to eager's error, by the formula in the
    module's docstring.

    Args:
        floor: relative error of a tensor that is always accepted.
        widening: factor on the tolerance.
        perturbed: the errors of further runs of eager, see `distances`.
    """
    verdict = Verdict(ok=True, tensors=len(reference))
    for name in sorted({*reference, *expected, *actual} - ({*reference} & {*expected} & {*actual})):
        _fail(verdict, f"{name}: present on one side only", name)
    for group in ("loss", "output", "buffer", "grad"):
        names = [name for name in reference if name.partition(".")[0] == group and name in actual and name in expected]
        tensors = {name: (reference[name], expected[name], actual[name]) for name in names}
        _judge_group(verdict, tensors, floor, widening, perturbed)
    return verdict


def _judge_group(
    verdict: Verdict,
    tensors: Mapping[str, tuple[Tensor | None, ...]],
    floor: float,
    widening: float,
    perturbed: Sequence[Mapping[str, float]],
) -> None:
    """Judge the tensors of one group, by name: (reference, expected, actual)."""
    usable = _comparable(verdict, tensors)
    errors = {
        name: max(float((expected - reference).norm()), *(run.get(name, 0.0) for run in (*perturbed, {})))
        for name, (reference, expected, _) in usable.items()
    }
    sizes = {name: float(reference.norm()) for name, (reference, _, _) in usable.items()}
    relative = math.hypot(*errors.values()) / (math.hypot(*sizes.values()) or 1.0)
    if usable:
        verdict.noise = relative  # the value of the last group remains: of the gradients, if there are any
    share = max(floor / FACTOR, relative)
    spreads = _spreads(errors, {name: reference.numel() for name, (reference, _, _) in usable.items()})
    for name, (reference, _, actual) in usable.items():
        spread = spreads[_module(name)] * math.sqrt(reference.numel())
        tolerance = widening * max(errors[name], share * sizes[name], spread, 1e-12)
        error = float((actual - reference).norm())
        if error / tolerance > verdict.ratio:
            verdict.worst, verdict.ratio = name, error / tolerance
            verdict.error, verdict.eager_error = error, errors[name]
        if error > FACTOR * chance(reference.numel()) * tolerance:
            _fail(verdict, f"{name}: error {error:.2e}{VALUES}{errors[name]:.2e}", name)


def _comparable(verdict: Verdict, tensors: Mapping[str, tuple[Tensor | None, ...]]) -> dict[str, tuple[Tensor, ...]]:
    """Returns the tensors whose values can be compared, in twice the precision; other tensors that differ fail the
    verdict.
    """
    found: dict[str, tuple[Tensor, ...]] = {}
    for name, (reference, expected, actual) in tensors.items():
        if reference is None or expected is None or actual is None:
            if (expected is None) != (actual is None):
                _fail(verdict, f"{name}: {_kind(actual)} where eager gives {_kind(expected)}", name)
        elif _kind(actual) != _kind(expected):
            _fail(verdict, f"{name}: {_kind(actual)} where eager gives {_kind(expected)}", name)
        elif not _same_special(expected, actual):
            _fail(verdict, f"{name}: NaN or infinity on one side only", name)
        else:
            wide = (_wide(tensor) for tensor in (reference, expected, actual))
            found[name] = tuple(torch.nan_to_num(tensor, 0.0, 0.0, 0.0) for tensor in wide)
    return found


def chance(elements: int) -> float:
    """Returns the factor by which the rounding errors of `elements` elements may differ by chance."""
    return 1.0 + 4.0 / math.sqrt(max(1, elements))


def _spreads(errors: Mapping[str, float], elements: Mapping[str, int]) -> dict[str, float]:
    """Returns the root mean square error per element by module. Modules differ too much for one value: gradients may
    explode.
    """
    names: dict[str, list[str]] = {}
    for name in errors:
        names.setdefault(_module(name), []).append(name)
    return {
        module: math.hypot(*(errors[name] for name in own)) / math.sqrt(max(1, sum(elements[name] for name in own)))
        for module, own in names.items()
    }


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _fail(verdict: Verdict, reason: str, name: str) -> None:
    verdict.ok = False
    verdict.worst = verdict.worst or name
    if len(verdict.failures) < 8:
        verdict.failures.append(reason)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to_dense().to(torch.complex128 if tensor.is_complex() else torch.float64)


def _same_special(expected: Tensor, actual: Tensor) -> bool:
    if not (expected.is_floating_point() or expected.is_complex()):
        return True
    return torch.equal(torch.isfinite(expected.to_dense()), torch.isfinite(actual.to_dense()))


def _kind(tensor: Tensor | None) -> str:
    if tensor is None:
        return "None"
    layout = "" if tensor.layout == torch.strided else f"{str(tensor.layout).removeprefix('torch.')} "
    return f"{layout}{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def distances(reference: Tensors, run: Tensors) -> dict[str, float]:
    """Returns the error norm of each tensor of a run, without tensors that are missing, not finite or of
    another shape.
    """
    found = {}
    for name, exact in reference.items():
        other = run.get(name)
        if exact is not None and other is not None and exact.shape == other.shape:
            error = float((_wide(other) - _wide(exact)).norm())
            if math.isfinite(error):
                found[name] = error
    return found
