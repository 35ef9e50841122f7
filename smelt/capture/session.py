"""One compiled callable: captures its frames, has their graphs compiled, installs guards and residual code.

The hook calls `Session.frame` when a frame for which no cache entry fits starts in the compiled callable, and
`Session.resumed` when a frame resumes after a graph break and no entry fits. The result is an entry of `_native`.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import CellType, CodeType, FunctionType
from typing import Any

import torch
from torch import fx

from smelt.base import torch_c
from smelt.base._native import heard_from_handlers
from smelt.base.class_tables import isinstance
from smelt.base.collection import no_collection
from smelt.base.errors import CompileError, OptionError, RecompileError, SpecializationError, Unsupported
from smelt.base.locks import new_lock
from smelt.base.log import log
from smelt.base.malloc import give_back
from smelt.base.options import Options, environment
from smelt.base.precision import products_round_to_tf32
from smelt.base.process_state import interrupts_compilation, preserving
from smelt.base.report import Report, saved_report
from smelt.base.stats import count, spend
from smelt.base.text import on_one_line
from smelt.capture import _native as native
from smelt.capture.cache import CacheEntry, CompileSite, Reader, Slots
from smelt.capture.calls import (
    builtin_functions,
    caches,
    calls,
    container_builtins,
    getters,
    math_functions,
    objects,
    texts,
)
from smelt.capture.core import compiler_marks, flags, policy, sources
from smelt.capture.core.breaks import (
    At,
    Break,
    BreakReason,
    CannotRebuild,
    Restart,
    SymbolicNumber,
    UserError,
    bare,
    is_deep,
    let_go,
    too_deep,
)
from smelt.capture.core.frames import Frame, Unread, slot_names
from smelt.capture.core.plan import CapturePlan
from smelt.capture.core.signals import raise_heard, raise_if_signalled
from smelt.capture.diagnostics import Diagnostics, only_captured
from smelt.capture.interpreter import Interpreter
from smelt.capture.opcodes import decoding, exceptions
from smelt.capture.python import context_variables
from smelt.capture.python.stack_opcodes import store_unread
from smelt.capture.residual.residual import Residual, Writer
from smelt.capture.stance import current as current_stance
from smelt.capture.subclasses import torch_function  # noqa: F401  (registers captured forms)
from smelt.capture.tensors import operator_modes, thread_modes
from smelt.capture.tensors.ambient import (
    outside_anomaly_mode,
    outside_inference_mode,
    outside_saved_tensor_hooks,
    outside_torch_function,
)
from smelt.capture.tensors.reads import break_for
from smelt.capture.tensors.speculation import MAX_SPECULATED_VERSIONS
from smelt.capture.torch import (
    collectives,
    custom_ops,
    derivatives,
    functional_call,
    functions,
    grad_scaler,
    higher_order,
    modules,
    nested_tensors,
    optimizers,
    schedules,
    tensor_constructor,
    tensor_hooks,
    transforms,
    triton_kernels,
    value_checks,
)
from smelt.graph.ir.memo import forget_symbols
from smelt.graph.nodes.custom_functions import WritingBackward, exclude_writing
from smelt.graph.nodes.cut_points import in_pieces
from smelt.shapes.real import Real
from smelt.shapes.unbacked import DataDependent

_OVERRIDES = ("__torch_function__", "__torch_dispatch__")
"""Methods that torch calls for each operation on an instance. As frames of their own they stay uncompiled: what their
residual code did to the instance would call them again."""

CompileGraph = Callable[[fx.GraphModule, Sequence[torch.Tensor], Report, Options], Callable[..., Any]]
Begin = Callable[[Interpreter], Frame]
WhenReturned = Callable[[], None] | None
"""A function to call when the frame, which runs uncompiled, has returned; None: nothing to call."""

_REGISTERED = (
    builtin_functions,
    caches,
    calls,
    value_checks,
    collectives,
    container_builtins,
    context_variables,
    custom_ops,
    derivatives,
    exceptions,
    flags,
    functions,
    getters,
    grad_scaler,
    math_functions,
    modules,
    nested_tensors,
    objects,
    operator_modes,
    optimizers,
    schedules,
    functional_call,
    higher_order,
    tensor_hooks,
    tensor_constructor,
    texts,
    thread_modes,
    transforms,
    triton_kernels,
)  # imported to fill the tables of the registry


def _expect_progress(site: CompileSite, frame: Frame, begin: native.ResumePoint) -> None:
    """Refuse to let the frame run an instruction if it began there: each resumption would begin at it anew.

    Raises:
        CannotRebuild: the frame began at the instruction, which only the frame itself can run.
    """
    if frame.decoded.offsets[frame.decoded.begin_of(frame.pc)] == begin.offset:
        site.given_up = True
        raise CannotRebuild("what looks at its frame")


def _parameters(key: native.SiteKey, code: CodeType) -> list[str]:
    """Names for the parameters of a site's residual code: the arguments; after a break, all variables and the stack."""
    names = slot_names(code)
    if isinstance(key, native.ResumePoint):
        return [*names, *(f"stack{i}" for i in range(key.depth))]
    return list(names[: native.argument_slots(code)])


class Session(Diagnostics):
    """One compiled callable: its options, its compile sites and cache entries.

    Attributes:
        others: gives the sessions whose entries this one may run, too.
    """

    def __init__(self, compile_graph: CompileGraph, options: Options) -> None:
        super().__init__(options)
        self.compile_graph = compile_graph
        self.sites: dict[int, CompileSite] = {}
        self.points: dict[tuple[int, int, int, tuple[int, ...]], native.ResumePoint] = {}
        self.handling: weakref.WeakKeyDictionary[native.ResumePoint, tuple[int, ...]] = weakref.WeakKeyDictionary()
        self._interpreters: list[Interpreter] = []  # the interpreters of the present capture, one for each attempt
        self._lock = new_lock()
        self.others: Callable[[], Sequence[Session]] = tuple

    # -- callbacks -----------------------------------------------------------------------------------------------

    def frame(self, code: CodeType, function: FunctionType, slots: Slots, globals: dict[str, object]) -> WhenReturned:
        """Capture a function's frame that is about to start and for which no entry fits."""
        skipped = policy.is_skipped(code, globals)  # a reset has removed the mark of `native.skip`
        skipped = skipped or code.co_name in _OVERRIDES
        if skipped or code.co_flags & _NOT_CAPTURED or compiler_marks.disabled(function) is not None:
            native.skip(code)
            return None
        read = Reader(slots, globals, function)
        return self._attempt(code, code.co_qualname, read, lambda vm: self._start(vm, code, function, read))

    def resumed(
        self, point: native.ResumePoint, function: FunctionType | None, slots: Slots, globals: dict[str, object]
    ) -> WhenReturned:
        """Capture a frame that is about to resume after a graph break and for which no entry fits."""
        name = f"{point.code.co_qualname}+{point.offset}"
        read = Reader(slots, globals, function)
        return self._attempt(point, name, read, lambda vm: self._continue(vm, point, read))

    def _attempt(self, key: native.SiteKey, name: str, read: Reader, begin: Begin) -> WhenReturned:
        site = self.sites.get(id(key))
        if site is None:  # one atomic step, for concurrent threads
            site = self.sites.setdefault(id(key), CompileSite(on_one_line(name), key))
        if site.given_up or policy.is_replaced() or torch_c.bypasses_torch_dispatch():
            return None
        if torch_c.runs_below_autograd():  # inside of `__torch_dispatch__`: compiled code would record gradients
            return None
        if interrupts_compilation() or operator_modes.entered() or self._refused_by_stance(site, read):
            return None
        if self.options.fullgraph and self.raised.get(threading.get_ident()):
            # the frame could not be captured as one graph, which is an error (see `static_forms`): do not compile parts
            # of it
            return None
        return preserving(self._attempt_alone, key, site, read, begin)

    def _attempt_alone(self, key: native.SiteKey, site: CompileSite, read: Reader, begin: Begin) -> WhenReturned:
        before = len(site.versions)
        with self._lock:
            if len(site.versions) != before or site.given_up:
                # another thread has compiled an entry, which the hook tries next, or has failed and reported the
                # failure
                return None
            return self._attempt_locked(key, site, read, begin)

    def _attempt_locked(self, key: native.SiteKey, site: CompileSite, read: Reader, begin: Begin) -> WhenReturned:
        if len(site.versions) >= self.options.recompile_limit:
            self.over_limit(site, read)
            return None
        if self._adopt(key, site, read):
            return None  # the hook tries the new entry
        started = time.perf_counter()
        try:
            if site.versions:
                self.record_recompile(site, read)
            compiler_marks.quiet_wrappers()
            outside = outside_anomaly_mode(), outside_inference_mode(), outside_saved_tensor_hooks()
            with no_collection(), outside[0], outside[1], outside[2], outside_torch_function():
                return self._capture(key, site, begin)
        except Exception as error:  # an error outside of the capture itself: in reporting, or in releasing objects
            self._failed(site, error)
            return None
        finally:
            read.release()
            self._spent(site, time.perf_counter() - started - self._compiling)

    def _adopt(self, key: native.SiteKey, site: CompileSite, read: Reader) -> bool:
        """Whether an entry that was compiled for another module of the class fits: it is this module's, too, then."""
        tried: set[int] = set()
        for other in self.others():
            known = other.sites.get(id(key))
            for version in list(known.versions) if known is not None else ():
                if id(version.guards) in tried:
                    continue
                if not read.changes([version]):
                    self._share(key, site, other, version)
                    return True
                tried.add(id(version.guards))
                if len(tried) == _MAX_TRIED_VERSIONS:
                    return False
        return False

    def _share(self, key: native.SiteKey, site: CompileSite, other: Session, version: CacheEntry) -> None:
        own = version.entry
        entry = native.add_entry(key, own.guards, own.replacement, own.constants, self)
        site.versions.append(dataclasses.replace(version, entry=entry))
        self.handling.update(other.handling)  # the entry may resume at the other session's points
        for where, point in list(other.points.items()):
            self.points.setdefault(where, point)
        if version.stop is not None and version.stop not in self.breaks:
            self.breaks.append(version.stop)

    _compiling = 0.0

    def _spent(self, site: CompileSite, seconds: float) -> None:
        """Add the time of a capture that has ended to its report."""
        report = site.versions[-1].residual.report if site.versions else None
        if report is None or "capture" in report.seconds:
            spend("capture", seconds)
        else:
            report.spend("capture", seconds)

    def _refused_by_stance(self, site: CompileSite, read: Reader) -> bool:
        """Whether the stance of this thread forbids compiling now.

        Raises:
            RecompileError: the stance is "fail_on_recompile", and the frame may have tensor work.
        """
        stance = current_stance()
        if stance == "fail_on_recompile":
            speculates = any(v.residual.gm is not None for v in site.versions) if site.versions else read.has_tensors()
            if speculates:
                changes = "; ".join(map(str, read.changes(site.versions)))
                raise RecompileError(
                    f"{site.name} would have to be compiled, and the stance is 'fail_on_recompile'",
                    why=changes or "it was not compiled before",
                    hint="call it with such arguments before, or smelt.stance('eager_on_recompile')",
                )
        return stance != "default"

    # -- capture -------------------------------------------------------------------------------------------------

    def _capture(self, key: native.SiteKey, site: CompileSite, begin: Begin) -> WhenReturned:
        self._compiling = 0.0
        plan, number = site.plan, 1
        outer, self._interpreters = self._interpreters, []
        try:
            while True:
                try:
                    return self._capture_once(key, site, begin, plan)
                except Restart as restart:  # for example, residual code would need a value that is not known yet
                    raise_heard()
                    before, plan, number = plan, self._weaker(plan, bare(restart)), number + 1
                    self.record_attempt(site, number, plan.difference_from(before))
        except _EndlessError as error:
            self._failed(site, error)
            return None
        finally:
            for vm in self._interpreters:
                plan = plan.avoiding(vm.control.refused, vm.control.pinned)
                vm.prologue.restore()  # has an effect only if the call after the attempt failed
                vm.release()
            if heard_from_handlers() is None:  # otherwise an exception of a signal handler may have ended the attempt
                site.plan = plan.lasting()
            forget_symbols()
            self._interpreters = outer

    def _weaker(self, plan: CapturePlan, restart: Restart) -> CapturePlan:
        """The plan of the next attempt after one that failed.

        Raises:
            _EndlessError: the plan is not weaker than that of the failed attempt, so the next attempt could fail in the
                same way.
        """
        vm = self._interpreters[-1]
        weaker = restart.plan or plan.assuming("").stopping(restart.step, restart.stop)
        weaker = weaker.avoiding(vm.control.refused, vm.control.pinned)
        if not weaker.is_weaker_than(plan):
            raise _EndlessError(f"an attempt that may do {plan} was to be followed by one that may do {weaker}")
        return weaker

    def _capture_once(self, key: native.SiteKey, site: CompileSite, begin: Begin, plan: CapturePlan) -> WhenReturned:
        try:
            vm, frame, stop = self._interpret(site, begin, plan)
        except UserError as raised:
            raise_if_signalled(raised)
            # eager raises the exception with the user's traceback; a site that keeps raising is given up at the limit
            site.failed += 1
            site.given_up = site.failed >= self.options.recompile_limit and not self.options.fullgraph
            after_return = functools.partial(self.only_capture_raised, only_captured(site, raised))
            # an exception object that the capture made is dropped: in eager, the program makes another one
            if self._interpreters[-1].source_of(raised.error) is None:
                bare(raised.error)
            bare(raised)
            return after_return
        except Break as refused:
            raise_if_signalled(refused)
            self.refuse(site, refused)
            return None
        except Exception as error:
            self._failed(site, error)
            return None
        raise_heard()  # if a signal handler raised during the capture, the capture is dropped
        if stop is not None and _calls_hooks_alone(stop, vm, frame):
            site.given_up = True
            return None
        try:
            self._finish(key, site, vm, frame, stop)
        except (Break, CannotRebuild) as refused:
            raise_if_signalled(refused)
            title = refused.title if isinstance(refused, Break) else f"{refused} leaves the frame"
            self.refuse(site, Break(title, "residual code cannot make it", "return tensors and plain objects"))
        except Exception as error:
            self._failed(site, error)
        return None

    def _interpret(self, site: CompileSite, begin: Begin, plan: CapturePlan) -> tuple[Interpreter, Frame, Break | None]:
        """Interpret the frame in one attempt; returns the interpreter, the frame, and the break that ended it, if any.

        Raises:
            Restart: the attempt failed; the plan of the next one considers what this attempt has found in the program.
        """
        vm = self._interpreter(site, plan)
        try:
            frame = begin(vm)
            stop = vm.run_root(frame, plan.stop_at)
            if vm.sizes.owner.data_dependent is not None:
                raise vm.sizes.owner.data_dependent
            cause = plan.cause
            if stop is None or cause is None:
                return vm, frame, stop
            cause.at = cause.at or frame.at
            for check in cause.because:
                vm.guards.check(*check)
            return vm, frame, cause
        except (Restart, UserError, Break, Exception) as error:
            weaker = self._after(site, vm, plan, error)
            if weaker is not None:
                raise Restart(-1, None, weaker) from None
            if isinstance(error, SymbolicNumber):
                self._without_reads(vm, error)
            raise
        finally:
            vm.ambient.restore()
            vm.prologue.restore()

    def _interpreter(self, site: CompileSite, plan: CapturePlan) -> Interpreter:
        max_versions = self.options.recompile_limit - 1 if self.options.fullgraph else MAX_SPECULATED_VERSIONS
        speculates = len(site.versions) < max_versions
        vm = Interpreter(decoding.decode, site.changes, plan, self.options.dynamic, speculates)
        self._interpreters.append(vm)
        vm.python.running = site.function
        vm.control.schedules_branch = self.options.fullgraph or len(site.versions) < _MAX_SCHEDULE_ENTRIES
        vm.tensors.speculation.assume_values = not plan.reads_first
        vm.finalizers.allowed = not self.options.fullgraph
        vm.control.branches_on_numbers = self.options.backend == "eager"
        vm.effects.graph_warns = self.options.backend not in ("smelt", "aot_eager")
        vm.effects.graph_repeats_writes = self.options.backend == "eager"
        return vm

    def _after(self, site: CompileSite, vm: Interpreter, plan: CapturePlan, error: BaseException) -> CapturePlan | None:
        """The plan for the next attempt after one that ended with `error`; None if no other plan would help."""
        data_dependent = vm.sizes.owner.data_dependent
        if data_dependent is not None:
            # its context may be an error of torch, whose traceback refers to frames of the capture
            bare(data_dependent)
            if vm.prologue.inputs.needs(data_dependent.names):
                return dataclasses.replace(plan, why=data_dependent.what)
            if plan.reads_first:  # a plan without it may assume the value that the program needs
                return plan.assuming(data_dependent.what)
            return plan.stopping(data_dependent.step, break_for(data_dependent))
        if isinstance(error, Restart):
            return error.plan or plan.stopping(error.step, error.stop and bare(error.stop))
        return self._without_symbols(site, vm, plan, error)

    def _without_symbols(
        self, site: CompileSite, vm: Interpreter, plan: CapturePlan, error: BaseException
    ) -> CapturePlan | None:
        """The plan for another attempt without symbolic sizes; None if `error` cannot come from symbols.

        Raises:
            SpecializationError: the program needs one value of a size that is marked dynamic.
        """
        if vm.sizes.owner.refused is not None:
            raise vm.sizes.owner.refused from None
        if not vm.sizes.occurrences and not vm.sizes.reals:
            return None
        why = f"{type(error).__name__}: {error}".splitlines()[0]
        log("sizes", lambda: f"{site.name} is captured with plain sizes: {error!r}")
        return plan.without("symbols", why)

    def _reason_of(self, stop: Break | None) -> BreakReason | None:
        """The reason for which a graph ends; None if the frame has returned.

        Raises:
            Unsupported: the graph ends early, under `fullgraph`.
        """
        reason = None if stop is None else BreakReason.of(stop)
        if reason is not None and self.options.fullgraph:
            raise reason.error()
        return reason

    def _finish(
        self, key: native.SiteKey, site: CompileSite, vm: Interpreter, frame: Frame, stop: Break | None
    ) -> None:
        reason = self._reason_of(stop)
        names = _parameters(key, frame.code)
        begin = key if isinstance(key, native.ResumePoint) else None
        failed = functools.partial(_failed_later, id(key))
        writer = Writer(vm, names, self.point, failed, frame, begin, begin is None or not self.handling[begin])
        try:
            in_frame = stop is not None and _looks_at(stop, frame)
            if in_frame and begin is not None:
                _expect_progress(site, frame, begin)
            residual = writer.write_return(frame.value) if reason is None else writer.write_break(frame, in_frame)
        finally:
            writer.release()
        residual.at = At(frame.code, frame.decoded.offsets[0 if reason is None else frame.pc])
        if stop is not None and reason is not None and not stop.silent:
            self.add_break(reason)
        elif reason is None and residual.gm is None and self._is_idle(key, site):
            return
        self._install(key, site, vm, residual, reason)

    def draw_as_eager(self) -> None:
        """Let graphs that are compiled from this point on draw the same random numbers as eager."""
        if not self.options.eager_rng:
            self.options = dataclasses.replace(self.options, eager_rng=True)

    def _is_idle(self, key: native.SiteKey, site: CompileSite) -> bool:
        """Whether to install no entry for a frame that returns without tensor work, since guards would cost more than
        they save.

        After `_MAX_IDLE_FRAMES` such frames, the hook skips the code.
        """
        if site.versions or isinstance(key, native.ResumePoint):
            return False
        if self.options.fullgraph:
            # without an entry, the hook would compile the functions that the frame calls, which this capture has
            # inlined
            return False
        site.idle += 1
        if site.idle >= _MAX_IDLE_FRAMES:
            native.skip(key)
        return True

    def _install(
        self, key: native.SiteKey, site: CompileSite, vm: Interpreter, residual: Residual, reason: BreakReason | None
    ) -> None:
        graph = None
        if residual.gm is not None:
            graph = self._compile(site, vm, residual)
            if graph is None:
                return
        vm.sizes.guard(vm.guards)
        vm.prologue.guard()
        vm.compared.guard()
        residual.inputs = []  # an entry must not keep the first call's tensors alive
        guards, constants = vm.guards.finish(residual.outputs), residual.namespace(graph)
        entry = native.add_entry(key, guards, residual.code(), constants, self)
        site.versions.append(CacheEntry(site.name, vm.guards, residual, entry, reason))

    def _compile(self, site: CompileSite, vm: Interpreter, residual: Residual) -> Callable[..., object] | None:
        report = Report.for_graph(site.name.replace("<", "").replace(">", ""))
        guards = vm.guards
        residual.report = report
        report.add("guards.py", lambda: "\n".join(guards.lines()) + "\n")
        report.add("residual.py", lambda: residual.source)
        log("graphs", lambda: f"{site.name}, {residual.ops} operations, {len(guards.checks)} guards")
        started = time.perf_counter()
        assert residual.gm is not None
        reads = vm.tensors.reads.found or vm.prologue.inputs.numbers
        # the pieces of a cut graph are compiled after the capture, when it can no longer restart
        if reads and in_pieces(residual.gm.graph, self.options.backend):
            self._without_reads(vm, Unsupported("numbers that are read from tensors, in a graph that is cut"))
        try:
            graph = self.compile_graph(residual.gm, [i.tensor for i in residual.inputs], report, self.options)
            raise_heard()
            count("graphs")
            count("ops", residual.ops)
            return graph
        except _OUT_OF_MEMORY:  # no memory or time to write a report
            raise
        except Exception as error:
            raise_if_signalled(error)
            if isinstance(error, RecursionError) and is_deep():
                self.report_eager(BreakReason.of(too_deep()))
                return None
            self._otherwise(vm, residual.gm.graph, error)
            weaker = None if environment().strict else self._without_symbols(site, vm, vm.plan, error)
            if weaker is not None:
                raise Restart(-1, None, weaker) from None
            if environment().strict:
                raise
            if self.options.fullgraph:
                if not isinstance(error, Unsupported):
                    error.add_note(saved_report(report, error))
                raise
            self.fall_back(
                site, CompileError(f"compiling {site.name} failed: {error}", why=saved_report(report, error))
            )
            return None
        finally:
            self._compiling = time.perf_counter() - started

    def _otherwise(self, vm: Interpreter, graph: fx.Graph, error: Exception) -> None:
        """Restart the capture if another graph is known that the backend may accept.

        Raises:
            Restart: the next attempt has no nodes for functions whose backward writes to tensors that others use; or
                see `_without_reads`.
        """
        if isinstance(error, WritingBackward) and (found := exclude_writing(graph, error.classes)):
            raise Restart(-1, None, vm.plan.without_functions(found, error.what)) from None
        self._without_reads(vm, error)

    def _without_reads(self, vm: Interpreter, error: Exception) -> None:
        """End the graph before it reads numbers from tensors, if the backend cannot handle them; Python then reads
        them.

        Raises:
            Restart: the next attempt ends the graph where such a number is read.
        """
        if isinstance(error, DataDependent) and vm.prologue.inputs.needs(error.names):
            raise Restart(-1, None) from None
        numbers = [s.origin for s in vm.sizes.owner.symbols if s.origin is not None]
        numbers += vm.prologue.inputs.origins()
        numbers += [n.origin for n in vm.tensors.reads.known.values() if isinstance(n, Real) and n.origin is not None]
        if not numbers or (environment().strict and not isinstance(error, (Unsupported, SymbolicNumber))):
            return
        log("sizes", lambda: f"a number is read outside of the graph: {error}")
        if isinstance(error, DataDependent):
            raise Restart(error.step, break_for(error)) from None
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Restart(
            min(n.step for n in numbers), Break("a graph with numbers that are read from tensors", why)
        ) from None

    def _failed(self, site: CompileSite, error: Exception) -> None:
        """Handle an error of capture or of compilation: nothing of the frame has run yet, so it runs in eager.

        Raises:
            SmeltError: the program caused the error, for example by an invalid option or a size marked dynamic.
            Exception: the error itself, in strict mode or with `fullgraph`.
        """
        raise_if_signalled(error)
        if isinstance(error, RecursionError) and is_deep():
            self.report_eager(BreakReason.of(too_deep()))
        elif isinstance(error, _OF_THE_PROGRAM) or environment().strict or self.options.fullgraph:
            raise error
        elif isinstance(error, _OUT_OF_MEMORY):
            self._out_of_memory(site, error)
        else:
            self._broken(site, error)

    def failed_later(self, site: CompileSite, error: Exception) -> None:
        """Handle an error of residual code that occurs before its effects are visible: remove the site's entries.

        The frame then runs in eager, and later frames of the site as well.

        Raises:
            Exception: the error itself, in strict mode or with `fullgraph`.
        """
        for version in site.versions:
            version.entry.remove()
        site.versions.clear()
        self._failed(site, error)

    def _out_of_memory(self, site: CompileSite, error: Exception) -> None:
        """Handle a lack of memory: return unused memory to the system, and report that the frame runs in eager."""
        let_go(error)
        give_back()
        site.failed += 1
        site.given_up = site.failed >= self.options.recompile_limit
        reason = BreakReason(f"memory ran out while {site.name} was captured", "", str(error), "")
        if reason not in self.breaks:
            self.warn(reason.error())
        self.report_eager(reason)

    def _broken(self, site: CompileSite, error: Exception) -> None:
        """Handle a bug of capture: save a report, warn, and let the site run in eager."""
        report = Report.for_graph(site.name.replace("<", "").replace(">", ""))
        what = f"capturing {site.name} failed: {type(error).__name__}: {error}"
        self.fall_back(site, CompileError(what, why=saved_report(report, error)))

    # -- entry points -------------------------------------------------------------------------------------------------

    def point(self, code: CodeType, offset: int, depth: int, handled: tuple[int, ...]) -> native.ResumePoint:
        """The resume point of an instruction, which is made at the first request.

        Args:
            handled: for each except clause around the instruction, outermost first, the stack index of the exception
                that was handled before the clause.
        """
        key = (id(code), offset, depth, handled)
        point = self.points.get(key)
        if point is None:
            point = native.ResumePoint(code, offset, depth)
            self.handling[point] = handled
            self.points[key] = point  # read only above, since `reset` in another thread may remove it
        return point

    def _start(self, vm: Interpreter, code: CodeType, function: FunctionType, read: Reader) -> Frame:
        names = slot_names(code)
        self._begin(vm, read)
        vm.equal_calls.begin(code)
        values: list[Any] = [Unread(v, sources.local(i, names[i])) for i, v in enumerate(read.slots)]
        values += [native.NULL] * (len(names) - len(values))
        frame = Frame(code, decoding.decode(code), values, read.globals, function)
        vm.finalizers.begin(values)
        if function.__closure__:
            frame.closure = function.__closure__
            vm.adopt_cells(function, sources.frame_function())
        return frame

    def _begin(self, vm: Interpreter, read: Reader) -> None:
        vm.root_globals(read.globals)
        vm.guards.state(read.state)
        vm.ambient.begin(read.inference, read.gradients, read.torch_functions)
        if torch_c.torch_function_modes():  # guards only count the modes, one of which may set the default device
            vm.guards.flag(operator_modes.only_devices, (), True)
            vm.guards.flag(torch.get_default_device, (), torch.get_default_device())
        if self.options.templates:  # generated matrix products depend on the switch for TF32, as the library's do
            vm.guards.flag(products_round_to_tf32, (), products_round_to_tf32())

    def _continue(self, vm: Interpreter, point: native.ResumePoint, read: Reader) -> Frame:
        code = point.code
        names = [*slot_names(code), *(f"stack{i}" for i in range(point.depth))]
        self._begin(vm, read)
        vm.equal_calls.begin(code)
        width = len(names) - point.depth
        values = [self._slot_value(vm, v, sources.local(i, names[i]), i < width) for i, v in enumerate(read.slots)]
        frame = Frame(code, decoding.decode(code), values[:width], read.globals, read.function)
        frame.stack = values[width:]
        frame.pc = frame.decoded.index_of[point.offset]
        handled = [Unread(vm.python.outer_error, sources.HANDLED)] if self.handling[point] else []
        vm.finalizers.begin([*values, *handled])
        store_unread(vm, frame)
        self._handle(vm, frame, self.handling[point])
        return frame

    def _handle(self, vm: Interpreter, frame: Frame, positions: tuple[int, ...]) -> None:
        """Set the exceptions that a frame handles if it resumes in except clauses.

        Args:
            positions: the stack indices of the exceptions that were handled before each of these clauses.
        """
        if positions:
            frame.handled_at = [*positions]
            frame.handled = [frame.stack[at] for at in positions[1:]]
            frame.handled.append(vm.outer_exception())
            vm.reads[0, "sys.exception"] = frame.stack[positions[0]]

    def _slot_value(self, vm: Interpreter, value: object, source: sources.Source, variable: bool) -> Any:
        """The value of a variable or stack element of a frame that resumes, which is guarded only if the program reads
        it.
        """
        if value is native.NULL and not variable:  # NULL elements of the stack are the same at each call
            return value
        return vm.external(value, source) if type(value) is CellType else Unread(value, source)


def _failed_later(key: int, error: Exception) -> None:
    """The callback with which residual code reports an internal error to the session that runs it.

    Residual code may be in entries of several sessions, and keeps none of them alive.

    Args:
        key: the id of the site's key.
    """
    owner: Session | None = native.owner()
    site = None if owner is None else owner.sites.get(key)
    if owner is None or site is None:
        raise error
    owner.failed_later(site, error)


_OF_THE_PROGRAM = (OptionError, RecompileError, SpecializationError)
_OUT_OF_MEMORY = (MemoryError, torch.OutOfMemoryError)


class _EndlessError(Exception):
    """A bug of capture: an attempt gave a plan that is not weaker than its own."""


_NOT_CAPTURED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_MAX_IDLE_FRAMES = 4
_MAX_TRIED_VERSIONS = 64
"""Maximum number of entries of other modules whose guards are checked before a frame is captured."""
_MAX_SCHEDULE_ENTRIES = 2
"""Maximum number of cache entries of a site that may depend on a branch of a learning-rate schedule."""


def _calls_hooks_alone(stop: Break, vm: Interpreter, frame: Frame) -> bool:
    """Whether the frame is a module's own `__call__` that reaches, without tensor work, hooks that graphs cannot
    contain.

    Such a frame runs in Python, like `nn.Module.__call__` itself: it calls the hooks and `forward`, whose frame is
    captured.
    """
    if not stop.of_hook or frame.code.co_name != "__call__" or not vm.outermost.is_empty:
        return False
    called = frame.locals[0]
    return isinstance(called.value if isinstance(called, Unread) else called, torch.nn.Module)


def _looks_at(stop: Break, frame: Frame) -> bool:
    """Whether the instruction that broke the graph inspects the frame, so that only the frame itself can run it."""
    return stop.in_frame and stop.at is not None and (stop.of_callers or stop.at.code is frame.code)
