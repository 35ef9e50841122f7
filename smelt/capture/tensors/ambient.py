"""The thread's modes (gradients, autocast) during a capture.

The interpreted program switches the real modes, so that operators on trace tensors behave as in eager. The graph gets a
region for each switch. At the end of the capture the switches are undone; residual code repeats them if the frame ends
in modes that differ from those at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from smelt.base import torch_c
from smelt.capture import _native as native
from smelt.capture.core.breaks import user
from smelt.capture.core.interface import Args, Kwargs
from smelt.capture.tensors.operator_modes import DefaultDevices
from smelt.graph.ir.symint import decided_flags
from smelt.graph.nodes import modes
from smelt.graph.nodes.casts import DEVICES, present_casts, set_casts

Modes = tuple[Any, ...]


@contextmanager
def outside_saved_tensor_hooks() -> Iterator[None]:
    """Switch off the program's hooks on saved tensors (checkpoint uses such hooks): they must not be called with trace
    tensors.

    Hooks that return their argument unchanged are switched off as well: with hooks, autograd stores other tensor
    objects than it is given, and the trace identifies saved tensors by the objects that it reads from autograd nodes.
    """
    hooks = []
    while (pair := torch_c.saved_tensor_hooks()) is not None:
        hooks.append(pair)
        torch_c.leave_saved_tensor_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(hooks):
            torch.autograd.graph.saved_tensors_hooks(pack, unpack).__enter__()


def present_modes() -> Modes:
    """The present modes: gradients enabled; (autocast enabled, autocast dtype) for each device; allowed attention
    kernels.
    """
    return (torch.is_grad_enabled(), *present_casts(), torch_c.attention_kernels())


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Switch off inference mode, and gradients: tensors of inference mode have no version counters, which capture
    reads.

    The graph itself runs in inference mode wherever it is called in that mode. A program that has enabled gradients in
    inference mode still reads them as enabled, although autograd records nothing: see `Ambient.begin`.
    """
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch_c.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def outside_anomaly_mode() -> Iterator[None]:
    """Switch off `detect_anomaly`: it checks the values that autograd computes, which trace tensors do not have."""
    if not torch.is_anomaly_enabled():
        yield
        return
    with torch.autograd.set_detect_anomaly(False):
        yield


@contextmanager
def outside_torch_function() -> Iterator[None]:
    """Switch off `__torch_function__` of tensor subclasses: capture reads the program's tensors without their code."""
    with torch_c.without_torch_function():
        yield


class Ambient:
    """The modes that the program has switched so far, and the regions that are open in the graph.

    Attributes:
        log: the calls that switched modes, in order.
        dirty: whether the modes may differ from those of the last graph node.
        left_switched: whether the modes at the end of the frame differ from those at its beginning; set by `restore`.
        inference: whether the program is in inference mode, where nothing has gradients. During capture the mode is
            off.
        indexes_by_tensors: whether `x[i]` with a tensor `i` without dimensions is an operation on tensors, as in the
            functions that `flex_attention` is given; elsewhere `i` is read as a number.
        torch_functions: whether torch functions of the program call `__torch_function__` of subclasses, and whether
            they ignore modes as well. During capture itself they call none.
    """

    def __init__(self) -> None:
        self.log: list[tuple[Callable[..., object], Args, Kwargs]] = []
        self.dirty = False
        self.left_switched = self.inference = self.indexes_by_tensors = False
        self._full = native.state()
        self._start = present_modes()
        self._caching = torch.is_autocast_cache_enabled()
        self._no_hooks = torch_c.saved_tensor_hooks_disabled()
        self._nesting = 0
        self._regions: list[tuple[fx.Node, Any, Modes]] = []
        self._recorded = self._start
        self._floors: list[tuple[int, Modes]] = []
        self._devices: Any = None
        self._seen_on = False
        self.torch_functions = self._called = True, False

    def begin(self, inference: bool, gradients: bool, torch_functions: tuple[bool, bool] = (True, False)) -> None:
        """Note the modes in which the frame began, which `outside_inference_mode` may have switched off."""
        self.torch_functions = self._called = torch_functions
        self.inference = inference
        if inference and gradients:
            self._seen_on = True
            torch.set_grad_enabled(True)
            self._full = native.state()

    def switch_device(self, fn: Callable[..., object], args: Args) -> None:
        """Run a function that switches the default device."""
        if self._devices is None:
            self._devices = DefaultDevices()
        user(fn, *args)
        self.log.append((fn, args, {}))

    def switch_torch_functions(self, state: tuple[bool, bool]) -> None:
        """Switch whether the program's torch functions call `__torch_function__`, as in `torch_functions`."""
        self.torch_functions = state
        self.log.append((torch_c.set_torch_functions, state, {}))

    @property
    def names_devices(self) -> bool:
        """Whether the program has switched the default device: nodes that make tensors then name their device."""
        return self._devices is not None

    def switch(self, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
        """Run and log a function that switches a mode. A flag that depends on a symbolic number gets its
        present value.
        """
        args = decided_flags(args)
        out = fn(*args, **kwargs)
        self.log.append((fn, args, kwargs))
        self.dirty = True
        self._nesting += {"autocast_increment_nesting": 1, "autocast_decrement_nesting": -1}.get(fn.__name__, 0)
        return out

    @contextmanager
    def gradients(self, enabled: bool) -> Iterator[None]:
        """Switch gradients on or off for the program while the context is open."""
        before = torch.is_grad_enabled()
        self.switch(torch_c.set_grad_enabled, (enabled,), {})
        try:
            yield
        finally:
            self.switch(torch_c.set_grad_enabled, (before,), {})

    @contextmanager
    def unrecorded(self, graph: fx.Graph) -> Iterator[None]:
        """Switch gradients off for a write to a tensor that requires none, without a new region in the graph."""
        if self.dirty:  # otherwise the write would open a region that also contains the following nodes
            self.sync(graph)
        with torch.no_grad():
            yield

    def sync(self, graph: fx.Graph) -> None:
        """Open and close regions until those of the graph agree with the present modes."""
        self.dirty = False
        gradients, *others = present_modes()
        self._move(graph, (gradients and not self.inference, *others))

    def inside_region(self, graph: fx.Graph) -> bool:
        """Whether a node that is recorded next would lie in a region of the graph."""
        if self.dirty:
            self.sync(graph)
        return bool(self._regions)

    def begin_enclosing_mode(self) -> None:
        """Begin a mode that is not a region of the graph: regions that are opened later lie inside the mode and are
        closed before it ends.
        """
        self._floors.append((len(self._regions), self._recorded))

    def begin_enclosing_grad_mode(self, graph: fx.Graph, gradients: bool) -> None:
        """Begin an enclosing mode that switches gradients on or off, after closing all open regions.

        The graph is cut at such a mode, and a region that stayed open across the cut would be entered a second time.
        """
        self._leave_to(graph, self._floors[-1][0] if self._floors else 0)
        self.dirty = False
        self.begin_enclosing_mode()
        self._recorded = (gradients, *self._recorded[1:])

    def end_enclosing_mode(self, graph: fx.Graph) -> None:
        """End the mode that `begin_enclosing_mode` or `begin_enclosing_grad_mode` began."""
        floor, before = self._floors.pop()
        self._leave_to(graph, floor)
        self._recorded = before
        self.dirty = False

    def close(self, graph: fx.Graph) -> None:
        """Leave every region that is open in the graph."""
        self._leave_to(graph, 0)

    def _leave_to(self, graph: fx.Graph, count: int) -> None:
        while len(self._regions) > count:
            self._leave(graph)

    def _move(self, graph: fx.Graph, target: Modes) -> None:
        inside = self._regions[self._floors[-1][0] if self._floors else 0 :]
        if self._recorded != target and any(before == target for _, _, before in inside):
            while self._recorded != target:
                self._leave(graph)
        if self._recorded[0] != target[0]:
            self._enter(graph, modes.enter_grad_mode, (target[0],), modes.exit_grad_mode, (target[0],), 0)
        for at, device in enumerate(DEVICES, 1):
            if self._recorded[at] != target[at]:
                enabled, dtype = target[at]
                self._enter(
                    graph, modes.enter_autocast, (device, dtype, enabled), modes.exit_autocast, (target[at],), at
                )

        if self._recorded[-1] != target[-1]:
            last = len(DEVICES) + 1
            enter, leave = modes.enter_attention_kernels, modes.exit_attention_kernels
            self._enter(graph, enter, (target[-1],), leave, (target[-1],), last)

    def _leave(self, graph: fx.Graph) -> None:
        node, leave, self._recorded = self._regions.pop()
        graph.call_function(leave, (node,)).meta["val"] = None

    def _enter(
        self,
        graph: fx.Graph,
        fn: Callable[..., object],
        args: Args,
        leave: Callable[..., object],
        value: Modes,
        at: int,
    ) -> None:
        node = graph.call_function(fn, args)
        node.meta["val"] = None
        before = self._recorded
        self._regions.append((node, leave, before))
        self._recorded = (*before[:at], *value, *before[at + 1 :])

    def switched(self) -> bool:
        """Whether the modes differ from those in which the frame began."""
        return (
            self._nesting != 0
            or bool(native.state() != self._full)
            or torch_c.attention_kernels() != self._start[-1]
            or self.torch_functions != self._called
            or (self._devices is not None and self._devices.differ())
        )

    def restore(self) -> None:
        """Undo all switches on this thread, at the end of the capture."""
        self.left_switched = self.switched()
        if not self.log:
            if self._seen_on:
                torch.set_grad_enabled(self._start[0])
            return
        if self._devices is not None:
            self._devices.restore()
        torch.set_grad_enabled(self._start[0])
        if self._no_hooks is None:
            torch_c.enable_saved_tensor_hooks()
        else:
            torch_c.disable_saved_tensor_hooks(self._no_hooks)
        torch_c.set_attention_kernels(self._start[-1])
        set_casts(self._start[1:-1])
        torch.set_autocast_cache_enabled(self._caching)
        for _ in range(self._nesting):
            torch.autocast_decrement_nesting()
        for _ in range(-self._nesting):
            torch.autocast_increment_nesting()
        torch.clear_autocast_cache()
