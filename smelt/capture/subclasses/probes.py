"""Probes: real tensors by which torch's own C code tells which call of `__torch_function__` it would make.

Torch decides in C which function object it passes on (`x + 1` becomes `torch.Tensor.add`), with which arguments, and
in which order it asks the classes. Capture runs the same C code on probes, whose `__torch_function__` records the call
and leaves the C code by an exception.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._pytree import PyTree

from smelt.base import torch_c
from smelt.base.class_tables import ByIdentity
from smelt.capture.core.interface import Args
from smelt.graph.trace.trace import TraceTensor


@dataclass
class Dispatch:
    """A call of `__torch_function__` that torch makes.

    Attributes:
        classes: the classes that torch asks, in order.
        func: the function that is called, as torch names it.
        given: the arguments after the class: func, types, args, and in some cases kwargs.
    """

    classes: tuple[type, ...]
    func: PyTree
    given: Args


class _Reached(BaseException):
    def __init__(self, given: Args) -> None:
        super().__init__()
        self.given = given


class _Probe(torch.Tensor):
    """Base of the classes of probes.

    Attributes:
        stands_for: the program's class.
        refuses: whether the probe answers NotImplemented instead of recording the call.
    """

    stands_for: weakref.ref[type]
    refuses = False

    @classmethod
    def __torch_function__(cls, *given: PyTree, **named: PyTree) -> PyTree:
        if _Probe.refuses:
            return NotImplemented
        raise _Reached((*given, *named.values()))


_classes: ByIdentity[type, type] = ByIdentity()


def _probe_class(cls: type) -> type:
    """The class of probes for a class of the program; its bases correspond, as torch asks subclasses first."""
    known = _classes.get(cls)
    if known is None:
        bases = tuple(_probe_class(base) for base in cls.__bases__ if _is_tensor_class(base)) or (_Probe,)
        named = {"stands_for": weakref.ref(cls), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
        make: PyTree = type(torch.Tensor)
        known = make(cls.__name__, bases, named)
        _classes.put(cls, known)
    return known


def _is_tensor_class(cls: type) -> bool:
    plain = cls in torch.Tensor.__mro__ or cls is torch.nn.Parameter or cls is torch.nn.Buffer
    return issubclass(cls, torch.Tensor) and not plain


class _Exchange:
    """Replaces the tensors of the program's classes by probes, and back."""

    def __init__(self, class_of: Callable[[TraceTensor], type | None]) -> None:
        self._class_of = class_of
        self._probes: dict[int, torch.Tensor] = {}
        self._originals: dict[int, tuple[object, object]] = {}

    def probe(self, value: PyTree) -> PyTree:
        """The value with probes, also in lists, tuples and dictionaries."""
        kind = type(value)
        if kind is TraceTensor:
            return self._probe(value)
        if kind is list or kind is tuple:
            made: PyTree = kind([self.probe(each) for each in value])
        elif kind is dict:
            made = {key: self.probe(each) for key, each in value.items()}
        else:
            return value
        self._originals[id(made)] = value, made
        return made

    def _probe(self, tensor: TraceTensor) -> torch.Tensor:
        cls = self._class_of(tensor)
        if cls is None:
            return tensor
        if id(tensor) not in self._probes:
            like = torch.empty((1,) * tensor.dim(), dtype=tensor.dtype)
            probe: torch.Tensor = torch.Tensor._make_subclass(_probe_class(cls), like, tensor.requires_grad)
            self._probes[id(tensor)] = probe
            self._originals[id(probe)] = tensor, probe
        return self._probes[id(tensor)]

    def original(self, value: PyTree) -> PyTree:
        """The value with the program's tensors and containers in place of probes and copies."""
        found = self._originals.get(id(value))
        if found is not None:
            return found[0]
        kind = type(value)
        if kind is tuple or kind is list:
            return kind([self.original(each) for each in value])
        if kind is dict:
            return {key: self.original(each) for key, each in value.items()}
        return value


def _program_class(kind: type) -> type:
    """The program's class of a class of probes; any other class unchanged."""
    stands_for = kind.stands_for() if issubclass(kind, _Probe) else None
    return kind if stands_for is None else stands_for


def dispatch_of(
    class_of: Callable[[TraceTensor], type | None], fn: Callable[..., object], args: PyTree, kwargs: PyTree
) -> Dispatch | None:
    """The call of `__torch_function__` that torch makes for `fn(*args, **kwargs)`; None if it makes none.

    Args:
        class_of: the class of a tensor whose class has a `__torch_function__`; None for others.
    """
    exchange = _Exchange(class_of)
    probed, named = exchange.probe(tuple(args)), exchange.probe(dict(kwargs))
    try:
        with torch_c.with_torch_function():
            fn(*probed, **named)
    except _Reached as reached:
        func, types, *rest = reached.given
        classes = tuple(map(_program_class, types))
        return Dispatch(classes, func, (func, classes, *map(exchange.original, rest)))
    except Exception:
        return None  # the ordinary call raises the error
    return None


def refusal(
    class_of: Callable[[TraceTensor], type | None], fn: Callable[..., object], args: PyTree, kwargs: PyTree
) -> Exception:
    """The error that torch raises after every class has returned NotImplemented."""
    exchange = _Exchange(class_of)
    probed, named = exchange.probe(tuple(args)), exchange.probe(dict(kwargs))
    _Probe.refuses = True
    try:
        with torch_c.with_torch_function():
            fn(*probed, **named)
    except Exception as error:
        return error
    finally:
        _Probe.refuses = False
    return TypeError("no implementation found on types that implement __torch_function__")
