"""Compile sites, where the frames of a compiled callable begin, and the cache entries that were compiled for each."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

from smelt.base import torch_c
from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.capture.core.breaks import BreakReason
from smelt.capture.core.plan import CapturePlan
from smelt.capture.guards.dynamic_shapes import SiteProfile
from smelt.capture.guards.guard_failures import GuardFailure, what_changed
from smelt.capture.guards.guards import GuardList
from smelt.capture.residual.residual import Residual

Slots = tuple[Any, ...]


@dataclass
class CacheEntry:
    """One cache entry of a compile site, as `explain` shows it."""

    name: str
    guards: GuardList
    residual: Residual
    entry: Any
    stop: BreakReason | None


@dataclass
class CompileSite:
    """A point at which frames of one session begin, with the cache entries that were compiled for it.

    Attributes:
        key: the code object, if the frames begin at its start, or the resume point.
        idle: number of captured frames that returned without tensor work.
        failed: number of captures that failed.
        given_up: whether frames run in eager without another capture.
        changes: the shapes and numbers in the cache entries, and which of them have changed between calls.
        plan: the plan with which the next capture begins.
        attempts: descriptions of repeated attempts to capture, with their reasons.
        recompiles: for each recompilation, the failing guard of the newest entry.
    """

    name: str
    key: Any
    versions: list[CacheEntry] = field(default_factory=list)
    idle: int = 0
    failed: int = 0
    given_up: bool = False
    changes: SiteProfile = field(default_factory=SiteProfile)
    plan: CapturePlan = CapturePlan()
    attempts: list[str] = field(default_factory=list)
    recompiles: list[GuardFailure] = field(default_factory=list)

    @property
    def function(self) -> str:
        """The qualified name of the function that contains the site."""
        return str(getattr(self.key, "code", self.key).co_qualname)


@dataclass
class Reader:
    """The state that guards read: slots, globals and function of the frame that is about to start."""

    slots: Slots
    globals: dict[str, Any]
    function: FunctionType | None
    state: tuple[Any, ...] = field(default_factory=native.state)
    inference: bool = field(default_factory=torch.is_inference_mode_enabled)
    gradients: bool = field(default_factory=torch.is_grad_enabled)
    torch_functions: tuple[bool, bool] = field(default_factory=torch_c.torch_function_state)

    def release(self) -> None:
        """Drop the references to the arguments at the end of the capture."""
        self.slots = ()

    def changes(self, versions: list[CacheEntry]) -> list[GuardFailure]:
        """For each entry, its first guard that fails in the present state; entries without such a guard are
        left out.
        """
        found = [what_changed(v.guards, v.entry.guards, self.slots, self.globals, self.function) for v in versions]
        return [change for change in found if change is not None]

    def has_tensors(self) -> bool:
        """Whether the arguments contain a tensor, so that the frame may have tensor work."""
        values: list[Any] = [*self.slots]
        for value in values[:_MAX_SEARCHED_VALUES]:
            if isinstance(value, (list, tuple)):
                values.extend(value)
            elif isinstance(value, dict):
                values.extend(value.values())
        return any(isinstance(value, torch.Tensor) for value in values)


_MAX_SEARCHED_VALUES = 100
"""Maximum number of values that the search for tensors reads, including the items of containers."""
