"""Decides for each call of a program whether it runs unrecorded, is recorded or is replayed.

The first call with given sizes and parameters runs unrecorded (kernels are tuned in it), the second call is recorded,
later calls are replayed. Which inputs keep their address is observed, not declared. A call without a matching
recording, or whose recording has a result of an earlier call still in use, runs unrecorded, which is always correct.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.abi.device_checks import context_is_lost
from smelt.base.errors import SmeltWarning
from smelt.base.options import Owner
from smelt.base.stats import count, count_named
from smelt.runtime.cuda.device import Device, Program
from smelt.runtime.cuda.observation import Observation, bytes_of, kind_of, parameter_positions
from smelt.runtime.cuda.recording import Recording, Unrecordable, check_tensor
from smelt.runtime.launch import data_ptr
from smelt.runtime.tuned import RECORDINGS

FIRST = "the first one with its sizes and parameters"
"""The reason why the first call of a kind runs unrecorded."""

Replayed = list[Any] | Iterator[list[Any]]
"""The results of a replay; for a program in stages an iterator of the results of each stage."""


@dataclass
class Kind:
    """Calls with the same sizes and parameters, with their observations and recordings.

    `positions`: positions of the inputs that are parameters. `tuned`: whether one of the calls has run unrecorded,
    which chose kernels and initialised libraries. `refused`: the reason why the calls are not recorded, or None.
    """

    observed: Observation
    positions: tuple[int, ...]
    tuned: bool = False
    refused: str | None = None
    recordings: list[Recording] = field(default_factory=list)


class RecordedProgram:
    """A program that replays recordings of itself if they match a call.

    Args:
        limit: maximum number of recordings for one set of parameters, on average over the sets in use.
        name: its name in reasons and warnings.
        others: programs whose results may be inputs of this one. The other arguments are those of `Recorder.wrap`.

    Attributes:
        recordings: its recordings, the newest first.
        moving: positions of inputs that were seen at different addresses.
        copied: positions of results that are returned as copies, because callers keep them.
        waits: number of calls since the last recording that ran unrecorded, because results of earlier calls were in
            use.
        plain: addresses of the results of calls that ran unrecorded since the last replay.
        room: bytes of the arena that unrecorded calls needed.
        refused: the reason why no further calls are recorded, or None.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        *,
        limit: int,
        name: str,
        written: Collection[int] | None,
        visible: int | None,
        inputs: tuple[str, ...],
        owner: Owner,
        others: Collection[RecordedProgram],
    ) -> None:
        self.program, self.device, self.limit, self.name = program, device, limit, name
        self.written, self.visible, self.inputs, self.owner = written, visible, inputs, owner
        self._others: list[weakref.ref[RecordedProgram]] = []
        for other in others:
            self._others.append(weakref.ref(other))
            other._others.append(weakref.ref(self))
        self.recordings: list[Recording] = []
        self.kinds: dict[tuple[Any, ...], Kind] = {}
        self.moving: set[int] = set()
        self.copied: set[int] = set()
        self.plain: deque[set[int]] = deque(maxlen=8)
        self.made = self.waits = self.replays = self.last_wait = self.room = 0
        self.refused: str | None = None
        self.full = False
        self._num_sets: int | None = None
        self.why: Counter[str] = Counter()

    def __call__(self, inputs: list[Any]) -> list[Any]:
        if self.refused is not None:
            count("cuda_graph_plain")
            return self.program(inputs)
        why = self.device.enter()
        if why is not None:
            return self._run_plain(inputs, why)
        try:
            results = self._replayed(inputs)
        finally:
            self.device.leave()
        if isinstance(results, list):
            count("cuda_graph_replays")
            return results
        if isinstance(results, str):
            return self._run_plain(inputs, results)
        assert isinstance(results, Kind)
        plain = self._run_plain(inputs, FIRST)
        if self.refused is None:
            results.observed.note(plain)
        results.tuned = True
        return plain

    def reasons(self) -> list[str]:
        """Returns lines that say what was recorded and why calls ran unrecorded."""
        if self.refused is not None:
            return [f"{self.name}: no CUDA graph: {self.refused}"]
        lines = [f"{self.name}: {_plural(self.made, 'CUDA graph')}"] if self.made else []
        return lines + [f"{self.name}: {_plural(n, 'call')} without one: {why}" for why, n in self.why.most_common()]

    def _count_plain(self, why: str) -> None:
        self.why[why] += 1
        count("cuda_graph_plain")
        count_named("cuda_graph_reasons", {f"{self.name}: a call without CUDA graph: {why}": 1})

    def _run_plain(self, inputs: list[Any], why: str) -> list[Any]:
        self._count_plain(why)
        numbers = any(not isinstance(value, torch.Tensor) for value in inputs)
        self.device.forget_room()
        results = self.program(inputs)
        self.room = max(self.room, self.device.room())
        if not self.made and self.refused is None:
            self._refuse_unrecordable(results, numbers)
        if self.refused is None:
            self.plain.append(addresses_of(results))
        return results

    def _refuse_unrecordable(self, results: list[Any], numbers: bool) -> None:
        """Refuse programs that are known in advance not to be recordable."""
        for i, result in enumerate(results):
            if isinstance(result, torch.Tensor):
                try:
                    check_tensor(result, self.device.device, f"result {i}")
                except Unrecordable as reason:
                    self.refused = str(reason)
            elif isinstance(result, int | float) and not numbers:
                self.refused = f"result {i} is a number that is read from a tensor"
        if self.refused is not None:
            count_named("cuda_graph_reasons", {f"{self.name}: no CUDA graph: {self.refused}": 1})

    # -- one call, with the device locked

    def _replayed(self, inputs: list[Any]) -> Replayed | str | Kind:
        """Returns the results, or the reason why this call runs unrecorded, or its kind if it is the first call of that
        kind.
        """
        busy: list[Recording] = []
        for recording in self.recordings:
            if recording.matches.first(inputs) < 0:
                if not recording.in_use:
                    return self._replay(recording, inputs)
                busy.append(recording)
        try:
            for i, tensor in enumerate(inputs):
                if isinstance(tensor, torch.Tensor):
                    check_tensor(tensor, self.device.device, self._name(i))
            return self._missed(inputs, busy)
        except Unrecordable as reason:
            self.refused = None if self.recordings else str(reason)
            return str(reason)

    def _replay(self, recording: Recording, inputs: list[Any]) -> Replayed:
        if self.plain:
            self.plain.clear()
        self.replays += 1
        try:
            return self._results_of(recording, inputs)
        except RuntimeError as error:
            context_is_lost(error)  # the program's own error message then mentions the lost context
            raise

    def _results_of(self, recording: Recording, inputs: list[Any]) -> Replayed:
        return recording.replay(inputs)

    def _missed(self, inputs: list[Any], busy: list[Recording]) -> Replayed | str | Kind:
        """Handle a call that no recording matches: record it if replays are likely."""
        key = kind_of(inputs, self.device.outputs)
        kind = self.kinds.get(key) or self._kind_except_recorded_inputs(key, inputs)
        if kind is None or not kind.tuned:
            return self._begin(key, inputs)
        if kind.refused is not None:
            return kind.refused
        if busy:
            if self._copy_kept(busy[0]):
                self._drop(kind, busy)
            elif self._must_wait():
                return "tensors of earlier calls were in use"
        elif self._from_plain(inputs):
            return "its inputs come from a call that ran without"
        moved = kind.observed.moved(inputs, key, self.moving)
        kind.observed.look(inputs)
        # a recording whose baked-in inputs have moved will not match again
        if moved and self._may_record():
            self._drop(kind, [r for r in kind.recordings if any(i in r.sources for i in moved)])
        self.moving |= moved
        if not kind.recordings:
            self._mark(*kind.observed.kept(), ())
        return self._record(kind, inputs, self._cause(inputs, busy))

    def _begin(self, key: tuple[Any, ...], inputs: list[Any]) -> Kind:
        """Register the first call of a kind; returns the kind."""
        if len(self.kinds) >= RECORDINGS.known_kinds:
            del self.kinds[next(iter(self.kinds))]
        self.device.begin_kind(self.owner)
        self._num_sets = None
        kind = Kind(Observation(inputs), parameter_positions(inputs))
        self._check_moved_parameters(kind)
        self.kinds[key] = kind
        return kind

    def _check_moved_parameters(self, kind: Kind) -> None:
        """Drop recordings for former addresses of a new kind's parameters, and stop recording if these move repeatedly.

        A program that shards parameters frees their memory after a call and allocates it before the next one, at any
        free address; a recording for one address would keep its memory and seldom match.
        """
        positions, before = kind.positions, []
        storages, starts = kind.observed.storages(positions), kind.observed.starts(positions)
        for known in self.kinds.values():
            if storages and known.positions == positions and known.observed.storages(positions) == storages:
                if known.observed.starts(positions) != starts:
                    before.append(known)
        for known in before:
            self._drop(known, known.recordings)
        if len({known.observed.starts(positions) for known in before}) >= RECORDINGS.parameter_moves:
            self._end("the memory of its parameters is freed and allocated again between calls")

    def _end(self, why: str) -> None:
        """Stop recording, and free all recordings."""
        self.refused = why
        self.recordings, self.kinds = [], {}
        count_named("cuda_graph_reasons", {f"{self.name}: no CUDA graph: {why}": 1})

    def _kind_except_recorded_inputs(self, key: tuple[Any, ...], inputs: list[Any]) -> Kind | None:
        """Returns the known kind of a call whose only difference is that inputs are results of a recording, saved by
        forward; else None.
        """
        known = self.kinds.get(kind_of(inputs, ()))
        if known is None or not known.tuned:
            return None
        if bytes_of(inputs, known.observed.moved(inputs, key, self.moving)) > RECORDINGS.moved_bytes:
            return None
        kind = self.kinds[key] = Kind(copy.copy(known.observed), known.positions, tuned=True)
        return kind

    def _must_wait(self) -> bool:
        """Whether to wait for results of earlier calls to be freed before making another recording."""
        if self.replays - self.last_wait > RECORDINGS.rare_after_replays:
            self.waits = 0
        self.waits, self.last_wait = self.waits + 1, self.replays
        return self.full or self.waits <= RECORDINGS.patience_calls

    def _copy_kept(self, busy: Recording) -> bool:
        """Return results that callers keep as copies in later calls; returns whether that is possible."""
        kept = set(busy.memory.positions())
        if not kept or not self._may_record() or any(i >= busy.results for i in kept):
            return False
        size, addresses = sum(busy.bytes[i] for i in kept), busy.addresses_of(kept)
        return self._mark(kept, size, addresses)

    def _mark(self, kept: set[int], size: int, addresses: Collection[int]) -> bool:
        """Return copies of these results if they are small and no other recording has their `addresses` baked in;
        returns whether that is so.

        If forward saves a result for backward, a recording of backward may have its address baked in; that is not known
        before backward is recorded.
        """
        if size > RECORDINGS.copied_out_bytes or any(address in self.device.fixed for address in addresses):
            return False
        if self.visible is None:
            others = any(other.refused is None and not other.made for other in self.others())
            if len(kept) > RECORDINGS.copied_out_results or others:
                return False
        elif any(i >= self.visible for i in kept):
            return False
        self.copied |= kept
        return True

    def others(self) -> list[RecordedProgram]:
        """Returns the graph's other programs."""
        return [other for each in self._others if (other := each()) is not None]

    def _from_plain(self, inputs: list[Any]) -> bool:
        """Whether inputs are results of an unrecorded call of the graph's other program, which has recordings."""
        others = [other for other in self.others() if other.refused is None]
        plain = {address for other in others for addresses in list(other.plain) for address in addresses}
        return any(isinstance(t, torch.Tensor) and t.numel() and data_ptr(t) in plain for t in inputs)

    def _drop(self, kind: Kind, recordings: Collection[Recording]) -> None:
        gone = {id(recording) for recording in recordings}
        self.recordings = [r for r in self.recordings if id(r) not in gone]
        kind.recordings = [r for r in kind.recordings if id(r) not in gone]

    def _record(self, kind: Kind, inputs: list[Any], cause: str) -> Replayed | str:
        empty = {i for i, t in enumerate(inputs) if isinstance(t, torch.Tensor) and not t.numel()}
        size = bytes_of(inputs, self.moving)
        if size > RECORDINGS.copied_in_bytes:
            return f"{_plural(len(self.moving), 'input')} of {size >> 20} MiB would be copied at each call"
        if not self._may_record():
            return self._give_up(cause)
        results = kind.observed.results_bytes(self.copied)
        if spare := self.device.spare(self.owner, results, made=False):
            return self._refuse(kind, results, spare)
        self.made += 1
        try:
            moving = self.moving | empty
            recording = Recording(
                self.device, self.program, inputs, moving, self.written, self.copied, self.owner, self.room
            )
        except Unrecordable:
            raise
        except Exception as error:
            return self._fail(error)
        if spare := self.device.spare(self.owner, sum(recording.bytes.values())):
            self.made -= 1
            return self._refuse(kind, recording.kept_bytes, spare)
        count("cuda_graphs")
        self.waits = 0
        self.recordings.insert(0, recording)
        kind.recordings.append(recording)
        return self._replay(recording, inputs)

    def _may_record(self) -> bool:
        """Whether another recording is within the limit.

        The blocks of a model share one program, and each block needs a recording, as its parameters have other
        addresses. Parameters that were freed are not counted: a program whose parameters are replaced repeatedly ends
        recording.
        """
        return self.made < self.limit or self.made < self.limit * self._sets_of_parameters()

    def _sets_of_parameters(self) -> int:
        """Returns the number of different parameters, all alive, with which the program is known to have been called.

        It is counted once after each new kind, because a program at its limit needs it at every call.
        """
        if self._num_sets is None:
            seen = ((kind.observed, kind.positions) for kind in self.kinds.values())
            alive = {observed.storages(positions) for observed, positions in seen if observed.alive(positions)}
            self._num_sets = max(1, len(alive))
        return self._num_sets

    def _refuse(self, kind: Kind, size: int, spare: int) -> str:
        """Refuse to record calls of this kind: a recording would keep `size` bytes, `spare` more than is allowed."""
        kind.refused = f"it would keep {size >> 20} MiB, {spare >> 20} too many that other calls could use"
        if not self.recordings:
            self.refused = kind.refused
        return kind.refused

    # -- reasons for users

    def _name(self, position: int) -> str:
        known = position < len(self.inputs)
        return f"input {position} ({self.inputs[position]})" if known else f"input {position}"

    def _cause(self, inputs: list[Any], busy: list[Recording]) -> str:
        """Returns the reason why no recording matched."""
        if busy:
            return "tensors of earlier calls were in use"
        if not self.recordings:
            return "inputs moved"
        i = self.recordings[0].matches.first(inputs)
        return f"{self._name(i)} {'has moved' if isinstance(inputs[i], torch.Tensor) else 'has changed'}"

    def _give_up(self, cause: str) -> str:
        why = f"{cause}, and {_plural(self.made, 'CUDA graph')} had been recorded"
        if not self.full:
            self.full = True
            warnings.warn(SmeltWarning(f"{self.name}: {why}: such calls now run without"), stacklevel=2)
        return why

    def _fail(self, error: Exception) -> str:
        self.refused = f"recording failed: {error}"
        warnings.warn(SmeltWarning(f"{self.name}: {self.refused}\n  it runs without CUDA graphs"), stacklevel=2)
        return self.refused


def addresses_of(values: Iterable[Any]) -> set[int]:
    """Returns the addresses of the tensors with elements."""
    return {data_ptr(value) for value in values if isinstance(value, torch.Tensor) and value.numel()}


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
