"""Versions of a program for tuples of sizes: made once each, choices are handed on, memory of idle ones is given up."""

from dataclasses import replace
from typing import Any

import torch

from smelt.runtime import sizes
from smelt.runtime.library.externs import Candidate, ExternKernel, Spec
from smelt.runtime.sizes import Sized, Version
from smelt.runtime.tuned import VERSIONS
from smelt.runtime.workspace import Workspaces

OUT = [Spec((1,), (1,), torch.float32)]


class Maker:
    """Versions that record which sizes they are for."""

    def __init__(self, room: int = 64) -> None:
        self.made: list[tuple[int, ...]] = []
        self.room = room

    def __call__(self, *values: int) -> Version:
        self.made.append(values)
        two = [Candidate(name, lambda: torch.zeros(1)) for name in ("one", "other")]
        kernel = ExternKernel("mm", two, OUT, f"mm {values}")
        return Version(lambda inputs: [values, *inputs], [kernel], Workspaces(1, self.room, {}, {}, []))


def test_sizes_are_taken_off_the_inputs_and_versions_made_once():
    made = Maker()
    program = Sized(made, 2)
    for values in ((3, 4), (5, 6), (3, 4)):
        boxed: list[Any] = ["x", *values]
        assert program(boxed) == [values, "x"] and boxed == ["x"]
    assert made.made == [(3, 4), (5, 6)]


def test_near_sizes_follow_the_choice_of_kernels():
    program = Sized(Maker(), 1)
    program([16])
    program.versions[16,].externs[0].chosen = "other"
    program([60])
    program([64])
    assert [len(version.externs[0].candidates) for version in program.versions.values()] == [2, 1, 2]
    assert program.versions[60,].externs[0].candidates[0].name == "other"


def test_the_oldest_are_forgotten(monkeypatch):
    monkeypatch.setattr(sizes, "VERSIONS", replace(VERSIONS, kept=3))
    made = Maker()
    program = Sized(made, 1)
    for value in (2, 3, 4, 5):
        program([value])
    assert list(program.versions) == [(3,), (4,), (5,)]


def test_idle_versions_give_their_memory_back(monkeypatch):
    monkeypatch.setattr(sizes, "VERSIONS", replace(VERSIONS, idle_bytes=1000))
    program = Sized(Maker(room=640), 1)
    for value in (2, 3, 4):
        program([value])
        workspaces = program.versions[value,].workspaces
        workspaces.give(workspaces.take())
    assert [len(version.workspaces.free) for version in program.versions.values()] == [0, 1, 1]
