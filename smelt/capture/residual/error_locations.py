"""Raises errors of compiled code as in eager: the same error, with the user's lines in its traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType, TracebackType
from typing import Any, NoReturn

import torch
from torch import fx

from smelt.abi.device_checks import context_is_lost, mark_unreported
from smelt.base.class_tables import isinstance
from smelt.base.errors import SmeltError
from smelt.base.process_state import preserving
from smelt.base.python_text import root_package
from smelt.base.torch_private import OpOverload
from smelt.capture import _native as native
from smelt.capture.core.breaks import At
from smelt.capture.residual.code_locations import with_location
from smelt.graph.ir.meta import extent
from smelt.graph.nodes.cut_points import EagerBoundary
from smelt.graph.nodes.gradients import DERIVATIVES
from smelt.graph.nodes.modes import regions_left

# -- errors inside a graph ------------------------------------------------------------------------------------------


def _is_expected(error: Exception) -> bool:
    """Whether eager may raise this error as well; False for errors of the debug mode and for lack of memory."""
    return isinstance(error, (IndexError, RuntimeError)) and not isinstance(error, (torch.OutOfMemoryError, SmeltError))


def explain_error(gm: fx.GraphModule, error: Exception, inputs: Sequence[object]) -> NoReturn:
    """Raise the error that eager raises for these inputs, at the line of the operation that fails.

    A compiled graph does not report which operation failed. Therefore the graph's operations are repeated one by one in
    eager, on copies of the input tensors. If that is not possible, or no operation fails, the original error is raised.
    """
    lost = context_is_lost(error)
    # other errors come from hooks, or from a lack of memory
    if lost or not _is_expected(error) or not repeatable(gm) or _any_freed(inputs):
        raise error
    found = native.uncaptured_call(preserving, _first_failing, gm, inputs)
    if found is None:
        raise error
    node, same = found
    chain = list(_locations(node))
    if not chain:
        raise error
    trace = native.uncaptured_call(
        _traceback, same, chain
    )  # its frames have the user's lines, but must not be captured
    raise same.with_traceback(trace)


def expect_failure(gm: fx.GraphModule, error: Exception, inputs: Sequence[object]) -> None:
    """Require that eager fails on these inputs as well, so that the captured frame may run in eager from its start.

    Otherwise the frame's own `except` clauses, and its effects before the failing operation, would not behave as in
    eager.

    Raises:
        Exception: the error itself, when only the compiled graph fails.
    """
    if context_is_lost(error):  # in eager, each use of the GPU fails as well, and the `except` clauses catch that
        mark_unreported()
        return
    if not _is_expected(error) or _any_freed(inputs):
        raise error
    if native.uncaptured_call(preserving, _first_failing, gm, inputs) is None:
        raise error


def expect_lost(gm: fx.GraphModule, error: Exception, inputs: Sequence[object]) -> None:
    """Require that the GPU's context is lost: then the frame may run in eager although the graph writes to its inputs.

    Raises:
        Exception: another error, as `explain_error` raises it.
    """
    if not context_is_lost(error):
        explain_error(gm, error, inputs)
    mark_unreported()


def repeatable(gm: fx.GraphModule) -> bool:
    """Whether a graph consists only of PyTorch's own operations; other operations might have side effects."""
    for node in gm.graph.nodes:
        target: Any = node.target
        if isinstance(target, EagerBoundary):
            return False
        if isinstance(target, OpOverload) and target.namespace not in ("aten", "prims"):
            return False
        if node.op == "call_function" and root_package(target) not in ("torch", "_operator", "builtins", "smelt"):
            return False
    return True


def _any_freed(inputs: Sequence[object]) -> bool:
    """Whether the memory of an input tensor was freed, or is too small for its elements: eager would read beyond it."""
    for tensor in inputs:
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or not tensor.numel():
            continue
        elements = int(tensor.storage_offset()) + extent(tensor.shape, tensor.stride())
        if tensor.device.type != "meta" and elements * tensor.itemsize > tensor.untyped_storage().nbytes():
            return True
    return False


def _first_failing(gm: fx.GraphModule, inputs: Sequence[object]) -> tuple[fx.Node, Exception] | None:
    run = _NodeTracker(gm)
    gradients = any(node.target in DERIVATIVES for node in gm.graph.nodes)
    copies = [_copy(value, gradients) if isinstance(value, torch.Tensor) else value for value in inputs]
    recorded = gradients and torch.is_grad_enabled()
    try:
        with torch.set_grad_enabled(recorded), torch.random.fork_rng(devices=()), regions_left():
            run.run(*copies)
    except Exception as error:
        if run.node is not None:
            return run.node, error.with_traceback(None)
    return None


def _copy(value: torch.Tensor, gradients: bool) -> torch.Tensor:
    """A copy of a tensor. If the graph computes gradients, the copy is a leaf if `value` is one, else a result of a
    leaf.
    """
    copy = value.detach().clone()
    if not gradients or not value.requires_grad:
        return copy
    copy.requires_grad_()
    return copy if value.is_leaf else copy.clone()


class _NodeTracker(fx.Interpreter):
    """An fx interpreter that records the node that runs, and adds nothing to the texts of errors."""

    node: fx.Node | None = None

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> object:
        self.node = n
        return super().run_node(n)


def _locations(node: fx.Node) -> Iterator[At]:
    """The user's lines from the captured frame down to the operation."""
    callers, above = node.meta.get("callers"), []
    while callers is not None:
        callers, at = callers
        above.append(at)
    yield from reversed(above)
    if node.meta.get("at") is not None:
        yield node.meta["at"]


def _traceback(error: Exception, chain: Sequence[At]) -> TracebackType | None:
    """The traceback that an error leaves in a chain of calls at these locations."""
    run: Callable[[], object] = _raiser(error)
    for at in reversed(chain):
        run = _call_at(at, run)
    try:
        run()
    except Exception as raised:
        trace = raised.__traceback__
        assert trace is not None and trace.tb_next is not None
        entries = [entry for entry in _entries(trace.tb_next) if entry.tb_frame.f_code.co_filename != __file__]
        rebuilt: TracebackType | None = None
        for entry in reversed(entries):
            rebuilt = TracebackType(rebuilt, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
        return rebuilt
    return None


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _raiser(error: Exception) -> Callable[[], object]:
    def run() -> NoReturn:
        raise error

    return run


_CALL = next(c for c in compile("def call(): _next()", "<call>", "exec").co_consts if isinstance(c, CodeType))


def _call_at(at: At, callee: Callable[[], object]) -> Callable[[], object]:
    return FunctionType(with_location(_CALL, at), {"_next": callee})
