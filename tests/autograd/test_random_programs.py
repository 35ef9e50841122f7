"""Random programs of views, writes and arithmetic, compiled against eager.

`python -m tests.autograd.test_random_programs 5000` runs that many of each kind, from another seed than the tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st

import smelt
from smelt.base.errors import Unsupported
from tests.autograd.compare import check, leaves_of
from tests.autograd.random_programs import (
    FUNC,
    INPUTS,
    MODES,
    PURE,
    STATE,
    VIEWS,
    WRITES,
    Step,
    grad_mode_kept,
    make_inputs,
    program,
)

numbers = st.integers(0, 11)
places = st.integers(0, 7)
steps = st.tuples(st.sampled_from([*VIEWS, *WRITES, *PURE]), numbers, numbers, numbers)
all_steps = st.tuples(st.sampled_from([*VIEWS, *WRITES, *PURE, *STATE, *FUNC]), numbers, numbers, numbers)
outputs = st.lists(numbers, min_size=1, max_size=3)
quiet = st.lists(st.tuples(places, places, st.just("no_grad")), max_size=2)
modes = st.lists(st.tuples(places, places, st.sampled_from(MODES)), max_size=2)
PROGRAMS = int(sys.argv[1]) if __name__ == "__main__" else 60
few = settings(  # no `explain`: it traces lines, and compiled functions then run as they are
    max_examples=PROGRAMS,
    derandomize=PROGRAMS <= 60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
)


def runs_in_eager(run: Callable[..., Any], kinds: Sequence[str], same_shapes: bool) -> bool:
    """Some random programs are errors in eager too (a leaf written in place, a saved value overwritten)."""
    inputs = make_inputs(kinds)
    leaves = leaves_of(inputs)
    try:
        outs = run(*inputs)
        heads = [t for t in (*outs, *inputs) if t.requires_grad and t.grad_fn]
        for head in heads:  # a history that leads to no leaf (of a view taken under no_grad) is none when compiled
            found = torch.autograd.grad(head.sum(), leaves, allow_unused=True, retain_graph=True)
            if all(grad is None for grad in found):
                return False
    except (RuntimeError, IndexError):
        return False
    return not same_shapes or all(a.shape == b.shape for a, b in zip(inputs, make_inputs(kinds), strict=True))


@few
@example([("foreach_", 0, 0, 0)], [0], [])
@example([("select", 1, 3, 1), ("t_", 1, 0, 0), ("mul_", 3, 1, 0)], [3, 1], [])
@example([("split", 1, 0, 0), ("index_put_", 1, 0, 0), ("unsqueeze_", 3, 0, 0)], [0], [(2, 3, "no_grad")])
@given(st.lists(steps, min_size=1, max_size=7), outputs, quiet)
def test_graph_of_a_random_program(steps: list[Step], outputs: list[int], modes: list[tuple[int, int, str]]) -> None:
    run = program(steps, outputs, modes)
    assume(runs_in_eager(run, (), True))
    try:
        check(run, lambda: make_inputs(()))
    except Unsupported as refused:  # what capture keeps out of graphs
        assert refused.what.endswith("of an argument in place")


@few
@example([("data", 1, 0, 0), ("copy_other_", 1, 4, 0)], [0], [], ["same"])
@example([("assign", 0, 1, 0), ("grad", 3, 0, 0)], [4], [], ["view"])
@example(
    [("data", 1, 0, 0), ("unfold", 1, 0, 0), ("assign_slice", 4, 0, 0)], [5], [(1, 3, "inference_mode")], ["plain"]
)
@example([("unbind", 1, 0, 0), ("data_write", 1, 0, 0), ("set_", 0, 3, 0)], [4], [], ["view of nonleaf"])
@example([("vmap_of_grad", 3, 0, 0)], [0], [], ["view of nonleaf"])
@example([("resize_", 0, 0, 0), ("set_", 0, 0, 0), ("as_strided_", 4, 0, 0)], [4], [], [])
@example([("set_", 0, 0, 0), ("as_strided", 3, 0, 0)], [3, 4], [], [])
@example([("data_assign", 0, 0, 0), ("copy_other_", 0, 0, 0)], [0], [], [])
@example([("data_assign", 0, 0, 0), ("view_dtype", 0, 0, 0)], [4], [], ["same"])
@example([("resize_smaller", 0, 0, 0), ("assign", 3, 1, 0)], [3], [], [])
@example([("stack", 1, 1, 0), ("index", 1, 0, 0), ("transpose_", 1, 0, 0)], [6], [], ["twin leaf", "strided"])
@example([("func_grad", 0, 0, 0), ("mul_", 3, 0, 0)], [3], [(0, 1, "inference_mode")], [])
@example([("data_assign", 0, 0, 0), ("select", 0, 0, 0), ("data_assign", 3, 0, 0)], [3], [(0, 1, "inference_mode")], [])
@example([("view_dtype", 2, 0, 0), ("view", 3, 0, 0), ("add_", 4, 1, 0)], [3, 4], [], [])
@given(st.lists(all_steps, min_size=1, max_size=7), outputs, modes, st.lists(st.sampled_from(INPUTS), max_size=2))
def test_captured_random_program(
    steps: list[Step], outputs: list[int], modes: list[tuple[int, int, str]], kinds: list[str]
) -> None:
    """The whole way from Python: also with arguments that share memory, and with what changes a tensor's history."""
    run = program(steps, outputs, modes)
    assume(runs_in_eager(run, kinds, False))
    smelt.reset()
    with grad_mode_kept():
        try:
            check(run, lambda: make_inputs(kinds), smelt.compile(run, backend="aot_eager"))
        except RuntimeError as error:  # what one graph saves is checked together: also for a value that nobody uses
            assert "modified by an inplace operation" in str(error)
            assert not runs_in_eager(program(steps, range(30), modes), kinds, False)


if __name__ == "__main__":
    for test in (test_graph_of_a_random_program, test_captured_random_program):
        if sys.argv[2:] in ([], [test.__name__]):
            test()
