"""One recording of a program: a graph, the memory of its inputs and outputs, and what a replay hands out.

Inputs that stay where they are are baked in; others are copied to buffers of the recording first. Its outputs always
lie in the same memory, so a replay is only allowed while no tensor of an earlier one is in use: `in_use` knows.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from smelt.abi.arena import extent
from smelt.base.options import Owner
from smelt.base.torch_c import inference_mode
from smelt.base.torch_private import address_of_storage
from smelt.runtime._native import Addresses, Memory
from smelt.runtime.cuda.device import NOBODY, Device, Program
from smelt.runtime.launch import data_ptr
from smelt.runtime.memory import copy_all, type_code

_MAX_RANK = 16

Late = Callable[[list[Any], list[Any]], Any]
"""Makes one result from the given inputs and the results that the memory has handed out."""


class Unrecordable(Exception):
    """Why a program is not recorded at all."""


class Recording:
    """One graph of `program`, for inputs that lie where those of `inputs` do.

    Args:
        moving: positions of inputs that may lie anywhere.
        written: positions of inputs that the program writes over; None: perhaps each that is one of its results.
        copied: positions of results that are handed out as copies.
        owner: whose it is, where what recordings keep is weighed.
        room: bytes of the arena that the program needs.

    Attributes:
        sources: addresses of the tensors that it expects where they are, by position.
        kept_bytes: of its results and of the buffers for its inputs, but for those that lie in the arena.

    Raises:
        Unrecordable: a result is no tensor of the device.
    """

    def __init__(
        self,
        device: Device,
        program: Program,
        inputs: list[Any],
        moving: Collection[int],
        written: Collection[int] | None,
        copied: Collection[int],
        owner: Owner = NOBODY,
        room: int = 0,
    ) -> None:
        self.device, self.owner = device, owner
        full = [i for i in sorted(moving) if inputs[i].numel()]
        self.matches = Addresses(inputs, [i in moving for i in range(len(inputs))])
        self.sources = {i: data_ptr(t) for i, t in enumerate(inputs) if _is_tensor(t) and i not in moving}
        given, own = list(inputs), 0

        def prepare(share: Callable[[torch.Tensor], torch.Tensor | None]) -> list[Any]:
            nonlocal own
            with inference_mode(False):
                for i in moving:
                    shared = share(inputs[i])
                    given[i] = _like(inputs[i]) if shared is None else shared
                    own += given[i].nbytes if shared is None else 0
            return list(given)

        self.graph, results = device.record(prepare, program, room)
        self.moving = tuple(full)
        self.buffers = [given[i] for i in full]
        self.flat = tuple(k for k, i in enumerate(full) if _overlaps(given[i]))
        outputs = _Outputs(device, results, given, copied)
        back = outputs.shown_inputs() if written is None else written
        self.back = tuple((i, given[i]) for i in full if i in back and not _overlaps(given[i]))
        self.memory = Memory(outputs.keep, outputs.kinds, device.dlpack)
        self.late, self.extra = outputs.late, len(outputs.kinds) - len(results)
        self.results = len(results)
        self.bytes, self.copies, self.addresses = outputs.bytes, outputs.copies, outputs.addresses
        self.kept_bytes = sum(self.bytes.values()) + own
        _enter(device, self)

    @property
    def in_use(self) -> int:
        """How many of the tensors that the last replay has handed out are alive."""
        return self.memory.in_use

    def used_bytes(self) -> int:
        """Bytes of the tensors that the last replay has handed out and that are alive."""
        return sum(self.bytes[i] for i in self.memory.positions())

    def addresses_of(self, handed_out: Collection[int]) -> list[int]:
        """Addresses of the results for which these tensors were handed out."""
        return [address for address, i in self.addresses if i in handed_out]

    def replay(self, inputs: list[Any]) -> list[Any]:
        """Compute the results for these inputs. Only while nothing is `in_use`."""
        if self.moving:
            self._copy_in(inputs)
        self.device.replay(self.graph)
        for i, buffer in self.back:
            inputs[i].data.copy_(buffer)  # as the program writes: without a count of versions
        results = self.memory.hand_out(inputs)
        if self.copies:
            self._copy_out(results)
        for i, make in self.late:
            results[i] = make(inputs, results)
        if self.extra:
            del results[-self.extra :]
        return results

    def _copy_in(self, inputs: list[Any]) -> None:
        sources = [inputs[i] for i in self.moving]
        targets = self.buffers
        for k in self.flat:
            targets = [*targets[:k], _span(targets[k]), *targets[k + 1 :]]
            sources[k] = _span(sources[k])
        if len(targets) == 1:
            targets[0].copy_(sources[0])
        else:
            copy_all(targets, sources)

    def _copy_out(self, results: list[Any]) -> None:
        made = [_like(tensor) for _, tensor in self.copies]
        copy_all(made, [tensor for _, tensor in self.copies])
        for (i, _), tensor in zip(self.copies, made, strict=True):
            results[i] = tensor


class _Outputs:
    """What becomes of each result of a recorded program.

    Attributes:
        kinds: for `Memory`; those after the last result are whole storages that several results share.
        late: results that are made of others or of inputs.
        copies: results that are handed out as copies, with the recorded tensors.
        keep: what owns the memory.
        bytes: size of each that is handed out.
        addresses: address of each result in memory of the recording, with the position of what is handed out for it.
    """

    def __init__(self, device: Device, results: Sequence[Any], given: Sequence[Any], copied: Collection[int]) -> None:
        self.kinds: list[Any] = [None] * len(results)
        self.late: list[tuple[int, Late]] = []
        self.copies: list[tuple[int, torch.Tensor]] = []
        self.keep: list[torch.Tensor] = []
        self.bytes: dict[int, int] = {}
        self.addresses: list[tuple[int, int]] = []
        self.given = {id(t): i for i, t in reversed(list(enumerate(given))) if _is_tensor(t)}
        self.inputs = given
        self.owners: dict[int, list[int]] = {}
        for i, tensor in enumerate(given):
            if _is_tensor(tensor) and tensor.numel():
                self.owners.setdefault(_storage(tensor), []).append(i)
        self.shared = Counter(_storage(t) for t in {id(t): t for t in results if _is_tensor(t)}.values())
        self.whole: dict[int, int] = {}
        first: dict[int, int] = {}
        for i, result in enumerate(results):
            if _is_tensor(result):
                check_tensor(result, device.device, f"result {i}")
            known = first.setdefault(id(result), i)
            if known != i and _is_tensor(result):
                self.late.append((i, _same_as(known)))
            else:
                self._add(i, result, i in copied)

    def shown_inputs(self) -> set[int]:
        """Positions of the inputs that are results."""
        return {kind for kind in self.kinds if isinstance(kind, int)}

    def _add(self, i: int, result: Any, copied: bool) -> None:
        if not _is_tensor(result):
            if result is not None and not isinstance(result, int | float):
                raise Unrecordable(f"result {i} is a {type(result).__name__}")
            self.late.append((i, lambda inputs, results: result))
        elif id(result) in self.given:
            self.kinds[i] = self.given[id(result)]
        elif not result.numel():
            self.late.append((i, _empty(result)))
        elif owners := self.owners.get(_storage(result)):
            # where inputs share memory now, they need not do so later: take one that holds all of the result
            source = next((k for k in owners if _contains(self.inputs[k], result)), owners[0])
            self.late.append((i, _view_of_input(source, self.inputs[source], result)))
        else:
            self._add_memory(i, result, copied)

    def _add_memory(self, i: int, result: torch.Tensor, copied: bool) -> None:
        """A result in memory that the recording has allocated."""
        alone = self.shared[_storage(result)] == 1 and _fills(result) and result.dim() <= _MAX_RANK
        code = type_code(result.dtype)
        self.keep.append(result)
        if not alone or code is None:
            self.late.append((i, _view_of_whole(self._whole(result), result)))
        elif copied:
            self.copies.append((i, result))
        else:
            shape, stride, bits = tuple(result.shape), result.stride(), result.dtype.itemsize * 8
            self.kinds[i] = (result.data_ptr(), shape, stride, code, bits)
            self.bytes[i] = result.untyped_storage().nbytes()
            self.addresses.append((result.data_ptr(), i))

    def _whole(self, result: torch.Tensor) -> int:
        """The position among `kinds` of the bytes that are all of the result's storage."""
        storage = result.untyped_storage()
        if address_of_storage(storage) not in self.whole:
            self.bytes[len(self.kinds)] = storage.nbytes()
            self.whole[address_of_storage(storage)] = len(self.kinds)
            self.kinds.append((storage.data_ptr(), (storage.nbytes(),), (1,), type_code(torch.uint8), 8))
        position = self.whole[address_of_storage(storage)]
        self.addresses.append((result.data_ptr(), position))
        return position


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _same_as(position: int) -> Late:
    return lambda inputs, results: results[position]


def _empty(result: torch.Tensor) -> Late:
    shape, stride, dtype, device = tuple(result.shape), result.stride(), result.dtype, result.device
    return lambda inputs, results: torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _view_of_whole(position: int, result: torch.Tensor) -> Late:
    shape, stride, dtype, device = tuple(result.shape), result.stride(), result.dtype, result.device
    offset = result.storage_offset()

    def make(inputs: list[Any], results: list[Any]) -> torch.Tensor:
        empty = torch.empty(0, dtype=dtype, device=device)
        return empty.set_(results[position].untyped_storage(), offset, shape, stride)

    return make


def _view_of_input(position: int, recorded: torch.Tensor, result: torch.Tensor) -> Late:
    """The same view of the input that is given then; it may begin elsewhere in its storage than the recorded one."""
    shape, stride, dtype, device = tuple(result.shape), result.stride(), result.dtype, result.device
    bytes = result.storage_offset() * dtype.itemsize - recorded.storage_offset() * recorded.dtype.itemsize
    offset, same = bytes // dtype.itemsize, dtype is recorded.dtype

    def make(inputs: list[Any], results: list[Any]) -> torch.Tensor:
        tensor: torch.Tensor = inputs[position]
        if same:
            return tensor.as_strided(shape, stride, tensor.storage_offset() + offset)
        start = (tensor.storage_offset() * tensor.dtype.itemsize + bytes) // dtype.itemsize
        empty = torch.empty(0, dtype=dtype, device=device)
        return empty.set_(tensor.untyped_storage(), start, shape, stride)

    return make


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def check_tensor(tensor: torch.Tensor, device: torch.device, name: str) -> None:
    """
    Raises:
        Unrecordable: it is no dense tensor on the device.
    """
    if tensor.device != device:
        raise Unrecordable(f"{name} is a tensor on {tensor.device}")
    if tensor.layout is not torch.strided:
        raise Unrecordable(f"{name} is a sparse tensor")
    if tensor.is_conj() or tensor.is_neg():
        raise Unrecordable(f"{name} is a lazy conjugate or negative view")


def _storage(tensor: torch.Tensor) -> int:
    return address_of_storage(tensor.untyped_storage())


def _fills(tensor: torch.Tensor) -> bool:
    """Whether the tensor is all of its storage."""
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == _extent(tensor) * tensor.dtype.itemsize


def _contains(tensor: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether the view begins and ends between the first and the last element of the tensor."""
    start, end = tensor.data_ptr(), view.data_ptr() + _extent(view) * view.dtype.itemsize
    return start <= view.data_ptr() and end <= start + _extent(tensor) * tensor.dtype.itemsize


def _extent(tensor: torch.Tensor) -> int:
    """Number of elements from the first to the last one in memory."""
    return extent(tensor.shape, tensor.stride())


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements may share an address; False is certain."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach = stride * (size - 1) + reach
    return False


def _span(tensor: torch.Tensor) -> torch.Tensor:
    """All the memory between the first and the last element."""
    return tensor.as_strided((_extent(tensor),), (1,))


def _enter(device: Device, recording: Recording) -> None:
    """Let other recordings know what stays where it is, as long as this one exists."""
    outputs, fixed = Counter(address for address, _ in recording.addresses), Counter(recording.sources.values())
    device.kept.add(recording)
    noted = ((device.outputs, outputs), (device.fixed, fixed))
    for counter, addresses in noted:
        counter.update(addresses)
    weakref.finalize(recording, _leave, noted).atexit = False


def _leave(noted: Sequence[tuple[Counter[int], Counter[int]]]) -> None:
    for counter, addresses in noted:
        for address, number in addresses.items():
            if counter[address] > number:
                counter[address] -= number
            else:
                counter.pop(address, None)
