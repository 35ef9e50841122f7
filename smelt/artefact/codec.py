"""Encodes values of the plan of a call as JSON and decodes them: a closed list of kinds; other values are refused.

`None`, booleans, whole numbers and text are encoded as they are; other values as a list that begins with their kind.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.artefact.container import ArtefactError, Blobs
from smelt.artefact.references import Names, find
from smelt.autograd.trace import plan
from smelt.base.torch_private import OpOverload
from smelt.graph.ir.gradient_marks import Choice, Flow
from smelt.graph.ir.meta import TensorMeta
from smelt.graph.ir.storage_view import Step
from smelt.shapes.assumptions import Assumptions
from smelt.shapes.size import Division, Factor, Modulo, Size, Symbol

RECORDS: dict[str, tuple[type, tuple[str, ...]]] = {
    cls.__name__: (cls, tuple(f.name for f in dataclasses.fields(cls)))
    for cls in (
        *(plan.Fresh, plan.SameInput, plan.View, plan.Repeated, plan.Constant, plan.Mutation),
        *(plan.SparseGradient, plan.SizeInput, TensorMeta),
    )
} | {cls.__name__: (cls, cls._fields) for cls in (plan.Derived, plan.InvalidHistory)}
"""Name of a record class -> the class and the names of its fields, which are encoded in order."""

_TORCH = (torch.dtype, torch.layout, torch.memory_format)
_PLAIN = (type(None), bool, int, str)


class Encoder:
    """Encodes values as JSON. The symbols of sizes in one encoder belong to one graph.

    Args:
        names: finds names for objects of the program.
        blobs: stores the bytes of values.
    """

    def __init__(self, names: Names, blobs: Blobs) -> None:
        self.names, self.blobs = names, blobs

    def __call__(self, value: Any) -> Any:
        """Encode one value.

        Raises:
            ArtefactError: the value has none of the known kinds, and no name.
        """
        kind = type(value)
        if kind in _PLAIN:
            return value
        known = _ENCODED.get(kind)
        if known is not None:
            return known(self, value)
        record = RECORDS.get(kind.__name__)
        if record is not None and record[0] is kind:
            return ["record", kind.__name__, [self(getattr(value, name)) for name in record[1]]]
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, Exception):
            return ["error", self.names(kind), self([*value.args])]
        return ["ref", self.names(value)]

    def many(self, values: Any) -> list[Any]:
        """Encode each of several values."""
        return [self(value) for value in values]

    def factor(self, value: Factor) -> Any:
        """Encode one factor of a symbolic size.

        Raises:
            ArtefactError: the factor is an unbacked size.
        """
        if isinstance(value, Division):
            return ["mod" if isinstance(value, Modulo) else "div", self(value.of), self(value.by)]
        assert isinstance(value, Symbol)
        if value.origin is not None:
            raise ArtefactError("a data-dependent size", hint="use fixed sizes there")
        return ["symbol", value.name, value.hint, value.low, value.high, value.wide]

    def _size(self, value: Size) -> Any:
        return ["size", [[list(map(self.factor, monomial)), times] for monomial, times in value.terms]]

    def _set(self, value: Any) -> Any:
        return [type(value).__name__, *sorted(self.many(value), key=json.dumps)]

    def _step(self, value: Step) -> Any:
        if value.data is not None:
            raise ArtefactError("a result that is the .data of another tensor", hint="use .detach()")
        return ["step", *map(self, (value.op, value.args, value.kwargs, value.index, value.grad))]

    def _flow(self, value: Flow) -> Any:
        choices = [[c.visited, self(c.entries), self(c.patterns), c.edges, self(c.gives)] for c in value.choices]
        return ["flow", value.count, choices]

    def _tensor(self, value: torch.Tensor) -> Any:
        if type(value) is not torch.Tensor or value.layout != torch.strided or value.device.type != "cpu":
            raise ArtefactError(f"a constant of class {type(value).__name__} on {value.device}")
        flat = value.detach().contiguous().reshape(-1).view(torch.uint8)
        number = self.blobs.number(bytes(flat.numpy().tobytes()))
        return ["tensor", number, str(value.dtype).removeprefix("torch."), [*value.shape], [*value.stride()]]


_ENCODED: dict[type, Callable[[Encoder, Any], Any]] = {
    float: lambda _, v: ["float", v.hex()],
    complex: lambda _, v: ["complex", v.real.hex(), v.imag.hex()],
    bytes: lambda _, v: ["bytes", base64.b64encode(v).decode()],
    tuple: lambda e, v: ["tuple", *e.many(v)],
    list: lambda e, v: ["list", *e.many(v)],
    dict: lambda e, v: ["dict", *([e(key), e(item)] for key, item in v.items())],
    set: Encoder._set,
    frozenset: Encoder._set,
    slice: lambda e, v: ["slice", *e.many((v.start, v.stop, v.step))],
    range: lambda e, v: ["range", v.start, v.stop, v.step],
    torch.Size: lambda e, v: ["shape", *e.many(v)],
    torch.device: lambda _, v: ["device", str(v)],
    **{kind: lambda _, v: ["torch", str(v).removeprefix("torch.")] for kind in _TORCH},
    OpOverload: lambda _, v: ["op", *str(v).split(".")],
    Size: Encoder._size,
    Symbol: Encoder.factor,
    Step: Encoder._step,
    Flow: Encoder._flow,
}


class Decoder:
    """Decodes values that an `Encoder` has encoded.

    Args:
        anchors: objects of the program from which names are resolved.
        blobs: the bytes of values, by number.
    """

    def __init__(self, anchors: dict[str, Any], blobs: Sequence[bytes]) -> None:
        self.anchors, self.blobs = anchors, blobs
        self.owner = Assumptions()
        self.symbols: dict[str, Symbol] = {}

    def __call__(self, data: Any) -> Any:
        """Decode one value.

        Raises:
            ArtefactError: the JSON encodes no value, or names an object that does not exist in this process.
        """
        if type(data) in _PLAIN:
            return data
        try:
            kind, *rest = data
            return _DECODED[kind](self, *rest)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise ArtefactError(f"an artefact holds what is none of its values: {str(data)[:100]}") from error

    def many(self, data: Any) -> list[Any]:
        """Decode each of several values."""
        return [self(each) for each in data]

    def _error(self, name: Any, args: Any) -> Exception:
        cls = find(name, self.anchors)
        if not isinstance(cls, type) or not issubclass(cls, Exception):
            raise ValueError("an error of no class of errors")
        made: Exception = cls(*self(args))
        return made

    def _record(self, name: str, fields: list[Any]) -> Any:
        cls, names = RECORDS[name]
        return cls(**dict(zip(names, self.many(fields), strict=True)))

    def _size(self, terms: Any) -> Size:
        return Size(tuple((tuple(map(self, monomial)), int(times)) for monomial, times in terms))

    def _symbol(self, name: str, hint: int, low: int, high: int | None, wide: bool) -> Symbol:
        if name not in self.symbols:
            self.symbols[name] = Symbol(name, hint, self.owner, low, high, None, wide)
        return self.symbols[name]

    def _step(self, op: Any, args: Any, kwargs: Any, index: Any, grad: Any) -> Step:
        step = Step(*map(self, (op, args, kwargs, index)))
        step.grad = grad
        return step

    def _flow(self, count: int, choices: Any) -> Flow:
        flow = Flow(count)
        for visited, entries, patterns, edges, gives in choices:
            choice = Choice(visited, self(entries), self(patterns), edges)
            choice.gives = self(gives)
            flow.add(choice)
        return flow

    def _tensor(self, number: int, dtype: str, shape: list[int], stride: list[int]) -> torch.Tensor:
        kind = _of_torch(dtype)
        if not self.blobs[number]:
            return torch.empty_strided(shape, stride, dtype=kind, device="cpu")
        flat = torch.frombuffer(bytearray(self.blobs[number]), dtype=torch.uint8).view(kind).reshape(shape)
        return torch.empty_strided(shape, stride, dtype=kind, device="cpu").copy_(flat)


def _of_torch(name: str) -> Any:
    found = getattr(torch, name)
    if not isinstance(found, _TORCH):
        raise ValueError(name)
    return found


def _operator(namespace: str, name: str, overload: str) -> Any:
    found = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    if not isinstance(found, OpOverload):
        raise ValueError(name)
    return found


_DECODED: dict[str, Callable[..., Any]] = {
    "float": lambda _, v: float.fromhex(v),
    "complex": lambda _, real, imag: complex(float.fromhex(real), float.fromhex(imag)),
    "bytes": lambda _, v: base64.b64decode(v, validate=True),
    "tuple": lambda d, *v: tuple(d.many(v)),
    "list": lambda d, *v: d.many(v),
    "dict": lambda d, *v: {d(key): d(item) for key, item in v},
    "set": lambda d, *v: set(d.many(v)),
    "frozenset": lambda d, *v: frozenset(d.many(v)),
    "slice": lambda d, *v: slice(*d.many(v)),
    "range": lambda _, *v: range(*v),
    "shape": lambda d, *v: torch.Size(d.many(v)),
    "device": lambda _, v: torch.device(v),
    "torch": lambda _, v: _of_torch(v),
    "op": lambda _, *v: _operator(*v),
    "size": Decoder._size,
    "symbol": Decoder._symbol,
    "div": lambda d, of, by: Division(d(of), d(by), d.owner),
    "mod": lambda d, of, by: Modulo(d(of), d(by), d.owner),
    "step": Decoder._step,
    "flow": Decoder._flow,
    "record": Decoder._record,
    "tensor": Decoder._tensor,
    "error": Decoder._error,
    "ref": lambda d, name: find(name, d.anchors),
}
