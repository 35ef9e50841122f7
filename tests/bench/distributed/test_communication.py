"""Timelines of a profiler's trace: kinds and bytes of collectives, and the share that computation hides."""

from __future__ import annotations

from typing import Any

import pytest

from smelt.bench.distributed.communication import kind_of, timeline, union


def kernel(name: str, begin: float, seconds: float, category: str = "kernel", **args: Any) -> dict[str, Any]:
    """A trace event of a GPU; times in microseconds."""
    return {"cat": category, "name": name, "ts": begin, "dur": seconds, "args": args}


def test_collectives_and_computation_are_distinguished() -> None:
    events = [
        kernel("gemm", 1000, 10),
        kernel("copy", 1005, 10, "gpu_memcpy"),
        kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 1010, 20, **{"In msg nelems": 8, "dtype": "BFloat16"}),
        kernel("gemm", 1040, 5),
        {"cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 5000},
        {"cat": "kernel", "name": "without duration", "ts": 0},
    ]
    found = timeline(events)
    assert found.compute == (pytest.approx((0, 15e-6)), pytest.approx((40e-6, 45e-6)))
    (collective,) = found.collectives
    assert (collective.kind, collective.nbytes) == ("AllReduce", 16)
    assert found.seconds == pytest.approx(45e-6)
    assert found.hidden_share() == pytest.approx(5 / 20)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "ReduceScatter"),
        ("ncclDevKernel_AllGather_RING_LL", "AllGather"),
        ("ncclDevKernel_Reduce_Sum_f32", "Reduce"),
        ("ncclNew", "ncclNew"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_without_collectives_no_share_is_given() -> None:
    assert timeline([kernel("gemm", 0, 1)]).hidden_share() is None
    assert timeline([]).seconds == 0


def test_collectives_that_overlap_count_once() -> None:
    events = [kernel("gemm", 0, 10), kernel("ncclAllReduce", 5, 10), kernel("ncclAllReduce", 6, 4)]
    assert timeline(events).hidden_share() == pytest.approx(0.5)


def test_union() -> None:
    assert union([(3, 4), (0, 1), (1, 2), (0.5, 0.7)]) == [(0, 2), (3, 4)]
