"""The state of one attempt to capture: objects made with the interpreter and dropped with it."""

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
    """What the program has made and set so far, except for its effects on external objects.

    Attributes:
        running: the qualified name of the captured function.
        inference: inference mode is on for the program (`outside_inference_mode` switches it off for the capture).
        outer_error: the exception that the caller of the captured frame is handling.
        created: identities of functions and cells made during the capture.
        constants: identities of tuples that are constants of the interpreted code.
        generators: every generator that the program made.
        errors: every exception that the program raised, by identity, with the step that raised it.
        remade: id of a class of the program -> how residual code creates it: (function, arguments, keywords).
        made_classes: id -> a class or alias that each call creates anew, with the statements that create it.
        lookups: the attribute that a class gave for a name, see `attribute_reads`.
        defaults: the defaults of functions, as they were read.
        settings: context variables that are set, see `context_variables`.
        read_later: keys of `reads` that backward methods of the program's functions read.
        hooks: the hooks that the program registers, by identity of the tensor; see `tensor_hooks`.
        regions: modes of the thread that the program has entered, see `thread_modes`.
        left_out: for each call of a module, the depth of the frame stack: capture skips the frames of
            `nn.Module.__call__`.
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
        """Drop the references to the program's objects. `external`: identities of external objects, left unchanged."""
        self.outer_error = None
        for generator in self.generators:
            generator.release()
        for error, _ in self.errors.values():
            if id(error) not in external:
                let_go(error)
        for table in (self.made_classes, self.lookups, self.defaults, self.generators, self.settings, self.errors):
            table.clear()

    def share_classes(self, other: PythonState) -> None:
        """Share the tables of functions and classes that were made with `other`."""
        self.created, self.remade, self.made_classes = other.created, other.remade, other.made_classes
        self.running = other.running


@dataclass(frozen=True)
class ValuePolicy:
    """What one attempt does with values that may differ at the next call.

    Attributes:
        speculates: values of masks and lengths may be assumed and guarded.
        are_read: the graph may read values from tensors; the program goes on with unbacked numbers.
        numbers_change: external numbers that have changed between calls are inputs; otherwise each is guarded by its
            value.
    """

    speculates: bool
    are_read: bool
    numbers_change: bool


NO_VALUES = ValuePolicy(speculates=False, are_read=False, numbers_change=False)
"""Nothing is computed: an operation is interpreted only to find what it reads."""


class Control:
    """The data-dependent branches of one attempt.

    Attributes:
        branches: branches on tensors' values may become nodes, see `conditionals`.
        branches_on_numbers: branches on numbers that the graph reads may become nodes: the graph is not split into
            pieces that are compiled with those numbers known.
        schedules_branch: schedules may branch on their counters, with one cache entry for each arm; otherwise a graph
            ends before such a schedule.
        refused: branches that cannot become nodes; begins with the plan's, and the next plan gets all of them.
        pinned: instructions that need the value of a prologue number, which is assumed; begins with the plan's, too.
        branching: branches in whose arms the program is; `decided` maps conditions to their truth there.
        arm_iterations: loop iterations since the outermost open arm was entered, at most `MAX_ARM_ITERATIONS`.
        undecided: some variable or attribute holds a phi value.
        slices: slices with data-dependent bounds, and what replaced them, see `unbacked_slices`.
    """

    def __init__(self, plan: CapturePlan) -> None:
        self.branches = True
        self.branches_on_numbers = False
        self.schedules_branch = True
        self.refused: set[Site] = set(plan.refused)
        self.pinned: set[Site] = set(plan.pinned)
        self.branching: set[Site] = set()
        self.decided: dict[int, bool] = {}
        self.arm_iterations = 0
        self.undecided = False
        self.slices: dict[tuple[Any, ...], slice] = {}
