"""Modes and options as users ask for them: what there is, what a mode sets, and what is no option."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import smelt
from smelt.base.options import Options, environment, resolve_options


def test_modes_are_options():
    modes = smelt.list_mode_options()
    assert set(modes) == {"default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"}
    for mode, values in modes.items():
        assert smelt.list_mode_options(mode) == values and set(values) <= set(smelt.list_options())
        given = resolve_options(options=values)
        named = resolve_options(mode=mode)
        assert all(getattr(named, name) == getattr(given, name) for name in smelt.list_options())
    assert smelt.list_mode_options("max-autotune")["max_autotune"] is True
    modes["default"]["gemm"] = "own"
    assert smelt.list_mode_options("default") == {}  # a copy


def test_options_are_documented():
    listed = smelt.list_options()
    for name, text in listed.items():
        assert f"default {getattr(Options(), name)!r}" in text
    assert "one of auto, aten, onednn, own, template" in listed["gemm"]


def test_no_such_mode_or_option():
    with pytest.raises(smelt.OptionError, match="max-autotune"):
        smelt.list_mode_options("max-autotun")
    with pytest.raises(smelt.OptionError, match="max_autotune"):
        smelt.compile(lambda x: x, options={"max_autotun": True})
    with pytest.raises(smelt.OptionError, match="template"):
        smelt.compile(lambda x: x, options={"gemm": "templat"})


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, False),
        ({"max_autotune": True}, True),
        ({"max_autotune": True, "gemm": "aten"}, False),
        ({"gemm": "template"}, True),
    ],
)
def test_when_products_may_be_templates(options: dict, wanted: bool):
    assert resolve_options(options=options).templates is wanted


SWITCHES = ("strict", "verify", "trace", "debug_memory", "nvtx")
ON = ("1", "true", "TRUE", "yes", "On", " 1 ", "y")
OFF = ("", "0", "false", "No", "off", "OFF", " 0", "n", "0\n")
NEITHER = ("2", "-1", "nan", "none", "disabled", "1,0", "0.0", "００", "truе", "\udcff", "/tmp", "x" * 100_000, "1;rm")
NO_NUMBERS = (
    "",
    " ",
    "0",
    "-1",
    "-0",
    "nan",
    "-inf",
    "1e",
    "0x10",
    "10 GB",
    "1,5",
    "½",
    "Ⅷ",
    "9" * 5000 + "x",
    "\udcff",
    "/",
)
NO_FOLDERS = ("", "  ", "\t\n", "~", "~/cache", "~root/cache")
NO_TOPICS = ("graph", "GRAPHS", "graphs;breaks", "graphs breaks", "1", "all", "\udcff", "*", "x" * 100_000, "graphs,,x")
REFUSED = [
    *((f"SMELT_{name.upper()}", value) for name in SWITCHES for value in NEITHER),
    *(("SMELT_CACHE_BYTES", value) for value in (*NO_NUMBERS, "inf", "1e9", "1.5", "9" * 5000)),
    *(("SMELT_BUILD_TIMEOUT_S", value) for value in NO_NUMBERS),
    *((name, value) for name in ("SMELT_CACHE_DIR", "SMELT_TRACE_DIR") for value in NO_FOLDERS),
    *(("SMELT_LOG", value) for value in NO_TOPICS),
]
TAKEN = [
    *((f"SMELT_{name.upper()}", value, name, True) for name in SWITCHES for value in ON),
    *((f"SMELT_{name.upper()}", value, name, False) for name in SWITCHES for value in OFF),
    *(("TRITON_INTERPRET", value, "triton_interpret", True) for value in ("1", "True", "on")),
    *(("TRITON_INTERPRET", value, "triton_interpret", False) for value in NEITHER),
    *(("SMELT_CACHE_BYTES", value, "cache_bytes", int(value)) for value in ("1", " 5 ", "1_000", "9" * 4000)),
    *(("SMELT_BUILD_TIMEOUT_S", text, "build_timeout_s", value) for text, value in (("1e-9", 1e-9), ("1.5", 1.5))),
    *(("SMELT_BUILD_TIMEOUT_S", value, "build_timeout_s", 1e6) for value in ("inf", "1e400", "9" * 4000)),
    *(("SMELT_CACHE_DIR", value, "cache_dir", Path(value)) for value in ("a:b", "a,b", "-o", "\udcff", "nan", "$HOME")),
    *(("SMELT_LOG", value, "log", {"graphs", "breaks"}) for value in ("graphs,breaks", " graphs , breaks,,")),
    *(("SMELT_LOG", value, "log", set()) for value in ("", " ", ",,,")),
]


def test_values_of_the_environment_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is refused as `smelt.compile` is called, by name, in a message of some lines: none is taken for another."""
    taken = []
    for name, value in REFUSED:
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            try:
                smelt.compile(math.sin)
            except smelt.OptionError as error:
                assert name in str(error) and len(str(error)) < 1000, (name, value[:100], str(error)[:1000])
            else:
                taken.append((name, value[:100]))
    assert not taken


@pytest.mark.parametrize("name", sorted({name for name, *_ in TAKEN}))
def test_values_of_the_environment_that_are_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value, field, meaning in TAKEN:
        if variable == name:
            monkeypatch.setenv(variable, value)
            found: Any = getattr(environment(), field)
            assert found == meaning and type(found) is not str, (value[:100], found)
