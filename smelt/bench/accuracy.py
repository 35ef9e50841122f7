"""Judges a contender's accuracy against eager in float64, with eager's own float32 error as the yardstick.

Eager runs `1 + NUDGES` times, the later times with parameters that are perturbed by about one rounding error, and the
largest error of these runs is the yardstick: near a kink (the zero of a ReLU, two equal candidates of a maximum)
rounding alone decides on which side an activation falls, and that changes every gradient before it. For the same reason
a contender whose values fail is judged once more with each of the further seeds (`SEEDS`), that is with other weights
and inputs: a failure by chance does not repeat itself, an error does. The contender passes only if it passes with all
further seeds, and the verdict keeps the earlier failures (`unlucky`).

`smelt.bench.verdict` compares the tensors.

Random numbers: dropout is switched off. A model with other random operators (`Workload.draws`) is compared with the
compiler's option for eager's random numbers, and its float64 reference draws the same random numbers as the float32
runs. A model that does not run in float64 is compared with float32 eager itself; the accepted relative error is then
that of `NO_REFERENCE` or, in train mode, the error that its entry states (`Workload.noise`), if that is larger.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils import _pytree as pytree

from smelt.bench.contenders import Prepare, eager
from smelt.bench.preparation import stabilize_statistics, wake_parameters, without_dropout
from smelt.bench.randomness import SingleDraws, seed_everything
from smelt.bench.steps import build_batch, build_model, precision
from smelt.bench.verdict import FACTOR, VALUES, Tensors, Verdict, distances, judge
from smelt.bench.workload import Batch, Settings, Workload

FLOOR = {"fp32": 1e-5, "tf32": 2e-3, "amp": 2e-2}
"""Relative error of a tensor that is always accepted, by precision: on a small tensor eager's own error depends on
chance.
"""

NOISY = {"fp32": 1e-4, "tf32": 1e-2, "amp": 1e-1}
"""Relative error of eager's own gradients, by precision, above which training is too chaotic to be judged alone."""

NO_REFERENCE = {"fp32": 1e-4, "tf32": 2e-3, "amp": 2e-2}
"""Relative error that is accepted, by precision, if a model does not run in float64 and eager's own error is
not known.
"""

NUDGES = 3
"""Number of further runs of eager, which measure the effect of rounding."""

ROUNDING = {"fp32": 2.0**-23, "tf32": 2.0**-12, "amp": 2.0**-9}
"""Standard deviation, relative to each value, of the perturbation of parameters in these further runs, by precision."""

CHAOS = 4.0
"""Factor on the yardstick in train mode if eager's gradients are NOISY: eager's measured error is one sample of many.
In eval mode there is no such factor.
"""

SEEDS = (101, 202)
"""Numbers added to the seed of the settings for the further judgements of a contender whose values failed."""


class EagerFailed(Exception):
    """Raised when eager itself cannot run the step, so that there is no reference to compare with."""


def judge_workload(workload: Workload, settings: Settings, prepare: Prepare) -> Verdict:
    """Run one step of the reference, of eager and of the contender from equal weights, and compare the results.

    Raises:
        EagerFailed: eager cannot run the step.
    """
    return _judge_several_seeds(lambda seeded: _judge_seed(workload, seeded, prepare), settings)


def judge_mode(workload: Workload, settings: Settings, prepare: Prepare, train_mode: bool) -> Verdict:
    """Returns the verdict with the modules in train or eval mode; gradients are compared in both if the settings train.

    Raises:
        EagerFailed: eager cannot run the step.
    """
    return _judge_several_seeds(lambda seeded: _judge_mode_of_seed(workload, seeded, prepare, train_mode), settings)


def _judge_several_seeds(judge_seed: Callable[[Settings], Verdict], settings: Settings) -> Verdict:
    """Returns the verdict for the seed of `settings` or, if values fail, for the further `SEEDS`; see the module's
    docstring.
    """
    verdict = judge_seed(settings)
    if verdict.ok or not all(VALUES in failure for failure in verdict.failures):
        return verdict
    for more in SEEDS:
        retried = judge_seed(dataclasses.replace(settings, seed=settings.seed + more))
        if not retried.ok:
            return verdict
    retried.unlucky = verdict.failures
    return retried


def _judge_seed(workload: Workload, settings: Settings, prepare: Prepare) -> Verdict:
    """Returns the verdict for one seed.

    Batch statistics over few samples can make training chaotic: one activation that changes its sign changes all
    gradients by some thousandths, also in eager. If eager is that noisy, gradients in eval mode are judged as well.
    """
    verdict = _judge_mode_of_seed(workload, settings, prepare, settings.train)
    if verdict.ok and settings.train and max(verdict.noise, workload.noise) > NOISY[settings.precision]:
        try:
            quiet = _judge_mode_of_seed(workload, settings, prepare, False)
        except EagerFailed:  # some models refuse gradients in eval mode
            return verdict
        quiet.failures = [f"in eval mode, {failure}" for failure in quiet.failures]
        quiet.dropout, quiet.noise = verdict.dropout, verdict.noise
        return quiet if not quiet.ok or quiet.ratio > verdict.ratio else verdict
    return verdict


def _judge_mode_of_seed(workload: Workload, settings: Settings, prepare: Prepare, train_mode: bool) -> Verdict:
    model = build_model(workload, settings).train(train_mode)
    dropout = "off" if without_dropout(model) and settings.train else "none"
    if workload.wake:
        wake_parameters(model)
    if workload.draws:
        settings, dropout = dataclasses.replace(settings, eager_rng=True), "eager_rng"
    batch = build_batch(workload, settings)
    if not train_mode and settings.train:
        inputs = batch.clone()
        with contextlib.suppress(Exception):  # a model that only accepts other inputs in training keeps its statistics
            stabilize_statistics(model, lambda each: each(*inputs.args, **inputs.kwargs))
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
        # Some models name float32 in their code. The error of eager itself cannot be measured then.
        reference, kind = run_step(workload, copy.deepcopy(model), batch, exact, eager), "float32"
        floor = FACTOR * NO_REFERENCE[settings.precision]
    perturbed = [
        distances(reference, run_step(workload, perturb(model, settings, seed), batch, settings, eager))
        for seed in range(NUDGES)
    ]
    actual = run_step(workload, model, batch, settings, prepare)
    if train_mode:
        floor = max(floor, workload.noise)  # the noise was measured in train mode; in eval mode it is far lower
    verdict = judge(reference, expected, actual, floor, perturbed=perturbed)
    if train_mode and verdict.noise > NOISY[settings.precision]:
        verdict = judge(reference, expected, actual, floor, CHAOS, perturbed)
    verdict.dropout, verdict.reference = dropout, kind
    return verdict


def perturb(model: nn.Module, settings: Settings, seed: int) -> nn.Module:
    """Returns a copy of `model` whose parameters are perturbed by about one rounding error each."""
    moved = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in moved.parameters():
            if parameter.is_floating_point():
                noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.mul_(1 + ROUNDING[settings.precision] * noise)
    return moved


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """A context in which tensors that a model makes without naming a dtype have this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def run_step(workload: Workload, model: nn.Module, batch: Batch, settings: Settings, prepare: Prepare) -> Tensors:
    """Run one step; returns copies of the loss, outputs, changed buffers and (in training) gradients by name."""
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
    """Convert objects that contain tensors (Hugging Face outputs, distributions) to plain dictionaries and tuples."""
    to_tuple = getattr(output, "to_tuple", None)
    if callable(to_tuple):
        return to_tuple()
    if isinstance(output, Distribution):
        return {name: _plain(value) for name, value in sorted(vars(output).items())}
    return output
