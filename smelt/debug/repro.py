"""`smelt repro`: reruns the graph of a failure report, compiled and in eager."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import smelt
from smelt.base.text import on_one_line, visible
from smelt.debug.case import Case, NoCase, modes, read_case
from smelt.debug.compare import EagerFails, copies, first_difference, run, run_eager
from smelt.graph.ir.repro_script import error_of

WRONG = "wrong result"
"""The kind of a failure in which results differ without an error."""


class Outcome(NamedTuple):
    """The outcome of a run: the kind of failure ("" if there was none) and its text."""

    kind: str
    message: str


def outcome(forward: Callable[..., Any], inputs: Sequence[Any], facts: Mapping[str, Any]) -> Outcome:
    """Compile and run a function and its gradients with the settings of a case.

    Raises:
        EagerFails: eager raises an error for these inputs.
    """
    with modes(facts):
        torch.manual_seed(0)
        gradients, _ = run_eager(forward, inputs)
        compiled = smelt.compile(
            forward,
            fullgraph=True,
            backend=facts["backend"],
            dynamic=facts["dynamic"],
            options=facts["options"] or None,
        )
        arguments = _marked(inputs, facts)
        try:
            run(compiled, arguments, gradients)
            difference = _difference(compiled, forward, inputs, facts)
        except Exception as error:
            return Outcome(**error_of(error))
    return Outcome(WRONG, str(difference)) if difference is not None else Outcome("", "")


def _marked(inputs: Sequence[Any], facts: Mapping[str, Any]) -> list[Any]:
    """Copies of the inputs, with the dimensions marked dynamic that were symbolic in the reported call."""
    arguments = copies(inputs)
    for spec, each in zip(facts["inputs"], arguments, strict=True):
        for dim in spec.get("dynamic", ()):
            smelt.mark_dynamic(each, dim)
    return arguments


def _difference(compiled: Any, forward: Any, inputs: Sequence[Any], facts: Mapping[str, Any]) -> Any:
    """The first difference from eager. None without one, and for functions that draw random numbers without the option
    `eager_rng`, since they differ by design.
    """
    before = torch.get_rng_state()
    run_eager(forward, inputs)
    drawn = not torch.equal(before, torch.get_rng_state())
    torch.set_rng_state(before)
    if drawn and not facts["options"].get("eager_rng"):
        return None
    return first_difference(compiled, forward, inputs)


def show_repro(path: Path) -> int:
    """Run the graph of a report and print whether it still fails; returns 1 if so, else 0.

    Raises:
        NoCase: the report cannot be run.
    """
    case = read_case(path)
    for other in case.other_versions():
        print(visible(f"the report was written by {other}"), file=sys.stderr)
    return show_outcome(case, outcome_of(case))


def outcome_of(case: Case) -> Outcome:
    """The outcome of running a case.

    Raises:
        NoCase: eager fails, too.
    """
    try:
        return outcome(case.forward, case.inputs(), case.facts)
    except EagerFails as error:
        raise NoCase(f"{case.path} fails without smelt, too", why=str(error)) from error


def show_outcome(case: Case, found: Outcome) -> int:
    """Print the outcome of a case; returns 1 if it fails, else 0."""
    name = on_one_line(case.facts["name"])
    if not found.kind:
        print(f"{name} no longer fails")
        return 0
    same = found.kind == case.kind or not case.kind
    print(f"{name} {'still fails' if same else 'fails otherwise'}: {found.kind}")
    print("  " + visible(found.message).replace("\n", "\n  "))
    if not same:
        print(f"it was: {on_one_line(case.kind)}")
    return 1


def main(file: str) -> int:
    """Entry point of a report's script when it is run directly."""
    try:
        return show_repro(Path(file))
    except NoCase as error:
        print(error, file=sys.stderr)
        return 2
