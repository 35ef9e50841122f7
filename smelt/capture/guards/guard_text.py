"""The text of guards: Python expressions with the variable names of the captured function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import CodeType, ModuleType

import torch

from smelt.base.class_tables import isinstance
from smelt.base.torch_c import without_torch_function
from smelt.capture import _native as native
from smelt.capture.core.sources import Source
from smelt.graph.ir.meta import meta_of

_MAX_TEXT_LENGTH = 200

_PATTERNS = {
    native.IS: "{0} is {1}",
    native.IS_NOT: "{0} is not {1}",
    native.TYPE_IS: "type({0}) is {1}",
    native.EQ: "{0} == {1}",
    native.LEN: "len({0}) == {1}",
    native.DICT_KEYS: "tuple({0}) == {1}",
    native.HAS_KEY: "{1} in {0}",
    native.NOT_KEY: "{1} not in {0}",
    native.WEAK_IS: "{0} is {1}",
    native.TENSOR: "tensor {0}: {1}",
}


def guard_text(kind: int, subject: Source | None, operand: object, sources: Sequence[Source]) -> str:
    """The Python expression of one check.

    Args:
        subject: the source of the checked value; None for checks of modes and settings.
        sources: the source of each fetch; an operand that refers to another fetch is an index into this.
    """
    own = _OWN.get(kind)
    if own is not None:
        return own(subject, operand, sources)
    assert subject is not None
    return _PATTERNS[kind].format(subject.text, value_text(operand))


def _range(subject: Source, operand: tuple[object, object], sources: Sequence[Source]) -> str:
    return f"{operand[0]} <= {subject.text} <= {operand[1]}"


def _missing(subject: Source, operand: object, sources: Sequence[Source]) -> str:
    if subject.base is None:
        return f"{subject.text} is not set"
    if subject.kind in (native.CLASS_ATTR, native.SLOT):
        name = subject.key if subject.kind == native.CLASS_ATTR else subject.key.__name__
        return f"not hasattr({subject.base.text}, {name!r})"
    if subject.kind == native.DICT_ITEM_OR_MISSING:
        return f"{subject.key!r} not in {subject.base.text}"
    return f"{subject.text} is not set"


def _module(subject: Source, operand: tuple[bool | None, tuple[str, ...]], sources: Sequence[Source]) -> str:
    training, names = operand
    conditions = [] if training is None else [f"{subject.text}.training is {training}"]
    conditions += [f"not {subject.text}.{name}" for name in names]
    return " and ".join(conditions)


def _state(subject: object, operand: tuple[object, ...], sources: Sequence[Source]) -> str:
    named = zip(native.state_names(), operand, strict=False)  # bytes: raw dispatch keys, which repeat the modes
    return f"modes are { ({name: value for name, value in named if not isinstance(value, bytes)}) }"


def _python(subject: Source | None, operand: object, sources: Sequence[Source]) -> str:
    if isinstance(operand, tuple):
        fn, indices = operand[:2]
        name, given = getattr(fn, "__name__", repr(fn)), ", ".join(sources[i].text for i in indices)
        return name if " == " in name or " <= " in name else f"{name}({given})"
    name = getattr(operand, "__name__", repr(operand))
    return name if subject is None else f"{name}({subject.text})"


def _function(subject: Source, operand: tuple[object, object, object], sources: Sequence[Source]) -> str:
    code, defaults, named = operand
    given = {"__code__": code, "__defaults__": defaults, "__kwdefaults__": named}
    return " and ".join(f"{subject.text}.{name} is {value_text(value)}" for name, value in given.items())


_OWN: dict[int, Callable[..., str]] = {
    native.RANGE: _range,
    native.MISSING: _missing,
    native.MODULE: _module,
    native.STATE: _state,
    native.PYTHON: _python,
    native.FUNCTION: _function,
    native.NO_FINALIZER: lambda subject, operand, sources: f"nothing runs when {subject.text} dies",
    native.ALIASED: lambda subject, operand, sources: f"{subject.text} is {sources[operand].text}",
    native.NOT_ALIASED: lambda subject, operand, sources: f"{subject.text} is not {sources[operand].text}",
    native.NONE_ALIASED: lambda subject, operand, sources: (
        f"all different: {', '.join(sources[i].text for i in operand)}"
    ),
}


def value_text(value: object) -> str:
    """A short text of a value: its name if it has one, else its `repr`, cut to `_MAX_TEXT_LENGTH`."""
    if isinstance(value, str) and isinstance(value, TensorText):
        return str(value)
    if isinstance(value, torch.Tensor):
        with without_torch_function():  # so that no `__torch_function__` is called
            return f"a tensor {meta_of(value)}"
    if isinstance(value, CodeType):
        return f"<code of {value.co_qualname}, {value.co_filename}:{value.co_firstlineno}>"
    if isinstance(value, ModuleType):
        return value.__name__
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str) and (isinstance(value, type) or callable(value)):
        return name
    try:
        with without_torch_function():
            text = repr(value)
    except Exception as error:  # the user's own __repr__
        return f"<{type(value).__qualname__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= _MAX_TEXT_LENGTH else text[: _MAX_TEXT_LENGTH - 3] + "..."


class TensorText(str):
    """The text of a tensor guard's operand. It replaces the example tensor, which is not kept alive."""
