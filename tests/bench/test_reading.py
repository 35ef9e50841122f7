"""smelt/bench/reading.py, and the files that Benchmark.load refuses"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smelt.base.errors import SmeltError
from smelt.bench.results import Benchmark, Result, Row, Spread

OLD: dict[str, Any] = {
    "command": "smelt bench bert",
    "rows": [
        {
            "model": "bert",
            "suite": "named",
            "shape": "4x64",
            "train": True,
            "precision": "fp32",
            "device": "cpu",
            "results": {"eager": {"contender": "eager", "step": {"median": 1, "low": 1, "high": 2, "n": 3}}},
        }
    ],
}


def changed(*keys: str | int, value: Any) -> dict[str, Any]:
    """OLD with one value replaced."""
    data = json.loads(json.dumps(OLD))
    place = data
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return data


def load(tmp_path: Path, data: Any) -> Benchmark:
    (tmp_path / "b.json").write_text(data if isinstance(data, str) else json.dumps(data))
    return Benchmark.load(tmp_path / "b.json")


def test_files_without_the_newer_fields_load(tmp_path: Path) -> None:
    row = Row("bert", "named", "4x64", True, "fp32", "cpu", results={"eager": Result("eager", step=Spread(1, 1, 2, 3))})
    assert load(tmp_path, OLD) == Benchmark("smelt bench bert", rows=[row])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "is not JSON"),
        ('{"command": "smelt', "is not JSON"),
        ([1, 2], "no 'rows'"),
        ({"overhead": {}}, "the cost of a call"),
        ({"rows": []}, "the benchmark has no 'command'"),
        (changed("rows", value={}), "the benchmark, rows is {}, not a list"),
        (changed("rows", 0, value="bert"), "the benchmark, rows 1 is 'bert', not an object"),
        (changed("rows", 0, "train", value=None), "the benchmark, rows 1, train is None, not true or false"),
        (changed("rows", 0, "colour", value=1), "the benchmark, rows 1 has an unknown field 'colour'"),
        (changed("rows", 0, "results", "eager", "status", value="fine"), "unknown status 'fine'"),
        (changed("rows", 0, "results", "eager", "contender", value="x"), "eager: holds the result of 'x'"),
        (changed("rows", 0, "results", "eager", "cold_s", value="2"), "results 'eager', cold_s is '2', not a number"),
        (changed("rows", 0, "results", "eager", "cold_s", value=True), "cold_s is True, not a number"),
        (changed("rows", 0, "results", "eager", "step", value={"median": 1.0}), "step has no 'low'"),
    ],
)
def test_other_files_are_refused_with_the_reason(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(SmeltError) as caught:
        load(tmp_path, data)
    assert message in str(caught.value)
    assert "b.json" in str(caught.value) and "try:" in str(caught.value)


def test_a_missing_file_a_folder_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name in ("none.json", ".", "bytes"):
        with pytest.raises(SmeltError, match="try:"):
            Benchmark.load(tmp_path / name)
