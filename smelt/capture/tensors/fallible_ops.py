"""Operations that raise an error for some values, in code that catches the error.

If a graph fails, its frame runs in eager from its start, with random generators restored, and there reaches its own
`except` clauses. If the frame cannot be repeated, for example because the graph writes to its inputs, such an operation
ends the graph instead of joining it.
"""

from __future__ import annotations

import builtins
import warnings

import torch
from torch.library import CustomOpDef

from smelt.base.class_tables import isinstance
from smelt.base.python_text import module_name
from smelt.base.torch_private import OpOverload, OpOverloadPacket
from smelt.capture.core.breaks import Break
from smelt.capture.core.except_clauses import Errors, acts_on
from smelt.capture.core.frames import Frame
from smelt.capture.core.interface import Args, Interpreter
from smelt.capture.python.effects import Deferred
from smelt.capture.tensors.trace_call import name_of
from smelt.graph.ir.meta import meta_of
from smelt.graph.trace.trace import TraceTensor
from smelt.shapes.unbacked import is_unbacked

_INDEXING = frozenset({"getitem", "__getitem__", "setitem", "__setitem__"})
_WITH_LABELS = frozenset(
    {"embedding", "index_select", "take", "cross_entropy", "cross_entropy_loss", "nll_loss", "nll_loss_nd"}
)
"""Operators that raise IndexError for an index or label that is out of range."""


_VALUE_DEPENDENT = (
    frozenset(
        "cholesky cholesky_inverse inverse logdet slogdet lu lu_solve multinomial bernoulli pinverse qr svd matrix_exp "
        "ormqr geqrf orgqr triangular_solve lobpcg masked_scatter masked_scatter_ repeat_interleave normal poisson "
        "binomial".split()
    )
    | {name for name in dir(torch.linalg) if not name.startswith("_")}
    | {f"linalg_{name}" for name in dir(torch.linalg)}
)
"""Operators that raise an error for values that are invalid for a factorization, a distribution or a length."""


def may_raise(vm: Interpreter, target: object, args: Args) -> bool:
    """Whether an operation of the graph may raise an error for some values that has to be noted.

    Indexing and losses may raise IndexError for any index or label. The result is True for them only if the number of
    elements is unbacked, or if an `except` clause catches IndexError but not RuntimeError. (Whole training steps often
    run in a `try` whose clause catches all errors, or out-of-memory errors; such a clause is not meant for index
    errors.)
    """
    name = getattr(target, "__name__", "")
    if (
        name in _VALUE_DEPENDENT
        or module_name(getattr(target, "__module__", None)).startswith("torch._C._linalg")
        or is_foreign(target)
    ):
        return True
    if name not in _INDEXING:
        return name in _WITH_LABELS and _catches_index_errors(vm)
    if type(args[0]) is not TraceTensor:
        return False
    if not any(type(index) is TraceTensor for index in (args[1] if isinstance(args[1], (tuple, list)) else args[1:2])):
        return False
    return is_unbacked(*meta_of(args[0]).shape) or _catches_index_errors(vm)


_ALL_ERRORS = tuple(
    each for each in vars(builtins).values() if isinstance(each, type) and issubclass(each, BaseException)
)


_WARNINGS = tuple(each for each in _ALL_ERRORS if issubclass(each, Warning))


def is_foreign(target: object) -> bool:
    """Whether an operator is not PyTorch's own: it may raise any error, and must not run twice."""
    if isinstance(target, OpOverload):
        return target.namespace not in ("aten", "prims")
    if isinstance(target, OpOverloadPacket):
        return str(target).split(".")[0] not in ("aten", "prims")
    return isinstance(target, CustomOpDef)


def _catches_index_errors(vm: Interpreter) -> bool:
    """Whether an `except` clause around the operation catches IndexError but not RuntimeError."""
    return _is_caught(vm, (IndexError,), but=(RuntimeError,))


def note_caught(vm: Interpreter, target: object, error: str = "RuntimeError") -> None:
    """Note that an operation which raises for some values joins the graph.

    Raises:
        Break: the program catches the error, and the frame cannot be run in eager to raise it there.
    """
    errors: tuple[type[BaseException], ...] = (IndexError, RuntimeError, getattr(builtins, error))
    if is_foreign(target):
        errors = _ALL_ERRORS
    if not _is_caught(vm, errors):
        return
    if is_foreign(target) or not vm.plan.repeats or error not in ("RuntimeError", "IndexError"):
        vm.work += 1  # capture restarts without this operation: facts that were learned from it are dropped
        what = target if isinstance(target, str) else name_of(target)
        raise Break(f"{what} in a try statement", "whether it raises depends on values", "move it out of the statement")
    vm.tensors.caught = True


def note_op(vm: Interpreter) -> None:
    """Note that an operation joins the graph, and whether the program would catch an error of it."""
    tensors = vm.tensors
    if not tensors.guarded:
        tensors.guarded = _is_guarded(vm)


def note_read(vm: Interpreter, args: Args) -> None:
    """Note that residual code will read a number from a tensor. For a tensor on a GPU, the read raises errors of
    earlier kernels.

    Raises:
        Break: the program catches the error, and the frame cannot be run in eager to raise it there.
    """
    if not (args and type(args[0]) is TraceTensor and on_gpu(meta_of(args[0]).device) and _is_guarded(vm)):
        return
    if not vm.plan.repeats:
        vm.work += 1
        raise Break("a number is read from a GPU in a try statement", "kernels before it may have failed")
    vm.tensors.read_guarded = True


def note_deferred(vm: Interpreter, fn: object, runs: bool) -> None:
    """Note that a call is deferred until after the graph; `runs`: whether the call runs code of the program.

    Raises:
        Break: the program catches an error that the call may raise.
    """
    if not runs and fn not in (warnings.warn, warnings.warn_explicit):
        return
    if not _is_caught(vm, _ALL_ERRORS if runs else _WARNINGS):
        return
    if not runs:
        vm.guards.flag(_warnings_raise, (), _warnings_raise())
    if runs or _warnings_raise() or _error_filter_is_deferred(vm):
        name = getattr(fn, "__qualname__", str(fn))
        raise Break(f"{name} in a try statement", "it may raise what a clause takes", "move it out of the statement")


def _warnings_raise() -> bool:
    """Whether a warning filter turns some warnings into errors."""
    return any(each[0] == "error" for each in warnings.filters)


def _error_filter_is_deferred(vm: Interpreter) -> bool:
    """Whether a deferred call of the program installs a warning filter that turns warnings into errors."""
    calls = [call for call in vm.effects.deferred if isinstance(call, Deferred)]
    calls = [call for call in calls if getattr(call.fn, "__module__", "") == "warnings"]
    return any("error" in (*call.args, *call.kwargs.values()) for call in calls)


def on_gpu(device: torch.device) -> bool:
    """Whether the device reports kernel errors only after the call that launched the kernel."""
    return device.type == "cuda"


def _is_guarded(vm: Interpreter) -> bool:
    return _is_caught(vm, (RuntimeError, IndexError))


def _is_caught(vm: Interpreter, errors: Errors, but: Errors = ()) -> bool:
    """Whether an `except` clause around the operation catches one of `errors`, and none of `but`; see `acts_on`."""
    # runs for each operation of the graph: most frames have no statement that could catch an error
    for frame in vm.frames:
        if frame.decoded.handlers and _is_caught_in(frame, errors, but):
            return True
    return False


def _is_caught_in(frame: Frame, errors: Errors, but: Errors) -> bool:
    """Whether an `except` clause of this frame catches one of the errors; the answer is cached per instruction."""
    key = (frame.pc, errors, but)
    known = frame.catching.get(key)
    if known is None:
        known = frame.catching[key] = acts_on(frame, frame.pc - 1, errors, True, but)
    return known
