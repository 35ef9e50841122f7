"""A process forked while other threads compile, run and free memory can do all of that itself."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pytest

from smelt.base import locks

HAMMER = """
import os, signal, sys, threading
import torch
torch.set_num_threads(1)  # OpenMP's own threads do not survive a fork
import smelt

f = smelt.compile(lambda x, y: (x * y).sin().sum())
shapes = iter(range(2, 10_000))

def train():
    while not done:
        x = torch.randn(400, 400, requires_grad=True)
        f(x, x).backward()
        smelt.stats()

def compile_more():
    while not done:
        smelt.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(next(shapes)))

done = False
train_once = torch.randn(400, 400, requires_grad=True)
f(train_once, train_once).backward()
threads = [threading.Thread(target=work) for work in (train, compile_more)]
for thread in threads:
    thread.start()
failed = 0
for _ in range(12):
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a lock that nobody gives back
        with torch.no_grad():
            assert torch.isfinite(f(torch.ones(400, 400), torch.ones(400, 400)))
            results = [smelt.compile(lambda x: x * 3)(torch.ones(7)) for _ in range(2)]
        assert all(bool((result == 3).all()) for result in results)
        os._exit(0)
    failed += os.waitpid(child, 0)[1] != 0
done = True
for thread in threads:
    thread.join()
sys.exit(failed)
"""


def test_children_of_a_busy_process_run_compiled_code() -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(HAMMER)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("make", [locks.new_lock, locks.new_flag])
def test_a_lock_of_another_thread_is_free_in_the_child(make: Callable[[], Any]) -> None:
    lock = make()
    holder = threading.Thread(target=lock.acquire)
    holder.start()
    holder.join()
    assert not lock.acquire(blocking=False)
    locks._free_all()  # what happens in a child
    assert lock.acquire(blocking=False)
    lock.release()
