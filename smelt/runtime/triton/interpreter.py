"""Runs launches of Triton kernels without a GPU, by Triton's interpreter over the memory of CPU tensors.

It is used in tests. The interpreter works on raw addresses; it is given the table's pointers, so nothing is copied and
views into the arena work as on a device. Types come from the signature, as in a compiled kernel: an argument declared
"i64" has 64 bits, whatever its value.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.abi.kernel_source import KernelSource
from smelt.base.errors import BuildError
from smelt.base.locks import new_lock
from smelt.base.options import environment
from smelt.runtime.triton.align import unaligned_parameters
from smelt.runtime.triton.interpreted_math import LIBDEVICE
from smelt.runtime.triton.worker import load_module, triton_module

if TYPE_CHECKING:
    from smelt.runtime.launch import Table
    from smelt.runtime.triton.plan import Argument, PlannedLaunch

_lock = new_lock()  # the interpreter keeps the position in the grid in a global variable


class InterpretedSegment:
    """A run of kernels as a function `segment(table)`."""

    def __init__(self, launches: Sequence[PlannedLaunch]) -> None:
        self.launches = list(launches)
        self.functions = [_function(launch.source) for launch in self.launches]

    def __call__(self, table: Table) -> None:
        with _lock, np.errstate(all="ignore"):
            for function, launch in zip(self.functions, self.launches, strict=True):
                if launch.source.unaligned is not None and unaligned_parameters(table, launch):
                    function = _function(launch.source.undeclared(launch.source.divisible))
                _run(function, launch, table)


@functools.cache
def _load(source: str) -> Any:
    if not environment().triton_interpret:
        raise BuildError(
            "Triton kernels for CPU tensors run in Triton's interpreter only", hint="set TRITON_INTERPRET=1"
        )
    scope = load_module(source)
    scope["libdevice"] = LIBDEVICE
    function = scope["kernel"]
    if not isinstance(function, triton_module("runtime.interpreter").InterpretedFunction):
        raise BuildError("Triton was imported before TRITON_INTERPRET=1 was set", hint="set it before Python starts")
    return function


def _function(source: KernelSource) -> Any:
    try:
        return _load(source.source)
    except BuildError:
        raise
    except Exception as error:
        raise BuildError(f"Triton refused kernel {source.name!r}:\n{type(error).__name__}: {error}") from error


@functools.cache
def _executor() -> Any:
    """Returns Triton's executor of grids without its copies of arguments, as all memory is on the same device."""
    _patch_bf16_products()
    _patch_bf16_rounding()
    _patch_loop_lengths()
    _patch_search_for_builtins()

    class Executor(triton_module("runtime.interpreter").GridExecutor):  # type: ignore[misc]
        def _init_args_hst(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
            return args, kwargs

        def _restore_args_dev(self, *_: Any) -> None:
            pass

    return Executor


def _patch_search_for_builtins() -> None:
    """Find the functions of Triton's language once: the interpreter looks through all of its names at each launch, and
    at each call of a function in a kernel.
    """
    interpreter, is_builtin = triton_module("runtime.interpreter"), triton_module("language.core").is_builtin

    @functools.cache
    def builtins(package: Any) -> list[str]:
        return [name for name, member in inspect.getmembers(package) if is_builtin(member)]

    def patch(package: Any, *rest: Any) -> None:
        for name in builtins(package):
            if is_builtin(member := getattr(package, name)):  # not patched yet
                interpreter._patch_attr(package, name, member, *rest)

    interpreter._patch_builtin = patch


def _patch_bf16_products() -> None:
    """Make products use the values of bfloat16 factors: the interpreter would multiply their bits as integers.

    The interpreter multiplies float32 as float32, whatever `input_precision` is, and does not accept all values of that
    argument.
    """
    interpreter, language = triton_module("runtime.interpreter"), triton_module("language")
    builder, plain = interpreter.InterpreterBuilder, interpreter.InterpreterBuilder.create_dot

    def widened(factor: Any) -> Any:
        if factor.dtype.scalar != language.bfloat16:
            return factor
        return interpreter.TensorHandle(_widened(factor.data), language.float32)

    builder.create_dot = lambda self, a, b, *rest: plain(self, widened(a), widened(b), *rest)
    known, name = interpreter.interpreter_builder.options, "allowed_dot_input_precisions"
    if "bf16x6" not in getattr(known, name):
        names = (*getattr(known, name), "bf16x6")
        interpreter.interpreter_builder.options = dataclasses.replace(known, **{name: names})


def _patch_bf16_rounding() -> None:
    """Make casts to bfloat16 round to the nearest value, as on a GPU: the interpreter truncates."""
    interpreter, language = triton_module("runtime.interpreter"), triton_module("language")
    builder, plain = interpreter.InterpreterBuilder, interpreter.InterpreterBuilder.cast_impl

    def cast(self: Any, value: Any, into: Any) -> Any:
        match value.dtype.scalar, into.scalar:
            case language.float32, language.bfloat16:
                return interpreter.TensorHandle(_rounded(value.data), language.bfloat16)
            case language.bfloat16, language.float32:
                return interpreter.TensorHandle(_widened(value.data), language.float32)
        return plain(self, value, into)

    builder.cast_impl = cast


def _patch_loop_lengths() -> None:
    """Make values usable as lengths of loops: older interpreters convert arrays of one element, which NumPy 2.5
    refuses."""
    interpreter = triton_module("runtime.interpreter")
    plain = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        plain(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def _rounded(x: Any) -> Any:
    """Returns the bits of float32 values rounded to bfloat16, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    nearest = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(x), 0x7FC0, nearest).astype(np.uint16)


def _widened(bits: Any) -> Any:
    """Returns the float32 values of bfloat16's bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _run(function: Any, launch: PlannedLaunch, table: Table) -> None:
    types = [kind for _, kind in launch.source.signature]
    arguments = [_argument(kind, value, table) for kind, value in zip(types, launch.arguments, strict=True)]
    try:
        run = _executor()(function.rewrite(), function.arg_names, launch.grid)
        run(*arguments, **dict(launch.config.constants))
    except Exception as error:
        raise BuildError(f"kernel {launch.source.name!r} failed in Triton's interpreter: {error}") from error


def _argument(kind: str, argument: Argument, table: Table) -> Any:
    language, handle = triton_module("language"), triton_module("runtime.interpreter").TensorHandle
    if isinstance(argument, tuple):
        slot, offset = argument
        value = np.array([table.get(slot) + offset], dtype=np.uint64)
    else:
        value = np.array([argument], dtype={"i32": np.int32, "i64": np.int64}[kind])
    known = language.str_to_ty(kind, None)
    return language.tensor(handle(value, known), known)
