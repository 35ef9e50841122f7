"""The symbolic interpreter: runs a frame's bytecode over real Python objects in which tensors have no data.

Objects that existed before the frame are external: a table maps their identities to Sources, reading them adds guards,
writes to them are deferred (`effects`). Objects made during the frame are ordinary and belong to the trace.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import CellType, CodeType, FunctionType
from typing import Any

import torch

from smelt.base.class_tables import ClassTable, by_class, isinstance
from smelt.base.python_text import module_name
from smelt.capture._native import NULL
from smelt.capture.arrays import methods as array_calls
from smelt.capture.arrays.array import ArrayMethod, TensorArray, needs_values
from smelt.capture.calls.observers import Observed
from smelt.capture.core import breaks, interface, sources
from smelt.capture.core.breaks import (
    At,
    Break,
    Restart,
    UserError,
    bare,
    through_c,
    too_deep,
    user,
)
from smelt.capture.core.bytecode import Decoded
from smelt.capture.core.conditional_value import refuse_undecided
from smelt.capture.core.foreign_memory import refuse_fields, refuse_windows
from smelt.capture.core.frames import Frame
from smelt.capture.core.interface import NO_OVERRIDE, Args, Kwargs, T
from smelt.capture.core.made_classes import check_type, pin_given
from smelt.capture.core.plan import CapturePlan
from smelt.capture.core.prologue_value import PrologueValue
from smelt.capture.core.registry import ATTR, CALL, READ
from smelt.capture.core.sources import Source
from smelt.capture.core.state import NO_VALUES, Control, PythonState, ValuePolicy
from smelt.capture.equal_calls.calls import EqualCalls
from smelt.capture.guards.dynamic_shapes import SiteProfile, Sizes
from smelt.capture.guards.guards import GuardList
from smelt.capture.prologue.ops import call as call_in_prologue
from smelt.capture.prologue.prologue import Prologue
from smelt.capture.python import views_from_outside  # noqa: F401  (registers how these are read)
from smelt.capture.python.comparisons import Compared
from smelt.capture.python.effects import DELETED, Effects
from smelt.capture.python.finalizers import Finalizers
from smelt.capture.python.hash_order import note_reads
from smelt.capture.python.infinite_iterators import refuse_endless
from smelt.capture.subclasses.instances import Subclasses, plain_reader
from smelt.capture.tensors.ambient import Ambient
from smelt.capture.tensors.step_counts import StepCounts
from smelt.capture.tensors.tensors import Tensors
from smelt.graph.ir.symint import has_other_number, has_symint, pinned
from smelt.graph.trace.trace import TraceTensor

_MISS = object()
_MAX_INLINE_DEPTH = 150  # maximum depth of inlined calls; each costs some ten frames of Python's own stack


class Interpreter:
    """One attempt to capture a frame.

    The state is divided into the objects below. `release` drops all their references to the program's objects.

    Attributes:
        plan: the permissions of this attempt.
        values: the treatment of values that may differ at the next call.
        sources: identity of an external object -> its source; the objects are kept alive.
        reads: (identity of an external object, name) -> the attribute or item that was read from it.
        python: the objects that the program has made and the exceptions that it has raised so far.
        control: the data-dependent branches.
        tensors: the trace tensors, the fx graph and its inputs; while a function under a transform is captured, those
            of the function.
        outermost: the trace tensors, fx graph and inputs of the frame itself.
        subclasses: the tensors whose class is a subclass.
        effects: the deferred writes to external objects.
        compared, observed, finalizers: conditions that follow from comparisons, reads and destructions of objects.
        equal_calls: the calls of modules that calls of equal modules copy.
        prologue: the operations that Python computes before the graph runs.
        ambient: the modes of the thread.
        guards: the guards on the program's objects.
        sizes: the symbols among the sizes of the program's tensors.
        step: index of the executed instruction of the captured frame, counted from the frame's start.
        work: number of actions that cannot be undone; a break before the first one of its instruction needs no restart.
    """

    def __init__(
        self,
        decode: Callable[[CodeType], Decoded],
        changes: SiteProfile,
        plan: CapturePlan,
        dynamic: bool | None,
        speculates: bool = True,
    ) -> None:
        self.decode, self.plan = decode, plan
        self.values = ValuePolicy(speculates, are_read=dynamic is not False and plan.symbols, numbers_change=True)
        self.python, self.control = PythonState(), Control(plan)
        self._sizing = changes, plan, dynamic
        self.guards = GuardList(self.where)
        self.sizes = Sizes(changes, dynamic, lambda: str(self.where() or ""), plan.symbols)
        self.ambient: interface.Ambient = Ambient()
        self.prologue = Prologue(self)
        self.outermost = Tensors(self)
        self.tensors: interface.Tensors = self.outermost
        self.subclasses: interface.Subclasses = Subclasses(self)
        self.effects = Effects(self)
        self.compared = Compared(self)
        self.observed = Observed()
        self.finalizers = Finalizers(self)
        self.sources: dict[int, Source] = {}
        self.frames: list[Frame] = []
        self.work = 0
        self.step = 0
        self.reads: dict[tuple[int, str], Any] = {}
        self.step_counts = StepCounts(self)
        self.equal_calls = EqualCalls(self, allowed=plan.copies)
        self._globals: dict[int, Source] = {}
        self._kept: list[object] = []

    def release(self) -> None:
        """Drop the references to the program's objects at the end of the capture, which must not keep them alive."""
        self.python.release(self.sources)
        self.sizes.owner.where = str  # sizes outlive the capture
        for each in (self._kept, self.sources, self.reads):
            each.clear()
        self.effects.release()
        self.finalizers.release()
        self.tensors.release()
        self.compared.release()
        self.equal_calls.release()
        self.outermost.release()
        self.subclasses.release()

    def where(self) -> At | None:
        """The user's line that is being interpreted."""
        return self.frames[-1].at if self.frames else None

    def sibling(self) -> Interpreter:
        """An interpreter that shares the guards, sizes and external objects, but has its own tensors and effects."""
        out = Interpreter(self.decode, *self._sizing, speculates=False)
        out.values = NO_VALUES
        tensors = self.tensors.traced.keys() | self.tensors.real.keys()
        out.guards, out.sizes, out._globals = self.guards, self.sizes, self._globals
        out.python.share_classes(self.python)
        out.sources = {key: source for key, source in self.sources.items() if key not in tensors}
        out.frames, out.python.module_depths = self.frames[:], self.python.module_depths[:]
        out.effects.graph_warns = self.effects.graph_warns
        out.effects.graph_repeats_writes = self.effects.graph_repeats_writes
        out.control.branches = out.prologue.allowed = out.equal_calls.allowed = False
        out.control.refused, out.control.pinned = self.control.refused, self.control.pinned
        return out

    def keep(self, value: object) -> None:
        """Keep a value alive during the capture, because its identity is a key."""
        self._kept.append(value)

    # -- running ------------------------------------------------------------------------------------------------

    def run(self, frame: Frame) -> object:
        """Interpret until the frame returns or yields; its value is then `frame.value`.

        Raises:
            UserError: the frame raises an exception that it does not catch.
            Break: an instruction cannot be captured.
        """
        instructions, control = frame.decoded.instructions, self.control
        frames = self.frames
        if frames:
            frame.callers = (frames[-1].callers, frames[-1].at)
        frames.append(frame)
        if len(frames) > _MAX_INLINE_DEPTH:
            raise Break("recursion that is too deep to inline", f"more than {_MAX_INLINE_DEPTH} nested calls")
        try:
            while True:
                try:
                    while True:
                        handler, arg = instructions[frame.pc]
                        frame.pc += 1
                        result = handler(self, frame, arg)
                        if result is not None:
                            return result
                        if control.undecided:
                            refuse_undecided(frame)
                except UserError as error:
                    self.unwind(frame, error)
        except Break as stop:
            if stop.at is None:
                stop.at = frame.at
            raise
        except RecursionError:
            end = too_deep()
            end.at = frame.at
            raise end from None
        finally:
            frames.pop()

    def run_root(self, frame: Frame, stop_at: int = -1) -> Break | None:
        """Interpret the captured frame itself.

        Returns None if the frame has returned. Returns a Break if an instruction cannot be captured: `frame` is then at
        this instruction, with the variables and the stack that it had before it.

        Raises:
            Restart: the break was found after its instruction; a new interpreter has to start over with `stop_at`.
            UserError: the frame raises.
        """
        instructions, control, steps = frame.decoded.instructions, self.control, 0
        raised: dict[int, int] = {}
        self.frames.append(frame)
        try:
            while True:
                if steps == stop_at:
                    return Break("")
                pc, stack, names, work = frame.pc, frame.stack[:], frame.kw_names, self.work
                frame.pc += 1
                self.step = steps
                steps += 1
                try:
                    try:
                        handler, arg = instructions[pc]
                        if handler(self, frame, arg) is not None:
                            return None
                        if control.undecided:
                            refuse_undecided(frame)
                    except UserError as error:
                        raised.setdefault(id(error.error), steps - 1)
                        self.keep(error.error)
                        self.unwind(frame, error)
                    except RecursionError:
                        if breaks.is_deep():
                            raise
                        raise too_deep() from None
                    if self.finalizers.owned:
                        self.finalizers.check()
                except Break as stop:
                    stop.at = stop.at or frame.at
                    made = breaks.with_causes(frame.handled) & raised.keys() - self.sources.keys()
                    if made:  # eager has to raise the exception, which needs its traceback and context
                        stop.in_frame = False
                        raise Restart(min(raised[error] for error in made), stop) from None
                    if self.work != work:
                        raise Restart(steps - 1, stop) from None
                    frame.pc, frame.stack, frame.kw_names = pc, stack, names
                    return bare(stop)
        finally:
            self.frames.pop()

    def close_generators(self, kept: Callable[[object], bool]) -> None:
        """Close generators that are suspended inside of a `try` and abandoned, as Python does when it drops them.

        Args:
            kept: whether a generator outlives the frame; residual code then makes it as a real generator.

        Raises:
            Restart: a generator does not outlive the frame; it has to be a real generator, so capture stops where it is
                made.
        """
        for generator in self.python.generators:
            if generator.must_close and not kept(generator):
                why = "Python runs its finally clause when the generator is dropped"
                stop = Break("a generator is left unfinished", why, "exhaust or close it")
                stop.at = generator.frame.at
                raise Restart(generator.born, stop)

    def unwind(self, frame: Frame, error: UserError) -> None:
        """Continue at the handler that covers the present instruction, or raise out of the frame."""
        self.python.errors.setdefault(id(error.error), (error.error, self.step))
        handled = self.handled()
        made_here = id(error.error) not in self.sources  # an external one got its context when it was first raised
        if handled is not None and made_here and error.error.__context__ is None and error.error is not handled:
            error.error.__context__ = handled
        row = frame.decoded.handler_at(frame.pc - 1)
        if row is None:
            try:
                raise error
            finally:
                del error  # it refers to this frame
        del frame.stack[row.depth :]
        if row.lasti:
            frame.stack.append(frame.decoded.units(frame.pc - 1))
        frame.stack.append(error.error)
        frame.pc = row.target

    def handled(self) -> BaseException | None:
        """The exception that an except clause of the captured frames handles; None outside of their except clauses."""
        return next((frame.handled[-1] for frame in reversed(self.frames) if frame.handled), None)

    def context(self) -> object:
        """The context of an exception raised at this point: the exception that the captured frames or else their caller
        handle.

        The caller's exception is returned as an unread value, without a guard.
        """
        inside = self.handled()
        return self.reads.get((0, "sys.exception"), self.python.outer_error) if inside is None else inside

    def outer_exception(self) -> Any:
        """The exception that the caller of the captured frame is handling, with its guard."""
        key = (0, "sys.exception")
        if key not in self.reads:
            self.reads[key] = self.external(self.python.outer_error, sources.HANDLED)
        return self.reads[key]

    # -- reading external objects -----------------------------------------------------------------------------------

    def external(self, value: object, source: Source) -> Any:
        """The handle of a value that was read through `source`; adds the guards that the read requires."""
        if value is NULL:
            self.guards.check(source, _MISSING, None)
            return value
        known = self.sources.get(id(value))
        if known is not None:
            self.guards.same(known, source)
            return self.prologue.handle(self.tensors.handle(value))
        return READ.find(type(value))(self, value, source)

    def check_type(self, value: object, source: Source) -> None:
        """Guard the class of an external value."""
        check_type(self, value, source)

    def register(self, value: T, source: Source) -> T:
        """Register `value` as external."""
        if self.observed.targets:
            self.observed.look(id(value))
        self.sources[id(value)] = source
        self._kept.append(value)
        return value

    def externals(self) -> list[object]:
        """All external objects, and other objects that the capture keeps alive."""
        return self._kept

    def source_of(self, value: object) -> Source | None:
        """The source of an external object; None for plain data and for objects that the frame made."""
        return self.sources.get(id(value))

    def is_external(self, identity: int) -> bool:
        """Whether an external object, or a dictionary of globals, has the identity."""
        return identity in self.sources or identity in self._globals

    def globals_source(self, globals: dict[str, object]) -> Source:
        """The source of an (inlined) function's dictionary of globals."""
        found = self._globals.get(id(globals))
        if found is None:
            found = sources.const(globals, module_name(globals.get("__name__")) or "globals")
            self._globals[id(globals)] = found
            self._kept.append(globals)
        return found

    def root_globals(self, globals: dict[str, object]) -> None:
        """Use these globals as the captured frame's own: guards read them from the frame and do not keep them alive."""
        self._globals[id(globals)] = sources.frame_globals()
        self._kept.append(globals)

    def load_global(self, frame: Frame, name: str) -> Any:
        """A global variable or builtin, as LOAD_GLOBAL finds it."""
        globals = frame.globals
        key = (id(globals), name)
        value = self.reads.get(key, _MISS)
        deleted = value is DELETED
        if value is not _MISS and not deleted:
            return value
        if self.observed.targets:
            self.observed.look(key)
        source = self.globals_source(globals)
        if name in globals and not deleted:
            value = self.external(globals[name], sources.global_item(source, name))
        else:
            builtins = globals["__builtins__"]
            builtins = builtins if isinstance(builtins, dict) else vars(builtins)
            if name not in builtins:
                raise UserError(NameError(f"name {name!r} is not defined", name=name))
            if not deleted:
                self.guards.check(sources.global_missing(source, name), _MISSING, None)
            value = self.external(builtins[name], sources.global_item(self.globals_source(builtins), name))
        self.reads[key] = value
        return value

    def cell(self, cell: CellType, name: str) -> object:
        """The content of a closure cell; NULL when it is empty."""
        key = (id(cell), "cell_contents")
        value = self.reads.get(key, _MISS)
        if value is not _MISS:
            return value
        source = self.sources.get(id(cell))
        try:
            value = cell.cell_contents
        except ValueError:
            value = NULL
        if source is not None:
            value = self.reads[key] = self.external(value, sources.cell_content(source, name))
        return value

    def adopt_cells(self, function: FunctionType, source: Source) -> None:
        """Register the cells of an external function's closure as external."""
        for index, cell in enumerate(function.__closure__ or ()):
            if id(cell) not in self.python.created and id(cell) not in self.sources:
                self.register(cell, sources.closure_cell(source, index))

    # -- operations by type -------------------------------------------------------------------------------------------

    def call(self, fn: object, args: Args, kwargs: Kwargs) -> Any:
        """The result of `fn(*args, **kwargs)` under capture, by the type of `fn`."""
        if self.subclasses.present:
            out = self.subclasses.intercept(fn, args, kwargs)
            if out is not NO_OVERRIDE:
                return out
        if self.python.arrays and array_calls.takes(fn, args, kwargs):
            return array_calls.call_function(self, fn, args, kwargs)
        out = call_in_prologue(self, fn, args, kwargs)
        if out is not NotImplemented:
            return out
        return CALL.find(type(fn))(self, fn, args, kwargs)

    def load_attr(self, obj: object, name: str) -> Any:
        """The attribute `name` of `obj` under capture, by the type of `obj`."""
        refuse_fields(obj, name)
        return ATTR.find(type(obj))(self, obj, name)

    def native(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Any:
        """Run C code of the user's program. Tensor operations that it makes are recorded as well."""
        try:
            return user(self._native, fn, *args, **kwargs)
        except UserError as error:
            if self.python.arrays and TensorArray.__name__ in str(error.error):  # C code refuses the stand-in
                raise needs_values("an array that the graph computes, handed to C code") from None
            raise

    def _native(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Any:
        self.work += 1
        if self.control.branching:
            refuse_endless(fn, args)
        refuse_windows(args)
        self.compared.look(fn, args)
        note_reads(self, fn, args, kwargs)
        if fn is dir or id(fn) in _COMPUTING and has_symint(args) and has_other_number(args):
            args = pinned(args)
        out = self.tensors.c_callbacks.run(fn, args, kwargs)
        self.compared.made(fn, out)
        if self.python.made_classes:
            pin_given(self, fn, (*args, *kwargs.values()), out)
        refuse_windows((out,))
        if type(out).__module__ == "decimal":
            self.guards.flag(_decimal_settings, (), _decimal_settings())
        return out

    def type_of(self, value: Any) -> type:
        """The class that `type(value)` gives in the program, which has no trace tensors or symbols."""
        kind = type(value)
        if kind is PrologueValue:
            return type(value.example)
        if kind is TensorArray or kind is ArrayMethod:
            return type(value.stand_in)
        return self.tensors.type_of(value) if kind is TraceTensor else _NUMBERS.get(kind, kind)

    def reenter(self, run: Callable[[], object]) -> object:
        """Run interpreted code that C code calls back; exceptions pass through the C code as the program raised
        them.
        """
        return through_c(lambda: self.tensors.c_callbacks.pause(run))

    def attr_source(self, source: Source, name: str, in_dict: bool) -> Source:
        """The source of an object's attribute, which is read from its dictionary (`in_dict`) or by `getattr`."""
        if in_dict:
            return sources.instance_item(source, name)
        if self.subclasses.is_instance(source):
            return sources.called(source, plain_reader(name), name)
        return sources.attr(source, name)


_MISSING = sources.native.MISSING
_COMPUTING = frozenset(map(id, (sum, pow, divmod, math.prod)))
"""Identities of functions that compute with numbers among their arguments, also with numbers in lists."""
_NUMBERS: ClassTable[type] = by_class({torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool})


def _decimal_settings() -> str:
    """The settings on which decimal arithmetic depends, without the context's flags, which the arithmetic sets."""
    context: Any = sys.modules["decimal"].getcontext()  # imported only by programs that use it
    traps = [signal.__name__ for signal, raises in context.traps.items() if raises]
    return f"{context.prec} {context.rounding} {context.Emin} {context.Emax} {context.capitals} {context.clamp} {traps}"
