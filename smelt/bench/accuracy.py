"""Is a contender as right as eager? Judged against eager in float64, with eager's own float32 error as the yardstick.

For each tensor (loss, outputs, gradients, buffers that forward changed) with reference r, eager results e and the
contender's result c, the contender passes when

    |c - r| <= FACTOR * luck(n) * max(|e - r|, share * |r|, spread * sqrt(n))        (Euclidean norms, n elements)

Eager runs `1 + NUDGES` times, the later times with parameters that are moved by about one rounding error, and the
largest error counts: an activation next to a kink (the zero of a ReLU, two equal candidates of a maximum) may come out
on either side of it by rounding alone, and moves every gradient before it. For the same reason a contender whose
values fail is judged again with other weights and inputs (`SEEDS`): luck does not repeat itself, an error does. It
passes only if it passes all of these, and the verdict keeps what had failed (`unlucky`).

`share` is eager's error relative to the reference over all tensors of the group (loss, outputs, buffers, gradients),
`spread` its root mean square error per element over the tensors of the same module. They keep a tensor on which eager
happens to be exact, or whose true value is zero (a bias before a batch norm), from failing everybody else. Results
that are None, sparse or not finite must be so on both sides. `luck` is wide for a few elements, whose errors are a few
draws of rounding, and 1 for many.

Random numbers: dropout is switched off. A model that draws otherwise (`Workload.draws`) is compared with the compiler's
option for eager's random numbers, and its float64 reference draws what the float32 runs draw. A model that does not run
in float64 is compared with float32 eager itself; the yardstick is then what its entry knows of its error, or
`NO_REFERENCE`.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils import _pytree as pytree

from smelt.bench.contenders import Prepare, eager
from smelt.bench.preparation import settle_statistics, wake_parameters, without_dropout
from smelt.bench.randomness import SingleDraws, seed_everything
from smelt.bench.steps import build_batch, build_model, precision
from smelt.bench.workload import Batch, Settings, Workload

FACTOR = 4.0
"""How many times eager's own error is accepted."""

FLOOR = {"fp32": 1e-5, "amp": 2e-2}
"""The relative error of a tensor that is always accepted: on a small tensor eager's own error is a matter of luck."""

NOISY = {"fp32": 1e-4, "amp": 1e-1}
"""Relative error of eager's own gradients from which on training is too chaotic to be judged alone."""

NO_REFERENCE = {"fp32": 1e-4, "amp": 2e-2}
"""The relative error that is granted where a model does not run in float64 and eager's own error is not known."""

NUDGES = 3
"""How many more times eager runs, to see what rounding can do."""

ROUNDING = {"fp32": 2.0**-23, "amp": 2.0**-9}
"""By how much (standard deviation, relative) parameters are moved then."""

CHAOS = 4.0
"""How much wider the yardstick is then: eager's error is one draw of many. Eval mode is judged without it."""

VALUES = " where eager has "
"""Part of every failure that is about values, and not about what is there or of what kind."""

SEEDS = (101, 202)
"""Added to the seed of the settings, for the further judgements of a contender whose values failed."""

Tensors = dict[str, Tensor | None]


class EagerFailed(Exception):
    """Eager itself cannot run the step, so there is nothing to compare with."""


@dataclass
class Verdict:
    """`ok`, the worst tensor, and its error as a multiple of what eager itself shows (accepted up to FACTOR).

    `noise` is eager's relative error over all gradients: a wrong result smaller than that cannot be told from rounding.
    `reference` is the dtype that the reference was computed in. `dropout` says how random numbers were dealt with.
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


def judge_workload(workload: Workload, settings: Settings, prepare: Prepare) -> Verdict:
    """Run one step of the reference, of eager and of the contender from equal weights, and compare.

    Raises:
        EagerFailed: eager cannot run the step.
    """
    verdict = _judge_seed(workload, settings, prepare)
    if verdict.ok or not all(VALUES in failure for failure in verdict.failures):
        return verdict
    for more in SEEDS:
        again = _judge_seed(workload, dataclasses.replace(settings, seed=settings.seed + more), prepare)
        if not again.ok:
            return verdict
    again.unlucky = verdict.failures
    return again


def _judge_seed(workload: Workload, settings: Settings, prepare: Prepare) -> Verdict:
    """The verdict for one seed.

    Batch statistics over few samples can make training chaotic: one activation that changes its sign moves every
    gradient by parts in a thousand, in eager too. Where eager is that noisy, gradients in eval mode are judged as well.
    """
    verdict = judge_mode(workload, settings, prepare, settings.train)
    if verdict.ok and settings.train and max(verdict.noise, workload.noise) > NOISY[settings.precision]:
        quiet = judge_mode(workload, settings, prepare, False)
        quiet.failures = [f"in eval mode, {failure}" for failure in quiet.failures]
        quiet.dropout, quiet.noise = verdict.dropout, verdict.noise
        return quiet if not quiet.ok or quiet.ratio > verdict.ratio else verdict
    return verdict


def judge_mode(workload: Workload, settings: Settings, prepare: Prepare, train_mode: bool) -> Verdict:
    """The verdict with the modules in train or eval mode; gradients are compared in both if the settings train."""
    model = build_model(workload, settings).train(train_mode)
    dropout = "off" if without_dropout(model) and settings.train else "none"
    if workload.wake:
        wake_parameters(model)
    if workload.draws:
        settings, dropout = dataclasses.replace(settings, eager_rng=True), "eager_rng"
    batch = build_batch(workload, settings)
    if not train_mode and settings.train:
        inputs = batch.clone()
        with contextlib.suppress(Exception):  # a model whose training needs other inputs stays as it is
            settle_statistics(model, lambda each: each(*inputs.args, **inputs.kwargs))
    try:
        expected = run_step(workload, copy.deepcopy(model), batch, settings, eager)
    except Exception as error:
        raise EagerFailed from error
    floor, exact = FLOOR[settings.precision], dataclasses.replace(settings, precision="fp32", mode=None)
    try:
        with default_dtype(torch.float64), SingleDraws() if workload.draws else contextlib.nullcontext():
            reference = run_step(workload, copy.deepcopy(model).double(), batch.to(torch.float64), exact, eager)
        kind = "float64"
    except (RuntimeError, TypeError, ValueError):
        # Some models name float32 in their code. The error of eager itself cannot be seen then.
        reference, kind = run_step(workload, copy.deepcopy(model), batch, exact, eager), "float32"
        floor = FACTOR * NO_REFERENCE[settings.precision]
    nudged = [
        distances(reference, run_step(workload, nudge(model, settings, seed), batch, settings, eager))
        for seed in range(NUDGES)
    ]
    actual = run_step(workload, model, batch, settings, prepare)
    if train_mode:
        floor = max(floor, workload.noise)  # it was measured in train mode; eval mode is far below it
    verdict = judge(reference, expected, actual, floor, nudged=nudged)
    if train_mode and verdict.noise > NOISY[settings.precision]:
        verdict = judge(reference, expected, actual, floor, CHAOS, nudged)
    verdict.dropout, verdict.reference = dropout, kind
    return verdict


def nudge(model: nn.Module, settings: Settings, seed: int) -> nn.Module:
    """A copy of `model` whose parameters are moved by about one rounding error each."""
    moved = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in moved.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.mul_(1 + ROUNDING[settings.precision] * noise)
    return moved


def distances(reference: Tensors, run: Tensors) -> dict[str, float]:
    """By how much each tensor of a run is off; without those that are not there, not finite or of another shape."""
    found = {}
    for name, exact in reference.items():
        other = run.get(name)
        if exact is not None and other is not None and exact.shape == other.shape:
            error = float((_wide(other) - _wide(exact)).norm())
            if math.isfinite(error):
                found[name] = error
    return found


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Tensors that a model makes without naming a dtype have this one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def run_step(workload: Workload, model: nn.Module, batch: Batch, settings: Settings, prepare: Prepare) -> Tensors:
    """The loss, outputs, changed buffers and (training) gradients of one step, copied, by name."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    call = prepare(model, settings)
    seed_everything(settings.seed + 2)
    batch = batch.clone()
    with torch.set_grad_enabled(settings.train), precision(settings):
        output = call(*batch.args, **batch.kwargs)
        loss = workload.loss(output, batch)
    if settings.train:
        loss.backward()
    return _collect(loss, output, model, before, settings.train)


def _collect(loss: Tensor, output: Any, model: nn.Module, before: Mapping[str, Tensor], train: bool) -> Tensors:
    found: Tensors = {"loss": loss.detach().clone()}
    for index, leaf in enumerate(pytree.tree_leaves(_plain(output))):
        if isinstance(leaf, Tensor):
            found[f"output.{index}"] = leaf.detach().clone()
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, before[name]):
            found[f"buffer.{name}"] = buffer.detach().clone()
    if train:
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            found[f"grad.{name}"] = None if gradient is None else gradient.detach().clone()
    return found


def _plain(output: Any) -> Any:
    """Objects that hold tensors as plain dictionaries and tuples: Hugging Face outputs, distributions."""
    to_tuple = getattr(output, "to_tuple", None)
    if callable(to_tuple):
        return to_tuple()
    if isinstance(output, Distribution):
        return {name: _plain(value) for name, value in sorted(vars(output).items())}
    return output


def judge(
    reference: Tensors,
    expected: Tensors,
    actual: Tensors,
    floor: float = FLOOR["fp32"],
    widening: float = 1.0,
    nudged: Sequence[Mapping[str, float]] = (),
) -> Verdict:
    """Compare the contender's tensors with the float64 reference, by eager's error. See the module's formula.

    Args:
        floor: the relative error of a tensor that is always accepted.
        widening: a factor on the yardstick.
        nudged: the errors of further runs of eager, see `distances`.
    """
    verdict = Verdict(ok=True, tensors=len(reference))
    for name in sorted({*reference, *expected, *actual} - ({*reference} & {*expected} & {*actual})):
        _fail(verdict, f"{name}: present on one side only", name)
    for group in ("loss", "output", "buffer", "grad"):
        names = [name for name in reference if name.partition(".")[0] == group and name in actual and name in expected]
        tensors = {name: (reference[name], expected[name], actual[name]) for name in names}
        _judge_group(verdict, tensors, floor, widening, nudged)
    return verdict


def _judge_group(
    verdict: Verdict,
    tensors: Mapping[str, tuple[Tensor | None, ...]],
    floor: float,
    widening: float,
    nudged: Sequence[Mapping[str, float]],
) -> None:
    usable: dict[str, tuple[Tensor, ...]] = {}
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
            usable[name] = tuple(torch.nan_to_num(tensor, 0.0, 0.0, 0.0) for tensor in wide)
    errors = {
        name: max(float((expected - reference).norm()), *(run.get(name, 0.0) for run in (*nudged, {})))
        for name, (reference, expected, _) in usable.items()
    }
    sizes = {name: float(reference.norm()) for name, (reference, _, _) in usable.items()}
    relative = math.hypot(*errors.values()) / (math.hypot(*sizes.values()) or 1.0)
    if usable:
        verdict.noise = relative  # the last group's stays: the gradients, where there are any
    share = max(floor / FACTOR, relative)
    spreads = _spreads(errors, {name: reference.numel() for name, (reference, _, _) in usable.items()})
    for name, (reference, _, actual) in usable.items():
        spread = spreads[_module(name)] * math.sqrt(reference.numel())
        yardstick = widening * max(errors[name], share * sizes[name], spread, 1e-12)
        error = float((actual - reference).norm())
        if error / yardstick > verdict.ratio:
            verdict.worst, verdict.ratio = name, error / yardstick
            verdict.error, verdict.eager_error = error, errors[name]
        if error > FACTOR * luck(reference.numel()) * yardstick:
            _fail(verdict, f"{name}: error {error:.2e}{VALUES}{errors[name]:.2e}", name)


def luck(elements: int) -> float:
    """How much further the rounding errors of so many elements may lie apart by chance, as a factor."""
    return 1.0 + 4.0 / math.sqrt(max(1, elements))


def _spreads(errors: Mapping[str, float], elements: Mapping[str, int]) -> dict[str, float]:
    """Root mean square error per element, by module. Modules differ too much for one figure: gradients may explode."""
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
