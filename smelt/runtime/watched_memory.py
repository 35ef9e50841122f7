"""The debug mode for memory, SMELT_DEBUG_MEMORY=1: each buffer of a program is allocated separately and checked.

A buffer is between two guards. Buffer and guards are filled with poison (a NaN that arithmetic preserves, a pattern for
integers) until a kernel writes, and once more after the last use that the plan knows. Host programs run kernel by
kernel:

    w = watch.begin()
    w.surround(inputs, {1: "weight"})
    o0 = w.empty("exp", (8, 16), (16, 1), torch.float32)
    for _ in w.step(0, {"exp": o0}, ["sum_1"]):
        launch(segment0, table)
    w.ended("exp")
    return w.returned([...])

After each step guards must be unchanged, and the buffers that it writes must be written completely and without poison.
A value that only looks like poison is recognised by rerunning the step over another pattern. When the call ends, dead
buffers must still be full of poison, and results must have none. Inputs that the program overwrites belong to the
caller: the program works on copies between guards, which are copied back at the end.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.abi.arena import extent
from smelt.base.errors import SmeltError
from smelt.base.torch_c import inference_mode

GUARD = 512
"""Number of bytes of the guards before and after each buffer."""

LINE = 64
"""Maximum size of a cache line in bytes."""

FAR = 1 << 20
"""Maximum number of bytes by which the memory from the first to the last element of an input may exceed eight times the
bytes of its elements; with more, a copy has no gaps."""

MAX_BUFFERS_CHECKED_ALWAYS = 64
"""Maximum number of buffers for which the guards of all buffers are checked after each step; with more buffers, only
those of the step's buffers are checked, and all at the end.
"""

POISON: dict[torch.dtype, int] = {
    torch.float32: 0x7FE5A5A5,
    torch.float64: 0x7FFCA5A5A5A5A5A5,
    torch.bfloat16: 0x7FE5,
    torch.float16: 0x7EA5,
    torch.complex64: 0x7FE5A5A57FE5A5A5,
    torch.complex128: 0x7FFCA5A5A5A5A5A5,
}
"""The bits of quiet NaNs that no operation produces; for other types each byte is 0xA5."""

OTHER: dict[torch.dtype, int] = {dtype: bits ^ 0xF for dtype, bits in POISON.items()}
"""The bits of the second pattern; for other types each byte is 0x5A."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class MemoryFault(SmeltError):
    """Raised when a kernel wrote or read memory outside of its buffers. Only the debug mode detects this."""


@dataclass(frozen=True)
class StepInfo:
    """The name of a step, and the user's line of each buffer that it writes, if known."""

    name: str
    lines: Mapping[str, str]


@dataclass
class _Block:
    """A buffer with its guards: a tensor `allocation`, in which the buffer has `size` bytes from `start`."""

    name: str
    dtype: torch.dtype
    allocation: torch.Tensor
    start: int
    size: int
    tensor: torch.Tensor
    ended: str = ""

    def body(self) -> torch.Tensor:
        return _numbers(self.allocation[self.start : self.start + self.size], self.dtype)

    def guards(self) -> tuple[torch.Tensor, torch.Tensor]:
        end = self.start + self.size
        before, behind = self.allocation[self.start - GUARD : self.start], self.allocation[end : end + GUARD]
        return _numbers(before, self.dtype), _numbers(behind, self.dtype)


class Watch:
    """Checks the calls of a program.

    Args:
        steps: names of steps and lines of buffers.
        device: device of the buffers.
    """

    def __init__(self, steps: Sequence[tuple[str, Mapping[str, str]]], device: torch.device | None = None) -> None:
        self.steps = [StepInfo(*step) for step in steps]
        self.device = device or torch.device("cpu")

    def begin(self) -> WatchedCall:
        return WatchedCall(self)


class WatchedCall:
    """The buffers of one running call."""

    def __init__(self, watch: Watch) -> None:
        self.watch, self.blocks = watch, list[_Block]()
        self.replaced_inputs: list[tuple[torch.Tensor, _Block]] = []
        self.number = -1

    def empty(self, name: str, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Returns a buffer filled with poison, between guards."""
        if 0 in shape:
            return torch.empty_strided(shape, stride, dtype=dtype, device=self.watch.device)
        block = _allocate(name, shape, stride, dtype, self.watch.device)
        for region in (block.body(), *block.guards()):
            region.fill_(_pattern(dtype))
        self.blocks.append(block)
        return block.tensor

    def surround(self, inputs: list[Any], over: Mapping[int, str]) -> None:
        """Replace inputs that the program overwrites (name by position) by copies between guards.

        Copies have the same alignment to a cache line as the inputs, so that the same kernels run.
        """
        for position, name in over.items():
            original = inputs[position]
            if not original.numel() or _is_spread(original) or original.data_ptr() % original.itemsize:
                continue
            shape, stride, skew = tuple(original.shape), original.stride(), original.data_ptr() % LINE
            block = _allocate(name, shape, stride, original.dtype, self.watch.device, skew)
            for region in (block.body(), *block.guards()):
                region.fill_(_pattern(original.dtype))
            block.tensor.copy_(original.detach())
            self.blocks.append(block)
            self.replaced_inputs.append((original, block))
            inputs[position] = block.tensor

    def copy_back(self, results: list[Any]) -> list[Any]:
        """Copy the new values back into the caller's tensors; returns the results, with those tensors instead of
        copies.
        """
        found = {id(block.tensor): original for original, block in self.replaced_inputs}
        for original, block in self.replaced_inputs:
            gaps = torch.ones(block.size // original.itemsize, dtype=torch.bool, device=original.device)
            gaps.as_strided(original.shape, original.stride()).fill_(False)
            written = block.body().view(len(gaps), -1) != _pattern(original.dtype)
            if (written.any(-1) & gaps).any():
                raise self.fault(block.name, f"has written between the elements of {block.name!r}")
            with inference_mode(original.is_inference()):
                original.data.copy_(block.tensor)
        return [found.get(id(result), result) for result in results]

    def step(
        self, number: int, written: Mapping[str, torch.Tensor], taken: Sequence[str] = (), repeats: bool = True
    ) -> Iterator[None]:
        """Check the step that the loop's body runs; it is rerun if a value may be poison.

        Args:
            written: the buffers that the step must write completely.
            taken: names of the buffers that it reads.
            repeats: whether the step may be rerun, because it does not overwrite buffers that it reads.
        """
        self.number = number
        self.refuse_ended(taken)
        yield
        near = [b for b in self.blocks if b.name in written or b.name in taken]
        self.require_guards(self.blocks if len(self.blocks) <= MAX_BUFFERS_CHECKED_ALWAYS else near)
        doubtful = {name: t for name, t in written.items() if _holds(t, _pattern(t.dtype)).any()}
        if not doubtful:
            return
        if not repeats:
            self.refuse_wide_patterns(doubtful)
            return
        self.fill_otherwise(doubtful)
        yield
        for name, tensor in doubtful.items():
            self.refuse_unwritten(name, tensor, _holds(tensor, _other(tensor.dtype)))
            if tensor.is_floating_point() or tensor.is_complex():
                self.refuse_poison(name, tensor)

    def fill_otherwise(self, names: Container[str]) -> None:
        """Fill these buffers with the second pattern; elements that still have it after the rerun were not written."""
        for block in self.blocks:
            if block.name in names and not block.ended:
                block.body().fill_(_other(block.dtype))

    def refuse_ended(self, taken: Sequence[str]) -> None:
        for block in self.blocks:
            if block.ended and block.name in taken:
                raise self.fault(block.name, f"reads buffer {block.name!r}, whose memory is free after {block.ended}")

    def refuse_wide_patterns(self, doubtful: Mapping[str, torch.Tensor]) -> None:
        """Refuse poison after a single run, except in small integers, for which the pattern is a plausible value."""
        for name, tensor in doubtful.items():
            if tensor.dtype.itemsize >= 4 or tensor.is_floating_point():
                self.refuse_unwritten(name, tensor, _holds(tensor, _pattern(tensor.dtype)))

    def refuse_unwritten(self, name: str, tensor: torch.Tensor, where: torch.Tensor) -> None:
        if where.any():
            raise self.fault(name, f"leaves {_where(where)} of buffer {name!r} unwritten ({_kind(tensor)})")

    def refuse_poison(self, name: str, tensor: torch.Tensor) -> None:
        where = _holds(tensor, _pattern(tensor.dtype))
        if where.any():
            problem = f"has read memory that holds no value: {_where(where)} of buffer {name!r} is poison"
            raise self.fault(name, f"{problem} ({_kind(tensor)})")

    def require_guards(self, blocks: Sequence[_Block]) -> None:
        """Raise if a guard was overwritten."""
        for block in blocks:
            for side, guard in zip(("before", "behind"), block.guards(), strict=True):
                touched = guard != _pattern(block.dtype)
                if touched.any():
                    at = int(touched.nonzero()[0 if side == "behind" else -1].item())
                    distance = at if side == "behind" else len(touched) - 1 - at
                    raise self.fault(
                        block.name,
                        f"has written {side} buffer {block.name!r}, {int(touched.sum())} elements, "
                        f"the nearest {distance} elements from it ({_kind(block.tensor)})",
                    )

    def ended(self, *names: str) -> None:
        """Poison these buffers, since the plan has no later use of them."""
        for block in self.blocks:
            if block.name in names and not block.ended:
                block.ended = self.step_name()
                block.body().fill_(_pattern(block.dtype))

    def returned(self, results: list[Any]) -> list[Any]:
        """Returns the results, after the final checks."""
        self.number = -1
        self.require_guards(self.blocks)
        for block in self.blocks:
            if block.ended:
                changed = block.body() != _pattern(block.dtype)
                if changed.any():
                    problem = (
                        f"was written after its last use, in {block.ended}: {_where(changed)} ({_kind(block.tensor)})"
                    )
                    raise MemoryFault(f"buffer {block.name!r} {problem}", at=self.line(block.name))
        for number, result in enumerate(results):
            if isinstance(result, torch.Tensor) and result.layout is torch.strided:
                self.require_result(number, result)
        return self.copies_of_results(self.copy_back(results) if self.replaced_inputs else results)

    def copies_of_results(self, results: list[Any]) -> list[Any]:
        """Returns the results copied to memory of PyTorch's allocator, so that the caller may resize them; sharing is
        preserved.

        A tensor that is the gradient of several inputs remains one tensor; the engine copies it for all but one of
        them.
        """
        by_address = {block.tensor.untyped_storage().data_ptr(): block for block in self.blocks}
        memory: dict[int, torch.Tensor] = {}
        out, known = [], dict[int, torch.Tensor]()
        for given in results:
            result = known.get(id(given), given)
            if result is given and isinstance(given, torch.Tensor) and given.layout is torch.strided and given.numel():
                at = result.untyped_storage().data_ptr()
                if at in by_address:
                    block = by_address[at]
                    if at not in memory:
                        memory[at] = block.allocation[block.start : block.start + block.size].clone()
                    inside = memory[at].untyped_storage()
                    layout = result.storage_offset(), result.shape, result.stride()
                    result = known[id(given)] = torch.empty(0, dtype=result.dtype, device=result.device).set_(
                        inside, *layout
                    )
            out.append(result)
        return out

    def require_result(self, number: int, result: torch.Tensor) -> None:
        """Raise if a result is in a dead buffer, as a view of another type may be."""
        memory = result.untyped_storage().data_ptr()
        for block in self.blocks:
            if block.ended and memory and block.tensor.untyped_storage().data_ptr() == memory:
                raise MemoryFault(
                    f"result {number} lies in buffer {block.name!r}, whose memory is free after {block.ended}",
                    at=self.line(block.name),
                )

    def step_name(self) -> str:
        if self.number < 0:
            return "a step of this call"
        return f"step {self.number} ({self.watch.steps[self.number].name})"

    def line(self, name: str) -> str | None:
        return next((s.lines[name] for s in self.watch.steps if name in s.lines), None)

    def fault(self, name: str, problem: str) -> MemoryFault:
        of_step = self.watch.steps[self.number].lines.values() if self.number >= 0 else ()
        return MemoryFault(f"{self.step_name()} {problem}", at=self.line(name) or next(iter(of_step), None))


def _allocate(
    name: str,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    skew: int = 0,
) -> _Block:
    size = extent(shape, stride) * dtype.itemsize
    allocation = torch.empty(size + 4 * GUARD, dtype=torch.uint8, device=device)
    start = GUARD + -(allocation.data_ptr() + GUARD) % GUARD + skew
    storage = _bytes_of(allocation, start, size).untyped_storage()
    tensor = torch.empty(0, dtype=dtype, device=device).set_(storage, 0, shape, stride)
    return _Block(name, dtype, allocation, start, size, tensor)


def _is_spread(tensor: torch.Tensor) -> bool:
    """Whether elements share memory, or a copy with the same gaps would be far larger than the elements."""
    reach = 0
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return (1 + reach) * tensor.itemsize > FAR + 8 * tensor.nbytes


def _bytes_of(allocation: torch.Tensor, start: int, size: int) -> torch.Tensor:
    """Returns these bytes as a tensor with its own storage, which keeps the allocation alive."""
    if allocation.device.type == "cpu":
        return torch.frombuffer(allocation.numpy().data[start : start + size], dtype=torch.uint8)
    return torch.as_tensor(_Span(allocation, start, size), device=allocation.device)


class _Span:
    """Bytes of a GPU in the CUDA array interface (Numba's documentation, version 3)."""

    def __init__(self, allocation: torch.Tensor, start: int, size: int) -> None:
        self.allocation = allocation
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (allocation.data_ptr() + start, False),
            "version": 3,
            "strides": None,
        }


def _numbers(raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns bytes viewed as integers of the width of a dtype's pattern."""
    return raw.view(_INTEGERS[min(dtype.itemsize, 8)])


def _pattern(dtype: torch.dtype) -> int:
    return _signed(POISON.get(dtype, int.from_bytes(b"\xa5" * min(dtype.itemsize, 8))), dtype)


def _other(dtype: torch.dtype) -> int:
    return _signed(OTHER.get(dtype, int.from_bytes(b"\x5a" * min(dtype.itemsize, 8))), dtype)


def _signed(bits: int, dtype: torch.dtype) -> int:
    """Returns the bits as a signed number, the form in which they are compared."""
    width = 8 * min(dtype.itemsize, 8)
    return bits - (1 << width) if width > 8 and bits >> (width - 1) else bits


def _holds(tensor: torch.Tensor, pattern: int) -> torch.Tensor:
    """Returns the mask of the elements that equal the pattern; gaps between elements are not included."""
    tensor = tensor.detach()
    if tensor.dtype is torch.complex128:
        return (torch.view_as_real(tensor).view(torch.int64) == pattern).any(-1)
    return tensor.view(_INTEGERS[tensor.dtype.itemsize]) == pattern


def _where(where: torch.Tensor) -> str:
    first = [int(i) for i in where.nonzero()[0]]
    return f"{int(where.sum())} of {where.numel()} elements, the first at {first},"


def _kind(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} {list(tensor.shape)} with strides {list(tensor.stride())} on {tensor.device.type}"
