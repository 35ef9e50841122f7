"""Observes a program's calls: which inputs keep their address, and which results callers keep.

Calls with different sizes or parameters are of different kinds: the code of one layer runs for many layers, each with
its own parameters. Within a kind an input stays if its storage is that of the previous call; an equal address is not
enough, because allocators reuse addresses.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any

import torch

from smelt.base import torch_c
from smelt.base.torch_private import address_of_storage
from smelt.runtime.launch import data_ptr


class WeakStorage:
    """A weak reference to a storage; no other storage gets its identity while this exists."""

    __slots__ = ("pointer",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.pointer = torch_c.weak_storage(tensor)

    def __del__(self, free: Any = torch_c.free_weak_storage) -> None:
        free(self.pointer)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether this is the tensor's storage."""
        return bool(address_of_storage(tensor.untyped_storage()) == self.pointer)

    @property
    def gone(self) -> bool:
        """Whether the storage has been freed."""
        return torch_c.storage_is_gone(self.pointer)


def kind_of(inputs: Sequence[Any], outputs: Container[int]) -> tuple[Any, ...]:
    """Returns the kind of a call: a key of its numbers and of the addresses of its parameters and of inputs that are
    results of recordings (`outputs`).
    """
    key: list[Any] = []
    for value in inputs:
        if not isinstance(value, torch.Tensor):
            key.append(repr(value))  # unlike the value, this distinguishes 1 from 1.0, and NaN is equal to itself
        elif isinstance(value, torch.nn.Parameter) or (value.numel() and data_ptr(value) in outputs):
            key.append(data_ptr(value))
        else:
            key.append(None)
    return tuple(key)


def parameter_positions(inputs: Sequence[Any]) -> tuple[int, ...]:
    """Returns the positions of the inputs that are parameters."""
    return tuple(i for i, value in enumerate(inputs) if isinstance(value, torch.nn.Parameter))


class Observation:
    """The inputs of the last observed call of a kind, and the results of the first one."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        self.look(inputs)
        self.results: dict[int, tuple[WeakStorage, int]] = {}

    def note(self, results: Sequence[Any]) -> None:
        """Record results; those that share memory with inputs are ignored.

        Called for each stage of a program in stages, with None for results of other stages.
        """
        known = {seen[1].pointer for seen in self.seen if seen is not None}
        known |= {storage.pointer for storage, _ in self.results.values()}
        for i, result in enumerate(results):
            if isinstance(result, torch.Tensor) and result.numel():
                weak = WeakStorage(result)
                if weak.pointer not in known:  # the first of several results that share memory represents them
                    known.add(weak.pointer)
                    self.results[i] = weak, result.untyped_storage().nbytes()

    def alive(self, positions: Iterable[int]) -> bool:
        """Whether the storages that were seen at these positions still exist."""
        return not any((seen := self.seen[i]) is not None and seen[1].gone for i in positions)

    def kept(self) -> tuple[set[int], int]:
        """Returns (positions of the results that are still alive, their bytes)."""
        kept = {i: size for i, (storage, size) in self.results.items() if not storage.gone}
        return set(kept), sum(kept.values())

    def results_bytes(self, but: Collection[int]) -> int:
        """Returns the bytes of the results that share no memory with inputs, other than `but`."""
        return sum(size for i, (_, size) in self.results.items() if i not in but)

    def look(self, inputs: Sequence[Any]) -> None:
        """Record inputs as those of the last call."""
        self.seen = [
            (data_ptr(t), WeakStorage(t), _start(t)) if isinstance(t, torch.Tensor) and t.numel() else None
            for t in inputs
        ]

    def storages(self, positions: Iterable[int]) -> tuple[tuple[int, int], ...]:
        """Returns (identity of the storage, offset in it in bytes) of the inputs seen at these positions, independent
        of the storage's address.
        """
        seen = (self.seen[i] for i in positions)
        return tuple((each[1].pointer, each[0] - each[2]) for each in seen if each is not None)

    def starts(self, positions: Iterable[int]) -> tuple[int, ...]:
        """Returns the addresses at which these storages began."""
        return tuple(seen[2] for i in positions if (seen := self.seen[i]) is not None)

    def moved(self, inputs: Sequence[Any], kind: tuple[Any, ...], but: Collection[int]) -> set[int]:
        """Returns the positions of inputs, other than `but`, whose storage has changed."""
        return {
            i
            for i, (seen, tensor) in enumerate(zip(self.seen, inputs, strict=True))
            if seen is not None
            and kind[i] is None
            and i not in but
            and not (seen[0] == data_ptr(tensor) and seen[1].holds(tensor))
        }


def _start(tensor: torch.Tensor) -> int:
    """Returns the address at which the tensor's storage begins."""
    return data_ptr(tensor) - int(tensor.storage_offset()) * tensor.dtype.itemsize


def bytes_of(inputs: Sequence[Any], positions: Collection[int]) -> int:
    """Returns the bytes of the tensors at these positions."""
    return sum(inputs[i].numel() * inputs[i].dtype.itemsize for i in positions)
