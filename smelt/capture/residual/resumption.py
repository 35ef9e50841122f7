"""Writes plain Python for the instruction at which a graph broke, and resumes the frame after it."""

from __future__ import annotations

import builtins
import operator
import sys
from collections.abc import Callable
from types import CellType
from typing import Any, Protocol

from smelt.base.class_tables import isinstance
from smelt.base.python_text import arguments, is_plain_name, names_in, quoted
from smelt.capture import _native as native
from smelt.capture.core.bytecode import Covered
from smelt.capture.core.except_clauses import catches
from smelt.capture.core.frames import Frame, Unread
from smelt.capture.core.interface import Interpreter
from smelt.capture.core.sources import Source
from smelt.capture.python.stack_opcodes import unbound_slot
from smelt.capture.residual.reconstruct import Rebuild
from smelt.capture.torch.functions import eager_form

PlainForm = Callable[["Resumption"], None]
RESUMPTIONS: dict[str, PlainForm] = {}
"""The functions that write plain forms of instructions, by opcode name."""


def plain(*names: str) -> Callable[[PlainForm], PlainForm]:
    """Decorator that registers a function as the writer of the plain form of these opcodes."""

    def register(fn: PlainForm) -> PlainForm:
        for name in names:
            RESUMPTIONS[name] = fn
        return fn

    return register


class Writing(Protocol):
    """The interface of the writer of residual code that plain forms of instructions use; see `residual.Writer`."""

    vm: Interpreter
    lines: list[str]
    slots: list[str]

    @property
    def value(self) -> Rebuild: ...

    def fetched(self, source: Source) -> str:
        """The expression for an external value."""

    def resume(self, frame: Frame, index: int, stack: list[str], slots: list[str]) -> str:
        """The expression that resumes the original code at an instruction and gives its result."""


class Resumption:
    """The state of the frame at one instruction, as expressions.

    Attributes:
        stack: expressions of the stack's values, bottom first; the plain forms pop operands and push results.
        slots: expressions of the local variables.
        arg: the decoded argument of the instruction.
        raw: the undecoded argument.
        cause: the break that ended the graph at this instruction, if capture was restarted because of it.
    """

    def __init__(self, writer: Writing, frame: Frame, stack: list[str], slots: list[str]) -> None:
        self.writer, self.frame, self.stack, self.slots = writer, frame, stack, slots
        self.index = frame.pc
        self.arg = frame.decoded.instructions[frame.pc][1]
        self.raw = frame.decoded.raw[frame.pc]
        self.prefix = ""
        self.after: list[str] | None = None
        self.null = self.const(native.NULL, "NULL")
        self.cause = writer.vm.plan.cause

    def const(self, value: object, name: str) -> str:
        """The expression `_c.<name>` for a constant, which is added to the residual's constants."""
        return self.writer.value.constant(value, name)

    def line(self, text: str) -> None:
        """Add a statement to the residual."""
        self.writer.lines.append(self.prefix + text)

    def take(self, count: int) -> list[str]:
        """Pop `count` expressions from the stack; the topmost is the last in the result."""
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def pop(self) -> str:
        """Pop one expression."""
        return self.stack.pop()

    def pop_owner(self) -> str:
        """Pop an expression and return it in a form that `.name`, `[item]` or `(arguments)` may follow; see `owner`."""
        return self.owner(self.stack.pop())

    def owner(self, text: str) -> str:
        """The expression itself if an attribute, call or subscript may follow it; for a literal, a variable with its
        value.

        A dot after a number would be read as its decimal point, and for calls and items of literals Python would repeat
        the warning that it gave when it compiled the program.
        """
        if text[0] in "\"'-" or text[0].isdigit() or text in _LITERALS:
            self.line(f"_o = {text}")
            return "_o"
        return text

    def attribute(self, name: str) -> str:
        """Pop the expression of an object; returns the expression that reads the attribute of the object."""
        return str(self.writer.value.attribute(self.pop_owner(), name))

    def names_left_behind(self, *needed: str) -> list[str]:
        """The residual's variables that are used neither by the rest of the frame nor in the expressions `needed`."""
        handled = map(self.writer.value, self.frame.handled)
        kept = names_in(" ".join([*self.stack, *self.slots, *needed, *handled]))
        return [name for name in (*self.writer.slots, *self.writer.value.variables()) if name not in kept]

    def go(self, index: int | None = None, stack: list[str] | None = None, indent: str = "") -> None:
        """Write the return statement that resumes the original frame at instruction `index` (default: the next one) and
        returns its result.
        """
        index = self.index + 1 if index is None else index
        stack = self.stack if stack is None else stack
        text = indent + "return " + self.writer.resume(self.frame, index, stack, self.slots)
        if self.after is None:
            self.line(text)
        else:
            self.after.append(text)

    def push(self, expression: str) -> None:
        """Write code that evaluates an expression, pushes its value and resumes the frame."""
        self.line(f"_r = {expression}")
        self.stack.append("_r")
        self.go()

    def run(self, how: PlainForm, row: Covered | None) -> None:
        """Write the instruction's plain form in the state of the frame: under its exception handler, if one covers it,
        and with the exception that it is handling, if it is in an except clause.
        """
        handled = self.frame.handled
        if row is None and not handled:
            how(self)
            return
        kept = self.stack[: row.depth] if row is not None else []
        handle = self.const(native.handle, "handle")
        if handled:
            self.line(f"_outer = {handle}({self.writer.value(handled[-1])})")
        self.after = []
        self.writer.lines += ["_error = None", "try:"]
        self.prefix = "    "
        before = len(self.writer.lines)
        how(self)
        if len(self.writer.lines) == before:
            self.line("pass")
        self.prefix = ""
        if row is not None:
            self.line(f"except {self.const(BaseException, 'BaseException')} as _e:")
            self.line("    _error = _e")
        if handled:
            self.writer.lines += ["finally:", f"    {handle}(_outer)"]
        if row is not None:
            self.line("if _error is not None:")
            lasti = [str(self.frame.decoded.units(self.index))] if row.lasti else []
            self.line("    return " + self.writer.resume(self.frame, row.target, [*kept, *lasti, "_error"], self.slots))
        self.writer.lines += self.after


_END = object()
_LITERALS = ("None", "True", "False")

# -- operators ----------------------------------------------------------------


@plain("BINARY_OP", "COMPARE_OP")
def binary(r: Resumption) -> None:
    left, right = r.take(2)
    r.push(f"{r.const(r.arg, r.arg.__name__)}({left}, {right})")


@plain("UNARY_NOT", "UNARY_NEGATIVE", "UNARY_INVERT", "UNARY_POSITIVE")
def unary(r: Resumption) -> None:
    fn = {"UNARY_NOT": operator.not_, "UNARY_NEGATIVE": operator.neg, "UNARY_INVERT": operator.invert}.get(
        r.frame.decoded.names[r.index], operator.pos
    )
    r.push(f"{r.const(fn, fn.__name__)}({r.pop()})")


@plain("TO_BOOL")
def to_bool(r: Resumption) -> None:
    r.push(f"{r.const(bool, 'bool')}({r.pop()})")


@plain("CONTAINS_OP")
def contains(r: Resumption) -> None:
    item, container = r.take(2)
    r.push(f"{item} {'not in' if r.raw else 'in'} {container}")


@plain("BINARY_SUBSCR")
def subscript(r: Resumption) -> None:
    key = r.pop()
    r.push(f"{r.pop_owner()}[{key}]")


@plain("BINARY_SLICE")
def binary_slice(r: Resumption) -> None:
    start, stop = r.take(2)
    r.push(f"{r.pop_owner()}[{start}:{stop}]")


@plain("STORE_SUBSCR")
def store_subscript(r: Resumption) -> None:
    value, obj, key = r.take(3)
    r.line(f"{obj}[{key}] = {value}")
    r.go()


@plain("STORE_SLICE")
def store_slice(r: Resumption) -> None:
    value, obj, start, stop = r.take(4)
    r.line(f"{obj}[{start}:{stop}] = {value}")
    r.go()


@plain("DELETE_SUBSCR")
def delete_subscript(r: Resumption) -> None:
    obj, key = r.take(2)
    r.line(f"del {obj}[{key}]")
    r.go()


@plain("GET_ITER")
def get_iter(r: Resumption) -> None:
    r.push(f"{r.const(iter, 'iter')}({r.pop()})")


@plain("UNPACK_SEQUENCE")
def unpack(r: Resumption) -> None:
    names = [f"_u{i}" for i in range(r.raw)]
    r.line(f"({', '.join(names)}{',' if len(names) == 1 else ''}) = {r.pop()}" if names else f"() = {r.pop()}")
    r.stack.extend(reversed(names))
    r.go()


@plain("UNPACK_EX")
def unpack_ex(r: Resumption) -> None:
    before, after = r.raw & 0xFF, r.raw >> 8
    names = [f"_u{i}" for i in range(before + after + 1)]
    names_in = [*names[:before], f"*{names[before]}", *names[before + 1 :]]
    r.line(f"{', '.join(names_in)}, = {r.pop()}" if len(names_in) == 1 else f"{', '.join(names_in)} = {r.pop()}")
    r.stack.extend(reversed(names))
    r.go()


@plain("LIST_EXTEND", "DICT_UPDATE", "DICT_MERGE", "SET_UPDATE")
def extend(r: Resumption) -> None:
    more = r.pop()
    method = "extend" if r.frame.decoded.names[r.index] == "LIST_EXTEND" else "update"
    r.line(f"{r.stack[-r.raw]}.{method}({more})")
    r.go()


@plain("FORMAT_VALUE")
def format_value(r: Resumption) -> None:
    spec = r.pop() if r.raw & 4 else "''"
    _format(r, r.raw & 3, spec)


def _format(r: Resumption, convert: int, spec: str) -> None:
    value = r.pop()
    if convert:
        fn = (str, repr, ascii)[convert - 1]
        value = f"{r.const(fn, fn.__name__)}({value})"
    r.push(f"{r.const(format, 'format')}({value}, {spec})")


@plain("CONVERT_VALUE")
def convert_value(r: Resumption) -> None:
    fn = (str, repr, ascii)[r.raw - 1]
    r.push(f"{r.const(fn, fn.__name__)}({r.pop()})")


@plain("FORMAT_SIMPLE")
def format_simple(r: Resumption) -> None:
    _format(r, 0, "''")


@plain("FORMAT_WITH_SPEC")
def format_with_spec(r: Resumption) -> None:
    _format(r, 0, r.pop())


@plain("IS_OP")
def is_op(r: Resumption) -> None:
    left, right = r.take(2)
    r.push(f"{left} {'is not' if r.raw else 'is'} {right}")


# -- popped and stored values --------------------------------------------


@plain("POP_TOP", "END_FOR", "POP_EXCEPT")
def pop_top(r: Resumption) -> None:
    r.pop()
    r.go()


@plain("STORE_FAST", "STORE_FAST_MAYBE_NULL")
def store_fast(r: Resumption) -> None:
    r.slots[r.raw] = r.pop()
    r.go()


@plain("STORE_FAST_STORE_FAST")
def store_fast_store_fast(r: Resumption) -> None:
    first, second = r.arg
    r.slots[first] = r.pop()
    r.slots[second] = r.pop()
    r.go()


@plain("STORE_FAST_LOAD_FAST")
def store_fast_load_fast(r: Resumption) -> None:
    stored, loaded = r.arg
    r.slots[stored] = r.pop()
    r.stack.append(r.slots[loaded])
    r.go()


@plain("DELETE_FAST")
def delete_fast(r: Resumption) -> None:
    if _is_bound(r):
        r.slots[r.raw] = r.null
        r.go()


@plain("STORE_DEREF")
def store_deref(r: Resumption) -> None:
    r.line(f"{r.slots[r.raw]}.cell_contents = {r.pop()}")
    r.go()


@plain("DELETE_DEREF")
def delete_deref(r: Resumption) -> None:
    _read_cell(r)
    r.line(f"del {r.slots[r.raw]}.cell_contents")
    r.go()


@plain("STORE_GLOBAL")
def store_global(r: Resumption) -> None:
    r.line(f"{r.writer.fetched(r.writer.vm.globals_source(r.frame.globals))}[{quoted(r.arg)}] = {r.pop()}")
    r.go()


# -- names and attributes ---------------------------------------------


@plain("LOAD_ATTR")
def load_attr(r: Resumption) -> None:
    if isinstance(r.arg, str):
        r.push(r.attribute(r.arg))
        return
    method, name = r.arg
    r.line(f"_r = {r.attribute(name)}")
    r.stack += _with_null(r, "_r") if method else ["_r"]
    r.go()


@plain("LOAD_SUPER_ATTR")
def load_super_attr(r: Resumption) -> None:
    method, name = r.arg
    make, cls, obj = r.take(3)
    r.line(f"_r = {r.writer.value.attribute(f'{r.owner(make)}({cls}, {obj})', name)}")
    r.stack += _with_null(r, "_r") if method else ["_r"]
    r.go()


@plain("LOAD_METHOD")
def load_method(r: Resumption) -> None:
    r.line(f"_r = {r.attribute(r.arg)}")
    r.stack += [r.null, "_r"]
    r.go()


def _with_null(r: Resumption, callable_: str) -> list[str]:
    """A callable and the NULL next to it on the stack, in the order of this Python version (from 3.13 on NULL is
    second).
    """
    return [callable_, r.null] if NULL_SECOND else [r.null, callable_]


NULL_SECOND = sys.version_info >= (3, 13)


@plain("STORE_ATTR")
def store_attr(r: Resumption) -> None:
    obj, value = r.pop_owner(), r.pop()
    setter = f"{r.const(setattr, 'setattr')}({obj}, {quoted(r.arg)}, {value})"
    r.line(f"{obj}.{r.arg} = {value}" if is_plain_name(r.arg) else setter)
    r.go()


@plain("DELETE_ATTR")
def delete_attr(r: Resumption) -> None:
    obj = r.pop_owner()
    deleter = f"{r.const(delattr, 'delattr')}({obj}, {quoted(r.arg)})"
    r.line(f"del {obj}.{r.arg}" if is_plain_name(r.arg) else deleter)
    r.go()


@plain("LOAD_GLOBAL")
def load_global(r: Resumption) -> None:
    null, name = r.arg
    scope, missing = r.writer.fetched(r.writer.vm.globals_source(r.frame.globals)), r.const(_END, "END")
    r.line(f"_r = {scope}.get({quoted(name)}, {missing})")
    r.line(f"if _r is {missing}:")
    r.line(f"    _r = {r.const(_builtin, 'builtin')}({scope}, {quoted(name)}, {missing})")
    r.line(f"if _r is {missing}:")
    _raise_undefined(r, name)
    r.stack += _with_null(r, "_r") if null else ["_r"]
    r.go()


def _raise_undefined(r: Resumption, name: str) -> None:
    text = quoted(f"name '{name}' is not defined")
    r.line(f"    raise {r.const(NameError, 'NameError')}({text}, name={quoted(name)})")


def _builtin(scope: dict[str, object], name: str, missing: object) -> Any:
    """The builtin with this name, for a name that is not a global variable."""
    namespace = scope.get("__builtins__", builtins)
    return (namespace if isinstance(namespace, dict) else vars(namespace)).get(name, missing)


@plain("DELETE_GLOBAL")
def delete_global(r: Resumption) -> None:
    scope = r.writer.fetched(r.writer.vm.globals_source(r.frame.globals))
    r.line(f"if {quoted(r.arg)} not in {scope}:")
    _raise_undefined(r, r.arg)
    r.line(f"del {scope}[{quoted(r.arg)}]")
    r.go()


@plain("LOAD_FAST", "LOAD_FAST_CHECK")
def load_fast(r: Resumption) -> None:
    if _is_bound(r):
        r.stack.append(r.slots[r.raw])
        r.go()


def _is_bound(r: Resumption) -> bool:
    """Write a check that the variable is bound. Returns False for a variable that is never bound: then only the error
    is written.
    """
    slot = r.slots[r.raw]
    if slot == r.null:
        _raise_unbound(r)
        return False
    if type(r.frame.locals[r.raw]) is Unread:  # the variable has no guards, so it may be bound at a later call
        r.line(f"if {slot} is {r.null}:")
        _raise_unbound(r, "    ")
    return True


@plain("LOAD_DEREF")
def load_deref(r: Resumption) -> None:
    _read_cell(r)
    r.stack.append("_r")
    r.go()


def _read_cell(r: Resumption) -> None:
    """Write code that reads the contents of the variable's cell into `_r`, or raises an error if the cell is empty."""
    missing = r.const(_END, "END")
    r.line(f"_r = {missing}")
    r.line("try:")
    r.line(f"    _r = {r.slots[r.raw]}.cell_contents")
    # the NameError is raised outside of the clause: the ValueError must not be its `__context__`
    r.line(f"except {r.const(ValueError, 'ValueError')}:")
    r.line("    pass")
    r.line(f"if _r is {missing}:")
    _raise_unbound(r, "    ")


def _raise_unbound(r: Resumption, indent: str = "") -> None:
    error = unbound_slot(r.frame.code, r.raw)
    kind = type(error)
    r.line(f"{indent}raise {r.const(kind, kind.__name__)}({quoted(str(error))})")


@plain("IMPORT_NAME")
def import_name(r: Resumption) -> None:
    level, names = r.take(2)
    scope = r.writer.fetched(r.writer.vm.globals_source(r.frame.globals))
    r.push(f"{r.const(__import__, 'import_')}({quoted(r.arg)}, {scope}, None, {names}, {level})")


# -- jumps ----------------------------------------------------------------


def _branch(r: Resumption, test: str, jump_stack: list[str], next_stack: list[str]) -> None:
    r.line(f"_r = {test}")
    _if(r, "if _r:")
    r.go(r.arg, jump_stack, "    ")
    r.go(None, next_stack)


def _if(r: Resumption, head: str) -> None:
    if r.after is None:
        r.line(head)
    else:
        r.after.append(head)


@plain("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE")
def pop_jump_if_false(r: Resumption) -> None:
    _branch(r, f"not {r.pop()}", r.stack, r.stack)


@plain("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE")
def pop_jump_if_true(r: Resumption) -> None:
    _branch(r, f"{r.const(bool, 'bool')}({r.pop()})", r.stack, r.stack)


@plain("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(r: Resumption) -> None:
    _branch(r, f"not {r.stack[-1]}", r.stack, r.stack[:-1])


@plain("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(r: Resumption) -> None:
    _branch(r, f"{r.const(bool, 'bool')}({r.stack[-1]})", r.stack, r.stack[:-1])


@plain("FOR_ITER")
def for_iter(r: Resumption) -> None:
    end = r.const(_END, "END")
    r.line(f"_r = {r.const(next, 'next')}({r.stack[-1]}, {end})")
    _if(r, f"if _r is {end}:")
    r.go(r.arg, r.stack[:-1], "    ")
    r.go(None, [*r.stack, "_r"])


# -- calls ----------------------------------------------------------------


@plain("CALL")
def call(r: Resumption) -> None:
    callee = r.frame.stack[-r.raw - 1], r.frame.stack[-r.raw - 2]
    items = r.take(r.raw)
    second, first = r.pop(), r.pop()
    if NULL_SECOND:
        fn, owner = first, second
    else:
        fn, owner = (second, r.null) if first == r.null else (first, second)
    form = eager_form(callee[0], r.cause) or eager_form(callee[1], r.cause)
    if form is not None:
        fn, items = r.const(form, form.__name__), [fn, *items]
    elif not items and any(each is super for each in callee):
        fn, items = r.const(super_in, "super_in"), super_operands(r)
    _call(r, fn, owner, items, r.frame.kw_names)


def super_operands(r: Resumption) -> list[str]:
    """The operands of `super()`: the calling frame's first variable and the cell of its class."""
    code = r.frame.code
    free = code.co_freevars
    cell = r.slots[len(r.slots) - len(free) + free.index("__class__")] if "__class__" in free else r.null
    boxed = code.co_argcount and code.co_varnames[0] in code.co_cellvars
    return [r.slots[0] if code.co_argcount else r.null, str(bool(boxed)), cell, str(code.co_argcount)]


def super_in(first: object, boxed: bool, cell: CellType, arguments: int) -> super:
    """`super()` in a frame with this first variable (in a cell: `boxed`) and this cell of its class.

    Raises:
        RuntimeError: one of them is missing; the text is CPython's.
    """
    if boxed and first is not native.NULL:
        assert isinstance(first, CellType)
        first = first.cell_contents if _is_full(first) else native.NULL
    if not arguments:
        raise RuntimeError("super(): no arguments")
    if first is native.NULL:
        raise RuntimeError("super(): arg[0] deleted")
    if cell is native.NULL:
        raise RuntimeError("super(): __class__ cell not found")
    if not _is_full(cell):
        raise RuntimeError("super(): empty __class__ cell")
    return super(cell.cell_contents, first)


def _is_full(cell: CellType) -> bool:
    return cell != CellType()  # an empty cell equals only an empty cell, so the contents are not compared


@plain("CALL_KW")
def call_kw(r: Resumption) -> None:
    names = r.frame.stack[-1]
    callee = r.frame.stack[-r.raw - 3]
    r.pop()
    items = r.take(r.raw)
    owner, fn = r.pop(), r.pop()
    form = eager_form(callee, r.cause)
    if form is not None:
        fn, items = r.const(form, form.__name__), [fn, *items]
    _call(r, fn, owner, items, names)


def _call(r: Resumption, fn: str, owner: str, items: list[str], names: tuple[str, ...]) -> None:
    operands = [*([] if owner == r.null else [owner]), *items]
    writer = r.writer
    left = r.names_left_behind(fn) if writer.vm.finalizers.with_finalizers() or writer.value.makes_objects() else []
    if left:  # objects to which only these variables refer may be freed during the call, as in eager
        r.line(f"_given = [{', '.join(operands)}]")
        r.line(f"{' = '.join(left)} = None")
        keywords = "".join(f"{quoted(name)}, " for name in names)
        r.push(f"{r.const(native.call_moving, 'call_moving')}({fn}, _given, ({keywords}))")
        return
    split = len(items) - len(names)
    given = [*([] if owner == r.null else [owner]), *items[:split]]
    r.push(f"{r.owner(fn)}({arguments(given, zip(names, items[split:], strict=True))})")


@plain("CALL_FUNCTION_EX")
def call_function_ex(r: Resumption) -> None:
    kwargs = f", **{r.pop()}" if r.raw & 1 else ""
    args = r.pop()
    callee = r.frame.stack[-2 - (r.raw & 1) - NULL_SECOND]
    second, first = r.pop(), r.pop()
    fn = first if NULL_SECOND else second
    form = eager_form(callee, r.cause)
    if form is not None:
        fn, args = r.const(form, form.__name__), f"({fn}, *{args})"
    r.push(f"{r.owner(fn)}(*{args}{kwargs})")


@plain("BEFORE_WITH")
def before_with(r: Resumption) -> None:
    manager = r.pop_owner()
    r.line(f"_r, _leave = {r.const(_context_methods, 'context_methods')}({manager})")
    r.line("_r = _r()")
    r.stack += ["_leave", "_r"]
    r.go()


def _context_methods(manager: object) -> tuple[object, object]:
    """The methods `__enter__` and `__exit__`, which `with` looks up in the class, not in the object."""
    refused = f"{type(manager).__name__!r} object does not support the context manager protocol"
    enter = _of_class(manager, "__enter__", refused)
    return enter, _of_class(manager, "__exit__", f"{refused} (missed __exit__ method)")


def _of_class(manager: object, name: str, refused: str) -> object:
    kind = type(manager)
    for base in kind.__mro__:
        if name in vars(base):
            raw = vars(base)[name]
            return raw.__get__(manager, kind) if hasattr(type(raw), "__get__") else raw
    raise TypeError(refused)


@plain("WITH_EXCEPT_START")
def with_except_start(r: Resumption) -> None:
    error = r.stack[-1]
    r.push(f"{r.owner(r.stack[-4])}({r.const(type, 'type')}({error}), {error}, {error}.__traceback__)")


@plain("RAISE_VARARGS")
def raise_varargs(r: Resumption) -> None:
    items = r.take(r.raw)
    r.line("raise " + " from ".join(items))


@plain("RERAISE")
def reraise(r: Resumption) -> None:
    r.line(f"_raised = [{r.pop()}]")  # a variable would keep the exception, whose traceback contains the frame
    r.line(f"{r.const(native.reraise, 'raise_again')}(_raised.pop())")


@plain("CHECK_EXC_MATCH")
def check_exc_match(r: Resumption) -> None:
    kinds = r.pop()
    r.push(f"{r.const(catches, 'catches')}({r.stack[-1]}, {kinds})")
