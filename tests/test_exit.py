"""The end of a process while other threads work: what still runs goes on, and nothing of smelt's ends the process."""

from __future__ import annotations

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
def test_a_first_call_behind_the_end_of_the_main_thread(way: str) -> None:
    ran = run(STILL + WAYS[way])
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "worked\n", "")
