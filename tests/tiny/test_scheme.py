"""Schemes: the paper's figures, and schemes that do not fit."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from smelt.base.errors import OptionError
from smelt.tiny.models import load
from smelt.tiny.scheme import PRESETS, Scheme, SchemeError, from_json, last_layers, memory, named, parse_size
from tests.tiny import model_files as files


@pytest.mark.parametrize(
    ("model", "scheme", "kilobytes"),
    [
        ("mcunet-5fps", "mcunet-49kb", 49.8),
        ("mcunet-5fps", "mcunet-74kb", 74.8),
        ("mcunet-5fps", "mcunet-99kb", 99.8),
        ("mcunet-5fps", "mcunet-124kb", 125.0),
        ("mcunet-5fps", "mcunet-148kb", 148.4),
        ("mcunet-5fps", "last-12", 448.0),
        ("mcunet-5fps", "full", 1400),
        ("proxyless-w0.3", "full", 1211),
        ("mbv2-w0.35", "full", 1306),
    ],
)
def test_the_papers_figures(model: str, scheme: str, kilobytes: float) -> None:
    graph = load(files.pretrained(model))
    digits = 0 if isinstance(kilobytes, int) else 1
    assert round(memory(graph, named(scheme, graph)).total / 1024, digits) == kilobytes


def test_memory_of_a_small_network_by_hand(tmp_path: Path) -> None:
    """9x9x3 -> 9x9x8 | 9x9x12, 5x5x12, 5x5x6 | 5x5x12, 5x5x12, 5x5x6 + sum -> 6 features."""
    graph = load(files.write(tmp_path))
    assert memory(graph, named("classifier", graph)).total == 6
    found = memory(graph, Scheme("s", 2, {4: Fraction(1, 2), 5: Fraction(1)}))
    masks = [-(-25 * channels // 8) for channels in (12, 12, 6)]  # of layers 4, 5 and 6
    assert (found.inputs, found.masks) == (25 * 3 + 25 * 12 + 6, sum(masks))
    assert (found.weights, found.biases) == (3 * 12 + 25 * 12, 4 * (12 + 6))
    assert found.total == found.inputs + found.masks + found.weights + found.biases
    assert memory(graph, named("bias-2", graph)).weights == 0
    full = memory(graph, named("full", graph))
    assert full.weights == sum(layer.weight.data.size for layer in graph.layers)
    assert full == memory(graph, last_layers(graph, 7))


def test_scheme_that_does_not_fit_the_network_is_refused(tmp_path: Path) -> None:
    graph = load(files.write(tmp_path))
    with pytest.raises(SchemeError, match="biases of 8 layers, net has 7"):
        named("bias-8", graph)
    with pytest.raises(SchemeError, match=r"layers \[24, 27, 30\], net has 7|biases of 20 layers"):
        memory(graph, PRESETS["mcunet-49kb"])
    with pytest.raises(SchemeError, match=r"weights of layers \[7\]"):
        memory(graph, Scheme("s", 1, {7: Fraction(1)}))
    with pytest.raises(OptionError, match="unknown scheme 'mcunet-50kb'") as told:
        named("mcunet-50kb", graph)
    assert "did you mean 'mcunet-" in str(told.value)
    for ratio in (0, -1, 2):
        with pytest.raises(SchemeError, match="ratio above 0"):
            Scheme("s", 1, {0: Fraction(ratio)})
    with pytest.raises(SchemeError, match="trains -1 biases"):
        Scheme("s", -1)


@pytest.mark.parametrize("scheme", list(PRESETS.values()), ids=list(PRESETS))
def test_schemes_go_through_json(scheme: Scheme) -> None:
    back = from_json(json.loads(json.dumps(scheme.as_json())))
    assert back == scheme
    assert hash(back) == hash(scheme)


@pytest.mark.parametrize(
    "value",
    [
        *(None, {}, {"weights": {"0": "1/0"}}),
        *({"name": "s", "biases": biases, "weights": {}} for biases in ("x", 1.5)),
        {"name": "s", "biases": 1, "weights": {}, "adapters": {"0": 1.5}},
    ],
)
def test_other_json_is_no_scheme(value: object) -> None:
    with pytest.raises(SchemeError, match="no scheme"):
        from_json(value)


@pytest.mark.parametrize(("text", "size"), [("256KB", 262144), ("1 mb", 1 << 20), (512, 512), ("0.5k", 512), ("7B", 7)])
def test_sizes_are_read(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "256 apples", "-1KB", "0", "1GB"])
def test_other_text_is_no_size(text: str) -> None:
    with pytest.raises(OptionError, match="is no size"):
        parse_size(text)


def test_a_scheme_by_rule_stays_within_its_size(tmp_path: Path) -> None:
    graph = load(files.write(tmp_path))
    wide = named("within-1MB", graph)
    assert wide.biases == len(graph.layers) // 2 and set(wide.weights.values()) == {Fraction(1, 2)}
    for size in range(memory(graph, Scheme("least", wide.biases)).total, memory(graph, wide).total):
        found = named(f"within-{size}", graph)
        assert memory(graph, found).total <= size and found.weights.items() < wide.weights.items()
    with pytest.raises(SchemeError, match="by the memory model, within-100 allows 100 B"):
        named("within-100", graph)
    with pytest.raises(OptionError, match="is no size"):
        named("within-much", graph)
