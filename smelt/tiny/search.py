"""Searches the scheme that reaches the highest accuracy within a memory limit, by trial trainings and an evolutionary
search.

As in section 3.2 of the paper (arXiv 2206.15472), short trainings (`trial`) measure contributions: how much accuracy
rises if the biases of the last k layers are trained besides the classifier, and how much it rises further if a share of
one layer's weights is trained besides the biases of this and all later layers. The evolutionary search maximizes the
sum of the contributions. The public code of the paper does not contain its search.
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
"""Number of images from which the ranges of activations are measured if the model is not quantised yet."""


class SearchError(SmeltError):
    """A search cannot start or cannot continue."""


@dataclass(frozen=True)
class Contributions:
    """The increase of the accuracy if more parameters than the classifier's are trained.

    Attributes:
        biases: number of last layers whose biases are trained -> increase of the accuracy; 0 -> 0.
    """

    biases: dict[int, float]
    weights: dict[tuple[int, Fraction], float]

    def of(self, scheme: Scheme) -> float:
        """The sum of the contributions of a scheme."""
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
        model: an int8 graph that ends in a float classifier, or a model for `quantize`, whose ranges are measured on
            some of the images: (n, channels, height, width), pixels from -1 to 1.
        data: labelled images of the task.
        memory: the limit of RAM in bytes, for arena, trained parameters and stack together.
        seed: the seed of the evolutionary search; trainings use that of `trial`.
        state: a file in which accuracies are stored as they are measured, so that an interrupted search can continue.

    Raises:
        SearchError: not even the classifier alone fits, or the file belongs to another search.
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
    """The contribution analysis: a training for each number of last layers whose biases are trained, and for each
    pair of a layer and a share of its weights.

    The trainings are ordered by the first layer that they train, so that the activations before it are computed once.
    """
    state, count = state or _State(None, 0), len(graph.layers)
    bias_only = [Scheme(f"bias-{count - layer}", count - layer) for layer in range(count + 1)]
    weighted = [[Scheme("trial", count - layer, {layer: ratio}) for ratio in RATIOS] for layer in range(count)]
    order = [one for bias, layer in zip(bias_only, [*weighted, []], strict=True) for one in (bias, *layer)]
    accuracy = {scheme: state.ask(scheme, evaluate) for scheme in track(order, "contributions", transient=True)}
    biases = {scheme.biases: accuracy[scheme] - accuracy[bias_only[-1]] for scheme in bias_only}
    added = {
        pair: accuracy[one] - accuracy[bias]
        for bias, layer in zip(bias_only, weighted, strict=False)
        for one in layer
        for pair in one.weights.items()
    }
    return Contributions(biases, added)


def best_scheme(graph: Int8Graph, found: Contributions, limit: int, ram: Callable[[Scheme], int], seed: int) -> Scheme:
    """The scheme with the largest sum of contributions among those whose RAM is within a limit.

    The number of last layers that a scheme trains decides which activations are kept. The memory model (`memory`) does
    not count those, so the planner (`ram`) first decides how many last layers may be trained at all. The evolutionary
    search then uses the memory model, which is fast. If its scheme takes more than the limit by the planner, the search
    is repeated with the limit for the memory model reduced by the excess.
    """
    depth = deepest(len(graph.layers), limit, ram)
    extra = memory(graph, Scheme("all", depth, {len(graph.layers) - n: Fraction(1) for n in range(1, depth + 1)})).total
    extra = min(extra, limit)
    fitting = [Scheme("searched", biases) for biases in range(depth + 1)]  # schemes that train only biases always fit
    while extra > 0 and depth:
        best = evolve(graph, found, extra, seed, depth)
        over = ram(best) - limit
        if over <= 0:
            fitting.append(best)
            break
        extra = min(extra, memory(graph, best).total) - max(min(over, extra // 8), 64)
    return max(fitting, key=found.of)


def deepest(count: int, limit: int, ram: Callable[[Scheme], int]) -> int:
    """The largest number of last layers whose biases can be trained within a limit of RAM."""
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

    A quarter of each generation survives; the others are crossings of two survivors with random mutations, and genes
    are reduced at random until the limit holds. The same seed gives the same scheme.

    Args:
        depth: only the last `depth` layers may be trained; default: all.
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
    """The scheme of a genome. The first gene is the number of last layers whose biases are trained. Each further gene
    is for one layer: 0 if its weights are not trained, else the position in `RATIOS` plus 1.
    """
    biases, *ratios = (int(one) for one in genes)
    return Scheme(name, biases, {layer: RATIOS[one - 1] for layer, one in enumerate(ratios) if one})


def _identity(graph: Int8Graph, data: Images, trial: Trial) -> int:
    value = zlib.crc32(repr(trial).encode())
    for array in (*(one.data for one in graph.parameters()), data.pixels, data.labels):
        value = zlib.crc32(np.ascontiguousarray(array).tobytes(), value)
    return value


class _State:
    """Accuracies by scheme; the file is replaced atomically after each new one."""

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
        """The accuracy of a scheme: the stored one, else that of a new training, which is then stored."""
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
