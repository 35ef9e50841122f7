"""Compares results of operators with the metadata from their fake kernels, which compiled code relies on.

A wrong shape, type or device is an error. Wrong strides only cause a warning: the result is copied into the strides
that the fake kernel gave. In strict mode (SMELT_STRICT) they are an error as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from smelt.base.errors import SmeltError, SmeltWarning
from smelt.base.options import environment


class Described(Protocol):
    """The metadata of a tensor that the fake kernel returned."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def stride(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> torch.dtype: ...


OF_TORCH = frozenset({"aten", "prims", "quantized"})
"""Namespaces of operators whose fake kernels are torch's own."""


def is_of_torch(name: str) -> bool:
    """Whether the fake kernel of an operator ("aten.sin.default") is torch's or smelt's, not a library's. A form of
    another operator ("smelt_forms.aten__normal___drawn.default") is treated as the operator from which it was made.
    """
    namespace, _, rest = name.partition(".")
    if namespace != "smelt_forms":
        return namespace in OF_TORCH
    of, separator, _ = rest.partition("__")
    return not separator or of in OF_TORCH


class WrongFake(SmeltError):
    """Raised when a library's operator returned a result whose metadata differs from its fake kernel's."""

    def __init__(self, name: str, got: str, described: str) -> None:
        super().__init__(
            f"{name} gives another result than its fake kernel says",
            why=f"{got}, and the fake kernel (register_fake) says {described}",
            hint="mend the function given to register_fake: shapes, types and strides are compiled from it",
        )


def check_results(
    name: str, result: Any, described: Sequence[Described], devices: Sequence[str], in_order: bool
) -> None:
    """Compare the results of an operator with the metadata from its fake kernel.

    Args:
        devices: device type of each result.
        in_order: whether to compare strides as well; only meaningful if the arguments had the strides that the fake
            kernel was given.

    Raises:
        WrongFake: the metadata differs.
    """
    results = tuple(_tensors(result))
    if len(results) < len(described):
        raise WrongFake(name, f"there are {len(results)} tensors among its results", f"{len(described)}")
    for at, (got, expected, device) in enumerate(zip(results, described, devices, strict=False)):
        if got.dtype is not expected.dtype or got.shape != expected.shape:
            raise WrongFake(name, f"result {at} is {_text(got)}", _text(expected))
        if got.layout is not torch.strided:
            raise WrongFake(name, f"result {at} has the layout {got.layout}", str(torch.strided))
        if got.device.type != device:
            raise WrongFake(name, f"result {at} is on {got.device}", device)
        if in_order and not in_same_order(got, expected):
            _other_strides(name, at, got.stride(), expected.stride)


def in_same_order(got: torch.Tensor, described: Described) -> bool:
    """Whether the strides agree; strides of dimensions of size 1 are ignored."""
    stride = got.stride()
    if stride == described.stride or 0 in described.shape:
        return True
    return all(a == b for a, b, n in zip(stride, described.stride, described.shape, strict=True) if n > 1)


def _other_strides(name: str, at: int, got: Sequence[int], described: Sequence[int]) -> None:
    wrong = WrongFake(name, f"result {at} has strides {tuple(got)}", str(tuple(described)))
    if environment().strict:
        raise wrong
    if name not in _warned:
        _warned.add(name)
        warnings.warn(SmeltWarning(f"{wrong}\n  meanwhile results are copied into these"), stacklevel=5)


_warned: set[str] = set()


def _text(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (list, tuple)):
        for item in result:
            yield from _tensors(item)
