"""What one attempt to capture knows: objects that own their state, made with the interpreter and dropped with it."""

from __future__ import annotations

import sys
from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smelt.capture.core.breaks import let_go

if TYPE_CHECKING:
    from smelt.capture.core.generators import TracedGenerator
    from smelt.capture.core.interface import Args, Kwargs
    from smelt.capture.core.plan import CapturePlan, Site


class PythonState:
    """What the program has made and set so far, beside its effects on the outside.

    Attributes:
        running: the qualified name of the function that is captured.
        inference: inference mode is on for the program (`outside_inference_mode` switches it off for the capture).
        outer_error: what the caller of the captured frame is handling.
        created: identities of functions and cells made during the capture.
        constants: identities of tuples that the interpreted code has as constants.
        generators: every generator that the program made.
        errors: every exception that the program raised, by identity, with the step that raised it.
        remade: by identity, how classes that the program made are made again: (function, arguments, keywords).
        made_classes: by identity, classes and aliases that another call makes again, and their statements.
        lookups: what a class gave for a name, see `attribute_reads`.
        defaults: of functions, as they were read.
        settings: of context variables.
        read_later: keys of `reads` that backward methods of the program's functions read.
        hooks: those that the program registers, by identity of the tensor; see `tensor_hooks`.
        regions: modes of the thread that the program has entered, see `thread_modes`.
        left_out: for calls of modules, how many frames were there: those of `nn.Module.__call__` are not made.
    """

    def __init__(self) -> None:
        self.running = ""
        self.outer_error = sys.exception()
        self.created: set[int] = set()
        self.constants: set[int] = set()
        self.generators: list[TracedGenerator] = []
        self.errors: dict[int, tuple[BaseException, int]] = {}
        self.remade: dict[int, tuple[Any, Args, Kwargs]] = {}
        self.made_classes: dict[int, tuple[object, Any]] = {}
        self.lookups: dict[tuple[int, str], Any] = {}
        self.defaults: dict[int, tuple[Any, Any]] = {}
        self.settings: list[Any] = []
        self.read_later: set[tuple[int, str]] = set()
        self.hooks: dict[int, list[Any]] = {}
        self.regions: list[Any] = []
        self.left_out: list[int] = []

    def release(self, external: Container[int]) -> None:
        """Let go of the program's objects; `external` are identities of those that are its own."""
        self.outer_error = None
        for generator in self.generators:
            generator.release()
        for error, _ in self.errors.values():
            if id(error) not in external:
                let_go(error)
        for table in (self.made_classes, self.lookups, self.defaults, self.generators, self.settings, self.errors):
            table.clear()

    def share_classes(self, other: PythonState) -> None:
        """What `other` knows of functions and classes that were made is known here as well."""
        self.created, self.remade, self.made_classes = other.created, other.remade, other.made_classes
        self.running = other.running


@dataclass(frozen=True)
class ValuePolicy:
    """How one attempt meets values that may be others at the next call.

    Attributes:
        speculates: those of masks and lengths may be taken for granted.
        are_read: the graph may read them from tensors, and the program goes on with what it reads.
        numbers_change: numbers from outside that were others before are inputs; else each is guarded by its value.
    """

    speculates: bool
    are_read: bool
    numbers_change: bool


NO_VALUES = ValuePolicy(speculates=False, are_read=False, numbers_change=False)
"""Nothing is computed: an operation is interpreted for what it reads."""


class Control:
    """The branches on values that nobody knows yet.

    Attributes:
        branches: those on tensors' values may become nodes, see `conditionals`.
        branches_on_numbers: so may those on numbers that the graph reads: it is not compiled in parts, each for
            numbers that are known.
        schedules_branch: on their counters, each way being a version; else a graph ends before a schedule that does.
        refused: those that do not work; it begins with the plan's, and the next plan has all of them.
        pinned: where a number of the prologue is needed, which is taken for granted; it begins with the plan's, too.
        branching: branches that the program is in; `decided` holds their conditions.
        turns: so many turns of loops were taken in the present way of the outermost.
        undecided: there is an `Undecided` somewhere.
        slices: whose bounds only values tell, and what became of them, see `unbacked_slices`.
    """

    def __init__(self, plan: CapturePlan) -> None:
        self.branches = True
        self.branches_on_numbers = False
        self.schedules_branch = True
        self.refused: set[Site] = set(plan.refused)
        self.pinned: set[Site] = set(plan.pinned)
        self.branching: set[Site] = set()
        self.decided: dict[int, bool] = {}
        self.turns = 0
        self.undecided = False
        self.slices: dict[tuple[Any, ...], slice] = {}
