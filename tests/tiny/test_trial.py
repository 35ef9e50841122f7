"""Trials: a graph in two parts trains as in one, and as C as in torch."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from smelt.tiny import trial
from smelt.tiny.data import Images
from smelt.tiny.graph import Int8Graph
from smelt.tiny.models import load, with_head
from smelt.tiny.program import StepOptions
from smelt.tiny.scheme import Scheme
from smelt.tiny.simulate import Training
from smelt.tiny.step import step_program
from smelt.tiny.trial import Trial, cut_before, outputs, part, train
from tests.tiny import model_files as files

SCHEMES = [
    Scheme("classifier"),
    Scheme("bias", 2),
    Scheme("late", 0, {6: Fraction(1, 2)}),
    Scheme("inside a block", 1, {5: Fraction(1, 4)}),
    Scheme("early", 4, {1: Fraction(1, 2), 3: Fraction(1)}),
    Scheme("full", 7, {n: Fraction(1) for n in range(7)}),
]


def network(folder: Path) -> Int8Graph:
    return with_head(load(files.write(folder)), 2)


def images(count: int) -> Images:
    """Dark and bright ones."""
    labels = np.arange(count) % 2
    noise = np.random.default_rng(0).integers(0, 128, (count, 9, 9, 3))
    return Images((noise + 127 * labels[:, None, None, None]).astype(np.uint8), labels, 2)


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda one: one.name)
def test_the_rest_of_a_graph_trains_as_the_whole(tmp_path: Path, scheme: Scheme) -> None:
    """Also in what is drawn by chance: losses, and every parameter afterwards."""
    graph, options = network(tmp_path), StepOptions(seed=3)
    x = images(6).quantised(graph)
    front = trial._Front(graph, x)
    front.before(Scheme("from the first layer", 6))  # and from features that were there
    rest, features, renumbered = front.before(scheme)
    rest.verify()
    assert len(rest.operators) <= len(graph.operators) - (scheme.first(graph) > 0)
    whole = Training(step_program(graph, scheme, options))
    later = Training(step_program(rest, renumbered, options))
    for number in range(6):
        assert whole.step(x[number], number % 2, 0.05) == later.step(features[number], number % 2, 0.05)
    assert whole.state.keys() == later.state.keys()
    assert all(torch.equal(whole.state[name], later.state[name]) for name in whole.state)


def test_a_cut_carries_one_tensor(tmp_path: Path) -> None:
    """None lies between the ends of a sum."""
    graph, x = network(tmp_path), images(3)
    last = len(graph.operators) - 1
    whole = outputs(part(graph, 0, last), x.quantised(graph))
    cuts = [cut_before(graph, layer) for layer in range(8)]
    assert cuts == sorted(cuts) and cuts[0] == 0 and len(set(cuts)) < 8
    for cut in filter(None, cuts):
        between = outputs(part(graph, 0, cut), x.quantised(graph), batch=2)
        rest = between if cut == last else outputs(part(graph, cut, last), between)
        assert (rest == whole).all()


def test_c_and_torch_have_the_same_accuracy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, data = network(tmp_path), images(60)
    found = []
    for least in (0, 1000):
        monkeypatch.setattr(trial, "WORTH_A_BUILD", least)
        evaluate = Trial(steps=30, held_out=30).evaluator(graph, data)
        found.append([evaluate(scheme) for scheme in (SCHEMES[4], SCHEMES[1])])
    assert found[0] == found[1]
    step, x = step_program(graph, SCHEMES[4]), data.quantised(graph)
    logits = []
    for least in (0, 1000):
        monkeypatch.setattr(trial, "WORTH_A_BUILD", least)
        logits.append(train(step, x[:20], data.labels[:20], np.full(20, 0.05))(x[20:]))
    assert (logits[0] == logits[1]).all()
