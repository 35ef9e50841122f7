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
    """Objects that the program has made and state that it has set so far, without its effects on external objects.

    Attributes:
        running: the qualified name of the captured function.
        inference: whether the program runs in inference mode (`outside_inference_mode` leaves it for the capture).
        outer_error: the exception that the caller of the captured frame is handling.
        created: identities of functions and cells made during the capture.
        constants: identities of tuples that are constants of the interpreted code.
        generators: every generator that the program made.
        errors: every exception that the program raised, by identity, with the step that raised it.
        remade: id of a class of the program -> the call with which residual code creates it: (function, arguments,
            keywords).
        made_classes: id -> a class or alias that each call creates anew, with the statements that create it.
        lookups: cached results of attribute lookups in classes, see `attribute_reads`.
        defaults: the default arguments of functions, as handles.
        contexts: contexts that switch `__torch_function__` off, by identity, with the state before the program entered
            them; see `Ambient.torch_functions`.
        settings: context variables that the program has set, see `context_variables`.
        read_later: keys of `reads` that the backward methods of the program's autograd functions read.
        hooks: the hooks that the program registers, by identity of the tensor; see `tensor_hooks`.
        regions: modes of the thread that the program has entered, see `thread_modes`.
        arrays: the arrays of NumPy whose elements the graph computes, see `arrays.array`.
        module_depths: for each active call of a module, the depth of the frame stack, because capture skips the frames
            of `nn.Module.__call__`.
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
        self.contexts: dict[int, tuple[bool, bool]] = {}
        self.settings: list[Any] = []
        self.read_later: set[tuple[int, str]] = set()
        self.hooks: dict[int, list[Any]] = {}
        self.regions: list[Any] = []
        self.arrays: list[object] = []
        self.module_depths: list[int] = []

    def release(self, external: Container[int]) -> None:
        """Drop the references to the program's objects; exceptions whose identity is in `external` stay unchanged."""
        self.outer_error = None
        for generator in self.generators:
            generator.release()
        for error, _ in self.errors.values():
            if id(error) not in external:
                let_go(error)
        for table in (
            self.made_classes,
            self.lookups,
            self.defaults,
            self.generators,
            self.settings,
            self.errors,
            self.arrays,
        ):
            table.clear()

    def share_classes(self, other: PythonState) -> None:
        """Share with `other` the tables of functions and classes that the program made."""
        self.created, self.remade, self.made_classes = other.created, other.remade, other.made_classes
        self.running, self.arrays = other.running, other.arrays


@dataclass(frozen=True)
class ValuePolicy:
    """The treatment of values that may differ at the next call, in one attempt.

    Attributes:
        speculates: whether values of masks and lengths may be assumed and guarded.
        are_read: whether the graph may read values from tensors, which are unbacked numbers for the program.
        numbers_change: whether external numbers that have changed between calls are inputs; otherwise their values are
            guarded.
    """

    speculates: bool
    are_read: bool
    numbers_change: bool


NO_VALUES = ValuePolicy(speculates=False, are_read=False, numbers_change=False)
"""The policy for interpreting an operation only to find its reads, without computing values."""


class Control:
    """The data-dependent branches of one attempt.

    Attributes:
        branches: whether branches on tensors' values may become nodes, see `conditionals`.
        branches_on_numbers: whether branches on numbers that the graph reads may become nodes; if so, the graph is not
            split into pieces that are compiled with those numbers known.
        schedules_branch: whether schedules may branch on their counters, with one cache entry for each arm; otherwise
            the graph ends before such a schedule.
        refused: branches that cannot become nodes: those of the plan, and those found since for the next plan.
        pinned: instructions that need the value of a prologue number, which is assumed: those of the plan, and those
            found since.
        branching: branches in whose arms the program is; `decided` maps the id of a condition to its truth in the
            present arm.
        arm_iterations: number of loop iterations since the outermost present arm began, at most `MAX_ARM_ITERATIONS`.
        undecided: whether the value of some variable or attribute is a phi value.
        slices: slices with data-dependent bounds -> the slices that replaced them, see `unbacked_slices`.
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
