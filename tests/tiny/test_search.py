"""The search for schemes: sums against all schemes of a small network, and trainings that go on where they stopped."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from smelt.tiny.data import DataError, Images
from smelt.tiny.graph import Int8Graph
from smelt.tiny.models import load, with_head
from smelt.tiny.quantization import quantize
from smelt.tiny.ram import ram_of
from smelt.tiny.scheme import Scheme, memory
from smelt.tiny.search import RATIOS, Contributions, SearchError, best_scheme, contributions, evolve, search
from smelt.tiny.trial import Trial
from tests.tiny import model_files as files


def network(folder: Path) -> Int8Graph:
    return with_head(load(files.write(folder)), 2)


def images(count: int = 60) -> Images:
    """Dark and bright ones."""
    labels = np.arange(count) % 2
    noise = np.random.default_rng(0).integers(0, 128, (count, 9, 9, 3))
    return Images((noise + 127 * labels[:, None, None, None]).astype(np.uint8), labels, 2)


def drawn(graph: Int8Graph, seed: int) -> Contributions:
    random, layers = np.random.default_rng(seed), range(len(graph.layers))
    biases = {k: float(random.random()) if k else 0.0 for k in range(len(layers) + 1)}
    return Contributions(biases, {(n, r): float(random.normal()) for n in layers for r in RATIOS})


@pytest.mark.parametrize("seed", range(2))
def test_evolution_comes_near_the_best_of_all_schemes(tmp_path: Path, seed: int) -> None:
    """Of the last three layers' weights all 8 * 125 schemes are tried; the others' contribute less than nothing."""
    graph = network(tmp_path)
    found = drawn(graph, seed)
    found.weights.update({pair: -1.0 for pair in found.weights if pair[0] < 4})
    limit = memory(graph, Scheme("full", 7, {n: Fraction(1) for n in range(7)})).total // 4
    best = -1.0
    for k, *ratios in itertools.product(range(8), *[(None, *RATIOS)] * 3):
        scheme = Scheme("s", k, {n: r for n, r in zip((4, 5, 6), ratios, strict=True) if r})  # type: ignore[misc]
        if memory(graph, scheme).total <= limit:
            best = max(best, found.of(scheme))
    evolved = evolve(graph, found, limit, seed=0)
    assert memory(graph, evolved).total <= limit
    assert found.of(evolved) >= best - 1e-9
    assert evolve(graph, found, limit, seed=0) == evolved


def test_the_planner_has_the_last_word(tmp_path: Path) -> None:
    graph = network(tmp_path)
    found = drawn(graph, 5)
    full = ram_of(graph, Scheme("full", 7, {n: Fraction(1) for n in range(7)}), 1024)
    bare = ram_of(graph, Scheme("classifier"), 1024)
    for limit in (full, (full + bare) // 2, bare):
        scheme = best_scheme(graph, found, limit, lambda one: ram_of(graph, one, 1024), 0)
        assert ram_of(graph, scheme, 1024) <= limit


def test_shallow_scheme_is_found_where_deeper_ones_exceed_memory(tmp_path: Path) -> None:
    """Deep schemes hold activations, of which the memory model does not know: one that is refused says nothing of
    those that reach less far."""
    graph = network(tmp_path)
    count = len(graph.layers)
    weights = {(layer, ratio): 0.01 * float(ratio) for layer in range(count) for ratio in RATIOS}
    found = Contributions({k: 0.1 * k for k in range(count + 1)}, weights)
    chosen = (0, 1, count // 2, count)
    sizes = {k: ram_of(graph, Scheme("biases", k), 1024) for k in chosen}
    assert sizes[count] > sizes[1]
    for k in chosen:
        scheme = best_scheme(graph, found, sizes[k], lambda one: ram_of(graph, one, 1024), 0)
        assert ram_of(graph, scheme, 1024) <= sizes[k]
        assert found.of(scheme) >= 0.1 * k


def test_contributions_are_differences(tmp_path: Path) -> None:
    graph = network(tmp_path)

    def evaluate(scheme: Scheme) -> float:
        return 0.5 + 0.01 * scheme.biases + sum(0.001 * (n + 1) * float(r) for n, r in scheme.weights.items())

    found = contributions(graph, evaluate)
    assert found.biases[0] == 0 and found.biases[7] == pytest.approx(0.07)
    assert found.weights[3, Fraction(1, 2)] == pytest.approx(0.002)
    assert len(found.biases) == 8 and len(found.weights) == 7 * len(RATIOS)


def test_a_search_goes_on_where_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, data, state = network(tmp_path), images(), tmp_path / "state.json"
    trial = Trial(steps=6, held_out=20)
    calls: list[Scheme] = []
    real = Trial.evaluator

    def counted(self: Trial, graph: Int8Graph, data: Images) -> object:
        evaluate = real(self, graph, data)

        def one(scheme: Scheme) -> float:
            if len(calls) == 9:
                calls.append(scheme)
                raise KeyboardInterrupt
            calls.append(scheme)
            return evaluate(scheme)

        return one

    monkeypatch.setattr(Trial, "evaluator", counted)
    with pytest.raises(KeyboardInterrupt):
        search(graph, data, "16KB", trial=trial, state=state)
    found = search(graph, data, "16KB", trial=trial, state=state)
    assert len(calls) == 10 + (8 + 28 - 9)
    assert search(graph, data, "16KB", trial=trial) == found
    assert ram_of(graph, found, 4096) <= 16 << 10
    with pytest.raises(SearchError, match="of another search"):
        search(graph, data, "16KB", trial=Trial(steps=7, held_out=20), state=state)
    state.write_text("{")
    with pytest.raises(SearchError, match="holds no search"):
        search(graph, data, "16KB", trial=trial, state=state)


def test_a_model_is_quantised_with_the_data() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    trial, data = Trial(steps=10, held_out=20), images()
    found = search(model, data, "6KB", trial=trial)
    graph = quantize(model, data.calibration(128, 0))
    assert found == search(graph, data, "6KB", trial=trial)
    assert ram_of(graph, found, 4096) <= 6 << 10


def test_an_unsearchable_graph_is_an_error(tmp_path: Path) -> None:
    graph = network(tmp_path)
    with pytest.raises(SearchError, match="the classifier alone takes"):
        search(graph, images(), 5000)
    with pytest.raises(SearchError, match="int8 classifier"):
        search(load(files.write(tmp_path)), images())
    with pytest.raises(DataError, match="sample of 800 of 60"):
        search(graph, images())
    with pytest.raises(DataError, match="2 classes of images, net has 5"):
        search(with_head(graph, 5), images())
