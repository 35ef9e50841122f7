"""Artefacts whose contents an enemy has changed, with checksums that fit: `python -m tests.artefact.fuzz --count 2000`.

Each is applied: it is refused by an error of ours, or it is a change that makes no difference there. Source text and
machine code are left as they are: they are code, and who may write them may run code.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import smelt
from smelt.artefact.artefact import Artefact
from smelt.artefact.container import Container, read

from .models import scaled

CODE = ("host", "source")
VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 2**31, 2**63, 2**64, -(2**63), 10**30, 1e308, float("nan"), float("inf")),
    *(
        "",
        "x",
        "../../etc/passwd",
        "\x00",
        "\ud800",
        "os.system",
        "__class__",
        "a" * 10_000,
        [],
        {},
        [[]],
        [*range(999)],
    ),
    *(["list"], ["slice", 1], ["set", ["list", 1]], ["shape", "x"], ["dict", [1]], ["dict", [["list", 1], 2]]),
    *(["device", "nope"], ["device", "cuda:99"], ["torch", "float99"], ["torch", "load"], ["op", "aten", "add", "x"]),
    *(["div", 1, 0], ["mod", 1, 0], ["size", [[[1], 2]]], ["range", 0, 10, 0], ["symbol", "s", 1, 2, 3, True]),
    *(["bytes", "!!"], ["float", "zz"], ["float", 3], ["complex", "1", "2"], ["record", "TensorMeta", []]),
    *(["tensor", 0, "float32", [size], [1]] for size in (-1, 2**40, 2**62)),
    *(["tensor", 99, "float32", [1], [1]], ["step", 1, 2, 3, 4, 5], ["flow", 3, [[1]]]),
    *(["ref", ["module", "os"]], ["ref", ["attribute", "os", "nothing"]], ["ref", ["item", ["module", "os"], "x"]]),
    *(["error", ["attribute", "builtins", name], ["tuple", "x"]] for name in ("SystemExit", "int", "print")),
]


def artefacts(folder: Path) -> list[tuple[Container, Any]]:
    """What is changed, and what it is for."""
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU())
    made = [(smelt.compile(scaled).aot_compile(*(torch.empty(s, device="meta") for s in ((3, 4), (4, 5)))), scaled)]
    made.append((smelt.compile(net).aot_compile(torch.ones(8, 6)), net))
    for at, (artefact, _) in enumerate(made):
        artefact.save(folder / str(at))
    return [(read(folder / str(at)), target) for at, (_, target) in enumerate(made)]


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        if key not in CODE:
            yield from _paths(each, (*at, key))


def changed(contents: Any, rng: random.Random) -> tuple[Any, str]:
    """Other contents, and what is other."""
    contents = copy.deepcopy(contents)
    paths = list(_paths(contents))[1:]
    path, value = rng.choice(paths), copy.deepcopy(rng.choice(VALUES))
    holder = contents
    for key in path[:-1]:
        holder = holder[key]
    how = rng.choice(("set", "set", "set", "insert", "delete", "copy"))
    if how == "insert" and isinstance(holder, list):
        holder.insert(path[-1], value)
    elif how == "delete":
        del holder[path[-1]]
    elif how == "copy":
        other = contents
        for key in rng.choice(paths):
            other = other[key]
        holder[path[-1]] = copy.deepcopy(other)
    else:
        holder[path[-1]] = value
    return contents, f"{how} {path} {str(value)[:60]!r}"


def wrong(made: list[tuple[Container, Any]], rng: random.Random, count: int, fates: Counter[str]) -> list[str]:
    """The errors that were none of ours, of so many changes."""
    found = []
    for number in range(count):
        container, target = made[number % len(made)]
        contents, what = changed(container.contents, rng)
        try:
            Artefact(Container(container.header, contents, container.blobs), "changed").apply(target)
            fates["applied"] += 1
        except smelt.SmeltError:
            fates["refused"] += 1
        except BaseException as error:
            fates["wrong"] += 1
            found.append(f"{what}: {type(error).__name__}: {str(error)[:200]}")
    return found


def main() -> int:
    """Exit status 1 when an error was none of ours."""
    parser = argparse.ArgumentParser(prog="python -m tests.artefact.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    fates: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        found = wrong(artefacts(Path(folder)), random.Random(given.seed), given.count, fates)
    print(*found, dict(fates), sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
