"""The minimum cut against scipy's maximum flow, on random networks."""

from __future__ import annotations

import random
from array import array

import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from smelt.autograd import _native


def cut(edges: list[tuple[int, int, int]], nodes: int, source: int, sink: int) -> list[int]:
    tails, heads, costs = (list(column) for column in zip(*edges, strict=True)) if edges else ([], [], [])
    return list(_native.minimum_cut(array("i", tails), array("i", heads), array("q", costs), nodes, source, sink))


def scipys_cut(edges: list[tuple[int, int, int]], nodes: int, source: int, sink: int) -> list[int]:
    """The nodes that still reach the sink when scipy's flow is maximal."""
    tails, heads, costs = zip(*edges, strict=True)
    graph = coo_array((np.array(costs, np.int32), (tails, heads)), shape=(nodes, nodes)).tocsr()
    left = (graph - maximum_flow(graph, source, sink).flow).tocsr()
    left.data[left.data < 0] = 0
    left.eliminate_zeros()
    found = breadth_first_order(left.T.tocsr(), sink, directed=True, return_predecessors=False)
    return [int(node in set(found.tolist())) for node in range(nodes)]


@pytest.mark.parametrize("seed", range(60))
def test_cut_is_that_of_scipy(seed: int) -> None:
    draw = random.Random(seed)
    nodes = draw.choice([2, 3, 6, 20, 80])
    costs = draw.choice([(1, 3), (0, 1000), (2**20, 2**25)])
    edges = [
        (a, b, draw.randint(*costs))
        for a, b in ((draw.randrange(nodes), draw.randrange(nodes)) for _ in range(draw.choice([1, 3, 6]) * nodes))
        if a != b
    ] + [(0, nodes - 1, 1)]
    assert cut(edges, nodes, 0, nodes - 1) == scipys_cut(edges, nodes, 0, nodes - 1)


def test_of_several_minimum_cuts_it_is_the_one_nearest_to_the_sink() -> None:
    assert cut([(0, 1, 5), (1, 2, 5), (2, 3, 5)], 4, 0, 3) == [0, 0, 0, 1]


def test_large_costs_do_not_overflow() -> None:
    many = [(0, 1, 2**60)] * 40 + [(1, 2, 7)] + [(2, 3, 2**60)] * 40
    assert cut(many, 4, 0, 3) == [0, 0, 1, 1]
    assert cut([(0, 1, 2**60)] * 40 + [(1, 2, 2**60)] * 40, 3, 0, 2) == [0, 0, 1]


def test_nothing_leads_to_the_sink() -> None:
    assert cut([], 3, 0, 2) == [0, 0, 1]


@pytest.mark.parametrize(
    "network",
    [
        ([(0, 3, 1)], 3, 0, 2),
        ([(-1, 2, 1)], 3, 0, 2),
        ([(0, 2, -1)], 3, 0, 2),
        ([(0, 2, 2**63 - 1)], 3, 0, 2),
        ([(0, 2, 1)], 3, 1, 1),
        ([(0, 2, 1)], 3, 0, 3),
    ],
)
def test_invalid_network_is_refused(network: tuple[list[tuple[int, int, int]], int, int, int]) -> None:
    with pytest.raises(ValueError, match="no network"):
        cut(*network)


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match="no network"):
        _native.minimum_cut(array("i", [0]), array("i", [1, 2]), array("q", [1]), 3, 0, 2)
