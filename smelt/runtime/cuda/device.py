"""The interface of a GPU for recordings: streams, recording and replay. Tests replace it by one for CPU programs.

All replays on a device are serialised, whatever their stream: recordings share scratch memory of libraries, and a
replay on one stream may overwrite memory that was returned on another.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

import torch

from smelt.abi.staged import Staged
from smelt.base import torch_c
from smelt.base.collection import no_collection
from smelt.base.locks import new_flag
from smelt.base.options import Owner
from smelt.runtime.device_arena import Arena, Arenas, device_arenas
from smelt.runtime.launch import read_fast
from smelt.runtime.tuned import RECORDINGS

Program = Callable[[list[Any]], list[Any]]

T = TypeVar("T")

Prepare = Callable[[Callable[[torch.Tensor], "torch.Tensor | None"]], list[Any]]
"""Function that makes inputs, given a function from a tensor to shared memory like the tensor's, or None if there is no
room.
"""

_DLPACK_TYPES = {"cpu": 1, "cuda": 2}


NO_OWNER = Owner()
"""The owner of recordings that have no named owner."""


class Kept(Protocol):
    """The memory of a recording in bytes: of everything that it keeps, and of its tensors in use."""

    owner: Owner
    kept_bytes: int

    def used_bytes(self) -> int: ...


class Device:
    """One GPU.

    Attributes:
        dlpack: DLPack's type and number of the device.
        outputs: for each address of an output of an existing recording, the number of such outputs.
        fixed: for each address of an input that is baked into recordings, the number of recordings.
        kept: the memory of each existing recording.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.index = device, device.index or 0
        self.dlpack = _DLPACK_TYPES[device.type], self.index
        self.outputs: Counter[int] = Counter()
        self.fixed: Counter[int] = Counter()
        self.kept: weakref.WeakSet[Kept] = weakref.WeakSet()
        self._most_used: weakref.WeakKeyDictionary[Owner, int] = weakref.WeakKeyDictionary()
        self._kinds: weakref.WeakKeyDictionary[Owner, int] = weakref.WeakKeyDictionary()
        self._most_memory = 0
        self.replaying = new_flag()
        self._stream = 0  # handle of the stream of the last replay; undefined before the first replay
        self._last: Any = None
        self._side: Any = None

    def enter(self) -> str | None:
        """Lock the device for one call of a recorded program; returns None, or the reason why that is not
        possible now.
        """
        if not self.replaying.acquire(blocking=False):
            return "another thread, or a call around this one, was using the memory of replays"
        try:
            why = "called while the program records a CUDA graph by itself" if self.capturing() else self._follow()
        except BaseException:
            self.replaying.release()
            raise
        if why is not None:
            self.replaying.release()
        return why

    def leave(self) -> None:
        """Unlock the device after `enter`."""
        self.replaying.release()

    def _follow(self) -> str | None:
        """Make the current stream wait for the stream of the last replay, if that is another one; returns the reason if
        it cannot wait.
        """
        stream = self.stream()
        if stream != self._stream or self._last is None:
            if self._last is not None and not self.wait_for(self._last):
                return "called while another stream records a CUDA graph"
            self._stream, self._last = stream, self.current()
        return None

    def last_replay(self) -> int | None:
        """Handle of the stream of the last replay."""
        return None if self._last is None else self._stream

    def stream(self) -> int:
        """Handle of the current stream."""
        assert torch_c.current_raw_stream is not None
        return torch_c.current_raw_stream(self.index)

    def current(self) -> Any:
        """The current stream as an object that `wait_for` takes."""
        return torch.cuda.current_stream(self.index)

    def capturing(self) -> bool:
        """Whether the caller is recording a CUDA graph on the current stream."""
        return torch.cuda.is_current_stream_capturing()

    def wait_for(self, stream: Any) -> bool:
        """Make the current stream wait for the work submitted to `stream` so far; returns False if that is
        impossible.
        """
        with torch.cuda.stream(stream):
            if torch.cuda.is_current_stream_capturing():
                return False
        torch.cuda.current_stream(self.index).wait_stream(stream)
        return True

    def begin_kind(self, owner: Owner) -> None:
        """Prepare for a program's first call with given sizes and parameters.

        Frees scratch memory of products from earlier calls: PyTorch keeps it for each thread that calls the library,
        and a backward runs in another thread.
        """
        self._kinds[owner] = self._kinds.get(owner, 0) + 1
        torch_c.clear_product_workspaces()

    def spare(self, owner: Owner, results: int, made: bool = True) -> int:
        """Returns the bytes by which the unused memory of recordings exceeds the limit; checked before each new
        recording.

        In unrecorded calls, tensors passed between regions of a model are freed soon, and the next region reuses their
        memory; recordings cannot share it. While memory is plentiful, each of several models may keep its own.

        Args:
            owner: the owner of the new recording.
            results: bytes of its results.
            made: whether the new recording exists already.
        """
        recordings = list(self.kept)
        own = [each for each in recordings if each.owner is owner]
        used = results + sum(each.used_bytes() for each in own)
        most_used = max(self._most_used.get(owner, 0), used)
        self._most_memory = max(self._most_memory, self.most_memory())
        more = 0 if made else results
        unused = more + sum(each.kept_bytes for each in own) - most_used
        idle = more + sum(each.kept_bytes - each.used_bytes() for each in recordings) - results
        divisor = (
            RECORDINGS.spare_divisor
            if self._kinds.get(owner, 0) > RECORDINGS.few_kinds
            else RECORDINGS.spare_divisor_of_few
        )
        spare = max(
            0, unused - max(RECORDINGS.spare_bytes, self._most_memory // divisor), idle - self.free_memory() // 2
        )
        if not spare:  # a refused recording keeps no results
            self._most_used[owner] = most_used
        return spare

    def free_memory(self) -> int:
        """Returns the bytes of the device that no tensor uses."""
        free, _ = torch.cuda.mem_get_info(self.index)
        return free + torch.cuda.memory_reserved(self.index) - torch.cuda.memory_allocated(self.index)

    def most_memory(self) -> int:
        """Returns the peak bytes of tensors so far."""
        return torch.cuda.max_memory_allocated(self.index)

    @functools.cached_property
    def arenas(self) -> Arenas:
        """The arenas of the device."""
        return device_arenas(torch.device("cuda", self.index))

    def forget_room(self) -> None:
        """Reset `room`, before an unrecorded call whose need for arena memory is measured."""
        self.arenas.most = 0

    def room(self) -> int:
        """Returns the bytes of the arena that unrecorded calls have needed since `forget_room`."""
        return self.arenas.most

    def record(self, prepare: Prepare, program: Program, room: int) -> tuple[Any, list[Any]]:
        """Record `program(prepare(share))`; returns its graphs and its results. Nothing is computed yet.

        A program in stages has one graph for each stage, any other program has one. Memory allocated meanwhile belongs
        to the recording for as long as the graphs exist. The arena, and memory that `share` makes, are shared with
        other recordings.

        Args:
            room: bytes of the arena that the program needs.
        """
        pool = torch.cuda.graph_pool_handle()
        if self._side is None:
            self._side = torch.cuda.Stream(self.index)
        # libraries keep scratch memory for each stream: a recording must use scratch memory in its own pool
        torch_c.clear_product_workspaces()
        try:
            # the arena is allocated on a separate stream: kernels of the last replay may still use it when it is freed
            with torch.cuda.device(self.index), no_collection(), torch.cuda.stream(self._side), self._arena() as arena:
                stages = run_in_stages(program, prepare, functools.partial(self.arenas.at_end_of_arena, room=room))
                graphs, results = record_stages(program, stages, functools.partial(self._capture, pool))
        finally:
            torch_c.clear_product_workspaces()
        return (graphs, arena), results

    def _capture(self, pool: Any, work: Callable[[], T]) -> tuple[Any, T]:
        """Capture the launches of `work()` as a graph, with memory of the pool; returns the graph and the result of
        `work`.
        """
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            result = work()
            with warnings.catch_warnings():  # some programs return inputs
                warnings.filterwarnings("ignore", "The CUDA Graph is empty")
                graph.capture_end()
        except BaseException:
            self._abandon(graph, pool)
            raise
        return graph, result

    @contextmanager
    def _arena(self) -> Iterator[Arena | None]:
        """A context that provides the memory for the arena of a recording.

        The allocator caches memory freed by unrecorded calls. A recording, which replaces such calls, cannot use that
        memory, and the allocator cannot release memory during a recording; so it is released before.
        """
        with self.arenas.lend(self._give_back_unused) as arena:
            yield arena

    def _give_back_unused(self) -> None:
        reserved = torch.cuda.memory_reserved(self.index)
        if reserved - torch.cuda.memory_allocated(self.index) > max(
            RECORDINGS.unused_bytes, reserved // RECORDINGS.unused_divisor
        ):
            torch.cuda.empty_cache()

    def _abandon(self, graph: Any, pool: Any) -> None:
        """End recording after an error: torch's allocator and generator would otherwise stay in recording state."""
        with suppress(RuntimeError):
            graph.capture_end()  # this also fails if the driver refused an operation or recording has ended already
            graph.reset()
            return
        with suppress(RuntimeError):
            torch_c.end_recording_pool(self.index, pool)
        with suppress(RuntimeError):
            graph.reset()
        with suppress(RuntimeError):
            generator = torch.cuda.default_generators[self.index]
            generator.graphsafe_set_state(generator.clone_state())

    def replay(self, recorded: Any, stage: int = 0) -> None:
        """Run the graph of one stage of what `record` returned, on the current stream."""
        recorded[0][stage].replay()


Share = Callable[[torch.Tensor], "torch.Tensor | None"]


def run_in_stages(program: Program, prepare: Prepare, share: Share) -> Iterator[list[Any]]:
    """Run `program(prepare(share))`; yields the results of each stage, or all results of a program without stages."""
    if isinstance(program, Staged):
        yield from program.begin(prepare(share))
    else:
        yield program(prepare(share))


def record_stages(
    program: Program,
    stages: Iterator[list[Any]],
    capture: Callable[[Callable[[], list[Any]]], tuple[Any, list[Any]]],
) -> tuple[list[Any], list[Any]]:
    """Returns the graph of each stage, made by `capture`, and all results in the program's order."""
    graphs, results = [], None
    if not isinstance(program, Staged):
        graph, results = capture(lambda: next(stages))
        return [graph], results
    results = [None] * program.count
    for positions in program.positions:
        graph, recorded = capture(lambda: next(stages))
        graphs.append(graph)
        for position, value in zip(positions, recorded, strict=True):
            results[position] = value
    return graphs, results


def device_at(device: torch.device) -> Device:
    """Returns the single `Device` of a GPU."""
    return _device_at(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _device_at(index: int) -> Device:
    device = torch.device("cuda", index)
    read_fast(device)
    made = Device(device)
    made.arenas.replaying, made.arenas.last_replay = made.replaying, made.last_replay
    return made
