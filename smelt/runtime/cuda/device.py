"""What recordings ask of a GPU: streams, recording and replay. Tests put a device here that records CPU programs.

All replays on a device run one after the other, whatever stream they were called on: recordings share scratch memory of
libraries, and memory that was handed out on one stream may be written over by a replay on another.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch

from smelt.base import torch_c
from smelt.base.collection import no_collection
from smelt.base.locks import new_flag
from smelt.base.options import Owner
from smelt.runtime.device_arena import Arena, Arenas, device_arenas
from smelt.runtime.launch import read_fast
from smelt.runtime.tuned import RECORDINGS

Program = Callable[[list[Any]], list[Any]]

Prepare = Callable[[Callable[[torch.Tensor], "torch.Tensor | None"]], list[Any]]
"""Makes inputs; it is given what makes memory like a tensor's that recordings share, or None where there is no room."""

_DLPACK_TYPES = {"cpu": 1, "cuda": 2}


NOBODY = Owner()
"""Of recordings for which no owner is named."""


class Kept(Protocol):
    """What a recording keeps, in bytes: for as long as it exists, and of which tensors are alive."""

    owner: Owner
    kept_bytes: int

    def used_bytes(self) -> int: ...


class Device:
    """One GPU.

    Attributes:
        dlpack: the device in DLPack's numbers.
        outputs: addresses of the outputs of all recordings that exist, with how many.
        fixed: addresses of inputs that recordings expect where they are, with how many do.
        kept: what each recording that exists keeps.
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
        self._stream = 0  # of the last replay, as the driver's handle; says nothing before the first one
        self._last: Any = None
        self._side: Any = None

    def enter(self) -> str | None:
        """Take the device for one call of a recorded program; or the reason for which that cannot be now."""
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
        """The end of what `enter` began."""
        self.replaying.release()

    def _follow(self) -> str | None:
        """Have the current stream wait for the last replay's, if it is another one."""
        stream = self.stream()
        if stream != self._stream or self._last is None:
            if self._last is not None and not self.wait_for(self._last):
                return "called while another stream records a CUDA graph"
            self._stream, self._last = stream, self.current()
        return None

    def last_replay(self) -> int | None:
        """Handle of the stream that it was called on."""
        return None if self._last is None else self._stream

    def stream(self) -> int:
        """Handle of the current stream."""
        assert torch_c.current_raw_stream is not None
        return torch_c.current_raw_stream(self.index)

    def current(self) -> Any:
        """The current stream as an object that `wait_for` takes."""
        return torch.cuda.current_stream(self.index)

    def capturing(self) -> bool:
        """Whether the caller records a CUDA graph of his own on the current stream."""
        return torch.cuda.is_current_stream_capturing()

    def wait_for(self, stream: Any) -> bool:
        """The current stream goes on once `stream` has done what it was given so far; False if that cannot be."""
        with torch.cuda.stream(stream):
            if torch.cuda.is_current_stream_capturing():
                return False
        torch.cuda.current_stream(self.index).wait_stream(stream)
        return True

    def begin_kind(self, owner: Owner) -> None:
        """One of the owner's programs is called with sizes and parameters that it had not been called with before.

        Scratch memory of products that the threads of earlier calls have used is free for it: PyTorch keeps it for each
        thread that calls the library, and a backward has a thread of its own.
        """
        self._kinds[owner] = self._kinds.get(owner, 0) + 1
        torch_c.clear_product_workspaces()

    def spare(self, owner: Owner, results: int, made: bool = True) -> int:
        """Bytes that recordings keep and have never used all at once, beyond what is allowed. Asked at each new one.

        What regions of a model hand to each other is freed soon where they run plain, and the next region uses that
        memory. Recordings cannot share it. Of several models each may keep its own, as long as memory is plenty.

        Args:
            owner: of the new one.
            results: bytes that it is about to hand out.
            made: whether it exists already.
        """
        everybody = list(self.kept)
        own = [each for each in everybody if each.owner is owner]
        used = results + sum(each.used_bytes() for each in own)
        most_used = max(self._most_used.get(owner, 0), used)
        self._most_memory = max(self._most_memory, self.most_memory())
        more = 0 if made else results
        unused = more + sum(each.kept_bytes for each in own) - most_used
        idle = more + sum(each.kept_bytes - each.used_bytes() for each in everybody) - results
        divisor = (
            RECORDINGS.spare_divisor
            if self._kinds.get(owner, 0) > RECORDINGS.few_kinds
            else RECORDINGS.spare_divisor_of_few
        )
        spare = max(
            0, unused - max(RECORDINGS.spare_bytes, self._most_memory // divisor), idle - self.free_memory() // 2
        )
        if not spare:  # what is refused hands out nothing that is kept
            self._most_used[owner] = most_used
        return spare

    def free_memory(self) -> int:
        """Bytes of the device that no tensor has."""
        free, _ = torch.cuda.mem_get_info(self.index)
        return free + torch.cuda.memory_reserved(self.index) - torch.cuda.memory_allocated(self.index)

    def most_memory(self) -> int:
        """The most bytes of tensors so far."""
        return torch.cuda.max_memory_allocated(self.index)

    @functools.cached_property
    def arenas(self) -> Arenas:
        """The arenas of the device."""
        return device_arenas(torch.device("cuda", self.index))

    def forget_room(self) -> None:
        """Before a plain call whose need of the arena is to be known."""
        self.arenas.most = 0

    def room(self) -> int:
        """Bytes of the arena that plain calls have needed since."""
        return self.arenas.most

    def record(self, prepare: Prepare, program: Program, room: int) -> tuple[Any, list[Any]]:
        """The graph of what `program(prepare(share))` does, and its results; nothing is computed yet.

        Memory that is allocated on the way is the recording's own: nobody else gets it while the graph exists. The
        arena it shares with other recordings, and so what `share` makes.

        Args:
            room: bytes that the program needs of the arena.
        """
        graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
        if self._side is None:
            self._side = torch.cuda.Stream(self.index)
        # a product's scratch memory is kept for each stream: what a recording bakes in must be memory of its pool
        torch_c.clear_product_workspaces()
        try:
            # the arena is allocated on a stream where nothing else is: kernels of the last replay may still use it
            # when it is freed
            with torch.cuda.device(self.index), no_collection(), torch.cuda.stream(self._side), self._arena() as arena:
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    results = program(prepare(functools.partial(self.arenas.at_the_end, room=room)))
                    with warnings.catch_warnings():  # there are programs that hand on what they are given
                        warnings.filterwarnings("ignore", "The CUDA Graph is empty")
                        graph.capture_end()
                except BaseException:
                    self._abandon(graph, pool)
                    raise
        finally:
            torch_c.clear_product_workspaces()
        return (graph, arena), results

    @contextmanager
    def _arena(self) -> Iterator[Arena | None]:
        """What a recording takes its arena from.

        The allocator keeps what plain calls have freed. The recording, which will take their place, cannot have that
        memory, nor can the allocator give it back while something is recorded. So it does before.
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
        """After an error torch's allocator and generator would stay in their state of recording."""
        with suppress(RuntimeError):
            graph.capture_end()  # itself fails where the driver has refused something, or it has already
            graph.reset()
            return
        with suppress(RuntimeError):
            torch_c.end_recording_pool(self.index, pool)
        with suppress(RuntimeError):
            graph.reset()
        with suppress(RuntimeError):
            generator = torch.cuda.default_generators[self.index]
            generator.graphsafe_set_state(generator.clone_state())

    def replay(self, graph: Any) -> None:
        """Compute it on the current stream."""
        graph[0].replay()


def device_at(device: torch.device) -> Device:
    """The one `Device` of a GPU."""
    return _device_at(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _device_at(index: int) -> Device:
    device = torch.device("cuda", index)
    read_fast(device)
    made = Device(device)
    made.arenas.replaying, made.arenas.last_replay = made.replaying, made.last_replay
    return made
