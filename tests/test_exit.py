"""The end of a process while other threads work: what still runs goes on, and nothing of smelt's ends the process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

STILL = """
import atexit, threading, time, torch, smelt
f = smelt.compile(lambda x: (x.sin() * NUMBER).sum())
ended = threading.Event()
def work():
    ended.wait(1)  # the main thread is at its end by then
    x = torch.ones(5, requires_grad=True)
    f(x).backward()
    torch.testing.assert_close(x.grad, torch.ones(5).cos() * NUMBER)
    print("worked")
"""

WAYS = {
    "a thread that is waited for": "NUMBER = 1.71\nthreading.Thread(target=work).start()",
    "a function at exit": "NUMBER = 1.72\natexit.register(work)",
}


def run(text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", text]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize("way", WAYS)
def test_a_first_call_after_the_end_of_the_main_thread(way: str) -> None:
    ran = run(STILL + WAYS[way])
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "worked\n", "")


DAEMONS = """
import threading, time, torch, smelt
from torch.utils.checkpoint import checkpoint
class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, g): return g * 2
def leaf():  # one a thread: PyTorch stops where two share one, as it locks it and the interpreter in either order
    return torch.randn(20, 20, requires_grad=True)
def hooked(w):
    y = w * 2
    y.register_hook(lambda g: g * 2)
    y.sum().backward()
loops = {
    "values": lambda w: w.sin(),
    "backward": lambda w: (w @ w).sum().backward(),
    "function": lambda w: Twice.apply(w).sum().backward(),
    "hooks": hooked,
    "checkpoint": lambda w: checkpoint(lambda a: a.sin().sum(), w, use_reentrant=True).backward(),
}
def loop(one):
    w = leaf()
    while True:
        one(w)
for name in NAMES:
    compiled = smelt.compile(loops[name])
    compiled(leaf())
    for one in (loops[name], compiled):
        threading.Thread(target=loop, args=(one,), daemon=True).start()
time.sleep(0.3)
"""


@pytest.mark.parametrize("names", [["values", "checkpoint"], ["backward", "function", "hooks"]])
def test_daemon_threads_inside_of_operators_do_not_abort_the_end(names: list[str]) -> None:
    ran = run(DAEMONS.replace("NAMES", repr(names)))
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


TERMINATE = """
import ctypes, threading
import smelt.base._native as native
assert native.end_threads_alone()
terminate = ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev
"""


@pytest.mark.parametrize("where", ["terminate()", "threading.Thread(target=terminate).start()"])
def test_call_of_terminate_still_aborts_a_running_program(where: str) -> None:
    assert run(TERMINATE + where).returncode == -signal.SIGABRT
