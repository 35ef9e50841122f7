"""Residual code: the Python source that replaces the frame. It runs the graph, repeats effects, returns or resumes.

    def residual(x, _c, _f):
        _f0 = _f[3]
        try:
            _out = (_c.shown if _c.profiler._is_profiler_enabled else _c.graph)(*_f[:3])
        except _c.Error as _e:
            _c.explain_error(_e, _f[:3])
        _f0.calls = 4
        return {'logits': _out[0]}

`_c` contains constants, `_f` the values that the guards fetched. The source is compiled with `compile`; `explain`
prints it.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import fx, nn
from torch.autograd.graph import increment_version
from torch.library import CustomOpDef

from smelt.abi.steps import observe_programs
from smelt.base.class_tables import isinstance
from smelt.base.python_text import arguments, is_plain_name, new_name, quoted
from smelt.base.report import Report
from smelt.base.torch_private import OpOverload, OpOverloadPacket, version_of
from smelt.capture import _native as native
from smelt.capture.core.breaks import At, Break, Restart
from smelt.capture.core.bytecode import CALL_PREFIXES
from smelt.capture.core.conditional_value import TRUTH_TESTS, PhiValue
from smelt.capture.core.frames import Frame, Unread
from smelt.capture.core.interface import Interpreter, Mirror, Store, Tensors
from smelt.capture.core.liveness import live_slots
from smelt.capture.core.sources import PROLOGUE, Source, frame_function
from smelt.capture.prologue.source import Steady, prologue_call, states_of
from smelt.capture.python.context_variables import refuse_settings
from smelt.capture.python.effects import DELETED, Deferred, DeferredWarning, Made, items_of, own_items
from smelt.capture.python.warning_locations import above
from smelt.capture.residual.code_locations import called_at, with_location
from smelt.capture.residual.error_locations import expect_failure, expect_lost, explain_error, repeatable
from smelt.capture.residual.reconstruct import NAMESPACE_NAMES, Rebuild
from smelt.capture.residual.remade import set_plainly, with_plain_inputs
from smelt.capture.residual.resumption import RESUMPTIONS, Resumption
from smelt.capture.tensors.cut_points import refuse_separated_writes
from smelt.capture.tensors.fallible_ops import on_gpu
from smelt.capture.tensors.finish_graph import finish_graph
from smelt.capture.tensors.rng_state import default_generators, drawn_from
from smelt.capture.tensors.tensors import Input
from smelt.capture.tensors.thread_modes import refuse_open
from smelt.graph.trace.trace import TraceTensor


def _instances(inputs: Iterable[Input]) -> tuple[int, ...]:
    """The positions of inputs whose class has a `__torch_function__`."""
    tensors = [(at, given.tensor) for at, given in enumerate(inputs) if isinstance(given.tensor, torch.Tensor)]
    plain = torch.Tensor, torch.nn.Parameter, torch.nn.Buffer
    return tuple(at for at, tensor in tensors if type(tensor) not in plain)


@dataclass
class Residual:
    """The replacement of a frame, complete but for the compiled graph, which `namespace` adds as `_c.graph`.

    Attributes:
        source: the code as text.
        gm: the graph; None if nothing is computed.
        inputs: the graph's inputs, in the order of its parameters.
        outputs: indices of the fetched values that become `_f`, in order.
        at: the location in the user's code that tracebacks show.
        named: regions of the profiler that the program opens in the graph.
        report: the compiler's report on the graph.
        instances: positions of the inputs whose class is a subclass.
    """

    source: str
    gm: fx.GraphModule | None
    inputs: list[Input]
    outputs: list[int]
    constants: dict[str, object]
    ops: int = 0
    at: At | None = None
    points: list[native.ResumePoint] = field(default_factory=list)
    named: tuple[str, ...] = ()
    report: Report | None = None
    instances: tuple[int, ...] = ()

    def code(self) -> CodeType:
        """The compiled source of the function."""
        module = compile(self.source, "<smelt residual>", "exec")
        code = next(c for c in module.co_consts if isinstance(c, CodeType))  # precedes the prologue's code
        return code if self.at is None else with_location(code, self.at)

    def _shown(self, graph: Callable[..., Any]) -> Callable[..., object]:
        """The graph inside a region of PyTorch's profiler, which contains the regions that the program opens."""
        function = "graph" if self.at is None else self.at.code.co_qualname
        # a function's name may contain characters without an encoding
        names = (f"smelt: {function.encode(errors='backslashreplace').decode()}", *self.named)

        def run(*inputs: Any) -> Any:
            observe_programs()
            with contextlib.ExitStack() as regions:
                for name in names:
                    regions.enter_context(torch.autograd.profiler.record_function(name))
                return graph(*inputs)

        return run

    def namespace(self, graph: Callable[..., object] | None) -> SimpleNamespace:
        """The namespace `_c` of the residual: its constants, and with a graph the functions that run and explain it."""
        if graph is None or self.gm is None:
            return SimpleNamespace(**self.constants)
        if self.instances:
            graph = with_plain_inputs(graph, self.instances)
        own = dict(
            graph=native.Quiet(graph),
            profiler=torch.autograd.profiler,
            shown=native.Quiet(self._shown(graph)),
            Error=Exception,
            explain_error=functools.partial(explain_error, self.gm),
            expect_failure=functools.partial(expect_failure, self.gm),
            expect_lost=functools.partial(expect_lost, self.gm),
        )
        assert own.keys() == NAMESPACE_NAMES
        return SimpleNamespace(**self.constants, **own)


MakePoint = Callable[[CodeType, int, int, tuple[int, ...]], native.ResumePoint]


class Writer:
    """Builds the residual of one capture.

    Args:
        slots: names for the parameters of the residual function.
        point: makes (or finds) the resume point of (code, offset, stack depth, stack positions of handled exceptions).
        failed: called with an internal error of smelt in residual code, before the frame runs in eager instead.
        begin: the resume point at which the frame began; None for the start of its function.
        restarts: whether the frame could begin at that point a second time.
    """

    def __init__(
        self,
        vm: Interpreter,
        slots: list[str],
        point: MakePoint,
        failed: Callable[[Exception], None],
        frame: Frame,
        begin: native.ResumePoint | None,
        restarts: bool,
    ) -> None:
        self.vm, self.slots, self.point, self.failed = vm, parameter_names(slots), point, failed
        self.frame, self.begin, self.restarts = frame, begin, restarts
        self.makes: list[str] = []  # lines that make values, without effects that the program could observe
        self.lines: list[str] = []  # the program's effects, and the end of the frame
        self.constants: dict[str, object] = {}
        self.fetches: dict[int, int] = {}
        self.value = Rebuild(vm, self.makes, self.constants, self.fetched)
        self.inputs: list[Input] = []
        self.points: list[native.ResumePoint] = []
        self._resumed = 0

    def fetched(self, source: Source) -> str:
        """The expression for an external value."""
        if source.kind == native.LOCAL:
            return self.slots[source.key]
        if source.kind == native.CONST:
            return self.value.constant(source.key, source.text)
        index = self.vm.guards.fetch(source)
        return f"_f{self.fetches.setdefault(index, len(self.fetches))}"

    # -- the two ends of a frame -------------------------------------------------------------------------------------

    def write_return(self, value: object) -> Residual:
        """The residual of a frame that returned `value`."""
        refuse_settings(self.vm)
        refuse_open(self.vm)
        result = self.value(value)
        self.effects()
        self.vm.finalizers.guard(self.frame)
        in_order = len(self.vm.finalizers.owned) > 1
        kept = self._last_values() if in_order else []
        with_finalizers = [*self._stack(), *self.value.variables(), "_f"] if in_order else self._errors()
        with_finalizers += self._dropped_errors()
        if with_finalizers or kept:
            self.lines += [f"_result = [{result}]", *kept, *(f"{name} = None" for name in with_finalizers)]
            result = "_result.pop()"
        self.lines.append(f"return {result}")
        return self.finish()

    def write_break(self, frame: Frame, in_frame: bool = False) -> Residual:
        """The residual of a frame that stopped at an instruction: runs the instruction in plain Python, then resumes
        the frame.

        Args:
            in_frame: whether only the original frame, with all its variables, can run the instruction.

        Raises:
            CannotRebuild: a live value has no expression, or the instruction has no plain form.
        """
        refuse_settings(self.vm)
        refuse_open(self.vm)
        self._go_to_call(frame)
        how = RESUMPTIONS.get(frame.decoded.names[frame.pc])
        if how is None:
            raise Break(f"a break at {frame.decoded.names[frame.pc]}", "the frame cannot be continued after it")
        stack = [self.value(item) for item in frame.stack]
        slots = self._slots(frame, in_frame)
        self.effects()
        self.vm.finalizers.guard(frame)
        # the frame began in an except clause: the handled exception is set only around the instructions that need it
        if not self.restarts:
            handle = self.value.constant(native.handle, "handle")
            self.lines.append(f"{handle}({self.value(self.vm.outer_exception())})")
        row = frame.decoded.handler_at(frame.pc)
        names, at = frame.decoded.names, frame.pc
        wants_bool = sys.version_info >= (3, 13) and names[at] in TRUTH_TESTS and names[at] != "TO_BOOL"
        if wants_bool and names[at - 1] == "TO_BOOL":
            at, wants_bool = at - 1, False  # the jump decides on the tensor itself
        if in_frame or row is None and not wants_bool and self._loses_variables(frame, slots):
            self.lines.append(f"return {self.resume(frame, frame.decoded.begin_of(at), stack, slots)}")
        else:
            Resumption(self, frame, stack, slots).run(how, row)
        return self.finish()

    def _go_to_call(self, frame: Frame) -> None:
        """Run the instructions that only prepare a call: a frame that resumed before them may have stopped there."""
        while frame.decoded.names[frame.pc] in CALL_PREFIXES:
            handler, arg = frame.decoded.instructions[frame.pc]
            handler(self.vm, frame, arg)
            frame.pc += 1

    def _loses_variables(self, frame: Frame, slots: list[str]) -> bool:
        """Whether a traceback from this instruction would lose variables whose destruction runs a finalizer.

        If the instruction raises an error in residual code, the traceback keeps the residual's parameters, but no other
        values of the original frame's variables. If that matters, the resumed frame, which has all variables, runs the
        instruction.
        """
        leads = self.vm.finalizers.refers_to_finalizer
        return any(slots[at] not in self.slots[at : at + 1] and leads(value) for at, value in enumerate(frame.locals))

    def _slots(self, frame: Frame, every: bool) -> list[str]:
        """Expressions for the local variables: all, or those that are live or whose destruction may be observable; NULL
        for others.
        """
        live = range(len(frame.locals)) if every else live_slots(frame.decoded, frame.pc)
        plain = len(frame.code.co_varnames)
        null = self.value.constant(native.NULL, "NULL")
        out = []
        for index, variable in enumerate(frame.locals):
            cell = index >= plain or frame.code.co_varnames[index] in frame.code.co_cellvars
            out.append(self.value(variable) if index in live or cell or self._may_end(variable) else null)
        return out

    def _may_end(self, value: object) -> bool:
        """Whether the destruction of a variable's object may be observable: a finalizer may run, or the object came
        with the frame and may for example own a lock.
        """
        if type(value) is Unread or self.vm.finalizers.refers_to_finalizer(value):
            return True
        source = None if type(value) is TraceTensor else self.vm.source_of(value)
        return source is not None and source.kind == native.LOCAL

    def resume(self, frame: Frame, index: int, stack: list[str], slots: list[str]) -> str:
        """The expression that resumes the original code at an instruction and gives its result."""
        handled = tuple(at for at in frame.handled_at if at < len(stack))
        point = self.point(frame.code, frame.decoded.offsets[index], len(stack), handled)
        self.points.append(point)
        name = self.value.constant(point, f"resume_{frame.decoded.offsets[index]}")
        call = self.value.constant(native.go_on, "go_on")
        scope = self.fetched(self.vm.globals_source(frame.globals))
        function = self.fetched(frame_function())
        error = f", [{self.value(frame.handled[len(handled) - 1])}]" if handled else ""
        return f"{call}({name}, {scope}, {function}, [{', '.join(slots)}], [{', '.join(stack)}]{error})"

    # -- side effects ------------------------------------------------------------------------------------------------

    def effects(self) -> None:
        """Write all side effects of the frame, in order."""
        effects = self.vm.effects
        stores = [*effects.stores.values()]
        for number, call in enumerate(effects.deferred):
            while stores and stores[0].num_calls_before <= number:
                self._store(stores.pop(0))
            self._deferred(call)
        for store in stores:
            self._store(store)
        for container, items in effects.appended.values():
            append = self._method(container, list, "append")
            self.lines += [f"{append}{self.value(item)})" for item in items]
        for mirror in {id(m): m for m in effects.mirrors.values()}.values():
            if mirror.changed:
                self._write_back(mirror)
        self.lines += self.value.late
        self.value.late = self.lines
        if self.vm.ambient.left_switched:
            for fn, args, kwargs in self.vm.ambient.log:
                given = self.value.arguments(args, kwargs)
                self.lines.append(f"{self.value.constant(fn, fn.__name__)}({given})")

    def _deferred(self, call: object) -> None:
        if isinstance(call, Made):
            if not call.value.removed:
                self.value(call.value)
            return
        assert isinstance(call, Deferred)
        text = self.value.arguments(call.args, call.kwargs)
        fn = self.value(call.fn)
        if isinstance(call, DeferredWarning):
            text = self._warning(call)
        if call.at is not None:
            code, helper = call.at.code, self.value.constant(called_at, "called_at")
            text = ", ".join(filter(None, [fn, text]))
            fn = f"{helper}({quoted(code.co_filename)}, {quoted(code.co_name)}, {call.at.line})"
        if call.handled is not self.vm.python.outer_error:  # the outer error is handled while the residual runs
            text = ", ".join(filter(None, [self.value(call.handled), fn, text]))
            fn = self.value.constant(native.call_handling, "call_handling")
        self.lines.append(f"{fn}({text})")

    def _warning(self, call: DeferredWarning) -> str:
        """The text of the arguments of `warnings.warn_explicit` for a deferred warning."""
        message, category, source = map(self.value, call.args)
        if isinstance(call.location, int):
            return f"{message}, {category}, *{self.value.constant(above, 'above')}({call.location}), None, {source}"
        location = call.location
        scope = self.fetched(self.vm.globals_source(location.globals))
        name = location.globals.get("__name__", "<string>")
        registry = f"{scope}.setdefault('__warningregistry__', {{}})"
        where = f"{quoted(location.filename)}, {location.line}, {quoted(name)}, {registry}"
        return f"{message}, {category}, {where}, None, {source}"

    def _store(self, store: Store) -> None:
        target = store.target
        if store.kind == "global":
            self._store_global(store)
            return
        if type(target) is TraceTensor and store.name == "data" and target.requires_grad:
            stop = Break("tensor.data is assigned", "what is written to the tensor later has gradients")
            raise Restart(store.born, stop)
        owner = self.value(target)
        if not is_plain_name(store.name):
            self._store_by_name(store, owner)
            return
        if store.value is DELETED and store.maybe or store.anew:
            self.lines += ["try:", f"    {self._deletion(store, owner)}"]
            self.lines += [f"except {self.value.constant(AttributeError, 'AttributeError')}:", "    pass"]
        if store.value is DELETED and store.maybe:
            return
        if store.value is DELETED:
            self.lines.append(self._deletion(store, owner))
        else:
            self._assign_attribute(store, owner)

    def _store_global(self, store: Store) -> None:
        scope = self.fetched(self.vm.globals_source(store.target))
        if store.value is DELETED or store.anew:
            self.lines.append(f"{scope}.pop({quoted(store.name)}, None)")
        if store.value is not DELETED:
            self.lines.append(f"{scope}[{quoted(store.name)}] = {self.value(store.value)}")

    def _assign_attribute(self, store: Store, owner: str) -> None:
        """Write an assignment to an attribute, without the class's Python `__setattr__`, which was captured."""
        target = store.target
        if isinstance(target, nn.Module) and store.name in target.__dict__.get("_buffers", ()):
            self.lines.append(f"{owner}._buffers[{quoted(store.name)}] = {self.value(store.value)}")
        elif type(target).__setattr__ in _PLAIN_SETTERS or isinstance(target, torch.Tensor):
            value = self.value(store.value)
            if type(target) is TraceTensor and self.vm.subclasses.class_of(target) is not None:
                setter = self.value.constant(set_plainly, "set_plainly")
                self.lines.append(f"{setter}({owner}, {quoted(store.name)}, {value})")
            else:
                self.lines.append(f"{owner}.{store.name} = {value}")
            if type(target) is TraceTensor and store.name == "data" and version_of(target) > store.version:
                self.lines.append(f"{self.value.constant(increment_version, 'increment_version')}({owner})")
        else:
            setter = self.value.constant(_base(target).__setattr__, "set")
            self.lines.append(f"{setter}({owner}, {quoted(store.name)}, {self.value(store.value)})")

    def _deletion(self, store: Store, owner: str) -> str:
        """The statement that deletes an attribute, without the class's Python `__delattr__`, which was captured."""
        kind = type(store.target)
        deleter: Callable[[Any, str], None] = delattr
        if isinstance(store.target, nn.Module):
            deleter = delattr if kind.__delattr__ is nn.Module.__delattr__ else nn.Module.__delattr__
        elif isinstance(kind.__delattr__, FunctionType):
            deleter = _base(store.target).__delattr__
        if deleter is delattr and is_plain_name(store.name):
            return f"del {owner}.{store.name}"
        return f"{self.value.constant(deleter, 'delattr')}({owner}, {quoted(store.name)})"

    def _store_by_name(self, store: Store, owner: str) -> None:
        """Write the assignment or deletion of an attribute whose name is not an identifier, with the name as a quoted
        string.
        """
        constant = self.value.constant
        plain = type(store.target).__setattr__ in _PLAIN_SETTERS or isinstance(store.target, torch.Tensor)
        if store.value is DELETED or store.anew:
            delete = self._deletion(store, owner)
            maybe = store.value is not DELETED or store.maybe
            ended = [f"except {constant(AttributeError, 'AttributeError')}:", "    pass"]
            self.lines += ["try:", f"    {delete}", *ended] if maybe else [delete]
        if store.value is DELETED:
            return
        value = self.value(store.value)
        if isinstance(store.target, nn.Module) and store.name in store.target.__dict__.get("_buffers", ()):
            self.lines.append(f"{owner}._buffers[{quoted(store.name)}] = {value}")
        else:
            setter = constant(setattr, "setattr") if plain else constant(_base(store.target).__setattr__, "set")
            self.lines.append(f"{setter}({owner}, {quoted(store.name)}, {value})")

    def _refuse_shown(self) -> None:
        """Refuse results that share memory with a tensor assigned to `.data`: their version counter would be that
        tensor's.

        Raises:
            Restart: there is such a result; capture stops before the assignment.
        """
        for store in self.vm.effects.stores.values():
            if type(store.target) is TraceTensor and store.name == "data":
                memory = store.value.storage_view.storage
                if any(t is not store.value and t.storage_view.storage is memory for t in self.value.outputs):
                    stop = Break("tensor.data is assigned", "a result shows the same memory, and counts writes with it")
                    raise Restart(store.born, stop)

    def _write_back(self, mirror: Mirror) -> None:
        owner, copy = self.value(mirror.original), mirror.copy
        if isinstance(copy, dict):
            self._write_back_dict(owner, mirror)
        elif isinstance(copy, list):
            items = f"[{', '.join(map(self.value, own_items(copy)))}]"
            own = type(mirror.original).__setitem__ is list.__setitem__
            setter = self._method(mirror.original, list, "__setitem__")
            self.lines.append(
                f"{owner}[:] = {items}" if own else f"{setter}{self.value.constant(slice, 'slice')}(None), {items})"
            )
        elif isinstance(copy, set):  # the remaining elements are not touched, which keeps eager's order
            gone, new = set.difference(mirror.before, own_items(copy)), set.difference(copy, mirror.before)
            for change, moved in (("difference_update", gone), ("update", new)):
                if moved:
                    method = self._method(mirror.original, set, change)
                    self.lines.append(f"{method}[{', '.join(map(self.value, moved))}])")
        else:
            clear, extend = (self._method(mirror.original, collections.deque, name) for name in ("clear", "extend"))
            items = f"[{', '.join(map(self.value, own_items(copy)))}]"
            self.lines += [f"{clear.removesuffix(', ')})", f"{extend}{items})"]

    def _method(self, container: object, base: type, name: str) -> str:
        """The text that begins a call of a builtin container's method, which a class of the program may have
        overridden.
        """
        owner = self.value(container)
        if getattr(type(container), name, None) is getattr(base, name):
            return f"{owner}.{name}("
        return f"{self.value.constant(base, base.__name__)}.{name}({owner}, "

    def _write_back_dict(self, owner: str, mirror: Mirror) -> None:
        copy, before, value = mirror.copy, mirror.before, self.value
        direct = type(mirror.original).__setitem__ is dict.__setitem__
        ordered = isinstance(mirror.original, collections.OrderedDict)
        base = value.constant(collections.OrderedDict, "OrderedDict") if ordered else value.constant(dict, "dict")
        kept = [key for key in before if dict.__contains__(copy, key)]
        if kept != own_items(copy)[: len(kept)]:
            self.lines.append(f"{base}.clear({owner})")
            before = {}
        for key in before:
            if not dict.__contains__(copy, key):
                own = type(mirror.original).__delitem__ is dict.__delitem__
                remove = f"{base}.__delitem__({owner}, {value(key)})"
                self.lines.append(f"del {owner}[{value(key)}]" if own else remove)
        for key, item in items_of(copy):
            if type(item) is PhiValue and item.optional:
                item.read()  # the item exists after only one arm of a branch: the graph ends before the branch
            if key not in before or before[key] is not item:
                target = f"{owner}[{value(key)}] = {value(item)}"
                self.lines.append(target if direct else f"{base}.__setitem__({owner}, {value(key)}, {value(item)})")

    # -- assembly ----------------------------------------------------------------------------------------------------

    def finish(self) -> Residual:
        """Complete the graph and write the whole source."""
        refuse_separated_writes(self.vm)
        self._refuse_shown()
        self.vm.close_generators(self.value.makes)
        tensors, prologue = self.vm.tensors, self.vm.prologue
        early = [f"{self.value(tensor)}.grad = None" for tensor in self.vm.effects.cleared]
        gm, inputs, ops = finish_graph(tensors, self.value.outputs, self.vm.ambient)
        prologue.check_disjoint()
        uses_helpers = self._uses_helpers()
        rewinds = bool(prologue.acts and (tensors.checks or uses_helpers))
        prologue_lines, prologue_source = self._prologue(inputs, rewinds)
        if prologue_lines and prologue.acts and gm is not None:
            _refuse_foreign(gm)
        repeats, lost, devices = self._repetition(gm, uses_helpers, rewinds)
        self._expect_repeats(repeats, lost)
        undo = _restore_lines("_state") if rewinds and prologue_lines else []
        undo += _restore_lines("_drawn") if devices and gm is not None else []
        makes = self._guarded(self.makes, undo) if uses_helpers and repeats else self.makes
        order, head = list(self.fetches), prologue_lines
        if gm is not None:
            order, call = self._graph(inputs, devices, repeats, lost, undo)
            # gradients are cleared before the graph runs, which frees those that nothing reads
            head = [*prologue_lines, *early, *call]
        source = self._source(order, [*head, *makes, *self.lines], prologue_source)
        residual = Residual(
            source, gm, inputs, order, self.constants, ops, points=self.points, named=tuple(self.vm.tensors.named)
        )
        residual.instances = _instances(inputs)
        return residual

    def _uses_helpers(self) -> bool:
        """Whether making values may fail although eager would not, and the frame can then be repeated without harm."""
        return bool(self.makes) and self.value.uses_helpers and self.restarts and not self.value.acts

    def _repetition(
        self, gm: fx.GraphModule | None, uses_helpers: bool, rewinds: bool
    ) -> tuple[bool, bool, Sequence[torch.device] | None]:
        """(whether the frame can be repeated, whether it can be repeated only if the GPU's context is lost, devices
        from whose generators the graph draws).
        """
        tensors = self.vm.tensors
        devices = self._drawn_from(uses_helpers)
        restarts = (
            self.restarts
            and (rewinds or not self.vm.prologue.acts)
            and (uses_helpers if gm is None else repeatable(gm))
        )
        repeats = restarts and not tensors.writes_inputs() and devices is not None
        lost = restarts and gm is not None and not repeats and tensors.guarded and _writes_on_gpu(tensors)
        return repeats, lost, devices if repeats else None

    def _drawn_from(self, uses_helpers: bool) -> Sequence[torch.device] | None:
        """The devices from whose generators the graph draws, if the frame may be repeated; None if unknown."""
        tensors = self.vm.tensors
        expected = tensors.asserts or tensors.caught or tensors.guarded
        return drawn_from(tensors.drawing) if expected or uses_helpers or not tensors.drawing else None

    def _expect_repeats(self, repeats: bool, lost: bool) -> None:
        """Require that the frame can be repeated if the capture relies on it for checks or caught errors.

        Raises:
            Restart: the frame cannot be repeated; the next attempt makes no such checks, or ends graphs at such
                operations.
        """
        tensors = self.vm.tensors
        if tensors.asserts and not repeats:  # a failed check could not raise the program's own error
            why = "the frame cannot run again where a check of the graph fails"
            raise Restart(-1, None, self.vm.plan.without("checks", why))
        if tensors.caught and not repeats or tensors.read_guarded and not (repeats or lost):
            why = "the frame cannot run again to raise what the program catches"
            raise Restart(-1, None, self.vm.plan.without("repeats", why))

    def _source(self, order: list[int], lines: list[str], prologue_source: str) -> str:
        """The text of the residual function.

        Args:
            order: indices of the fetched sources whose values are passed as `_f`.
        """
        names = [f"_f{number} = _f[{order.index(index)}]" for index, number in self.fetches.items()]
        body = textwrap.indent("\n".join([*self._tracebacks(), *names, *lines]), "    ")
        return f"def residual({', '.join([*self.slots, '_c', '_f'])}):\n{body}\n{prologue_source}"

    def _graph(
        self, inputs: list[Input], devices: Sequence[torch.device] | None, repeats: bool, lost: bool, undo: list[str]
    ) -> tuple[list[int], list[str]]:
        """(indices of the fetched sources in the order of `_f`, lines that run the graph).

        Args:
            devices: devices whose generators are restored if the graph fails.
            repeats: whether the frame runs in eager, after the lines `undo`, if the graph fails.
            lost: whether the frame runs in eager, after the lines `undo`, if the graph fails and the GPU's context is
                lost.
        """
        indices = [self.vm.guards.fetch(i.source) for i in inputs if i.source.kind != PROLOGUE]
        rerun = self._eager_rerun() if repeats or lost else ""
        order = list(dict.fromkeys([*indices, *self.fetches]))
        given = _arguments(inputs, len(order) == len(indices))
        args = given[1:] if given.startswith("*") and "," not in given else f"[{given}]"
        target = "" if not self.value.outputs else "_out = "
        lines: list[str] = []
        if devices:
            constant = self.value.constant
            kept = [
                f"({constant(each.set_state, 'set_state')}, {constant(each.get_state, 'get_state')}())"
                for each in default_generators(devices)
            ]
            lines += self._guarded([f"_drawn = [{', '.join(kept)}]"], undo[: -len(_restore_lines("_drawn"))])
        lines += [
            "_failed = None",
            "try:",
            f"    {target}(_c.shown if _c.profiler._is_profiler_enabled else _c.graph)({given})",
        ]
        lines += [f"    {name} = {number}" for number, name in self.value.numbers.items()]
        lines += ["except _c.Error as _e:", "    _failed = _e", "if _failed is not None:"]
        if not rerun:
            return order, [*lines, f"    _c.explain_error(_failed, {args})"]
        lines.append(f"    _c.{'expect_failure' if repeats else 'expect_lost'}(_failed, {args})")
        return order, [*lines, *_indented(undo), f"    return {rerun}"]

    def _guarded(self, lines: list[str], undo: list[str]) -> list[str]:
        """The given lines, whose effects the program does not observe, in a `try`: if they fail, the frame runs in
        eager.
        """
        constant = self.value.constant
        return [
            "_failed = None",
            "try:",
            *_indented(lines),
            f"except {constant(Exception, 'AnyError')} as _e:",
            "    _failed = _e",
            "if _failed is not None:",
            *_indented(undo),
            f"    {constant(self.failed, 'failed')}(_failed)",
            f"    return {self._eager_rerun()}",
        ]

    def _prologue(self, inputs: list[Input], rewinds: bool) -> tuple[list[str], str]:
        """(lines that run the prologue, source of the prologue function).

        Args:
            rewinds: whether the frame may be repeated after a failure of the graph.

        Raises:
            Break: the prologue may fail, and the frame cannot be repeated.
        """
        prologue = self.vm.prologue
        for given in inputs:
            if given.source.kind == PROLOGUE:
                prologue.use(given.source.key)
        ops = prologue.program()
        if not ops:
            return [], ""
        prepared = prologue_call(ops, prologue.used, self.vm, self.fetched)
        constant, arguments = self.value.constant, ", ".join(prepared.arguments)
        target = f"{', '.join(prepared.results)}{',' * (len(prepared.results) == 1)} = " if prepared.results else ""
        run = f"{target}{constant(prepared.run, 'host')}({arguments})"
        generators = constant(prepared.generators, "generators")
        kept = f"_state = {constant(states_of, 'states_of')}({generators}, [{arguments}])"
        keep = self._guarded([kept], []) if self.restarts else [kept]
        if prepared.certain:
            return [*keep, run] if rewinds else [run], prepared.source
        if not self.restarts:
            raise Break("arrays of numpy in an except clause", "what they are computed from may fail")
        steady = Steady(self.vm.sizes.changes.unsteady)
        self.vm.guards.flag(steady.holds, (), True)
        lines = [
            *keep,
            "_failed = None",
            "try:",
            f"    {run}",
            f"except {constant(Exception, 'HostError')} as _e:",
            "    _failed = _e",
            "if _failed is not None:",
            *_indented(_restore_lines("_state")),
            f"    {constant(steady.fail, 'fail')}(_failed)",
            f"    return {self._eager_rerun()}",
        ]
        return lines, prepared.source

    def _tracebacks(self) -> list[str]:
        """Lines for exceptions that the frame handles from its beginning: in their tracebacks, they replace the frame
        that caught the exception by this one.
        """
        names = self._errors()
        if not self.restarts:
            names.append(f"{self.value.constant(sys.exception, 'exception')}()")
        return [f"{self.value.constant(native.stand_for, 'stand_for')}({name})" for name in names]

    def _stack(self) -> list[str]:
        """The names of the parameters that represent the frame's stack at its beginning."""
        return [] if self.begin is None else self.slots[len(self.slots) - self.begin.depth :]

    def _errors(self) -> list[str]:
        """The names of the parameters on the stack that are exceptions, which the frame handles or is about to handle.

        The exceptions' tracebacks contain the frame, so a reference from the frame would form a cycle, which is not
        freed in time.
        """
        names = self._stack()
        first = len(self.slots) - len(names)
        return [self.slots[at] for at in self.vm.finalizers.exceptions() if at >= first]

    def _dropped_errors(self) -> list[str]:
        """The names of parameters that are exceptions at the beginning and no longer refer to them when the frame
        returns.
        """
        names = []
        variables = self.frame.locals
        for at in self.vm.finalizers.exceptions():
            if at >= len(variables) or self.vm.finalizers.refers_to_finalizer(variables[at]):
                continue
            variable = variables[at]
            source = variable.source if type(variable) is Unread else self.vm.source_of(variable)
            if source is None or (source.kind, source.key) != (native.LOCAL, at):
                names.append(self.slots[at])
        return names

    def _last_values(self) -> list[str]:
        """Lines that assign variables their final values if these have finalizers, so that they are destroyed in the
        variables' order.
        """
        lines = []
        for at, variable in enumerate(self.frame.locals):
            if self.vm.finalizers.refers_to_finalizer(variable):
                expression = self.value(variable)
                name = self.slots[at] if at < len(self.slots) else f"_v{at}"
                lines += [f"{name} = {expression}"] if expression != name else []
        return lines

    def release(self) -> None:
        """Drop references to the program's objects, after the residual is written."""
        self.value.release()
        del self.frame

    def _eager_rerun(self) -> str:
        """The expression that runs the whole frame in eager, from its beginning."""
        begin, code = self.begin, self.frame.code
        quiet, function = self.value.constant(native.uncaptured_call, "quiet"), self.fetched(frame_function())
        if begin is not None:
            width = len(self.slots) - begin.depth
            slots, stack = ", ".join(self.slots[:width]), ", ".join(self.slots[width:])
            scope = self.fetched(self.vm.globals_source(self.frame.globals))
            point, resume = self.value.constant(begin, "begin"), self.value.constant(native.resume, "resume")
            return f"{quiet}({resume}, {point}, {scope}, {function}, [{slots}], [{stack}])"
        count, named = code.co_argcount, code.co_kwonlyargcount
        positional = self.slots[:count]
        rest = self.slots[count + named :]
        if code.co_flags & inspect.CO_VARARGS:
            positional.append(f"*{rest.pop(0)}")
        names = code.co_varnames[count : count + named]
        keywords = zip(names, self.slots[count : count + named], strict=True)
        text = arguments([function, *positional], keywords)
        if code.co_flags & inspect.CO_VARKEYWORDS:
            text += f", **{rest.pop(0)}"
        return f"{quiet}({text})"


def _writes_on_gpu(tensors: Tensors) -> bool:
    """Whether all inputs that the graph writes to are on a GPU, so that they can no longer be read if its context is
    lost.
    """
    written = [entry for entry in tensors.inputs if tensors.is_written(entry)]
    return bool(written) and all(on_gpu(entry.tensor.device) for entry in written)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _restore_lines(states: str) -> list[str]:
    """Lines that restore the states of random generators."""
    return [f"for _set, _kept in {states}:", "    _set(_kept)"]


def _refuse_foreign(gm: fx.GraphModule) -> None:
    """Refuse foreign operators together with a prologue that may be repeated: they may draw random numbers as well.

    Raises:
        Break: the graph has such an operator.
    """
    for node in gm.graph.nodes:
        if isinstance(node.target, CustomOpDef) or isinstance(node.target, OpOverload | OpOverloadPacket):
            name = str(getattr(node.target, "_qualified_op_name", None) or node.target)
            if re.split(r"[.:]", name)[0] not in ("aten", "prims", "torchvision", "torchaudio", "smelt"):
                raise Break(f"random numbers or arrays of numpy beside {name}", "the operator may draw as well")


def _arguments(inputs: list[Input], all_fetched: bool) -> str:
    """The text of the graph's arguments: fetched inputs are the first items of `_f`, inputs from the prologue are
    variables.
    """
    if all(i.source.kind != PROLOGUE for i in inputs):
        return "*_f" if all_fetched else f"*_f[:{len(inputs)}]"
    arguments, start, count = [], 0, 0
    for entry in [*inputs, None]:
        if entry is not None and entry.source.kind != PROLOGUE:
            count += 1
            continue
        if count > start:
            arguments.append(f"*_f[{start}:{count}]")
            start = count
        if entry is not None:
            arguments.append(entry.source.text)
    return ", ".join(arguments)


_PLAIN_SETTERS = (object.__setattr__, type.__setattr__, BaseException.__setattr__)


def _base(target: object) -> Any:
    """The builtin class whose `__setattr__` and `__delattr__` are used in place of those of the object's class."""
    return type if isinstance(target, type) else ModuleType if isinstance(target, ModuleType) else object


def parameter_names(slots: list[str]) -> list[str]:
    """Unique identifiers for the parameters of a residual function, similar to the variables' names."""
    out: list[str] = []
    for name in slots:
        plain = is_plain_name(name) and not name.startswith("_")
        out.append(new_name(name if plain else f"v{len(out)}_{name.strip('_')}", out))
    return out
