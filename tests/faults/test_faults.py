"""A slice of `python -m tests.faults`, faults that end processes, and the restoration by itself."""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import smelt
from smelt.base import locks, stats, torch_c
from smelt.base.process_state import keep, preserving
from smelt.capture import session
from smelt.runtime.compiler_process import CompilerGroup
from tests.faults.campaign import KINDS, campaign
from tests.faults.inject import Calls
from tests.faults.programs import PROGRAMS, compiled_by
from tests.faults.state import changes, left_behind, look

PAIRS = [(program, kind) for program in PROGRAMS for kind in KINDS]


@pytest.mark.parametrize(("program", "kind"), PAIRS[::9])
def test_a_slice(program: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_STRICT", "0")
    found = campaign(f"{program}/aot_eager/{kind}/slice/3")
    assert found["status"] == "ok", found["detail"]


# -- the restoration -------------------------------------------------------------------------------------------------


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("an operator came to a mode that a fault has left")


class _Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("a function came to a mode that a fault has left")


def _generators() -> None:
    state, drawn = torch.get_rng_state(), random.getstate()
    keep(lambda: torch.set_rng_state(state))
    keep(lambda: random.setstate(drawn))
    torch.rand(3)
    random.random()


LEFT: dict[str, Callable[[], Any]] = {
    "a dispatch mode": lambda: _Dispatch().__enter__(),
    "a function mode": lambda: _Functions().__enter__(),
    "two kinds of modes": lambda: (_Dispatch().__enter__(), _Functions().__enter__(), _Dispatch().__enter__()),
    "a popped mode": torch_c.pop_torch_function_mode,
    "torch functions off": lambda: torch_c.without_torch_function().__enter__(),
    "a default device": lambda: torch.device("meta").__enter__(),
    "gradients": lambda: torch.set_grad_enabled(False),
    "inference mode": lambda: _KEPT.append(torch_c.inference_mode(True)) or _KEPT[-1].__enter__(),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16).__enter__(),
    "vmap": lambda: torch._C._vmapmode_increment_nesting(),
    "a transform": lambda: torch._C._functorch._grad_increment_nesting(),
    "a forward level": lambda: torch.autograd.forward_ad.enter_dual_level(),
    "saved tensor hooks": lambda: torch.autograd.graph.save_on_cpu().__enter__(),
    "hooks off": lambda: torch._C._autograd._saved_tensors_hooks_disable("no"),
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(True),
    "a default dtype": lambda: torch.set_default_dtype(torch.float64),
    "warnings": lambda: warnings.catch_warnings(record=True).__enter__(),
    "a group of compilers": lambda: CompilerGroup().__enter__(),
    "a lock": lambda: _LOCK.acquire(),
    "a lock twice": lambda: (_LOCK.acquire(), _LOCK.acquire()),
    "random generators": _generators,
}
_KEPT: list[Any] = []
_LOCK = locks.new_lock()


def _failing(compile_it: Callable[[Any], Any]) -> Callable[[], Any]:
    """Its error is looked for in eager, with the modes of the graph."""
    compiled, x = compile_it(lambda x, i: (x * 2)[i].sum()), torch.ones(4, requires_grad=True)

    def run() -> None:
        with contextlib.suppress(IndexError):
            compiled(x, torch.tensor([9]))

    return run


def _nested(compile_it: Callable[[Any], Any]) -> Callable[[], Any]:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():
            y = x.exp()
        with torch.inference_mode():
            z = x.detach() * 2
        return y + z.clone()

    compiled, x = compile_it(fn), torch.ones(4, requires_grad=True)
    return lambda: compiled(x).sum().backward()


INTERRUPTED = {name: PROGRAMS[name].make for name in ("regions", "devices")} | {"failing": _failing, "nested": _nested}


@pytest.mark.parametrize("program", INTERRUPTED)
def test_an_interrupt_anywhere_in_a_compiled_call_leaves_no_switch(program: str) -> None:
    """Ctrl-C that came behind a switch and before its `try`, in our code or in a context of torch's, left gradients off
    or inference mode on for the rest of the program."""
    run = INTERRUPTED[program](compiled_by("aot_eager"))
    for _ in range(3):
        run()
    events = frozenset({"call", "c_return"})  # where CPython looks for signals
    with Calls(KeyboardInterrupt(), events, contexts=True) as counting:
        run()
    before, left = look(), {}
    for at in range(1, counting.count() + 1, 2):
        with contextlib.suppress(KeyboardInterrupt), Calls(KeyboardInterrupt(), events, at, contexts=True):
            run()
        if found := changes(before, look()):
            left[at], before = found, look()
    assert not left


@pytest.mark.parametrize("what", LEFT)
@pytest.mark.parametrize("how", ["raises", "meets a second interrupt", "has no stack left"])
def test_state_left_by_a_fault_is_restored(what: str, how: str) -> None:
    def fault() -> None:
        LEFT[what]()
        if how == "meets a second interrupt":
            threading_throw(KeyboardInterrupt)
        raise RecursionError("no stack") if how == "has no stack left" else KeyboardInterrupt

    def at_the_end_of_the_stack() -> None:
        try:
            at_the_end_of_the_stack()
        except RecursionError:
            preserving(fault)
            raise

    with ExitStack() as stack:
        if what == "a popped mode":
            stack.enter_context(torch.device("cpu"))
        before = look()
        with pytest.raises((KeyboardInterrupt, RecursionError)):
            (at_the_end_of_the_stack if how == "has no stack left" else lambda: preserving(fault))()
        assert not changes(before, look())
        assert not left_behind()


@contextmanager
def _switched() -> Iterator[None]:
    torch.set_grad_enabled(False)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float64)


@pytest.mark.parametrize("at", ["__enter__", "__exit__"])
def test_blocks_do_not_end_when_the_traceback_does(at: str) -> None:
    """An interrupt in contextlib's own frame leaves the generator to that frame, which the traceback holds."""

    def meet(frame: Any, event: str, arg: Any) -> None:
        if event == wanted and frame.f_code.co_name == at and frame.f_code.co_filename == contextlib.__file__:
            raise KeyboardInterrupt

    def fault() -> None:
        sys.setprofile(meet)
        with _switched():
            pass

    wanted = "c_return" if at == "__enter__" else "call"  # behind its `next`, where signals come
    before = look()
    with pytest.raises(KeyboardInterrupt) as caught:
        preserving(fault)
    sys.setprofile(None)
    assert not changes(before, look())
    del caught
    gc.collect()
    assert not changes(before, look())


def threading_throw(error: type[BaseException]) -> None:
    """The error is raised here at the next instruction that looks for one: in C, the first one after it."""
    import ctypes

    throw = ctypes.pythonapi.PyThreadState_SetAsyncExc
    throw(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(error))


def test_a_lock_is_given_back_where_the_fault_was_swallowed() -> None:
    preserving(_LOCK.acquire)
    assert not left_behind()


def test_a_result_is_handed_on_and_other_threads_are_left_alone() -> None:
    torch.manual_seed(0)
    want = torch.rand(4)
    torch.manual_seed(0)
    assert preserving(lambda a, *, b: a + b, 1, b=2) == 3
    drawn = preserving(lambda: torch.rand(4))  # nobody said that it would be put back
    assert torch.equal(drawn, want) and not torch.equal(torch.rand(4), want)


@pytest.mark.parametrize("where", ["a backend", "capture", "what follows capture"])
def test_a_time_limit_arrives(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler raises an ordinary exception, which capture would take for one of its own or of the program."""
    monkeypatch.setenv("SMELT_STRICT", "0")

    def handler(*_: Any) -> None:
        raise TimeoutError("out of time")

    def alarm() -> None:
        signal.raise_signal(signal.SIGALRM)

    def backend(gm: Any, inputs: Any) -> Any:
        if where == "a backend":
            alarm()
        return gm

    if where == "capture":
        monkeypatch.setattr(session, "Interpreter", lambda *_: alarm())
    elif where == "what follows capture":
        monkeypatch.setattr(session, "Writer", lambda *_: alarm())

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeoutError, match="out of time"):
            smelt.compile(lambda x: x + 1, backend=backend)(torch.ones(2, 3))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not left_behind()


def test_a_signal_handler_takes_a_lock_of_ours_that_its_thread_holds() -> None:
    came: list[int] = []

    def handler(*_: Any) -> None:
        came.append(len(smelt.stats()))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(3):
            with stats._lock:
                signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(came) == 3


# -- processes -------------------------------------------------------------------------------------------------------


def run(source: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(source)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_finalizers_of_the_program_at_each_look_for_garbage() -> None:
    done = run("""
        import gc, os
        os.environ["SMELT_STRICT"] = "0"
        import torch, smelt
        from torch import nn

        compiled = smelt.compile(lambda x: x.cos(), backend="aot_eager")

        class Noisy:
            def __init__(self): self.me = self
            def __del__(self):
                compiled(torch.ones(3)); torch.rand(2) + 1
                raise ValueError("a finalizer raises")

        import sys
        sys.unraisablehook = lambda info: None
        net = nn.Sequential(nn.Linear(4, 4), nn.GELU())
        x = torch.ones(2, 4)
        want = net(x)
        gc.set_threshold(1)
        for n in range(3):
            Noisy()
            run = smelt.compile(net, backend="aot_eager")
            got = run(x)
            Noisy()
            got.sum().backward()
            torch.testing.assert_close(got, want)
        assert type(torch.ones(2) + 1) is torch.Tensor
        print("end")
    """)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr[-2000:]


@pytest.mark.parametrize("at", [0.2, 0.7])
def test_ctrl_c_ends_a_process_that_compiles(at: float) -> None:
    """SIGINT ends one of many compilations with KeyboardInterrupt, wherever it comes, and what follows works."""
    done = run(f"""
        import os, signal, threading, time
        import torch, smelt
        smelt.compile(lambda x: x + 1)(torch.ones(2))
        threading.Timer({at}, os.kill, (os.getpid(), signal.SIGINT)).start()
        n = 0
        try:
            while True:
                n += 1
                smelt.compile(lambda x: (x * n).exp().sum(0) + n)(torch.ones(n % 5 + 1, 3))
        except KeyboardInterrupt:
            print("interrupted")
        assert type(torch.ones(2) + 1) is torch.Tensor
        assert smelt.compile(lambda x: x * 2)(torch.ones(2)).tolist() == [2, 2]
        print("end")
    """)
    assert (done.returncode, done.stdout) == (0, "interrupted\nend\n"), done.stderr[-2000:]
