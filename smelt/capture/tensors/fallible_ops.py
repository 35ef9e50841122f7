"""Operations that raise for some values, where the program catches what they raise.

A graph that fails ends its frame: the frame runs in eager once more, from its start, and comes to its own `except`
clauses there, with random generators wound back. Where that cannot be, since the graph writes to its inputs, such an
operation is not the graph's.
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
from smelt.capture.core.interface import Args, Interpreter
from smelt.capture.python.effects import Deferred
from smelt.capture.tensors.trace_call import name_of
from smelt.graph.ir.meta import meta_of
from smelt.graph.trace.trace import TraceTensor
from smelt.shapes.unbacked import is_unbacked

_BY_INDEX = frozenset({"getitem", "__getitem__", "setitem", "__setitem__"})
_BY_NUMBER = frozenset(
    {"embedding", "index_select", "take", "cross_entropy", "cross_entropy_loss", "nll_loss", "nll_loss_nd"}
)
"""They raise IndexError for a number that is out of range."""


_BY_VALUES = (
    frozenset(
        "cholesky cholesky_inverse inverse logdet slogdet lu lu_solve multinomial bernoulli pinverse qr svd matrix_exp "
        "ormqr geqrf orgqr triangular_solve lobpcg masked_scatter masked_scatter_ repeat_interleave normal poisson "
        "binomial".split()
    )
    | {name for name in dir(torch.linalg) if not name.startswith("_")}
    | {f"linalg_{name}" for name in dir(torch.linalg)}
)
"""They raise for values that a factorization, a distribution or a length cannot have."""


def may_raise(vm: Interpreter, target: object, args: Args) -> bool:
    """Whether elements are picked of a tensor of which only values tell how many it has, or where a clause asks for it.

    Any index may be out of range, and labels may. Whole training steps run in a `try` whose clause takes all errors, or
    those of memory; only a clause that names IndexError and does not take RuntimeError says that it waits for one.
    """
    name = getattr(target, "__name__", "")
    if (
        name in _BY_VALUES
        or module_name(getattr(target, "__module__", None)).startswith("torch._C._linalg")
        or is_foreign(target)
    ):
        return True
    if name not in _BY_INDEX:
        return name in _BY_NUMBER and _waits(vm)
    if type(args[0]) is not TraceTensor:
        return False
    if not any(type(index) is TraceTensor for index in (args[1] if isinstance(args[1], (tuple, list)) else args[1:2])):
        return False
    return is_unbacked(*meta_of(args[0]).shape) or _waits(vm)


_ANY = tuple(each for each in vars(builtins).values() if isinstance(each, type) and issubclass(each, BaseException))


_WARNINGS = tuple(each for each in _ANY if issubclass(each, Warning))


def is_foreign(target: object) -> bool:
    """An operator that the program or a library wrote: it may raise what it likes, and must not run twice."""
    if isinstance(target, OpOverload):
        return target.namespace not in ("aten", "prims")
    if isinstance(target, OpOverloadPacket):
        return str(target).split(".")[0] not in ("aten", "prims")
    return isinstance(target, CustomOpDef)


def _waits(vm: Interpreter) -> bool:
    """Whether a clause around the operation names a class that takes IndexError and no RuntimeError."""
    return _is_caught(vm, (IndexError,), but=(RuntimeError,))


def note_caught(vm: Interpreter, target: object, error: str = "RuntimeError") -> None:
    """An operation that raises for some values joins the graph.

    Raises:
        Break: the program catches the error, and the frame cannot run again to find it.
    """
    errors: tuple[type[BaseException], ...] = (IndexError, RuntimeError, getattr(builtins, error))
    if is_foreign(target):
        errors = _ANY
    if not _is_caught(vm, errors):
        return
    if is_foreign(target) or not vm.plan.repeats or error not in ("RuntimeError", "IndexError"):
        vm.work += 1  # what was learned from the operation is forgotten: capture begins again
        what = target if isinstance(target, str) else name_of(target)
        raise Break(f"{what} in a try statement", "only values tell whether it raises", "move it out of the statement")
    vm.tensors.caught = True


def note_op(vm: Interpreter) -> None:
    """An operation joins the graph: perhaps the program would catch what it raises."""
    tensors = vm.tensors
    if not tensors.guarded:
        tensors.guarded = _is_guarded(vm)


def note_read(vm: Interpreter, args: Args) -> None:
    """Residual code will read a number from a tensor. On a GPU that raises what kernels before it failed with.

    Raises:
        Break: the program catches the error, and the frame cannot run again to find it.
    """
    if not (args and type(args[0]) is TraceTensor and on_gpu(meta_of(args[0]).device) and _is_guarded(vm)):
        return
    if not vm.plan.repeats:
        vm.work += 1
        raise Break("a number is read from a GPU in a try statement", "kernels before it may have failed")
    vm.tensors.read_guarded = True


def note_deferred(vm: Interpreter, fn: object, runs: bool) -> None:
    """A call is put off until after the graph; `runs`: it runs code of the program.

    Raises:
        Break: the program catches what it may raise.
    """
    if not runs and fn not in (warnings.warn, warnings.warn_explicit):
        return
    if not _is_caught(vm, _ANY if runs else _WARNINGS):
        return
    if not runs:
        vm.guards.flag(_warnings_raise, (), _warnings_raise())
    if runs or _warnings_raise() or _will_raise(vm):
        name = getattr(fn, "__qualname__", str(fn))
        raise Break(f"{name} in a try statement", "it may raise what a clause takes", "move it out of the statement")


def _warnings_raise() -> bool:
    """Whether a filter makes some warnings errors."""
    return any(each[0] == "error" for each in warnings.filters)


def _will_raise(vm: Interpreter) -> bool:
    """Whether the program has put such a filter there, which is put off as well."""
    calls = [call for call in vm.effects.deferred if isinstance(call, Deferred)]
    calls = [call for call in calls if getattr(call.fn, "__module__", "") == "warnings"]
    return any("error" in (*call.args, *call.kwargs.values()) for call in calls)


def on_gpu(device: torch.device) -> bool:
    """Whether errors of kernels come out later."""
    return device.type == "cuda"


def _is_guarded(vm: Interpreter) -> bool:
    return _is_caught(vm, (RuntimeError, IndexError))


def _is_caught(vm: Interpreter, errors: Errors, but: Errors = ()) -> bool:
    """Whether a clause around the operation takes one of these errors; see `acts_on`."""
    for frame in vm.frames:  # asked for each operation of the graph: most frames have no statement that could take one
        if frame.decoded.handlers and acts_on(frame, frame.pc - 1, errors, True, but):
            return True
    return False
