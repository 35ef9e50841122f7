"""What schemes and ways to train come to on Fashion-MNIST's other five classes: `python -m tests.tiny.accuracy`.

A network that is trained on classes 0 to 4 learns classes 5 to 9, one image a step, with the bits of the board. Each
way is trained for each seed, which chooses the network, the images and their order; float32 is the same network with
its BatchNorm folded, in PyTorch. Results go to a file after each training, and a later run goes on from it.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import fuse_conv_bn_eval

from smelt.tiny.program import StepOptions
from smelt.tiny.project.transfer import Block, Task, accuracy, prepare
from smelt.tiny.scheme import Scheme, memory
from smelt.tiny.search import Contributions, contributions, evolve
from smelt.tiny.step import step_program
from smelt.tiny.trial import Trial, recipe, train

RATE = 0.02
PLAIN_FACTORS = (1, 100, 10_000)
"""Without scaled gradients a step changes int8 values by a scale squared less: the best of some larger rates counts."""


def in_float(task: Task, images: torch.Tensor, labels: np.ndarray, rate: np.ndarray) -> nn.Module:
    """SGD of the network in float32, with a new classifier: the graph's."""
    model = nn.Sequential(*(folded(one) for one in pairs(copy.deepcopy(task.model))))
    model.requires_grad_(True)  # folding leaves biases that BatchNorm made out of nothing without a gradient
    head = task.graph.operators[-1]
    with torch.no_grad():
        model[-1].weight.copy_(torch.as_tensor(np.array(head.weight.data)))  # type: ignore[union-attr, operator]
        model[-1].bias.copy_(torch.as_tensor(np.array(head.bias.data)))  # type: ignore[union-attr, operator]
    parameters = list(model.parameters())
    for image, label, now in zip(images, torch.as_tensor(labels), rate, strict=True):
        gradients = torch.autograd.grad(F.cross_entropy(model(image[None]), label[None]), parameters)
        with torch.no_grad():
            for one, gradient in zip(parameters, gradients, strict=True):
                one.sub_(gradient, alpha=float(now))
    return model


def pairs(modules: nn.Module) -> Iterator[tuple[nn.Module, ...]]:
    """The modules of a sequence, each convolution with its BatchNorm."""
    held: tuple[nn.Module, ...] = ()
    for module in modules.children():
        if held and not isinstance(module, nn.BatchNorm2d):
            yield held
            held = ()
        held = (*held, module)
    yield held


def folded(group: tuple[nn.Module, ...]) -> nn.Module:
    """A convolution and its BatchNorm as one; a block, of such."""
    if len(group) == 2:
        return fuse_conv_bn_eval(*group)  # type: ignore[type-var]
    (module,) = group
    if isinstance(module, Block):
        module.body = nn.Sequential(*(folded(one) for one in pairs(module.body)))
    return module


class Measured:
    """Accuracies by name, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    def ask(self, name: str, measure: Callable[[], float]) -> float:
        """What was measured before, or is now."""
        if name not in self.known:
            self.known[name] = measure()
            self.path.write_text(json.dumps(self.known, indent=1))
            print(f"{name}: {self.known[name]:.4f}", flush=True)
        return self.known[name]


def sparse(task: Task, seed: int, measured: Measured) -> Scheme:
    """The best scheme in a quarter of the memory of a full update."""
    trial = Trial(steps=1000, held_out=1000, rate=RATE, seed=seed)
    evaluate = trial.evaluator(task.graph, task.train)

    def told(scheme: Scheme) -> float:
        return measured.ask(
            f"{seed} trial of {trial.steps} {scheme.biases} {dict(scheme.weights)}", lambda: evaluate(scheme)
        )

    found: Contributions = contributions(task.graph, told)
    return evolve(task.graph, found, memory(task.graph, full(task)).total // 4, seed)


def full(task: Task) -> Scheme:
    """Everything."""
    count = len(task.graph.layers)
    return Scheme("full", count, dict.fromkeys(range(count), Fraction(1)))


def measure(seed: int, given: argparse.Namespace, measured: Measured) -> dict[str, float]:
    """The accuracy of every way that is asked for, for a seed."""
    task, steps, held_out = prepare(given.images, 3, seed), given.steps, given.held_out
    chosen, test = task.train.sample(steps, seed), task.test.sample(held_out, seed)
    x, held, rate = chosen.quantised(task.graph), test.quantised(task.graph), recipe(steps, RATE)

    def quantised(scheme: Scheme, factor: float, options: StepOptions) -> float:
        infer = train(step_program(task.graph, scheme, options), x, chosen.labels, rate * np.float32(factor))
        return float((infer(held).argmax(1) == test.labels).mean())

    ways: dict[str, Callable[[], float]] = {
        "float32, full": lambda: accuracy(in_float(task, chosen.floats(), chosen.labels, rate), test),
        "int8 with QAS, full": lambda: quantised(full(task), 1, StepOptions()),
        "int8 with QAS, sparse": lambda: quantised(sparse(task, seed, measured), 1, StepOptions()),
        "int8 with QAS, biases": lambda: quantised(Scheme("biases", len(task.graph.layers)), 1, StepOptions()),
        "int8 with QAS, classifier": lambda: quantised(Scheme("classifier"), 1, StepOptions()),
    }
    narrow = StepOptions(backward="int8")
    ways["int8 with QAS, full, backward in int8"] = lambda: quantised(full(task), 1, narrow)
    ways["int8 with QAS, sparse, backward in int8"] = lambda: quantised(sparse(task, seed, measured), 1, narrow)
    for factor in PLAIN_FACTORS:
        plain = partial(quantised, full(task), factor, StepOptions(scaled=False))
        ways[f"int8 plain, full, rate x {factor}"] = plain
    return {
        name: measured.ask(f"{seed} {steps} of {given.images} {name}", way)
        for name, way in ways.items()
        if given.only in name
    }


def main() -> None:
    """Measure and print a table: mean and spread (largest less smallest) over seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6000, help="images, one a step")
    parser.add_argument("--held-out", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, default=30_000, help="of the training before, three times each")
    parser.add_argument("--only", default="", help="a part of the names of the ways")
    parser.add_argument("--out", type=Path, default=Path("smelt_report/tiny-accuracy.json"))
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    measured = Measured(given.out)
    found = [measure(seed, given, measured) for seed in range(given.seeds)]
    print(f"| {given.steps} images, {given.seeds} seeds | mean % | spread |\n|---|---:|---:|")
    for name in found[0]:
        values = [100 * one[name] for one in found]
        print(f"| {name} | {statistics.fmean(values):.1f} | {max(values) - min(values):.1f} |")


if __name__ == "__main__":
    main()
