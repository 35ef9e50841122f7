"""The 163 models of the PyTorch 2.0 announcement as workloads: 46 Hugging Face, 61 TIMM, 56 TorchBench.

`entries.json` has one entry per line: how the model is built (`builder`), its inputs in two sizes (`cpu`: small enough
for a laptop; `full`: those of the public benchmark), its loss, and a remark on an unusual property (`note`). `noise` is
the relative error of float32 gradients against float64 of eager itself, which a comparison has to accept. `draws` names
random operators other than dropout, and `wake: false` keeps parameters that start at zero as they are. `unable` names
precisions in which eager fails, with the reason: the row then runs in fp32, and its note says so.

`baselines.json` contains eight more models in the same form, with which GPUs are measured, the most informative first.
Their `defaults` are settings (precision, optimizer), their `modes` the compilers' modes, which makes eleven pairs of
model and mode.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from smelt.base.errors import SmeltError, unknown_name
from smelt.bench.builders import timm_model, torchvision_model, transformers_model
from smelt.bench.losses import LOSSES
from smelt.bench.suites.inputs import make_inputs
from smelt.bench.workload import Batch, Workload

ENTRIES = Path(__file__).parent / "entries.json"

BASELINES = Path(__file__).parent / "baselines.json"

SUITES = ("huggingface", "timm", "torchbench")
SIZES = ("cpu", "full")

Builder = Callable[[], nn.Module]


class EntryError(SmeltError):
    """Raised for an entry of `entries.json` from which no workload can be made."""


def transformers_builder(entry: Mapping[str, Any], size: str) -> Builder:
    return transformers_model(entry["class"], entry["config"], **entry[size])


def timm_builder(entry: Mapping[str, Any], size: str) -> Builder:
    return timm_model(entry["name"], **entry[size])


def torchvision_builder(entry: Mapping[str, Any], size: str) -> Builder:
    return torchvision_model(entry["name"], **entry[size])


def own_builder(entry: Mapping[str, Any], size: str) -> Builder:
    """Returns the builder of a module of `smelt.bench.suites.models`, which calls its `build` with the entry's settings
    of that size.
    """

    def build() -> nn.Module:
        module = importlib.import_module(f"smelt.bench.suites.models.{entry['module']}")
        return module.build(**getattr(module, size.upper()))

    return build


BUILDERS: dict[str, Callable[[Mapping[str, Any], str], Builder]] = {
    "transformers": transformers_builder,
    "timm": timm_builder,
    "torchvision": torchvision_builder,
    "own": own_builder,
}
"""Function that makes a builder, by the library that has the model."""


@functools.cache
def read_entries(path: Path = ENTRIES) -> dict[str, dict[str, Any]]:
    """Read the entries by name, in the order of the file."""
    return {entry["name"]: entry for entry in json.loads(path.read_text())}


def known_entries() -> dict[str, dict[str, Any]]:
    """Returns every entry by name, the baselines included."""
    return read_entries() | read_entries(BASELINES)


def entry_workload(entry: Mapping[str, Any], size: str = "cpu") -> Workload:
    """Make the workload of one entry in one size.

    Raises:
        OptionError: the size is unknown.
        EntryError: the builder or the loss does not exist; the message names the entry.
    """
    if size not in SIZES:
        raise unknown_name("size", size, SIZES)
    builder, inputs = entry["builder"], entry[size]
    for kind, name, known in (("builder", builder["library"], BUILDERS), ("loss", entry["loss"], LOSSES)):
        if name not in known:
            raise EntryError(
                f"entry {entry['name']!r} has the unknown {kind} {name!r}", hint=f"valid: {', '.join(sorted(known))}"
            )

    def batch() -> Batch:
        args, kwargs, target = (make_inputs(inputs.get(name)) for name in ("args", "kwargs", "target"))
        return Batch(tuple(args or ()), kwargs or {}, target)

    return Workload(
        name=entry["name"],
        suite=entry["suite"],
        build=BUILDERS[builder["library"]](builder, size),
        batch=batch,
        loss=LOSSES[entry["loss"]],
        needs=tuple(entry.get("needs", ())),
        shape=describe_inputs(inputs),
        noise=entry.get("noise") or 0.0,
        draws=tuple(entry.get("draws", ())),
        wake=entry.get("wake", True),
        note=entry.get("note", ""),
        defaults=entry.get("defaults", {}),
        modes=tuple(entry.get("modes", ())),
        unable=entry.get("unable", {}),
    )


def suite_workloads(suite: str, size: str = "cpu") -> list[Workload]:
    """Returns every workload of one suite, of `baselines`, or of `all` (which does not include the baselines).

    Raises:
        OptionError: the suite or the size is unknown.
    """
    if suite == "baselines":
        return [entry_workload(entry, size) for entry in read_entries(BASELINES).values()]
    if suite not in (*SUITES, "all"):
        raise unknown_name("suite", suite, (*SUITES, "all", "baselines"))
    return [entry_workload(entry, size) for entry in read_entries().values() if suite in (entry["suite"], "all")]


def describe_inputs(inputs: Any) -> str:
    """Describe the shapes of at most three inputs in one line, such as `2x32` or `2x3x64x64`."""
    shapes = []

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            for item in value.values():
                visit(item)
        elif isinstance(value, list):
            if value and isinstance(value[0], str):
                shapes.append("x".join(map(str, value[1])) if isinstance(value[1], list) else value[0])
            else:
                for item in value:
                    visit(item)

    visit([inputs.get("args", []), inputs.get("kwargs", {})])
    return ", ".join(dict.fromkeys(shapes[:3]))
