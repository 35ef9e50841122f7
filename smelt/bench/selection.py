"""Selects the models of a run: by name, or from a suite by a pattern, a sample or a shard."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from smelt.base.errors import OptionError
from smelt.bench.suites.entries import suite_workloads
from smelt.bench.workload import Workload
from smelt.bench.workloads import known_workload


@dataclass(frozen=True)
class Selection:
    """The command line's selection of models.

    Args:
        names: names of models.
        suite: one of the suites, `all` or `baselines`.
        only: a regular expression, searched in SUITE/NAME: the models of the suite that match are selected.
        size: `cpu` or `full`.
        sample: number of models drawn from each suite, by `seed`.
        shard: `I/N`, the I-th of N shards, counted from 1.
    """

    names: tuple[str, ...] = ()
    suite: str | None = None
    only: str | None = None
    size: str = "cpu"
    sample: int | None = None
    seed: int = 0
    shard: str | None = None


def select(selection: Selection) -> list[Workload]:
    """Returns the workloads of a selection.

    Raises:
        OptionError: a model, suite or size is unknown; a pattern or shard is malformed or selects nothing; neither
            models nor a suite are given; a sample is larger than a suite.
    """
    named = [known_workload(name, selection.size) for name in selection.names]
    found = [dataclasses.replace(each, modes=()) for each in named]
    if selection.suite is None:
        if selection.only is not None or selection.sample is not None:
            option = "--only" if selection.only is not None else "--sample"
            raise OptionError(f"{option} chooses from a suite", hint="--suite all")
        if not selection.names:
            raise OptionError("no model is named", hint="smelt bench bert, or smelt bench --suite all")
    else:
        found += of_suite(selection.suite, selection)
    return shard_of(found, selection.shard) if selection.shard else found


def of_suite(suite: str, selection: Selection) -> list[Workload]:
    """Returns the selected models of a suite; see `select`."""
    try:
        pattern = re.compile(selection.only or "")
    except re.error as error:
        raise OptionError(f"--only {selection.only!r} is not a regular expression: {error}") from None
    found = [each for each in suite_workloads(suite, selection.size) if pattern.search(each.key)]
    if not found:
        hint = "smelt bench models lists them"
        raise OptionError(f"no model of suite {suite!r} has {selection.only!r} in its name", hint=hint)
    return found if selection.sample is None else sample(found, selection.sample, selection.seed)


def sample(workloads: Sequence[Workload], number: int, seed: int) -> list[Workload]:
    """Draw `number` models of each suite; returns them in the order of the suites.

    The sample of a suite depends only on the seed and the suite's models, not on other suites.

    Raises:
        OptionError: a suite has fewer than `number` models.
    """
    drawn: set[str] = set()
    for suite in dict.fromkeys(each.suite for each in workloads):
        keys = sorted(each.key for each in workloads if each.suite == suite)
        if len(keys) < number:
            raise OptionError(f"{suite} has {len(keys)} models to draw from", hint=f"--sample {len(keys)}")
        drawn.update(random.Random(f"{seed} {suite}").sample(keys, number))
    return [each for each in workloads if each.key in drawn]


def shard_of(workloads: Sequence[Workload], shard: str) -> list[Workload]:
    """Returns every N-th model from the I-th on, so that shards are similar.

    Raises:
        OptionError: `shard` is not of the form I/N, or the shard is empty.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise OptionError(f"--shard {shard!r} is not a part of a whole", hint="--shard 1/4, then 2/4, 3/4 and 4/4")
    found = list(workloads[int(match[1]) - 1 :: int(match[2])])
    if not found:
        raise OptionError(f"--shard {shard} has no model", hint=f"at most {len(workloads)} parts")
    return found
