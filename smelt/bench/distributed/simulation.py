"""Predicts the time of a step on more GPUs from the timeline of a measured one.

The model: computation takes as long as measured. A collective over N GPUs takes

    latency * hops + traffic / bandwidth

with ring algorithms: all-reduce 2(N-1) hops and 2(N-1)/N times its input's bytes of traffic a GPU; all-gather N-1 hops
and N-1 times its input's bytes; reduce-scatter N-1 hops and (N-1)/N times its input's bytes. Shards become smaller as N
grows: the input of an all-gather has its measured bytes times the measured number of GPUs / N. The bandwidth is that of
the link inside a node while all GPUs are in one node, otherwise the smaller of that and a GPU's share of the network.

Collectives run one after another on their own stream. A collective begins at the earliest when as much has been
computed as in the measured step when that collective began. Computation waits for an all-gather at the position at
which the next all-gather began (one block of prefetching), and for every other collective at the position of the last
collective.

The model ignores that collectives slow kernels down, congestion, and differences between ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.bench.distributed.communication import Collective, Timeline


@dataclass(frozen=True)
class Cluster:
    """The machines for which steps are predicted.

    Attributes:
        gpus_per_node: number of GPUs of one node.
        inner_gbytes, outer_gbytes: bandwidth with which one GPU sends, in 10^9 bytes per second, inside a node and over
            the network.
        inner_latency_s, outer_latency_s: latency of one hop in seconds, inside a node and over the network.
    """

    gpus_per_node: int = 8
    inner_gbytes: float = 350.0
    outer_gbytes: float = 45.0
    inner_latency_s: float = 3e-6
    outer_latency_s: float = 12e-6

    def seconds(self, kind: str, nbytes: float, gpus: int) -> float:
        """Returns the seconds of one collective with `nbytes` of input on each of `gpus` GPUs; 0 on a single GPU."""
        if gpus < 2:
            return 0.0
        inside = gpus <= self.gpus_per_node
        bandwidth = (self.inner_gbytes if inside else min(self.inner_gbytes, self.outer_gbytes)) * 1e9
        latency = self.inner_latency_s if inside else self.outer_latency_s
        hops, traffic = ring(kind, nbytes, gpus)
        return latency * hops + traffic / bandwidth


def ring(kind: str, nbytes: float, gpus: int) -> tuple[int, float]:
    """Returns the number of hops and of bytes sent by one GPU in a ring algorithm."""
    match kind:
        case "AllReduce":
            return 2 * (gpus - 1), 2 * (gpus - 1) / gpus * nbytes
        case "AllGather":
            return gpus - 1, (gpus - 1) * nbytes
        case "ReduceScatter":
            return gpus - 1, (gpus - 1) / gpus * nbytes
        case _:
            return gpus - 1, nbytes


@dataclass(frozen=True)
class Prediction:
    """A predicted step: its seconds on `gpus` GPUs, and the share of the step in which computation waited for
    collectives.
    """

    gpus: int
    seconds: float
    waiting_share: float


def predict(measured: Timeline, measured_gpus: int, gpus: int, cluster: Cluster) -> Prediction:
    """Predict the step of `measured`, which was traced on `measured_gpus` GPUs, on `gpus` GPUs of a cluster."""
    needs = needed_at(measured)
    clock = computed = stream = 0.0
    # (seconds of computation at which the collective is needed, end of the collective)
    waits: list[tuple[float, float]] = []
    for each in measured.collectives:
        position = measured.computed_until(each.begin)
        clock, computed, waits = advance(clock, computed, position, waits)
        nbytes = each.nbytes * (measured_gpus / gpus if each.kind == "AllGather" else 1.0)
        stream = max(stream, clock) + cluster.seconds(each.kind, nbytes, gpus)
        waits.append((needs[each], stream))
    total = measured.computed_until(measured.seconds)
    clock, computed, waits = advance(clock, computed, total, waits)
    seconds = max([clock, *(end for _, end in waits)])
    return Prediction(gpus, seconds, (seconds - total) / seconds if seconds else 0.0)


def needed_at(measured: Timeline) -> dict[Collective, float]:
    """Returns for each collective the seconds of computation after which its result is needed; see the module's
    docstring.
    """
    collectives = measured.collectives
    last = max((measured.computed_until(each.begin) for each in collectives), default=0.0)
    gathers = [each for each in collectives if each.kind == "AllGather"]
    following = dict(zip(gathers, gathers[1:], strict=False))
    return {each: measured.computed_until(following[each].begin) if each in following else last for each in collectives}


def advance(
    clock: float, computed: float, position: float, waits: Sequence[tuple[float, float]]
) -> tuple[float, float, list[tuple[float, float]]]:
    """Advance the computation from `computed` to `position`, waiting for the collectives that are needed before it.

    Returns:
        The clock and the position afterwards, and the remaining waits.
    """
    due = sorted(wait for wait in waits if wait[0] <= position)
    for needed, end in due:
        clock += max(needed - computed, 0.0)
        computed = max(computed, needed)
        clock = max(clock, end)
    return clock + position - computed, position, [wait for wait in waits if wait[0] > position]
