"""Predicted steps: link times by hand, hidden and exposed collectives, prefetched all-gathers."""

from __future__ import annotations

import pytest

from smelt.bench.distributed.communication import Collective, Timeline
from smelt.bench.distributed.simulation import Cluster, predict, ring

CLUSTER = Cluster(gpus_per_node=8, inner_gbytes=100, outer_gbytes=10, inner_latency_s=0, outer_latency_s=0)
"""A gigabyte takes 0.01 s inside a node and 0.1 s between nodes, times its traffic."""

GIGABYTE = 10**9


def test_ring_traffic() -> None:
    assert ring("AllReduce", 80, 4) == (6, 120)
    assert ring("AllGather", 10, 4) == (3, 30)
    assert ring("ReduceScatter", 80, 4) == (3, 60)


def test_links() -> None:
    assert CLUSTER.seconds("AllReduce", GIGABYTE, 1) == 0
    assert CLUSTER.seconds("AllReduce", GIGABYTE, 8) == pytest.approx(2 * 7 / 8 / 100)
    assert CLUSTER.seconds("AllReduce", GIGABYTE, 16) == pytest.approx(2 * 15 / 16 / 10)
    slow = Cluster(inner_latency_s=1.0, inner_gbytes=1.0)
    assert slow.seconds("AllGather", GIGABYTE, 2) == pytest.approx(2.0)


def test_a_reduction_that_fits_beside_backward_costs_nothing() -> None:
    measured = Timeline(
        ((0.0, 1.0),), (Collective("AllReduce", 0.5, 0.6, GIGABYTE), Collective("AllReduce", 1.0, 1.0, 0))
    )
    found = predict(measured, 2, 8, CLUSTER)
    assert (found.seconds, found.waiting_share) == (pytest.approx(1.0), pytest.approx(0.0))


def test_the_rest_of_a_reduction_is_waited_for_before_the_optimizer() -> None:
    measured = Timeline(((0.0, 1.0), (1.01, 1.11)), (Collective("AllReduce", 1.0, 1.01, GIGABYTE),))
    found = predict(measured, 2, 16, CLUSTER)
    assert found.seconds == pytest.approx(1.0 + 2 * 15 / 16 / 10 + 0.1)
    assert found.waiting_share == pytest.approx(0.1875 / found.seconds)


def test_collectives_queue_on_their_stream() -> None:
    measured = Timeline(
        ((0.0, 1.0),), tuple(Collective("AllReduce", at, at + 0.01, GIGABYTE) for at in (0.9, 0.95, 1.0))
    )
    assert predict(measured, 2, 16, CLUSTER).seconds == pytest.approx(0.9 + 3 * 0.1875)


def test_an_all_gather_is_needed_where_the_next_one_began() -> None:
    gathers = tuple(Collective("AllGather", at, at + 0.01, GIGABYTE // 16) for at in (0.0, 0.2, 0.4))
    measured = Timeline(((0.0, 0.6),), gathers)
    # On 16 GPUs a shard has 1/8 of the bytes that it has on 2: 7.8 MB, 15 times, at 10 GB/s: 11.7 ms each.
    seconds = 15 * (GIGABYTE // 16) / 8 / 10e9
    found = predict(measured, 2, 16, CLUSTER)
    assert found.seconds == pytest.approx(0.6 + seconds)  # the last one alone has no computation beside it
    late = predict(measured, 2, 16, Cluster(8, 100, 0.1, 0, 0))
    assert late.seconds == pytest.approx(0.2 + 3 * 100 * seconds, rel=0.2)


def test_an_empty_step() -> None:
    assert predict(Timeline((), ()), 2, 8, CLUSTER).seconds == 0
