"""Modes and options as users ask for them: what there is, what a mode sets, and what is no option."""

from __future__ import annotations

import pytest

import smelt
from smelt.base.options import Options, resolve_options


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


def test_options_say_what_they_do():
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
