"""`torch.optim.lr_scheduler` in captured code: plain Python over counters, in which each path becomes a version.

A schedule that branches on its counter has as many paths as it has phases and milestones. Two more versions are
compiled for such a schedule; after that the graph ends before its step, which computes nothing with tensors.
"""

from __future__ import annotations

from types import FunctionType

from torch.optim import lr_scheduler

from smelt.base.class_tables import isinstance
from smelt.capture.calls import calls
from smelt.capture.core.breaks import Break
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.registry import special


def _steps() -> list[FunctionType]:
    """Each `step` of torch's schedules, including those that subclasses override."""
    classes = [kind for kind in vars(lr_scheduler).values() if isinstance(kind, type)]
    found = [vars(kind).get("step") for kind in classes if issubclass(kind, lr_scheduler.LRScheduler)]
    return [function for function in found if isinstance(function, FunctionType)]


def _register_step(function: FunctionType) -> None:
    @special(function)
    def step(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
        """Captured form of a schedule's step, which is inlined as long as its paths may become versions."""
        before = vm.sizes.specialized()
        result = calls.inline(vm, function, args, kwargs)
        if not vm.control.schedules_branch and vm.sizes.specialized() > before:
            why = "each way that it takes would be compiled by itself"
            raise Break("a schedule that branches on its counters", why, "call its step outside of the function")
        return result


for _function in _steps():
    _register_step(_function)
