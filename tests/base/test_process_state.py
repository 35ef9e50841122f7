"""What torch keeps in two places, or counts in Python, after a fault between the two: the next use works."""

from __future__ import annotations

import gc
import os
import queue
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.autograd import forward_ad

import smelt
from smelt.base.process_state import preserving
from tests.faults.state import changes, left_behind, look

NESTING = torch.func.jvp.__globals__


def _level_unknown_to_python() -> None:
    torch._C._enter_dual_level()


def _level_unknown_to_the_engine() -> None:
    forward_ad.enter_dual_level()
    torch._C._exit_dual_level(level=0)


def _level_left() -> None:
    forward_ad.enter_dual_level()


def _jvp_left_twice() -> None:
    NESTING["JVP_NESTING"] -= 1


def _jvp_not_left() -> None:
    NESTING["JVP_NESTING"] += 1


def _transform_left() -> None:
    torch._C._functorch._jvp_increment_nesting()
    NESTING["JVP_NESTING"] += 1


def _early_stop() -> None:
    torch.utils.checkpoint._enable_checkpoint_early_stop = False


def _saved_tensors() -> None:
    torch.autograd.graph._allow_mutation_on_saved_tensors_enabled = True


FAULTS = [
    *(_level_unknown_to_python, _level_unknown_to_the_engine, _level_left, _jvp_left_twice, _jvp_not_left),
    *(_transform_left, _early_stop, _saved_tensors),
]


def _derivative(x: Tensor) -> Tensor:
    return torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))[1]


def _interrupted(leave: Callable[[], None]) -> None:
    leave()
    raise KeyboardInterrupt


def _used() -> tuple[bool, bool]:
    graph: Any = torch.autograd.graph
    return torch.utils.checkpoint._enable_checkpoint_early_stop, graph._allow_mutation_on_saved_tensors_enabled


@pytest.mark.parametrize("leave", FAULTS, ids=lambda f: f.__name__.strip("_"))
def test_nothing_is_left(leave: Callable[[], None]) -> None:
    x = torch.rand(3)
    before, used = look(), _used()
    with pytest.raises(KeyboardInterrupt):
        preserving(_interrupted, leave)
    assert not changes(before, look()) and not left_behind() and _used() == used
    torch.testing.assert_close(_derivative(x), x.cos())
    with forward_ad.dual_level():
        pass


@pytest.mark.parametrize("leave", [_jvp_left_twice, _jvp_not_left, _early_stop, _saved_tensors])
def test_levels_of_the_caller_stay(leave: Callable[[], None]) -> None:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.rand(3), torch.ones(3))
        with pytest.raises(KeyboardInterrupt):
            preserving(_interrupted, leave)
        assert forward_ad.unpack_dual(x.sin()).tangent is not None


def _no_collection() -> None:
    gc.disable()


def _warnings_ignored() -> None:
    warnings.filters = [("ignore", None, Warning, None, 0)]  # as `catch_warnings` swaps them


def _anomaly_mode() -> None:
    torch.autograd.set_detect_anomaly(True)


def _default_dtype() -> None:
    torch.set_default_dtype(torch.float64)


def _attention() -> None:
    torch.backends.cuda.enable_math_sdp(False)


SHARED = [_no_collection, _warnings_ignored, _anomaly_mode, _default_dtype, _attention, _jvp_not_left, _early_stop]


def _shared_state() -> tuple[Any, ...]:
    seen = gc.isenabled(), warnings.filters, torch.is_anomaly_enabled(), torch.get_default_dtype()
    return *seen, torch.backends.cuda.math_sdp_enabled(), NESTING["JVP_NESTING"], _used()


class Inside:
    """A thread that is inside of `preserving`: it does what it is told, one step after the other."""

    def __init__(self) -> None:
        self.told: queue.Queue[Callable[[], object] | None] = queue.Queue()
        self.done: queue.Queue[object] = queue.Queue()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self.do(lambda: None)

    def _steps(self) -> None:
        while True:
            step = self.told.get()
            if step is None:
                return
            self.done.put(step())

    def _run(self) -> None:
        preserving(self._steps)

    def do(self, step: Callable[[], object]) -> Any:
        self.told.put(step)
        return self.done.get(timeout=60)

    def end(self) -> None:
        self.told.put(None)
        self.thread.join(timeout=60)
        assert not self.thread.is_alive()

    def __enter__(self) -> Inside:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


@pytest.mark.parametrize("switch", SHARED, ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("leaves", [0, 1])
def test_temporary_state_of_another_thread_is_not_restored_as_the_programs(
    switch: Callable[[], None], leaves: int
) -> None:
    """A thread begins while another one has switched something for a time: nothing of it stays behind the two."""
    before = _shared_state()
    threads = [Inside()]
    threads[0].do(switch)
    assert _shared_state() != before
    threads.append(Inside())  # finds what the first one has switched
    during = _shared_state()
    threads.pop(leaves).end()
    assert _shared_state() == during, "the other one is still at work"
    threads[0].do(lambda: preserving(lambda: None))
    threads[0].end()
    assert _shared_state() == before


def test_a_third_thread_that_comes_between_restores_nothing() -> None:
    before = _shared_state()
    with Inside() as first:
        with Inside():
            first.do(_no_collection)
        with Inside() as third:
            assert third.do(gc.isenabled) is False
        assert not gc.isenabled()
    assert _shared_state() == before


def test_a_forked_process_has_no_other_threads() -> None:
    with Inside() as other:
        other.do(_no_collection)
        child = os.fork()
        if not child:
            gc.enable()
            preserving(gc.disable)
            os._exit(0 if gc.isenabled() else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert gc.isenabled()


def test_functions_compiled_at_once_leave_the_collector_on() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        for _ in range(4):
            barrier = threading.Barrier(6)

            def run(number: int, barrier: threading.Barrier = barrier) -> None:
                fn = smelt.compile(lambda x: (x * number).sin().sum(0) + number, backend="aot_eager")
                barrier.wait()
                fn(torch.ones(3, 3))

            threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert gc.isenabled()
    finally:
        sys.setswitchinterval(interval)
        gc.enable()


@pytest.mark.parametrize("order", ["ABAB", "ABBA", "ABCBAC", "ABCACB", "ABACBC"])
def test_greenlets_that_compile_in_turns_leave_what_the_first_has_found(order: str) -> None:
    greenlet = pytest.importorskip("greenlet")
    main = greenlet.getcurrent()

    def work() -> None:
        torch.set_grad_enabled(False)
        gc.disable()
        main.switch()

    each = {name: greenlet.greenlet(lambda: preserving(work)) for name in sorted(set(order))}
    before = look()
    for name in order:
        each[name].switch()
    assert all(one.dead for one in each.values())
    assert not changes(before, look()) and not left_behind()
