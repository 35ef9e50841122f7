"""A device that records programs of the CPU: replaying computes them again over the same raw memory.

As on a GPU, recording computes nothing: what the program has written is undone, its results are made garbage. A graph
knows addresses, not tensors: it keeps nothing alive and sees whatever lies there when it is replayed.
"""

import ctypes

import torch

from smelt.abi.staged import Staged
from smelt.runtime.cuda.device import Device


class FakeDevice(Device):
    """`handle`: the current stream; `user_records`: somebody records a graph of his own on it.

    `memory`: the most bytes of tensors so far; `free`: those that nobody has. `block`: where buffers for
    inputs lie, if they share memory. `running`: the stages of the replay that runs; `stages`:
    how many were launched.
    """

    def __init__(self):
        super().__init__(torch.device("cpu"))
        self.handle, self.user_records, self.other_records = 1, False, False
        self.records, self.replays, self.stages, self.waits = 0, 0, 0, []
        self.error = None
        self.memory, self.free = 0, 1 << 40
        self.block, self.end = None, 0
        self.running = iter(())

    def most_memory(self):
        return self.memory

    def free_memory(self):
        return self.free

    def stream(self):
        return self.handle

    def current(self):
        return self.handle

    def capturing(self):
        return self.user_records

    def wait_for(self, stream):
        if self.other_records:
            return False
        self.waits.append((self.handle, stream))
        return True

    def forget_room(self):
        pass

    def room(self):
        return 0

    def record(self, prepare, program, room):
        if self.error is not None:
            raise self.error
        self.records += 1
        self.end = 0 if self.block is None else self.block.numel()
        given = prepare(self.share)
        tensors = [t for t in given if isinstance(t, torch.Tensor)]
        storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors}
        before = {key: bytes(storage) if storage.nbytes() else b"" for key, storage in storages.items()}
        try:
            results = program(list(given))
        finally:
            for key, storage in storages.items():
                _write(storage.data_ptr(), before[key])
        for result in results:
            if isinstance(result, torch.Tensor) and result.untyped_storage()._cdata not in storages:
                result.untyped_storage().fill_(0xEE)
        inputs = [_Raw(value) if isinstance(value, torch.Tensor) else value for value in given]
        outputs = [
            _Raw(r) if isinstance(r, torch.Tensor) and r.untyped_storage()._cdata not in storages else None
            for r in results
        ]
        return (program, inputs, outputs), results

    def share(self, tensor):
        """Buffers of all recordings lie at the end of the same memory, if there is any."""
        size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        start = (self.end - size * tensor.dtype.itemsize) // 8 * 8
        if self.block is None or not tensor.numel() or start < 0:
            return None
        raw, self.end = self.block[start : start + size * tensor.dtype.itemsize], start
        return raw.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def replay(self, graph, stage=0):
        program, inputs, outputs = graph
        self.replays += stage == 0
        self.stages += 1
        if stage == 0:
            given = [value.tensor() if isinstance(value, _Raw) else value for value in inputs]
            self.running = program.begin(given) if isinstance(program, Staged) else iter([program(given)])
        positions = program.positions[stage] if isinstance(program, Staged) else range(len(outputs))
        for position, result in zip(positions, next(self.running), strict=True):
            raw = outputs[position]
            if raw is not None and result.numel():
                raw.tensor().copy_(result)


class _Raw:
    """A tensor by its address."""

    def __init__(self, tensor):
        self.address, self.dtype = tensor.data_ptr(), tensor.dtype
        self.shape, self.stride = tuple(tensor.shape), tensor.stride()

    def tensor(self):
        """The memory as a tensor, whoever owns it."""
        if 0 in self.shape:
            return torch.empty_strided(self.shape, self.stride, dtype=self.dtype)
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        memory = (ctypes.c_char * (extent * self.dtype.itemsize)).from_address(self.address)
        return torch.frombuffer(memory, dtype=torch.uint8).view(self.dtype).as_strided(self.shape, self.stride)


def _write(address, content):
    ctypes.memmove(address, content, len(content))
