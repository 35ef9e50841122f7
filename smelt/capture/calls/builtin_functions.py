"""Captured forms of builtin functions that inspect types, attributes and the frame."""

from __future__ import annotations

import _warnings
import abc
import builtins
import collections
import datetime
import inspect
import operator
import os
import sys
import threading
import types
import typing
from collections.abc import Callable
from typing import Any

import torch

from smelt.base.class_tables import ClassTable, by_class, isinstance
from smelt.base.python_text import module_name
from smelt.capture.arrays.array import ArrayMethod, TensorArray
from smelt.capture.calls import calls
from smelt.capture.core import sources
from smelt.capture.core.breaks import Break, Restart, UserError, user, user_raise
from smelt.capture.core.generators import TracedGenerator
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.policy import is_frozen
from smelt.capture.core.prologue_value import PrologueMethod, PrologueValue
from smelt.capture.core.registry import ATTR, special
from smelt.capture.core.unbacked_text import UnknownText
from smelt.capture.core.values import C_METHODS, COMPUTED
from smelt.capture.python import containers, warning_locations
from smelt.capture.python.attribute_reads import load_class_attr, load_generic, load_object_attr, python_method
from smelt.capture.python.attribute_writes import delete_attr, delete_generic, store_attr, store_generic
from smelt.capture.python.stack_opcodes import read_variable
from smelt.capture.tensors.input_scalars import number_at_entry
from smelt.graph.ir.symint import SYMBOLIC
from smelt.graph.trace.trace import TraceTensor


def _a_generator() -> object:
    yield None


_GENERATOR = _a_generator()


def visible(vm: Interpreter, value: object) -> Any:
    """A real object of the class that the program expects of `value`, for `isinstance`, `type` and similar
    functions.
    """
    if type(value) is TraceTensor:
        return vm.tensors.stand_in(value)
    if isinstance(value, SYMBOLIC):
        return _STAND_INS[type(value)]
    if type(value) is PrologueValue:
        return value.example
    if type(value) is TensorArray or type(value) is ArrayMethod:
        return value.stand_in
    if type(value) is PrologueMethod:
        return getattr(value.owner.example, value.name)
    if type(value) is types.MethodType and type(value.__func__) in C_METHODS:
        return value.__func__.__get__(value.__self__)
    return _GENERATOR if type(value) is TracedGenerator else value


_STAND_INS: ClassTable[object] = by_class({torch.SymInt: 2, torch.SymFloat: 0.5, torch.SymBool: True})


_MARKED = by_class({torch.nn.Parameter: "_is_param", torch.nn.Buffer: "_is_buffer"})
"""Tensor classes that are recognized by an attribute."""


def _may_define_class(kind: type) -> bool:
    """Whether instances may define `__class__` as another class: `isinstance` reads that attribute as well."""
    names = [vars(base) for base in kind.__mro__[:-1]]
    return any(
        "__class__" in members or type(members.get("__getattribute__")) is types.FunctionType for members in names
    )


def _isinstance_by_class(vm: Interpreter, value: object, cls: object) -> bool:
    """`isinstance(value, cls)` for an object that may define `__class__`: tests its class first, then its
    `__class__`.
    """
    if type(cls) is tuple:
        return any(_isinstance_by_class(vm, value, each) for each in cls)
    kind = type(value)
    if cls is kind:
        return True
    if type(cls) is not type:
        raise Break(
            f"isinstance() of a {kind.__name__}", "what is asked is code of the program's, or C's, on both sides"
        )
    if any(base is cls for base in kind.__mro__):
        return True
    try:
        claimed = vm.load_attr(value, "__class__")
    except UserError as error:
        if isinstance(error.error, AttributeError):
            return False
        raise
    return claimed is not kind and isinstance(claimed, type) and any(base is cls for base in claimed.__mro__)


@special(builtins.isinstance)
def is_instance(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Captured form of `isinstance(object, class or tuple)`."""
    value, cls = args
    kind = type(value)
    cls = vm.effects.plain(cls)
    for each in (cls if type(cls) is tuple else (cls,)) if kind is TraceTensor else ():
        if each in _MARKED:
            get_attr(vm, (value, _MARKED[each], False), {})  # the read adds a guard on the attribute
    if _may_define_class(kind):
        return _isinstance_by_class(vm, value, cls)
    answer = _isinstance_runner(vm, cls)(builtins.isinstance, visible(vm, value), cls)
    if not answer:
        _guard_unregistered(vm, kind, cls)
    return answer


@special(issubclass)
def is_subclass(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Captured form of `issubclass(class, class or tuple)`."""
    kind, cls = map(vm.effects.plain, args)
    answer = _isinstance_runner(vm, cls)(issubclass, kind, cls)
    if not answer:
        _guard_unregistered(vm, kind, cls)
    return answer


def _isinstance_runner(vm: Interpreter, cls: object) -> Any:
    """The function that runs `isinstance` and `issubclass`: the interpreter's `native` if the class check may run code
    of the program, else `user`.
    """
    kinds = map(type, cls) if type(cls) is tuple else (type(cls),)
    return user if all(is_frozen(kind.__module__) for kind in kinds) else vm.native


def _guard_unregistered(vm: Interpreter, kind: type, cls: object) -> None:
    """Guard that `kind` is not registered later as a virtual subclass of `cls` by `abc.ABC.register`."""
    for each in cls if isinstance(cls, tuple) else (cls,):
        if isinstance(each, abc.ABCMeta) and not (is_frozen(each.__module__) and is_frozen(kind.__module__)):
            vm.guards.flag(issubclass, (kind, each), False)


@special(type)
def type_call(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `type(object)`. The form with three arguments, which makes a class, ends the graph."""
    if len(args) == 1:
        return type(visible(vm, args[0])) if type(args[0]) is not TraceTensor else vm.type_of(args[0])
    raise Break("a class is made", "each call makes another one", "define it outside of the compiled function")


@special(collections.namedtuple)
def make_named_tuple(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `collections.namedtuple(name, fields)`: the class belongs to the module of the calling
    function.
    """
    plain, named = vm.effects.plain(args), {key: vm.effects.plain(value) for key, value in kwargs.items()}
    defaults = named.get("defaults")
    if isinstance(defaults, (tuple, list)) and any(type(each) in COMPUTED for each in defaults):
        raise Break("a named tuple with computed defaults is made", "the class would keep what one call computed")
    if named.get("module") is None:
        named["module"] = vm.frames[-1].globals.get("__name__", "__main__")
    return _make_at_each_call(vm, collections.namedtuple, plain, named)


def _make_at_each_call(vm: Interpreter, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """Make an object that capture treats as a constant, and that residual code makes anew at each call."""
    out = calls.call_native(vm, fn, args, kwargs)
    vm.keep(out)
    vm.python.remade[id(out)] = (fn, args, kwargs)
    return out


@special(typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple, typing.NewType, typing.NamedTuple, typing.TypedDict)
def make_named_type(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Refuse calls that make a named type: the type belongs to the module of the calling function."""
    raise Break("a class is made", "each call makes another one", "define it outside of the compiled function")


@special(types.ModuleType)
def make_module(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `types.ModuleType(name)`."""
    raise Break("a module is made", "each call makes another one", "make it outside of the compiled function")


@special(anext)
def next_asynchronous(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `anext(iterator[, default])`."""
    raise Break("anext()", "coroutines are not captured, and CPython's C code takes no exception there")


@special(len)
def length(vm: Interpreter, args: Args, kwargs: Kwargs) -> int:
    """Captured form of `len(object)`."""
    return containers.length(vm, *args)


@special(bool)
def boolean(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Captured form of `bool(object)`."""
    return containers.truth(vm, *args) if args else False


@special(operator.not_)
def negate(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Captured form of `operator.not_(object)`."""
    return not containers.truth(vm, *args)


def _expect_name(fn: Callable[..., object], args: Args, kwargs: Kwargs, counts: tuple[int, ...] = (2,)) -> None:
    """Require that the arguments of an attribute function are an object, an attribute name, and further arguments;
    `counts` lists the allowed numbers of arguments.

    Raises:
        UserError: the arguments are different ones; the error is the function's own.
        Break: the name is a string of unknown characters, or of a subclass of str.
    """
    fits = len(args) in counts and not kwargs
    if fits and type(args[1]) is str:
        return
    if fits and isinstance(args[1], (str, PrologueValue, UnknownText)):
        raise Break("an attribute's name that is no plain text", f"it is a {type(args[1]).__name__}")
    user(fn, *(None for _ in args[:1]), *args[1:], **kwargs)


@special(getattr)
def get_attr(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `getattr(object, name[, default])`."""
    _expect_name(getattr, args, kwargs, (2, 3))
    try:
        return vm.load_attr(args[0], args[1])
    except UserError as error:
        if len(args) < 3 or not isinstance(error.error, AttributeError):
            raise
        return args[2]


@special(hasattr)
def has_attr(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Captured form of `hasattr(object, name)`."""
    _expect_name(hasattr, args, kwargs)
    try:
        vm.load_attr(*args)
    except UserError as error:
        if not isinstance(error.error, AttributeError):
            raise
        return False
    return True


@special(setattr)
def set_attr(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `setattr(object, name, value)`."""
    _expect_name(setattr, args, kwargs, (3,))
    store_attr(vm, *args)


@special(delattr)
def del_attr(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `delattr(object, name)`."""
    _expect_name(delattr, args, kwargs)
    delete_attr(vm, *args)


def _register_writes(base: object) -> None:
    """Register captured forms of `__setattr__` and `__delattr__` of a class that programs inherit from."""

    def set_attr(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
        _expect_name(base.__setattr__, args, kwargs, (3,))
        if isinstance(args[0], type) and base is not type:
            user(base.__setattr__, *args)  # raises
        store_generic(vm, *args)

    def delete(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
        _expect_name(base.__delattr__, args, kwargs)
        if isinstance(args[0], type) and base is not type:
            user(base.__delattr__, *args)  # raises
        delete_generic(vm, *args)

    special(vars(base)["__setattr__"])(set_attr)
    special(vars(base)["__delattr__"])(delete)


for _base in (object, type, types.ModuleType):
    if "__setattr__" in vars(_base):  # from Python 3.13 on modules inherit the method of object
        _register_writes(_base)


@special(object.__getattribute__)
def object_get_attr(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `object.__getattribute__(object, name)`."""
    _expect_name(object.__getattribute__, args, kwargs)
    obj, name = args
    return load_generic(vm, obj, type(obj), name, vm.sources.get(id(obj)))


@special(type.__getattribute__)
def type_get_attr(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `type.__getattribute__(class, name)`."""
    return load_class_attr(vm, *args)


@special(callable)
def is_callable(vm: Interpreter, args: Args, kwargs: Kwargs) -> bool:
    """Captured form of `callable(object)`."""
    return callable(visible(vm, args[0]))


@special(iter)
def iterate(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `iter(object)`."""
    if len(args) == 2:
        return calls.call_native(vm, iter, args, kwargs)
    return containers.iterate(vm, *args)


@special(next)
def advance(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `next(iterator[, default])`."""
    if len(args) == 1:
        return containers.advance_or_raise(vm, args[0])
    value = containers.advance(vm, args[0])
    return args[1] if value is containers.END else value


@special(super)
def make_super(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured forms of `super()` and `super(class, object)`."""
    if args:
        return _super(vm, *args)
    frame = vm.frames[-1]
    code = frame.code
    if not code.co_argcount:
        raise UserError(RuntimeError("super(): no arguments"))
    first = read_variable(vm, frame, 0)
    if code.co_varnames[0] in code.co_cellvars and isinstance(first, types.CellType):
        first = vm.cell(first, code.co_varnames[0])
    if first is containers.native.NULL:
        raise UserError(RuntimeError("super(): arg[0] deleted"))
    if "__class__" not in code.co_freevars:
        raise UserError(RuntimeError("super(): __class__ cell not found"))
    index = len(frame.locals) - len(code.co_freevars) + code.co_freevars.index("__class__")
    cls = vm.cell(frame.locals[index], "__class__")
    if cls is containers.native.NULL:
        raise UserError(RuntimeError("super(): empty __class__ cell"))
    return _super(vm, cls, first)


def _super(vm: Interpreter, cls: Any, *of: object) -> object:
    """The object `super(class[, object])`."""
    if of and type(of[0]) is TraceTensor and isinstance(cls, type) and issubclass(vm.type_of(of[0]), cls):
        return vm.subclasses.proxy(cls, of[0])
    if of and type(of[0]) is TraceTensor and not isinstance(of[0], cls):
        raise Break("super() of a tensor", "the graph's tensors are of another class")
    return user(super, cls, *of)


@special(vars)
def variables(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `vars(object)`."""
    if not args:
        raise Break("vars() without an object", "local variables are not a dict while capturing", in_frame=True)
    try:
        return vm.load_attr(args[0], "__dict__")
    except UserError as error:
        if not isinstance(error.error, AttributeError):
            raise
        raise UserError(TypeError("vars() argument must have __dict__ attribute")) from None


@special(dir)
def list_names(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `dir([object])`."""
    if not args:
        raise Break("dir() without an object", "it looks at the frame that calls it", in_frame=True)
    return calls.call_native(vm, dir, args, kwargs)


@special(globals)
def global_variables(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `globals()`."""
    namespace = vm.frames[-1].globals
    return vm.register(namespace, vm.globals_source(namespace))


@special(locals)
def local_variables(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `locals()`."""
    frame = vm.frames[-1]
    out = {}
    for slot, name in enumerate(frame.code.co_varnames):
        value = read_variable(vm, frame, slot)
        if isinstance(value, types.CellType):
            value = vm.cell(value, name)
        if value is not containers.native.NULL:
            out[name] = value
    return out


@special(os.fspath)
def file_path(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `os.fspath(path)`."""
    method = python_method(vm, args[0], "__fspath__")
    return vm.call(method, args, {}) if method is not None else user(os.fspath, *args)


@special(_warnings.warn)
def warn(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `warnings.warn(...)`."""
    try:
        bound = _WARN.bind(*args, **kwargs)
    except TypeError:
        bound = None
    if bound is None or not _is_warning(**bound.arguments):
        raise Break("warnings.warn() with arguments that it refuses", "it raises at this line")
    bound.apply_defaults()
    message, category, level, source, skipped = bound.arguments.values()
    if type(level) is PrologueValue or type(skipped) is not tuple:
        raise Break("warnings.warn() with a level that is computed at each call", "it says where the warning points to")
    category = UserWarning if category is None else category
    location = warning_locations.location_of(vm, int(level), tuple(vm.effects.plain(each) for each in skipped))
    message, source = (calls.frozen(vm, "warnings.warn", each) for each in (message, source))
    vm.effects.warn(location, message, category, source)


def _warn(
    message: object,
    category: object = None,
    stacklevel: object = 1,
    source: object = None,
    *,
    skip_file_prefixes: object = (),
) -> None:
    """The signature of `warnings.warn`, to which its arguments are bound."""


_WARN = inspect.signature(_warn)


def _is_warning(message: object, category: object = None, stacklevel: object = 1, **others: object) -> bool:
    fits = category is None or isinstance(category, type) and issubclass(category, Warning)
    fits = fits and isinstance(message, (str, Warning, PrologueValue, UnknownText))
    fits = fits and ("skip_file_prefixes" not in others or sys.version_info >= (3, 12))
    return fits and isinstance(stacklevel, (int, PrologueValue, *SYMBOLIC))


@special(_warnings.warn_explicit)
def warn_explicit(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `warnings.warn_explicit(...)`."""
    try:
        bound = _WARN_EXPLICIT.bind(*args, **kwargs).arguments
    except TypeError:
        bound = {}
    if not bound or not _is_warning(bound["message"], bound["category"]) or bound.get("registry") is not None:
        raise Break(
            "warnings.warn_explicit() that refuses its arguments or enters something there", "it is run in turn"
        )
    calls.defer(vm, _warnings.warn_explicit, args, kwargs)


def _warn_explicit(
    message: object,
    category: object,
    filename: object,
    lineno: object,
    module: object = None,
    registry: object = None,
    module_globals: object = None,
    source: object = None,
) -> None:
    """The signature of `warnings.warn_explicit`, to which its arguments are bound."""


_WARN_EXPLICIT = inspect.signature(_warn_explicit)


@special(sys.exception)
def exception(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `sys.exception()`."""
    inside = vm.handled()
    return vm.outer_exception() if inside is None else inside


@special(sys.exc_info)
def exc_info(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `sys.exc_info()`."""
    error = exception(vm, args, kwargs)
    return (None, None, None) if error is None else (type(error), error, vm.load_attr(error, "__traceback__"))


@ATTR(BaseException)
def load_exception_attr(vm: Interpreter, error: BaseException, name: str) -> object:
    """An attribute of an exception. Only an exception that Python itself raised has the same traceback as in eager.

    Raises:
        Restart: the program reads the traceback of an exception that capture raised.
        Break: the program reads the traceback of an external exception.
    """
    raised = vm.python.errors.get(id(error)) if name in ("__traceback__", "with_traceback") else None
    if raised is not None and vm.finalizers.allowed:
        stop = Break("the traceback of an exception", "only one that Python raises has its frames")
        stop.at = vm.where()
        raise Restart(raised[1], stop)
    if name == "__traceback__" and vm.source_of(error) is not None:
        raise Break("the traceback of an exception", "it shows the frames that the exception passed", in_frame=True)
    return load_object_attr(vm, error, name)


@special(vars(BaseException)["add_note"])
def add_note(vm: Interpreter, args: Args, kwargs: Kwargs) -> None:
    """Captured form of `error.add_note(text)`: appends the text to the exception's list `__notes__`."""
    error, note = args
    if vm.type_of(note) is str:
        try:
            notes = vm.load_attr(error, "__notes__")
        except UserError:
            notes = []
            store_attr(vm, error, "__notes__", notes)
        vm.call(vm.load_attr(notes, "append"), (note,), {})
    else:
        user_raise(TypeError(f"note must be a str, not '{vm.type_of(note).__name__}'"))


@special(
    sys._getframe,
    inspect.currentframe,
    inspect.stack,
    vars(datetime.datetime)["now"],
    vars(datetime.datetime)["utcnow"],
    vars(datetime.date)["today"],
)
def refuse_stack_or_clock(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Refuse functions that read the call stack or the clock."""
    why = "they differ from call to call"
    raise Break("the call stack or the clock is read", why, in_frame=True, of_callers=_reads_caller_variables(vm))


def _reads_caller_variables(vm: Interpreter) -> bool:
    """Whether the interpreted code may read variables of calling frames, and not only their names and line numbers."""
    looking = (frame for frame in vm.frames if module_name(frame.globals.get("__name__")) not in _READING_OWN_CALLERS)
    return any("f_locals" in frame.code.co_names for frame in looking)


_READING_OWN_CALLERS = ("typing", "typing_extensions")
"""Modules whose code reads variables of a calling frame only if the caller is a function of these modules."""


@special(builtins.input, builtins.open, builtins.compile)
def refuse_outside_effects(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Refuse functions that access files or the terminal, or compile code."""
    raise Break("input, open or compile is called", "it acts outside of the program")


@special(builtins.exec, builtins.eval, builtins.breakpoint)
def refuse_code_in_frame(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Refuse functions that run code in the calling frame."""
    raise Break("exec, eval or breakpoint is called", "it looks at the frame that calls it", in_frame=True)


def _kind_of_number(dtype: torch.dtype) -> type:
    """The Python type of numbers of a dtype: complex, float or int; int for booleans."""
    return complex if dtype.is_complex else float if dtype.is_floating_point else int


def _register_numbers() -> None:
    for kind, name in ((int, "__int__"), (float, "__float__"), (complex, "__complex__")):

        def convert(vm: Interpreter, args: Args, kwargs: Kwargs, kind: type = kind, name: str = name) -> object:
            method = python_method(vm, args[0], name) if args else None
            if args and type(args[0]) is TraceTensor and method is None:
                number = number_at_entry(vm, args[0])
                if number is not None and vm.type_of(number) is kind:
                    return number
                if vm.values.are_read and kind is _kind_of_number(args[0].dtype):
                    converted = args if args[0].dtype is not torch.bool else (vm.call(torch.Tensor.long, args, {}),)
                    return vm.call(torch.Tensor.item, converted, {})
                known = vm.tensors.speculation.value(args[0])
                if known is None:
                    raise containers.tensor_value(f"{kind.__name__}() of a tensor")
                return user(kind, known)
            if kind is int and len(args) == 1 and type(args[0]) is torch.SymInt:
                return args[0]
            if method is not None:
                return vm.call(method, (args[0],), {})
            vm.effects.refuse_foreign(*args)
            return vm.native(kind, *args, **kwargs)

        special(kind)(convert)


_register_numbers()


@special(id)
def identity(vm: Interpreter, args: Args, kwargs: Kwargs) -> int:
    """Captured form of `id(object)`."""
    if type(args[0]) is TraceTensor:
        real = vm.tensors.real.get(id(args[0]))
        if real is None:
            raise Break("id() of a tensor that the graph makes", "the object does not exist yet")
        return _guarded_id(vm, real, vm.sources[id(args[0])])
    if type(args[0]) is PrologueValue:
        array = vm.prologue.read_from(args[0])
        if array is None:
            raise Break("id() of an array that the program makes", "the object does not exist yet")
        return _guarded_id(vm, *array)
    view = vm.effects.views.get(id(args[0]))
    if view is not None:
        return _guarded_id(vm, *view)
    value = vm.effects.original(args[0])
    source = vm.sources.get(id(value))
    return id(value) if source is None else _guarded_id(vm, value, source)


def _register_identity() -> None:
    for fn in (operator.is_, operator.is_not):

        def ask(vm: Interpreter, args: Args, kwargs: Kwargs, fn: Callable[..., bool] = fn) -> bool:
            if len(args) != 2 or kwargs:
                return user(fn, *args, **kwargs)
            return vm.compared.are_one(*args) is (fn is operator.is_)

        special(fn)(ask)


_register_identity()


@special(hash)
def hash_of(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `hash(object)`. The hash of a tensor follows from its address, the hash of a tuple from its
    items.
    """
    value = args[0] if len(args) == 1 else None
    if type(value) is TraceTensor:
        return identity(vm, args, kwargs)
    if _has_tensors(value):
        raise Break("hash() of a tuple with tensors in it", "it follows from their addresses")
    if python_method(vm, value, "__hash__") is not None:
        return vm.native(hash, value)
    return calls.call_native(vm, hash, args, kwargs)


def _has_tensors(value: object) -> bool:
    if isinstance(value, (tuple, frozenset)):
        return any(type(item) is TraceTensor or _has_tensors(item) for item in value)
    return False


def _guarded_id(vm: Interpreter, value: object, source: sources.Source) -> int:
    vm.guards.check(sources.called(source, id, "id"), sources.native.EQ, id(value))
    return id(value)


def _positional(fn: Callable[..., object], args: Args, kwargs: Kwargs) -> Args:
    """All arguments of a call as positional arguments, for example (3, 2) for `pow(exp=2, base=3)`."""
    return inspect.signature(fn).bind(*args, **kwargs).args if kwargs else args


def _register_arithmetic() -> None:
    for fn in (abs, round, divmod, pow):

        def compute(vm: Interpreter, args: Args, kwargs: Kwargs, fn: Callable[..., object] = fn) -> Any:
            args, kwargs = _positional(fn, args, kwargs), {}
            dunder = python_method(vm, args[0], f"__{fn.__name__}__")
            if dunder is None and any(type(a) is TraceTensor for a in args):
                back = python_method(vm, args[1], f"__r{fn.__name__}__") if len(args) == 2 else None
                return vm.tensors.run(fn, args, kwargs) if back is None else vm.call(back, args[::-1], kwargs)
            if dunder is not None:
                return vm.call(dunder, args, kwargs)
            vm.effects.refuse_foreign(*args)
            return vm.native(fn, *args, **kwargs)

        special(fn)(compute)


_register_arithmetic()


@ATTR(threading.local)
def thread_attr(vm: Interpreter, obj: object, name: str) -> object:
    """An attribute of a `threading.local` object."""
    source = vm.source_of(obj)
    value = user(getattr, obj, name)
    return value if source is None else vm.external(value, sources.attr(source, name))


@special(typing.cast)
def cast(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `typing.cast(type, value)`."""
    return args[1]


@special(types.FunctionType.__get__)
def function_get(vm: Interpreter, args: Args, kwargs: Kwargs) -> object:
    """Captured form of `function.__get__(obj, type)`: the function bound to the object."""
    function, obj = args[0], args[1]
    return function if obj is None else types.MethodType(function, obj)
