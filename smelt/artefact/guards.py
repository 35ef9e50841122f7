"""Encodes and decodes guards: the fetched values, the checks of them, and the texts that describe each check.

Guards compare some objects by identity, and another process has other objects. Objects that are reached from the model,
the function or a module are read from there when the artefact is applied, and must have the recorded mark
(`references.mark`). Other objects are recorded by name.
"""

from __future__ import annotations

import functools
import json
import weakref
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from smelt.artefact.codec import Decoder, Encoder
from smelt.artefact.container import ArtefactError
from smelt.artefact.references import find, mark, reachable
from smelt.base.torch_c import inference_mode
from smelt.capture import _native as native
from smelt.capture.guards import questions
from smelt.capture.guards.flag import Flag

Slots = tuple[Any, ...]

_CONSTANTS = (type(None), bool, int, str, float, bytes)
_ROOTS = (native.GLOBALS, native.BUILTINS, native.FUNC, native.CONST, native.CLOSURE, native.CLOSURE_CELL)
_OBJECTS = (native.CONST, native.CALL, native.SLOT, native.WEAK)
"""Kinds of fetches whose keys are objects of the program."""
_BY_IDENTITY = (native.IS, native.IS_NOT, native.WEAK_IS)
_PLAIN_OPERANDS = (
    *(native.EQ, native.LEN, native.RANGE, native.DICT_KEYS, native.HAS_KEY, native.NOT_KEY, native.MISSING),
    *(native.ALIASED, native.NOT_ALIASED, native.NONE_ALIASED, native.STATE, native.MODULE, native.NO_FINALIZER),
    native.TYPE_IS,
)


class VersionGuards(NamedTuple):
    """The guards of a version, with a text for each check and for the source of each fetched value."""

    fetches: Sequence[tuple[int, int, Any]]
    checks: Sequence[tuple[int, int, Any]]
    outputs: Sequence[int]
    lines: Sequence[str]
    sources: Sequence[str]

    def texts(self) -> bytes:
        """The texts as bytes, for `Texts`."""
        return json.dumps([[*self.lines], [*self.sources]], separators=(",", ":")).encode()


class Texts:
    """The texts of a version's checks and of the sources of its fetched values, decoded when an error needs them.

    They are four fifths of the data of a large model's guards.

    Args:
        blobs, number: the blobs of the artefact, and the number of the blob with the texts.
    """

    def __init__(self, blobs: Sequence[bytes], number: int) -> None:
        self._data = blobs[number]

    @functools.cached_property
    def _both(self) -> tuple[list[str], list[str]]:
        lines, sources = json.loads(self._data)
        return lines, sources

    def line(self, check: int) -> str:
        """The check as a line of text, for errors."""
        return self._both[0][check]

    def source(self, fetch: int) -> str:
        """The source of a fetched value, as text."""
        return self._both[1][fetch]


class GuardWriter:
    """Encodes the guards of one version.

    Args:
        encode: encodes values.
        guards: the guards of the version.
        values: index of a fetch -> its value, for the fetches that do not depend on the arguments of a call.
    """

    def __init__(self, encode: Encoder, guards: VersionGuards, values: dict[int, Any]) -> None:
        self.encode, self.guards, self.values = encode, guards, values
        self.found: dict[str, Any] = {}
        self._first: dict[int, tuple[int, str]] = {}
        for index, value in sorted(values.items()):
            for path, each in reachable(value):
                self._first.setdefault(id(each), (index, path))

    def data(self) -> dict[str, Any]:
        """The guards as data.

        Raises:
            ArtefactError: a guard refers to an object without a name in another process.
        """
        fetches = [[p, kind, self._key(at, kind, key)] for at, (p, kind, key) in enumerate(self.guards.fetches)]
        checks = []
        for (index, kind, operand), line in zip(self.guards.checks, self.guards.lines, strict=True):
            try:
                checks.append([index, kind, self._operand(index, kind, operand)])
            except ArtefactError as error:
                raise ArtefactError(f"a guard cannot be kept in an artefact: {line}", why=error.what) from error
        return {"fetches": fetches, "checks": checks, "outputs": [*self.guards.outputs], "found": self.found}

    def _key(self, at: int, kind: int, key: Any) -> Any:
        if kind not in _OBJECTS:
            return self.encode(key)
        value = _alive(key) if kind == native.WEAK else key
        if type(value) in _CONSTANTS:
            return ["value", self.encode(value)]
        try:
            return ["name", self.encode.names(value)]
        except ArtefactError:
            first, path = self._first.get(id(value), (at, ""))
            if first >= at:
                raise
            self._adopted(first)
            return ["fetched", first, path]  # the value of an earlier fetch, or a function that it wraps

    def _operand(self, index: int, kind: int, operand: Any) -> Any:
        if kind in _BY_IDENTITY:
            value = _alive(operand) if kind == native.WEAK_IS else operand
            return self._same(index, value, kind == native.IS_NOT)
        if kind == native.FUNCTION:
            return self._adopted(index)
        if kind == native.TENSOR:
            return tensor_data(self.encode, operand)
        if kind == native.PYTHON:
            return self._question(operand)
        if kind in _PLAIN_OPERANDS:
            return self.encode(operand)
        raise ArtefactError(f"guards of kind {native.CHECK_NAMES[kind]}")

    def _same(self, index: int, value: Any, unlike: bool) -> Any:
        if value is native.NULL:
            return ["null"]
        if type(value) in (type(None), bool):
            return ["value", value]
        if not unlike and index in self.values and self.values[index] is value:
            return self._adopted(index)
        if type(value) in (int, str, torch.dtype):
            return ["value", self.encode(value)]
        return ["name", self.encode.names(value)]

    def _adopted(self, index: int) -> Any:
        if index not in self.values:
            raise ArtefactError("it is about an argument that is a function or an object")
        self.found[str(index)] = mark(self.values[index])
        return ["found"]

    def _question(self, operand: Any) -> Any:
        if isinstance(operand, Flag):
            return ["flag", self.encode.names(operand.fn), self.encode(operand.args), self.encode(operand.value)]
        fn, indices, more = (*operand, None)[:3] if isinstance(operand, tuple) else (operand, None, None)
        reader_arguments = getattr(fn, "reader_arguments", None)
        if reader_arguments is not None:
            return ["sizes", *reader_arguments, fn.__name__, self.encode(indices), self.encode(more)]
        if getattr(fn, "__module__", None) != questions.__name__:
            raise ArtefactError("it is asked by a function that belongs to the capture")
        return ["asked", fn.__name__, self.encode(indices), self.encode(more)]


def hash_order() -> Flag:
    """The check that strings have the hashes of this process, which determine the order of sets."""
    return Flag(hash, ("smelt",), hash("smelt"))


def tensor_data(encode: Encoder, spec: native.TensorSpec) -> Any:
    """The data of a TENSOR check, from which `tensor_spec` rebuilds the check.

    Raises:
        ArtefactError: the check is for a subclass of tensors, or for a tensor that was made in a mode.
    """
    meta = [encode(each) for each in (spec.dtype, spec.device, spec.requires_grad, spec.shape, spec.stride)]
    data = [spec.type is torch.nn.Parameter, *meta, encode(spec.order)]
    if spec.type not in (torch.Tensor, torch.nn.Parameter):
        raise ArtefactError(f"a tensor of class {spec.type.__qualname__}")
    for inference in (False, True):
        rebuilt = tensor_spec(Decoder({}, ()), [*data, inference])
        if repr(rebuilt) == repr(spec) and rebuilt.keys == spec.keys:
            return [*data, inference]
    raise ArtefactError(f"a tensor that is no plain one: {spec!r}")


def tensor_spec(decode: Decoder, data: Any) -> native.TensorSpec:
    """Rebuild a TENSOR check from the data of `tensor_data`."""
    parameter, *meta, inference = data
    dtype, device, requires_grad, shape, stride, order = map(decode, meta)
    with inference_mode(bool(inference)):
        example = torch.empty((0,) * len(shape), dtype=dtype, device=device)
        if parameter:
            example = torch.nn.Parameter(example, bool(requires_grad))
        elif requires_grad:
            example.requires_grad_()
    more = {} if order is None else {"order": order}
    return native.TensorSpec(example, shape=shape, stride=stride, requires_grad=requires_grad, **more)


def stable(fetches: Sequence[tuple[int, int, Any]], slot: int | None) -> list[int]:
    """The indices of the fetches that do not depend on the arguments of a call.

    Args:
        slot: the argument slot of the model, or of the tuple of arguments that begins with the model; None without one.
    """
    out: set[int] = set()
    for index, (parent, kind, key) in enumerate(fetches):
        if parent >= 0:
            found = parent in out
            if not found and fetches[parent][1] == native.LOCAL and fetches[parent][2] == slot:
                found = kind == native.TUPLE_ITEM and key == 0
        else:
            found = kind in _ROOTS or (kind == native.LOCAL and key == slot)
        if found and kind not in (native.SIZE, native.CALL, native.WEAK):
            out.add(index)
    return sorted(out)


def values_of(
    fetches: Sequence[tuple[int, int, Any]], wanted: Sequence[int], slots: Slots, function: Any
) -> dict[int, Any]:
    """Index -> present value of the fetches `wanted`; fetches that fail are left out."""
    values_read = _fetched(fetches, wanted, slots, function)
    if values_read is not None:
        return dict(zip(wanted, values_read, strict=True))
    alone = ((index, _fetched(fetches, [index], slots, function)) for index in wanted)
    return {index: found[0] for index, found in alone if found is not None}


def _fetched(
    fetches: Sequence[tuple[int, int, Any]], wanted: Sequence[int], slots: Slots, function: Any
) -> tuple[Any, ...] | None:
    needed = set(wanted)
    for index in range(len(fetches) - 1, -1, -1):  # parents come before children
        if index in needed and fetches[index][0] >= 0:
            needed.add(fetches[index][0])
    order = {index: position for position, index in enumerate(sorted(needed))}
    path = [(order.get(fetches[index][0], -1), *fetches[index][1:]) for index in order]
    found = native.Guards(path, [], [order[index] for index in wanted])
    return found.check(slots, function.__globals__, function)


class GuardReader:
    """Decodes the guards of one version.

    Args:
        decode: decodes values.
        data: the result of `GuardWriter.data`.
        texts: the texts of the same guards, for errors.
        slots: the argument slots of a call, of which only the model's is filled.
        function: the function of the frame.
    """

    def __init__(self, decode: Decoder, data: dict[str, Any], texts: Texts, slots: Slots, function: Any) -> None:
        self.decode, self.data, self.texts, self.slots, self.function = decode, data, texts, slots, function
        self.fetches: list[tuple[int, int, Any]] = []
        self.values: dict[int, Any] = {}
        self._marks: dict[int, Any] = {}
        for parent, kind, key in data["fetches"]:
            self.fetches.append((parent, kind, self._key(kind, key)))
        self._read(sorted(map(int, data["found"])))

    def _read(self, wanted: Sequence[int]) -> None:
        """Read objects from the model, the function and modules, and compare their marks with the recorded ones.

        Raises:
            ArtefactError: an object is missing or has another mark.
        """
        self.values |= values_of(self.fetches, wanted, self.slots, self.function)
        for index in wanted:
            self._compare(index, self.data["found"][str(index)])

    def _compare(self, index: int, before: Any) -> None:
        if index not in self.values:
            why = f"what it reads is not there: {self._line(index)}"
            raise ArtefactError("the artefact was made for another model", why=why)
        value = self.values[index]
        now = self._marks.get(id(value)) or self._marks.setdefault(id(value), mark(value))
        if now != before:
            what = f"{before[0]} {before[2] if len(before) > 2 else before[-1]}"
            changed = now[:3] == before[:3]
            why = f"{what} {'has another source now' if changed else f'is now {now[0]} {now[-1]}'}: {self._line(index)}"
            raise ArtefactError("the artefact was made for another model", why=why[:1000], hint="make it again")

    def _line(self, index: int) -> str:
        """The text of the first guard that checks the object of fetch `index`, for errors; "" if no guard does."""
        return next(
            (self.texts.line(number) for number, check in enumerate(self.data["checks"]) if check[0] == index), ""
        )

    def guards(self) -> native.Guards:
        """The guards in the form that the frame hook evaluates."""
        checks = [(index, kind, self._operand(index, kind, operand)) for index, kind, operand in self.data["checks"]]
        return native.Guards(self.fetches, checks, self.data["outputs"])

    def _key(self, kind: int, key: Any) -> Any:
        if kind not in _OBJECTS:
            return self.decode(key)
        match key:
            case ["fetched", int(index), str(path)] if 0 <= index < len(self.fetches):
                if index not in self.values:
                    self._read([index])
                value = attrgetter(path)(self.values[index]) if path else self.values[index]
            case ["value", data]:
                value = self.decode(data)
            case ["name", name]:
                value = find(name, self.decode.anchors)
            case _:
                raise ArtefactError(f"an artefact holds what is no guard: {str(key)[:100]}")
        return weakref.ref(value) if kind == native.WEAK else value

    def _operand(self, index: int, kind: int, data: Any) -> Any:
        if kind in _BY_IDENTITY:
            value = self._same(index, data)
            return weakref.ref(value) if kind == native.WEAK_IS else value
        if kind == native.FUNCTION:
            fn = self.values[index]
            return fn.__code__, fn.__defaults__, fn.__kwdefaults__
        if kind == native.TENSOR:
            return tensor_spec(self.decode, data)
        if kind == native.PYTHON:
            return self._question(data)
        return self.decode(data)

    def _same(self, index: int, data: Any) -> Any:
        match data:
            case ["null"]:
                return native.NULL
            case ["found"]:
                return self.values[index]
            case ["value", value]:
                return self.decode(value)
            case ["name", name]:
                return find(name, self.decode.anchors)
        raise ArtefactError(f"an artefact holds what is no guard: {str(data)[:100]}")

    def _question(self, data: Any) -> Any:
        match data:
            case ["flag", name, args, value]:
                return Flag(find(name, self.decode.anchors), self.decode(args), self.decode(value))
            case ["asked", str(name), indices, more]:
                return _given(getattr(questions, name), self.decode(indices), self.decode(more))
            case ["sizes", names, str(text), str(shown), indices, more]:
                return _given(_sizes(names, text, shown), self.decode(indices), self.decode(more))
        raise ArtefactError(f"an artefact holds what is no guard: {str(data)[:100]}")


def _given(fn: Callable[..., bool], indices: Any, more: Any) -> Any:
    if indices is None:
        return fn
    return (fn, indices) if more is None else (fn, indices, more)


def _sizes(names: Sequence[str], text: str, shown: str) -> Callable[..., bool]:
    scope: dict[str, Any] = {}
    exec(f"def sizes({', '.join(names)}):\n    return {text}\n", scope)
    scope["sizes"].__name__ = shown
    fn: Callable[..., bool] = scope["sizes"]
    return fn


def _alive(reference: Any) -> Any:
    value = reference()
    if value is None:
        raise ArtefactError("what it refers to weakly is gone")
    return value
