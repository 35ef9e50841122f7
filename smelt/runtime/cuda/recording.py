"""One recording of a program: a CUDA graph, the memory of its inputs and outputs, and the results of replays.

A program in stages has one graph for each stage; the graphs share their memory.

Addresses of inputs that do not move are baked in; others are copied to buffers of the recording first. Outputs are in
the same memory at each replay, so a replay is only allowed while no output of an earlier one is alive (`in_use`).
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from smelt.abi.arena import extent
from smelt.base.options import Owner
from smelt.base.torch_c import inference_mode
from smelt.base.torch_private import address_of_storage
from smelt.runtime._native import Addresses, Memory
from smelt.runtime.cuda.device import NO_OWNER, Device, Program
from smelt.runtime.launch import data_ptr
from smelt.runtime.memory import copy_all, type_code

_MAX_RANK = 16

ResultMaker = Callable[[list[Any], list[Any]], Any]
"""Function that makes one result from the inputs of a replay and the results that `Memory` has returned."""


class Unrecordable(Exception):
    """Raised for a program that cannot be recorded; the message is the reason."""


class Recording:
    """The graphs of `program` for inputs with the addresses of `inputs`.

    Args:
        moving: positions of inputs that may have any address.
        written: positions of inputs that the program overwrites; None: not known, any input that is also a result.
        copied: positions of results that are returned as copies.
        owner: recordings of one owner share a limit of memory.
        room: number of bytes of the arena that the program needs.

    Attributes:
        sources: address of each baked-in input, by position.
        kept_bytes: bytes of its results and its buffers for inputs, without those in the arena.

    Raises:
        Unrecordable: a result is not a tensor of the device.
    """

    def __init__(
        self,
        device: Device,
        program: Program,
        inputs: list[Any],
        moving: Collection[int],
        written: Collection[int] | None,
        copied: Collection[int],
        owner: Owner = NO_OWNER,
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
        """Number of results of the last replay that are alive."""
        return self.memory.in_use

    def used_bytes(self) -> int:
        """Bytes of the results of the last replay that are alive."""
        return sum(self.bytes[i] for i in self.memory.positions())

    def addresses_of(self, handed_out: Collection[int]) -> list[int]:
        """Returns the addresses of the recorded results for which these tensors were returned."""
        return [address for address, i in self.addresses if i in handed_out]

    def replay(self, inputs: list[Any]) -> list[Any]:
        """Replay the graph; returns the results for these inputs. Only allowed while nothing is `in_use`."""
        if self.moving:
            self._copy_in(inputs)
        self.device.replay(self.graph)
        for i, buffer in self.back:
            inputs[i].data.copy_(buffer)  # like the program's own writes, without incrementing version counters
        return self._results(inputs)

    def replay_stages(self, inputs: list[Any], positions: Sequence[Sequence[int]]) -> Iterator[list[Any]]:
        """Yields the results of each stage after its graph has been launched. Only allowed while nothing is `in_use`.

        A program in stages overwrites no inputs, and none of its results is copied. The inputs are kept alive until the
        last graph has been launched, which reads them at their addresses.

        Args:
            positions: the positions of each stage's results.
        """
        assert not self.back and not self.copies
        if self.moving:
            self._copy_in(inputs)
        results: list[Any] = []
        for stage, own in enumerate(positions):
            self.device.replay(self.graph, stage)
            results = results or self._results(inputs)
            given = [results[i] for i in own]
            for i in own:  # autograd takes over a gradient that nothing else references
                results[i] = None
            if stage == len(positions) - 1:
                inputs.clear()
            yield given

    def _results(self, inputs: list[Any]) -> list[Any]:
        """Returns tensors over the memory of the recorded results."""
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
    """The form in which replays return each result of a recorded program.

    Attributes:
        kinds: descriptions of results for `Memory`; entries after the last result are storages that several results
            share.
        late: results that are views of other results or of inputs.
        copies: results that are returned as copies, with the recorded tensors.
        keep: owners of the memory.
        bytes: size of each entry of `kinds`.
        addresses: for the address of each result in memory of the recording, the position of the tensor returned for
            it.
    """

    def __init__(self, device: Device, results: Sequence[Any], inputs: Sequence[Any], copied: Collection[int]) -> None:
        self.kinds: list[Any] = [None] * len(results)
        self.late: list[tuple[int, ResultMaker]] = []
        self.copies: list[tuple[int, torch.Tensor]] = []
        self.keep: list[torch.Tensor] = []
        self.bytes: dict[int, int] = {}
        self.addresses: list[tuple[int, int]] = []
        self.input_positions = {id(t): i for i, t in reversed(list(enumerate(inputs))) if _is_tensor(t)}
        self.inputs = inputs
        self.owners: dict[int, list[int]] = {}
        for i, tensor in enumerate(inputs):
            if _is_tensor(tensor) and tensor.numel():
                self.owners.setdefault(_storage(tensor), []).append(i)
        self.shared = Counter(_storage(t) for t in {id(t): t for t in results if _is_tensor(t)}.values())
        self.storage_positions: dict[int, int] = {}
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
        """Returns the positions of the inputs that are results."""
        return {kind for kind in self.kinds if isinstance(kind, int)}

    def _add(self, i: int, result: Any, copied: bool) -> None:
        if not _is_tensor(result):
            if result is not None and not isinstance(result, int | float):
                raise Unrecordable(f"result {i} is a {type(result).__name__}")
            self.late.append((i, lambda inputs, results: result))
        elif id(result) in self.input_positions:
            self.kinds[i] = self.input_positions[id(result)]
        elif not result.numel():
            self.late.append((i, _empty(result)))
        elif owners := self.owners.get(_storage(result)):
            # inputs that share memory now need not do so later: take one that contains the whole result
            source = next((k for k in owners if _contains(self.inputs[k], result)), owners[0])
            self.late.append((i, _view_of_input(source, self.inputs[source], result)))
        else:
            self._add_memory(i, result, copied)

    def _add_memory(self, i: int, result: torch.Tensor, copied: bool) -> None:
        """Add a result in memory that the recording allocated."""
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
        """Returns the position in `kinds` of the result's whole storage, as bytes."""
        storage = result.untyped_storage()
        if address_of_storage(storage) not in self.storage_positions:
            self.bytes[len(self.kinds)] = storage.nbytes()
            self.storage_positions[address_of_storage(storage)] = len(self.kinds)
            self.kinds.append((storage.data_ptr(), (storage.nbytes(),), (1,), type_code(torch.uint8), 8))
        position = self.storage_positions[address_of_storage(storage)]
        self.addresses.append((result.data_ptr(), position))
        return position


def _like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


def _same_as(position: int) -> ResultMaker:
    return lambda inputs, results: results[position]


def _empty(result: torch.Tensor) -> ResultMaker:
    shape, stride, dtype, device = tuple(result.shape), result.stride(), result.dtype, result.device
    return lambda inputs, results: torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _view_of_whole(position: int, result: torch.Tensor) -> ResultMaker:
    shape, stride, dtype, device = tuple(result.shape), result.stride(), result.dtype, result.device
    offset = result.storage_offset()

    def make(inputs: list[Any], results: list[Any]) -> torch.Tensor:
        empty = torch.empty(0, dtype=dtype, device=device)
        return empty.set_(results[position].untyped_storage(), offset, shape, stride)

    return make


def _view_of_input(position: int, recorded: torch.Tensor, result: torch.Tensor) -> ResultMaker:
    """Returns a function that makes the same view of a replay's input, which may have another storage offset than the
    recorded one.
    """
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
    """Check that a result can be returned by replays.

    Raises:
        Unrecordable: the result is not a dense tensor on the device.
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
    """Whether the tensor covers every byte of its storage."""
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == _extent(tensor) * tensor.dtype.itemsize


def _contains(tensor: torch.Tensor, view: torch.Tensor) -> bool:
    """Whether the memory of a view is within that from the first to the last element of the tensor."""
    start, end = tensor.data_ptr(), view.data_ptr() + _extent(view) * view.dtype.itemsize
    return start <= view.data_ptr() and end <= start + _extent(tensor) * tensor.dtype.itemsize


def _extent(tensor: torch.Tensor) -> int:
    """Returns the number of elements from the first to the last one in memory."""
    return extent(tensor.shape, tensor.stride())


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements may share an address; a result of False is exact."""
    reach = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach = stride * (size - 1) + reach
    return False


def _span(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a flat view of the memory from the first to the last element."""
    return tensor.as_strided((_extent(tensor),), (1,))


def _enter(device: Device, recording: Recording) -> None:
    """Register the baked-in addresses and the outputs with the device for as long as this recording exists."""
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
