"""A program in stages with recordings: each stage is one CUDA graph, whose results are returned before the next begins.

Communication that hooks begin between two stages, such as the reductions of DistributedDataParallel, waits only for the
work that the stream has at that time, so it runs beside the graphs of later stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from smelt.abi.staged import Staged
from smelt.base.stats import count
from smelt.runtime.cuda.recorded_program import FIRST, Kind, RecordedProgram, Replayed, addresses_of
from smelt.runtime.cuda.recording import Recording


class RecordedStages(RecordedProgram, Staged):
    """A program in stages that replays recordings of itself if they match a call.

    The arguments are those of `RecordedProgram`. The program is `Staged`, it overwrites no inputs, and users see none
    of its results.
    """

    def __init__(self, program: Staged, *args: Any, **kwargs: Any) -> None:
        RecordedProgram.__init__(self, program, *args, **kwargs)
        self.stages = program
        self.positions, self.count = program.positions, program.count

    def __call__(self, inputs: list[Any]) -> list[Any]:
        return Staged.__call__(self, inputs)

    def begin(self, inputs: list[Any]) -> Iterator[list[Any]]:
        """Yields the results of each stage; see `Staged`.

        The device is locked from the first stage to the last: other programs would use the arena, in which the graphs
        of later stages find intermediate results of earlier ones. Calls from hooks in between run unrecorded.
        """
        if self.refused is not None:
            count("cuda_graph_plain")
            yield from self.stages.begin(inputs)
            return
        found: Replayed | str | Kind | None = self.device.enter()
        if found is None:
            try:
                found = self._replayed(inputs)
                if isinstance(found, Iterator):
                    count("cuda_graph_replays")
                    yield from found
                    return
            finally:
                self.device.leave()
        assert isinstance(found, str | Kind)
        yield from self._plain_stages(inputs, found)

    def _results_of(self, recording: Recording, inputs: list[Any]) -> Replayed:
        return recording.replay_stages(inputs, self.positions)

    def _plain_stages(self, inputs: list[Any], why: str | Kind) -> Iterator[list[Any]]:
        """Yields the results of each stage of a call that runs unrecorded, for a reason or as the first of its kind.

        Callers drop the iterator after the last stage, so nothing may be left to do then.
        """
        self._count_plain(FIRST if isinstance(why, Kind) else why)
        addresses: set[int] = set()
        self.device.forget_room()
        last = len(self.positions) - 1
        for stage, stage_results in enumerate(self.stages.begin(inputs)):
            self.room = max(self.room, self.device.room())
            results: list[Any] = [None] * self.count
            for position, value in zip(self.positions[stage], stage_results, strict=True):
                results[position] = value
            if not self.made and self.refused is None:
                self._refuse_unrecordable(results, numbers=True)
            if isinstance(why, Kind) and self.refused is None:
                why.observed.note(results)
            addresses |= addresses_of(stage_results)
            if stage == last:
                self._end_plain(why, addresses)
            del results, value
            yield stage_results

    def _end_plain(self, why: str | Kind, addresses: set[int]) -> None:
        if self.refused is None:
            self.plain.append(addresses)
        if isinstance(why, Kind):
            why.tuned = True
