"""Collectives in a profiler's trace of a step: when they ran, and which share of their time overlapped with kernels.

The trace is the JSON that `torch.profiler.profile.export_chrome_trace` writes. Times in it are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Interval = tuple[float, float]
"""Start and end of an interval in seconds."""


@dataclass(frozen=True)
class Collective:
    """One collective on the GPU.

    Attributes:
        kind: NCCL's name of the operation, such as `AllReduce`.
        begin, end: seconds since the first kernel of the trace.
        nbytes: number of bytes of the rank's input; 0 if the trace does not contain it.
    """

    kind: str
    begin: float
    end: float
    nbytes: int


@dataclass(frozen=True)
class Timeline:
    """The activity of a GPU in one step: intervals of computation, without overlaps and in order, and the
    collectives.
    """

    compute: tuple[Interval, ...]
    collectives: tuple[Collective, ...]

    @property
    def seconds(self) -> float:
        """Time in seconds from the start of the first kernel to the end of the last."""
        ends = [end for _, end in self.compute] + [each.end for each in self.collectives]
        return max(ends, default=0.0)

    def computed_until(self, moment: float) -> float:
        """Returns the seconds of computation before `moment`."""
        return sum(min(end, moment) - begin for begin, end in self.compute if begin < moment)

    def hidden_share(self) -> float | None:
        """The share of the collectives' time in which kernels computed as well; None without collectives."""
        times = union((each.begin, each.end) for each in self.collectives)
        total = sum(end - begin for begin, end in times)
        hidden = sum(self.computed_until(end) - self.computed_until(begin) for begin, end in times)
        return hidden / total if total else None


KINDS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "SendRecv", "Reduce")
"""NCCL's names of collectives as they occur in kernels' names; AllReduce and ReduceScatter come before Reduce."""

ITEM_BYTES = {"Float": 4, "Half": 2, "BFloat16": 2, "Double": 8, "Long": 8, "Int": 4, "Byte": 1, "Char": 1}
"""Number of bytes of an element by the name of its dtype in NCCL's trace events."""


def timeline(events: Iterable[Mapping[str, Any]]) -> Timeline:
    """Returns the timeline of the trace's events of the categories `kernel`, `gpu_memcpy` and `gpu_memset`."""
    found = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and "dur" in event]
    start = min((event["ts"] for event in found), default=0.0)
    compute: list[Interval] = []
    collectives: list[Collective] = []
    for event in found:
        begin = (event["ts"] - start) / 1e6
        end = begin + event["dur"] / 1e6
        if event["name"].startswith("nccl"):
            collectives.append(Collective(kind_of(event["name"]), begin, end, nbytes_of(event.get("args", {}))))
        else:
            compute.append((begin, end))
    return Timeline(tuple(union(compute)), tuple(sorted(collectives, key=lambda each: each.begin)))


def kind_of(kernel: str) -> str:
    """Returns the collective in the name of an NCCL kernel, or the name itself if it contains none."""
    return next((kind for kind in KINDS if kind in kernel), kernel)


def nbytes_of(args: Mapping[str, Any]) -> int:
    """Returns the number of bytes of a collective's input from the arguments of its trace event."""
    return int(args.get("In msg nelems", 0)) * ITEM_BYTES.get(args.get("dtype", ""), 0)


def union(intervals: Iterable[Interval]) -> Sequence[Interval]:
    """Sort the intervals and join those that touch or overlap."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined
