"""Calls by the kind of callable: Python functions are inlined, classes make objects, C functions run."""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import io
import itertools
import logging
import re
import types
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy
import torch
import torch.utils.checkpoint

from smelt.base.class_tables import ClassTable, by_class, classes, isinstance
from smelt.base.python_text import module_name
from smelt.capture import _native as native
from smelt.capture.core import compiler_marks, flags, policy, sources
from smelt.capture.core.breaks import Break, UserError, user, user_raise
from smelt.capture.core.by_code import ByCode
from smelt.capture.core.frames import Frame, bind
from smelt.capture.core.generators import TracedGenerator
from smelt.capture.core.interface import Args, Interpreter, Kwargs
from smelt.capture.core.policy import Policy
from smelt.capture.core.prologue_value import PrologueValue
from smelt.capture.core.registry import BY_POLICY, CALL, CONSTANTS, SPECIAL, TRANSFORMED
from smelt.capture.core.unbacked_text import refuse_unknown
from smelt.capture.core.values import (
    C_METHODS,
    COMPUTED,
    CONSTANT_TYPES,
    LEAVES,
    NUMPY_FUNCTIONS,
    BoundMethodOfC,
    MethodOfC,
    is_bound,
    is_constant,
    is_shown,
)
from smelt.capture.prologue.calls import is_numpy
from smelt.capture.python.attribute_reads import find_in_class, function_source
from smelt.capture.python.attribute_writes import is_external
from smelt.capture.python.effects import CONTAINERS, refuse_past_order
from smelt.capture.python.readers import referent
from smelt.capture.tensors.torch_calls import TENSOR_TYPES, call_tensor_method, call_torch, is_torch_builtin
from smelt.graph.ir.symint import has_symint, pinned
from smelt.graph.trace.trace import TraceTensor


@CALL(types.FunctionType)
def call_function(vm: Interpreter, fn: types.FunctionType, args: Args, kwargs: Kwargs) -> object:
    """Call a Python function, by its captured form, its policy, or by interpreting its bytecode."""
    key = id(fn)
    if key in CONSTANTS:
        return CONSTANTS[key]
    meaning = SPECIAL.get(key)
    if meaning is not None:
        return meaning(vm, args, kwargs)
    if id(fn.__code__) in TRANSFORMED:  # before the attributes: the function has those of the transformed function
        return _call_transformed(vm, fn, args, kwargs)
    original = _wrapped_function(vm, fn)
    if original is not None:
        return vm.call(original, args, kwargs)
    allowed = compiler_marks.is_allowed(fn)
    if (fn.__dict__ or allowed) and compiler_marks.is_constant_result(fn):
        return call_native(vm, fn, args, kwargs)
    if allowed:
        return call_torch(vm, fn, args, kwargs)
    _refuse_disabled(fn)
    match policy.policy_of(fn):
        case Policy.INLINE:
            return False if compiler_marks.is_tracing_none(fn, args) else inline(vm, fn, args, kwargs)
        case Policy.LEAF:
            return call_leaf(vm, fn, args, kwargs)
        case Policy.NATIVE:
            return _call_as_native(vm, fn, args, kwargs)
        case Policy.DEFER:
            defer(vm, fn, args, kwargs)
            return None
        case Policy.KERNEL:
            return BY_POLICY[Policy.KERNEL](vm, args, kwargs)
    _call_outside(fn)
    return None


def _call_transformed(vm: Interpreter, fn: types.FunctionType, args: Args, kwargs: Kwargs) -> object:
    """Call a function that `torch.func` has made of another one."""
    if vm.subclasses.present and vm.subclasses.holds_instance([args, kwargs]):
        raise Break(f"{fn.__qualname__} of a tensor of a subclass", "inside, the tensor would be a plain one")
    return TRANSFORMED[id(fn.__code__)](vm, fn, args, kwargs)


def _wrapped_function(vm: Interpreter, fn: types.FunctionType) -> object:
    """The function that `fn` compiles or hides from compilers; None if `fn` is not a wrapper that does this."""
    if fn.__code__ is _CHECKPOINT_CODE and hasattr(fn, "__wrapped__"):  # torch hides these from its own compiler only
        return vars(fn)["__wrapped__"]
    if compiler_marks.is_compiled_by_smelt(fn):  # compiled code within compiled code becomes one graph
        return vars(fn)["__wrapped__"]
    init = compiler_marks.original_init(fn)
    if init is not None:
        return init
    original = compiler_marks.original_attribute(fn) if fn.__dict__ else None
    return None if original is None else vm.load_attr(fn, original)  # captured into this graph


def _call_as_native(vm: Interpreter, fn: types.FunctionType, args: Args, kwargs: Kwargs) -> object:
    """Run a Python function whose result depends on its arguments and on flags; the flags are guarded."""
    if fn.__module__ == "inspect":
        _guard_defaults(vm, args)
    if has_symint((*args, *kwargs.values())) and not is_numpy(fn):  # the function may check the number's class
        args, kwargs = pinned(args), {key: pinned(value) for key, value in kwargs.items()}
    out = call_native(vm, fn, args, kwargs)
    if type(out) is types.FunctionType and id(out) not in vm.python.created:
        refuse_frame_function(vm, fn, (*args, *kwargs.values()))
    if not kwargs and flags.is_setting(fn):
        flags.guard_flag(vm, fn, args, out)
    return out


def _refuse_disabled(fn: types.FunctionType) -> None:
    reason = compiler_marks.disabled(fn)
    if reason is not None:
        compiler_marks.respect(fn)
        raise Break(f"{fn.__qualname__} is disabled for compilation", reason)


def _call_outside(fn: types.FunctionType) -> None:
    """Handle a call of a function without a policy: ignore the call if it has no effect here, else end the graph."""
    if compiler_marks.no_effect(module_name(fn.__module__), fn.__name__):
        return
    if fn.__name__ == "graph_break" and module_name(fn.__module__).startswith("torch._dynamo"):
        raise Break("graph_break() is called")
    in_frame = module_name(fn.__module__) in ("traceback", "pdb", "inspect")
    why = "it reads or changes state outside of the program"
    raise Break(f"a call of {module_name(fn.__module__)}.{fn.__qualname__}", why, in_frame=in_frame)


def _guard_defaults(vm: Interpreter, args: Args) -> None:
    """Guard the attributes of functions that `inspect` reads."""
    for value in args:
        found = value.__func__ if type(value) is types.MethodType else value
        if type(found) is types.FunctionType:
            defaults_of(vm, found)
            for name in ("__wrapped__", "__signature__"):
                with contextlib.suppress(UserError):  # the absence of an attribute is guarded as well
                    _guard_defaults(vm, (vm.load_attr(found, name),))


def refuse_frame_function(vm: Interpreter, fn: Callable[..., object], args: Args) -> None:
    """Refuse the result of an uninterpreted call: a function that may refer to values of the present call.

    Raises:
        Break: an argument is a function that the frame has made, with a closure or defaults.
    """
    made = (arg for arg in args if type(arg) is types.FunctionType and id(arg) in vm.python.created)
    if any(arg.__closure__ or arg.__defaults__ or arg.__kwdefaults__ for arg in made):
        raise Break(
            f"{fn.__qualname__}() of a function that is made inside", "what it gives belongs to this call alone"
        )


_CHECKPOINT_CODE = torch.utils.checkpoint.checkpoint.__code__


def inline(vm: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> object:
    """Interpret the function's bytecode, as a frame of this capture."""
    code = fn.__code__
    vm.work += 1
    defaults, kwdefaults = defaults_of(vm, fn)
    frame = Frame(code, vm.decode(code), bind(fn, defaults, kwdefaults, args, kwargs), fn.__globals__, fn)
    if fn.__closure__:
        frame.closure = fn.__closure__
        if id(fn) not in vm.python.created:
            vm.adopt_cells(fn, function_source(vm, fn))
    if code.co_flags & _SPECIAL_FLAGS:
        return start_generator(vm, frame)
    vm.run(frame)
    return frame.value


_SPECIAL_FLAGS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def start_generator(vm: Interpreter, frame: Frame) -> TracedGenerator:
    """Call a generator function: returns the generator, suspended at its start."""
    if not frame.code.co_flags & inspect.CO_GENERATOR:
        raise Break("a coroutine", "async functions are not captured")
    generator = TracedGenerator(vm, frame)
    frame.generator = generator
    vm.run(frame)  # stops at RETURN_GENERATOR
    return generator


def defaults_of(vm: Interpreter, fn: types.FunctionType) -> tuple[tuple[object, ...] | None, dict[str, object] | None]:
    """Returns (defaults of positional arguments, defaults of keyword arguments) of an inlined function, with guards on
    them.

    A function that is reached through globals or attributes is guarded by identity, and so are its code and its
    defaults, which a program may replace. A function that is an argument may be made anew for each call: guards then
    require the same code and equal defaults.
    """
    known = vm.python.defaults.get(id(fn))
    if known is not None:
        return known
    source = vm.sources.get(id(fn))
    defaults = fn.__defaults__
    named: dict[Any, Any] | None = fn.__kwdefaults__
    frozen = source is None and policy.is_frozen(fn.__module__)
    if id(fn) in vm.python.created or frozen and named is None and (not defaults or _all_constant(defaults)):
        return defaults, named
    vm.keep(fn)
    if source is None or not source.local:
        source = function_source(vm, fn)
        if not frozen:
            vm.guards.check(source, native.FUNCTION, (fn.__code__, defaults, named))
        if defaults and not _all_constant(defaults):
            base = sources.function_field(source, "__defaults__")
            defaults = tuple(vm.external(v, sources.sequence_item(base, i, tuple)) for i, v in enumerate(defaults))
    else:
        defaults = vm.effects.plain(vm.external(defaults, sources.function_field(source, "__defaults__")))
    if named is None:
        vm.guards.check(sources.function_field(source, "__kwdefaults__"), native.IS, None)
    else:
        named = vm.effects.read_dict(named, sources.function_field(source, "__kwdefaults__"))
    vm.python.defaults[id(fn)] = defaults, named
    return defaults, named


def _all_constant(values: Iterable[object]) -> bool:
    return all(type(v) in LEAVES or is_constant(v) or type(v) is tuple and not v for v in values)


def call_leaf(vm: Interpreter, fn: types.FunctionType, args: Args, kwargs: Kwargs) -> object:
    """Call a Python function of torch that stays one node; methods are recorded by name."""
    if vm.subclasses.present and vm.subclasses.overridden((*args, *kwargs.values())):
        return inline(vm, fn, args, kwargs)
    if args and type(args[0]) is TraceTensor and fn is getattr(TENSOR_TYPES[0], fn.__name__, None):
        return call_tensor_method(vm, fn.__name__, args, kwargs)
    if not _calls_torch_alone(vm, fn) or any(map(_runs_program_code, (*args, *kwargs.values()))):
        return inline(vm, fn, args, kwargs)
    try:
        return call_torch(vm, fn, args, kwargs)
    except Break as stop:  # the function reads a program object or tensor values: its body may still be captured
        if fn.__module__ != "torch.nn.functional":
            raise
        try:
            return inline(vm, fn, args, kwargs)
        except Break:
            raise stop from None


def _runs_program_code(value: object) -> bool:
    """Whether torch would call code of the program when it uses this value."""
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial, torch.nn.Module)):
        return True
    called = next((vars(base)["__call__"] for base in type(value).__mro__ if "__call__" in vars(base)), None)
    return isinstance(called, types.FunctionType) and type(value) not in _NOT_FUNCTIONS


_NOT_FUNCTIONS = classes(TraceTensor, PrologueValue, torch.nn.Parameter)


def _calls_torch_alone(vm: Interpreter, fn: types.FunctionType) -> bool:
    """Whether all functions of torch that `fn` calls by global name are torch's own; guards
    notice later replacements.
    """
    names = _called.get(fn.__code__)
    if names is None:
        used = fn.__code__.co_names
        names = tuple((module, name) for module in _CHECKED_MODULES for name in used if _is_torchs(module, name))
        _called.put(fn.__code__, names)
    own = True
    for module, name in names:
        found = vars(module).get(name)
        vm.guards.check(sources.global_item(vm.globals_source(vars(module)), name), native.IS, found)
        own = own and (is_torch_builtin(found) or module_name(getattr(found, "__module__", None)).startswith("torch"))
    return own


_CHECKED_MODULES = (torch, torch.nn.functional)
_called: ByCode[tuple[tuple[types.ModuleType, str], ...]] = ByCode()


def _is_torchs(module: types.ModuleType, name: str) -> bool:
    return isinstance(vars(module).get(name), (types.FunctionType, types.BuiltinFunctionType))


def defer(vm: Interpreter, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> None:
    """Defer a call whose result is not used until after the graph; its arguments keep their present contents.

    Raises:
        Break: an argument is a tensor, whose values the call would need.
    """
    name = fn.__qualname__
    logs = args and isinstance(args[0], logging.Logger) or fn.__module__ == "logging"
    if logs:
        _refuse_misformatted(vm, name, args)
        if fn.__name__ == "exception" or not {"exc_info", "stack_info"}.isdisjoint(kwargs):
            raise Break(f"{name} shows frames", "those of the compiled function are not the program's", in_frame=True)
    named = {key: frozen(vm, name, value) for key, value in kwargs.items()}
    at = vm.frames[-1].at if logs else None  # log records contain the line of the call
    vm.effects.defer(fn, tuple(frozen(vm, name, value) for value in args), named, at)


def _refuse_misformatted(vm: Interpreter, name: str, args: Args) -> None:
    """Refuse a log message whose format does not fit its arguments: handlers report the error, or raise it, at the
    call.
    """
    message_args = [*itertools.dropwhile(lambda value: isinstance(value, (logging.Logger, int)), args)]
    if (
        not message_args
        or type(message_args[0]) is not str
        or any(type(value) is PrologueValue for value in message_args[1:])
    ):
        return
    given = tuple(_format_example(vm.effects.mirror(value)) for value in message_args[1:])
    try:
        logging.LogRecord(name, 0, "", 0, message_args[0], given, None).getMessage()
    except Exception as error:
        raise Break(f"{name} with arguments that do not fit its text", str(error)) from None


def _format_example(value: object) -> object:
    """A value that formats without error if `value` does, independent of the contents of mutable objects."""
    kind = type(value)
    if isinstance(value, dict):
        return {key: _format_example(item) for key, item in value.items()}
    if kind in _NUMBER_EXAMPLES:
        return _NUMBER_EXAMPLES[kind]
    return value if kind in LEAVES and kind is not torch.Size else ""


_NUMBER_EXAMPLES: ClassTable[object] = by_class({torch.SymInt: 0, torch.SymFloat: 0.0, torch.SymBool: True})


_UNCHANGING = (
    *(type, types.FunctionType, types.ModuleType, types.BuiltinFunctionType, BaseException, io.IOBase),
    *(logging.Filterer, logging.LogRecord, logging.Formatter),
)
"""Types of arguments that a deferred call gets uncopied: their objects are treated as unchanging."""


_COPY_BY_CLASS: ClassTable[Callable[..., object]] = by_class({kind: kind for kind in (list, tuple, set, frozenset)})


def frozen(vm: Interpreter, name: str, value: object) -> object:
    """The value as an argument of a deferred call: containers are copied, since the program may change them before the
    call is made.
    """
    kind = type(value)
    if kind in LEAVES or isinstance(value, (*_UNCHANGING, *CONSTANT_TYPES)):
        return value
    if type(value) is PrologueValue and not value.changes:
        return value
    if kind is TraceTensor:
        raise Break(f"{name} with a tensor", "it shows the tensor's values")
    refuse_unknown((value,))
    if type(value) is warnings.catch_warnings and not vars(value)["_record"]:
        return value  # the effects of the context manager are deferred as well, in order
    if type(value) is collections.deque:
        return collections.deque([frozen(vm, name, item) for item in vm.effects.mirror(value)], value.maxlen)
    fill = _COPY_BY_CLASS.get(kind)
    if fill is not None:
        return fill([frozen(vm, name, item) for item in vm.effects.mirror(value)])
    if kind is dict:
        return {key: frozen(vm, name, item) for key, item in vm.effects.mirror(value).items()}
    raise Break(
        f"{name} with a {vm.type_of(value).__name__}",
        "it reads the object, which may have changed when the graph has run",
    )


@CALL(types.MethodType)
def call_method(vm: Interpreter, method: types.MethodType, args: Args, kwargs: Kwargs) -> object:
    """Call a bound method."""
    if vm.source_of(method) is not None:
        return vm.call(vm.load_attr(method, "__func__"), (vm.load_attr(method, "__self__"), *args), kwargs)
    return vm.call(method.__func__, (method.__self__, *args), kwargs)


@CALL(functools.partial)
def call_partial(vm: Interpreter, fn: object, args: Args, kwargs: Kwargs) -> object:
    """Call a `functools.partial` object."""
    if type(fn) is not functools.partial:
        return call_instance(vm, fn, args, kwargs)
    plain = vm.effects.plain
    func, first, named = vm.load_attr(fn, "func"), vm.load_attr(fn, "args"), vm.load_attr(fn, "keywords")
    return vm.call(func, (*plain(first), *args), {**plain(named), **kwargs})


@CALL(staticmethod)
def call_static(vm: Interpreter, fn: staticmethod[..., object], args: Args, kwargs: Kwargs) -> object:
    """Call a staticmethod object."""
    return vm.call(fn.__func__, args, kwargs)


@CALL(weakref.ref)
def call_weakref(vm: Interpreter, fn: weakref.ref[object], args: Args, kwargs: Kwargs) -> object:
    """Call a weak reference: returns its object, or None if the object is dead."""
    source = vm.source_of(fn)
    value = fn()
    if _is_kept_by_capture(vm, value) and not vm.finalizers.is_reached(value):
        why = "Python knows whether it still lives"
        raise Break(f"a weak reference to a {type(value).__name__} is called", why, in_frame=True)
    return value if source is None else vm.external(value, sources.called(source, referent, "referent"))


def _is_kept_by_capture(vm: Interpreter, value: object) -> bool:
    """Whether capture itself keeps the object of a weak reference alive: the frame made it, or a variable holds it."""
    source = vm.source_of(value)
    if source is not None:
        return source.kind == native.LOCAL and isinstance(value, torch.Tensor)
    return value is not None and not isinstance(value, (type, types.ModuleType))


@CALL(object)
def call_instance(vm: Interpreter, obj: Any, args: Args, kwargs: Kwargs) -> object:
    """Call an instance of a class with `__call__`."""
    method = find_in_class(vm, type(obj), "__call__")
    if isinstance(method, types.FunctionType):
        return vm.call(method, (obj, *args), kwargs)
    if callable(obj) and not is_external(vm, obj):
        if any(type(value) in COMPUTED for value in (*args, *kwargs.values())):
            raise Break(f"a call of a {type(obj).__name__}", "C code may keep a value that stands for another")
        return call_native(vm, obj, args, kwargs)
    if not callable(obj):
        kind, shown = type(obj), vm.type_of(obj)
        if shown is not kind:  # the class of the stand-in has another name
            user_raise(TypeError(f"{shown.__name__!r} object is not callable"))
        return user(obj, *args, **kwargs)
    raise Break(f"a call of a {type(obj).__name__}", "it was made outside of the function and runs C code")


@CALL(*NUMPY_FUNCTIONS)
def call_numpy(vm: Interpreter, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """Call a NumPy function on plain data: the result is a constant or a prologue value."""
    if not all(map(_is_plain, (*args, *kwargs.values()))):
        raise Break(f"a call of numpy.{fn.__name__}", "it computes with values that are not known yet")
    return call_native(vm, fn, args, kwargs)


def _is_plain(value: object) -> bool:
    return type(value) in LEAVES or isinstance(value, (list, tuple)) and all(map(_is_plain, value))


# -- C functions ---------------------------------------------

C_FUNCTIONS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
    types.ClassMethodDescriptorType,
)

_HASHABLE_CALLABLES = (*C_FUNCTIONS, type, types.FunctionType)
"""Callables that may be looked up in tables; others may define `__eq__` and `__hash__`."""

SAFE_MODULES = frozenset(
    {"builtins", "operator", "_operator", "math", "cmath", "itertools", "functools", "_functools", "collections"}
    | {"_collections", "_sre", "_abc", "_weakref", "_struct", "_bisect", "_heapq", "_statistics", "_typing"}
    | {"_warnings", "binascii", "_string", "unicodedata", "_contextvars", "types", "_codecs", "numpy"}
    | {"collections.abc", "_json", "_datetime"}
)


@CALL(*C_FUNCTIONS)
def call_builtin(vm: Interpreter, fn: Any, args: Args, kwargs: Kwargs) -> object:
    """Call a C function or a method written in C."""
    key = id(fn)
    if key in CONSTANTS:
        return CONSTANTS[key]
    meaning = SPECIAL.get(key)
    if meaning is not None:
        return meaning(vm, args, kwargs)
    owner = getattr(fn, "__self__", None)
    kind = type(fn)
    if kind in C_METHODS:
        return _call_descriptor(vm, fn, args, kwargs)
    if owner is not None and (isinstance(owner, type) or is_bound(fn)):
        return _call_bound(vm, fn, owner, args, kwargs)
    if is_torch_builtin(fn):
        return call_torch(vm, fn, args, kwargs)
    return call_native(vm, fn, args, kwargs)


def _call_descriptor(vm: Interpreter, fn: MethodOfC, args: Args, kwargs: Kwargs) -> object:
    """Call a method descriptor of a C class: `type.method(obj, ...)`."""
    if args and type(args[0]) is TraceTensor and issubclass(TENSOR_TYPES[0], fn.__objclass__):
        if fn.__objclass__ is not object:
            return call_tensor_method(vm, fn.__name__, args, kwargs)
    meaning = SPECIAL.get(id(fn))
    if meaning is not None:
        return meaning(vm, args, kwargs)
    if args and id(args[0]) in vm.sources:
        return call_on_external(vm, fn, args[0], args[1:], kwargs)
    return call_native(vm, fn, args, kwargs)


def _call_bound(vm: Interpreter, fn: BoundMethodOfC, owner: object, args: Args, kwargs: Kwargs) -> object:
    """Call a bound C method."""
    if type(owner) is TraceTensor:
        return call_tensor_method(vm, fn.__name__, (owner, *args), kwargs)
    if isinstance(owner, type):
        # `super()` may have returned a wrapper
        classes = (fn.__objclass__,) if type(fn) is types.MethodWrapperType else inspect.getmro(owner)
        raw = next((vars(b)[fn.__name__] for b in classes if fn.__name__ in vars(b)), None)
        meaning = SPECIAL.get(id(raw))
        if meaning is not None:
            return meaning(vm, (owner, *args) if type(raw) is types.ClassMethodDescriptorType else args, kwargs)
        return call_torch(vm, fn, args, kwargs) if is_torch_builtin(fn) else call_native(vm, fn, args, kwargs)
    raw = next((vars(b)[fn.__name__] for b in type(owner).__mro__ if fn.__name__ in vars(b)), None)
    meaning = SPECIAL.get(id(raw))
    if meaning is not None:
        return meaning(vm, (owner, *args), kwargs)
    if id(owner) in vm.sources:
        return call_on_external(vm, raw if raw is not None else fn, owner, args, kwargs)
    return call_native(vm, fn, args, kwargs)


_LOGGING_LOCK = logging._lock  # type: ignore[attr-defined]


def call_on_external(
    vm: Interpreter, fn: MethodOfC | BoundMethodOfC, owner: object, args: Args, kwargs: Kwargs
) -> object:
    """Call a C method of an external object: a builtin container is replaced by its mirror, other objects are
    refused.
    """
    if isinstance(owner, CONTAINERS) or is_shown(owner):
        return call_native(vm, fn, (owner, *args), kwargs)
    if getattr(fn, "__objclass__", None) in (object, type, BaseException):
        return call_native(vm, fn, (owner, *args), kwargs)
    if owner is _LOGGING_LOCK:  # logging acquires and releases it around access to its tables
        return user(fn, owner, *args, **kwargs)
    name = f"{type(owner).__name__}.{fn.__name__}"
    raise Break(f"a call of {name}", "the object was made outside of the function, and the method runs C code on it")


def _refuse_unknown_c(fn: types.BuiltinFunctionType) -> None:
    """Refuse C functions of unknown modules, except methods."""
    module = module_name(getattr(fn, "__module__", None))
    if not module or module.split(".")[0] in _SAFE_ROOTS:
        return
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, (types.ModuleType, type(None))) and fn.__name__ not in _TEXT_FUNCTIONS:
        raise Break(f"a call of {module}.{fn.__name__}", "C code that capture does not know")


def _refuse_unknown_arguments(vm: Interpreter, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> None:
    """Refuse arguments whose state during capture C code must not read."""
    if _consumes(fn):
        vm.effects.refuse_iterators(args)
        for value in args:
            vm.effects.refuse_unguarded(value)
    if not _only_stores(fn):
        vm.effects.refuse_opaque(fn, args)
        vm.effects.refuse_opaque(fn, kwargs.values())


def _with_callbacks(vm: Interpreter, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments, with trampolines in place of functions that C code calls."""
    called = CALLERS[fn] if fn is not iter or len(args) == 2 else -1
    args = tuple(callback(vm, a, fn is re.sub) if at == called else a for at, a in enumerate(args))
    return args, {k: callback(vm, v) if k in _FUNCTION_KEYWORDS else v for k, v in kwargs.items()}


def call_native(vm: Interpreter, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """Run a C function, or a function that depends only on its arguments, on the captured values."""
    if fn is numpy.frompyfunc or fn is numpy.vectorize.__init__:
        refuse_frame_function(vm, fn, (*args, *kwargs.values()))
    if is_numpy(fn) and not isinstance(fn, type) and not has_symint((*args, *kwargs.values())):
        return vm.prologue.run(fn, args, kwargs)
    if isinstance(fn, types.BuiltinFunctionType):
        _refuse_unknown_c(fn)
    refuse_past_order(fn, args)
    args, kwargs = _arguments_for_c(vm, fn, args, kwargs)
    _refuse_unknown_arguments(vm, fn, args, kwargs)
    if fn in CALLERS:
        args, kwargs = _with_callbacks(vm, fn, args, kwargs)
    out = vm.native(fn, *args, **kwargs)
    if isinstance(out, numpy.ndarray):  # made of sizes, which NumPy took for plain numbers
        return vm.prologue.run(fn, args, kwargs)
    for changed in args[:1]:
        vm.effects.copies.give_back(changed)
    return vm.effects.original(vm.effects.copies.give_back(out))


def _arguments_for_c(vm: Interpreter, fn: Callable[..., object], args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments with external containers replaced by their mirrors, to the nesting depth that the function
    reads.
    """
    effects = vm.effects
    if returns_items(fn, kwargs):
        return tuple(map(effects.mirror, args)), {key: effects.mirror(value) for key, value in kwargs.items()}
    if type(fn) in C_METHODS and args and isinstance(args[0], CONTAINERS) and not isinstance(args[0], tuple):
        mirror, name = effects.mirror(args[0]), fn.__name__
        if name in _COMPARING_METHODS and effects.plain(mirror) is not mirror:
            raise Break(
                f"{name}() of a container that holds containers made outside of the function",
                "it compares them, and changes it",
            )
        if name not in _READING_METHODS:
            return (mirror, *(args[1:] if name in _STORING_METHODS else effects.plain_all(args[1:]))), effects.plain(
                kwargs
            )
    return effects.plain_all(args), effects.plain(kwargs)


def returns_items(fn: object, kwargs: Kwargs) -> bool:
    """Whether a C function returns items of a container unchanged, without reading their contents."""
    if isinstance(fn, type):
        return fn in _RETURNING_ITEMS or fn.__module__ == "itertools"
    return any(fn is each for each in _WITH_KEY) and kwargs.get("key") is not None


_RETURNING_ITEMS = classes(list, tuple, set, frozenset, collections.deque, enumerate, zip, map, filter, reversed)
_WITH_KEY = (sorted, min, max)
_TEXT_FUNCTIONS = frozenset({"_path_normpath", "_path_splitroot", "_path_splitroot_ex"})
"""Functions of the posix module that only process text."""
_STORING_METHODS = frozenset(
    {"append", "appendleft", "insert", "add", "setdefault", "__setitem__", "remove", "pop", "discard"}
)
"""Methods of containers that store their arguments uncopied."""
_READING_METHODS = frozenset(
    {"index", "count", *map("__{}__".format, "eq ne lt le gt ge contains repr str format".split())}
)
"""Methods that read the items of their container and change nothing."""
_COMPARING_METHODS = frozenset({"remove", "sort"})
"""Methods that read the items of their container and change the container."""
_SAFE_ROOTS = frozenset(name.split(".")[0] for name in SAFE_MODULES) | {"torch"}


_STORING = classes(functools.partial, types.MethodType, weakref.ref, staticmethod, classmethod, property, zip, map)
_MADE_OF = (list, dict, set, tuple, collections.deque, collections.OrderedDict)
_CONSUMING_OWNERS = classes(*_MADE_OF)
_STORING_OWNERS = classes(object, type, BaseException, *_MADE_OF)


def _only_stores(fn: object) -> bool:
    """Whether a C function only stores its arguments or compares their identities."""
    if isinstance(fn, types.FunctionType) or not isinstance(fn, _HASHABLE_CALLABLES):
        return isinstance(fn, types.FunctionType)
    owner = getattr(fn, "__objclass__", None) or getattr(fn, "__self__", None)
    return (
        fn in _STORING
        or owner in _STORING_OWNERS
        or isinstance(fn, type)
        and issubclass(fn, (BaseException, *_MADE_OF))
    )


def _consumes(fn: Callable[..., object]) -> bool:
    """Whether a function is a method of a container that may iterate its argument."""
    owner = getattr(fn, "__objclass__", None) or getattr(fn, "__self__", None)
    return owner in _CONSUMING_OWNERS and fn.__name__ not in _STORING_METHODS


def callback(vm: Interpreter, value: object, reads: bool = False) -> object:
    """A callable for C code: a trampoline back to the interpreter for all callables but int and float, which are called
    often.

    Args:
        reads: the C code reads the characters of a returned text.
    """
    return Trampoline(vm, value, reads) if callable(value) and value is not int and value is not float else value


CALLERS: ClassTable[int] = by_class(
    {
        **dict.fromkeys((map, filter, functools.reduce, itertools.starmap, itertools.takewhile, iter), 0),
        **dict.fromkeys((itertools.dropwhile, itertools.filterfalse), 0),
        **dict.fromkeys((re.sub, itertools.accumulate, itertools.groupby), 1),
        **dict.fromkeys((sorted, min, max, list.sort), -1),
    }
)
"""C functions that call one of their arguments, with the position of that argument (-1: none). Keyword arguments named
in `_FUNCTION_KEYWORDS` are called as well.
"""
_FUNCTION_KEYWORDS = ("key", "func")


class Trampoline:
    """A function that C code calls: each call interprets the function and returns a value that C code may read."""

    def __init__(self, vm: Interpreter, fn: object, reads: bool = False) -> None:
        self.vm, self.fn, self.reads = vm, fn, reads

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.vm.reenter(lambda: self._run(args, kwargs))

    def _run(self, args: Args, kwargs: Kwargs) -> object:
        out = self.vm.effects.plain(self.vm.call(self.fn, args, kwargs))
        if self.reads:
            refuse_unknown((out,))
        return out
