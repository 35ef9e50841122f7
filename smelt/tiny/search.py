"""Which scheme learns most within a memory: contributions by trial, then an evolutionary search over their sums.

After the paper (arXiv 2206.15472, 3.2): what the biases of the last k layers add over the classifier alone, and what a
share of each layer's weights adds over the biases of that layer and those behind it. Both are accuracies of short
trainings (`trial`). The public code of the paper does not contain its search.
"""

from __future__ import annotations

import functools
import json
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from rich.progress import track
from torch import nn

from smelt.base.errors import SmeltError
from smelt.tiny.data import Images
from smelt.tiny.graph import Head, Int8Graph
from smelt.tiny.quantization import quantize
from smelt.tiny.ram import ram_of
from smelt.tiny.scheme import Scheme, memory, parse_size
from smelt.tiny.trial import Evaluate, Trial

RATIOS = (Fraction(1, 8), Fraction(1, 4), Fraction(1, 2), Fraction(1))
"""Shares of a layer's input channels that are tried."""
CALIBRATION = 128
"""Images that tell the ranges of a model that is not quantised yet."""


class SearchError(SmeltError):
    """A search that cannot begin or go on."""


@dataclass(frozen=True)
class Contributions:
    """What training more adds to the accuracy.

    Attributes:
        biases: by the number of last layers; 0 for none.
        weights: by layer and ratio, over the biases from that layer on.
    """

    biases: dict[int, float]
    weights: dict[tuple[int, Fraction], float]

    def of(self, scheme: Scheme) -> float:
        """The sum of a scheme's parts."""
        return self.biases[scheme.biases] + sum(self.weights[one] for one in scheme.weights.items())


def search(
    model: Int8Graph | nn.Module,
    data: Images,
    memory: str | int = "256KB",
    *,
    trial: Trial | None = None,
    stack: int = 4096,
    seed: int = 0,
    state: str | Path | None = None,
) -> Scheme:
    """The scheme with the largest sum of contributions whose training step fits a memory.

    Args:
        model: an int8 graph that ends in a float classifier, or a model that `quantize` takes, which it is given with
            some of the images: pixels from -1 to 1, (n, channels, height, width).
        data: labelled images of the task.
        memory: RAM in all: arena, what trains, stack.
        seed: of the evolution; the trial has its own.
        state: a file that holds the accuracies so far: a search that was interrupted goes on from it.

    Raises:
        SearchError: not even the classifier alone fits, or the file is of another search.
        DataError: the images do not fit the graph.
        QuantizeError: an operator that the target lacks.
    """
    graph = model if isinstance(model, Int8Graph) else quantize(model, data.calibration(CALIBRATION, seed))
    trial, limit = trial or Trial(), parse_size(memory)
    if not isinstance(graph.operators[-1], Head):
        raise SearchError(f"{graph.name} ends in an int8 classifier", hint="smelt.tiny.models.with_head")
    needed = ram_of(graph, Scheme("classifier"), stack, trial.options)
    if needed > limit:
        raise SearchError(f"the classifier alone takes {needed:,} B of RAM, the memory is {limit:,} B")
    found = contributions(graph, trial.evaluator(graph, data), _State(state, _identity(graph, data, trial)))
    return best_scheme(graph, found, limit, lambda scheme: ram_of(graph, scheme, stack, trial.options), seed)


def contributions(graph: Int8Graph, evaluate: Evaluate, state: _State | None = None) -> Contributions:
    """The contribution analysis: a training for each number of biases, and for each layer and ratio of its weights.

    Those come in the order of the first layer that they reach, so that what lies before it computes once.
    """
    state, count = state or _State(None, 0), len(graph.layers)
    bias_only = [Scheme(f"bias-{count - layer}", count - layer) for layer in range(count + 1)]
    weighted = [[Scheme("trial", count - layer, {layer: ratio}) for ratio in RATIOS] for layer in range(count)]
    asked = [one for bias, layer in zip(bias_only, [*weighted, []], strict=True) for one in (bias, *layer)]
    accuracy = {scheme: state.ask(scheme, evaluate) for scheme in track(asked, "contributions", transient=True)}
    biases = {scheme.biases: accuracy[scheme] - accuracy[bias_only[-1]] for scheme in bias_only}
    added = {
        pair: accuracy[one] - accuracy[bias]
        for bias, layer in zip(bias_only, weighted, strict=False)
        for one in layer
        for pair in one.weights.items()
    }
    return Contributions(biases, added)


def best_scheme(graph: Int8Graph, found: Contributions, limit: int, ram: Callable[[Scheme], int], seed: int) -> Scheme:
    """The best scheme by the sums whose RAM is within a limit.

    How deep a scheme reaches decides which activations are held; the memory model does not know of those, so the
    planner says first how many last layers may train. Within them the evolution asks the memory model, which is quick;
    where the planner needs more than the limit, it is repeated with what is too much taken away.
    """
    depth = deepest(len(graph.layers), limit, ram)
    extra = memory(graph, Scheme("all", depth, {len(graph.layers) - n: Fraction(1) for n in range(1, depth + 1)})).total
    extra = min(extra, limit)
    fitting = [Scheme("searched", biases) for biases in range(depth + 1)]  # also where nothing else does
    while extra > 0 and depth:
        best = evolve(graph, found, extra, seed, depth)
        over = ram(best) - limit
        if over <= 0:
            fitting.append(best)
            break
        extra = min(extra, memory(graph, best).total) - max(min(over, extra // 8), 64)
    return max(fitting, key=found.of)


def deepest(count: int, limit: int, ram: Callable[[Scheme], int]) -> int:
    """The number of last layers whose biases may train within a limit."""
    for depth in range(1, count + 1):
        if ram(Scheme("trial", depth)) > limit:
            return depth - 1
    return count


def evolve(
    graph: Int8Graph,
    found: Contributions,
    limit: int,
    seed: int,
    depth: int | None = None,
    population: int = 64,
    generations: int = 80,
) -> Scheme:
    """An evolutionary search for the largest sum whose memory, by the model, is within a limit.

    A quarter of each generation survives; the rest are crossings of two survivors with some genes changed, made smaller
    where they exceed the limit. The same seed gives the same scheme.

    Args:
        depth: the number of last layers of which any may train; default: all.
    """
    random, count = np.random.default_rng(seed), len(graph.layers)
    depth, choices = count if depth is None else depth, len(RATIOS) + 1
    allowed = np.array([1, *(layer >= count - depth for layer in range(count))])

    @functools.cache
    def takes(scheme: tuple[int, ...]) -> int:
        return memory(graph, _scheme(scheme)).total

    def fit(genes: np.ndarray) -> np.ndarray:
        genes = genes.copy()
        while takes(tuple(genes.tolist())) > limit and genes.any():
            at = random.choice(np.flatnonzero(genes))
            genes[at] -= 1
        return genes

    def value(genes: np.ndarray) -> tuple[float, int]:
        return found.of(_scheme(genes)), -takes(tuple(genes.tolist()))

    def drawn() -> np.ndarray:
        sparse = random.integers(0, choices, count) * (random.random(count) < random.random())
        return fit(np.array([random.integers(0, depth + 1), *sparse]) * allowed)

    people = [fit(np.zeros(count + 1, np.int64)), *(drawn() for _ in range(population - 1))]
    for _ in range(generations):
        people.sort(key=value, reverse=True)
        kept = people[: population // 4]
        children: list[np.ndarray] = []
        while len(children) < population - len(kept):
            one, other = (kept[random.integers(len(kept))] for _ in range(2))
            child = np.where(random.random(count + 1) < 0.5, one, other)
            changed = random.random(count + 1) < 1.5 / (count + 1)
            child = np.where(changed, [random.integers(0, depth + 1), *random.integers(0, choices, count)], child)
            children.append(fit(child * allowed))
        people = [*kept, *children]
    people.sort(key=value, reverse=True)
    return _scheme(people[0], "searched")


def _scheme(genes: Iterable[int], name: str = "trial") -> Scheme:
    """The first gene is the number of biases, then one for each layer: 0, or a ratio's number from 1."""
    biases, *ratios = (int(one) for one in genes)
    return Scheme(name, biases, {layer: RATIOS[one - 1] for layer, one in enumerate(ratios) if one})


def _identity(graph: Int8Graph, data: Images, trial: Trial) -> int:
    value = zlib.crc32(repr(trial).encode())
    for array in (*(one.data for one in graph.parameters()), data.pixels, data.labels):
        value = zlib.crc32(np.ascontiguousarray(array).tobytes(), value)
    return value


class _State:
    """Accuracies by scheme, in a file that is replaced as a whole after each."""

    def __init__(self, path: str | Path | None, identity: int) -> None:
        self.path, self.identity = None if path is None else Path(path), identity
        self.known: dict[str, float] = {}
        if self.path is None or not self.path.exists():
            return
        try:
            held = json.loads(self.path.read_text())
            identity, known = held["identity"], {str(key): float(value) for key, value in held["accuracies"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SearchError(
                f"{self.path} holds no search", why=str(error), hint="remove it, or name another"
            ) from error
        if identity != self.identity:
            raise SearchError(
                f"{self.path} is of another search: model, data or trial differ", hint="name another file"
            )
        self.known = known

    def ask(self, scheme: Scheme, evaluate: Evaluate) -> float:
        """The accuracy of a scheme, from the file if it is there."""
        key = f"{scheme.biases} {','.join(f'{layer}:{ratio}' for layer, ratio in scheme.weights.items())}"
        if key not in self.known:
            self.known[key] = evaluate(scheme)
            self._write()
        return self.known[key]

    def _write(self) -> None:
        if self.path is None:
            return
        beside = self.path.with_name(self.path.name + ".new")
        beside.write_text(json.dumps({"identity": self.identity, "accuracies": self.known}))
        os.replace(beside, self.path)
