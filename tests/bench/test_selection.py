"""smelt/bench/selection.py: which models a run measures."""

from __future__ import annotations

from collections import Counter

import pytest

from smelt.base.errors import OptionError
from smelt.bench.selection import Selection, select


def keys(**parts: object) -> list[str]:
    return [each.key for each in select(Selection(**parts))]  # type: ignore[arg-type]


def test_names_a_pattern_and_a_suite() -> None:
    assert keys(names=("bert", "torchbench/resnet18")) == ["named/bert", "torchbench/resnet18"]
    assert keys(suite="timm", only="/vit_") == ["timm/vit_base_patch16_224"]
    assert len(keys(suite="all")) == 163
    assert len(keys(suite="baselines")) == 8


def test_a_sample_follows_from_its_seed() -> None:
    first = keys(suite="all", sample=10, seed=7)
    assert Counter(key.partition("/")[0] for key in first) == {"huggingface": 10, "timm": 10, "torchbench": 10}
    assert keys(suite="all", sample=10, seed=7) == first != keys(suite="all", sample=10, seed=8)
    assert keys(suite="timm", sample=10, seed=7) == [key for key in first if key.startswith("timm/")]
    assert [key for key in keys(suite="all") if key in first] == first


def test_shards_are_disjoint_and_whole() -> None:
    whole = keys(suite="baselines")
    parts = [keys(suite="baselines", shard=f"{i}/3") for i in (1, 2, 3)]
    assert sorted(sum(parts, [])) == sorted(whole)
    assert parts[0] == whole[::3]


def test_a_baseline_is_measured_in_its_modes_and_by_its_name_in_any() -> None:
    modes = {each.name: each.modes for each in select(Selection(suite="baselines"))}
    assert sum(map(len, modes.values())) == 11
    assert modes["distilbert-mlm"] == ("default", "reduce-overhead")
    (named,) = select(Selection(names=("bert-mlm",)))
    assert named.modes == () and named.defaults == {"precision": "amp", "optimizer": "none"}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "no model is named"),
        ({"names": ("bert",), "only": "x"}, "--only chooses from a suite"),
        ({"names": ("bert",), "sample": 3}, "--sample chooses from a suite"),
        ({"suite": "timm", "only": "("}, "not a regular expression"),
        ({"suite": "timm", "only": "nothing"}, "has 'nothing' in its name"),
        ({"suite": "timm", "sample": 100}, "timm has 61 models to draw from"),
        ({"suite": "timm", "shard": "0/4"}, "not a part of a whole"),
        ({"suite": "timm", "shard": "one"}, "not a part of a whole"),
        ({"names": ("bert",), "shard": "2/2"}, "has no model"),
    ],
)
def test_a_filter_that_selects_nothing_is_an_error(parts: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        keys(**parts)
