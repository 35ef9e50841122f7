"""Samples the memory use of the process over time in a thread."""

from __future__ import annotations

import os
import sys
import threading
import time

from smelt.abi.frame_facts import MemorySample

EVERY_S = 0.02
"""First interval between samples, in seconds; at MAX_SAMPLES every other sample is dropped and the interval doubles."""

MAX_SAMPLES = 1000


class MemorySamples:
    """Samples of memory use, from construction to `end()`. A forked child process is not sampled."""

    def __init__(self) -> None:
        self.samples: list[MemorySample] = []
        self.begin = time.perf_counter()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name="smelt-memory", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        every = EVERY_S
        while not self.ended.wait(every):
            self._look()
            if len(self.samples) >= MAX_SAMPLES:
                self.samples = self.samples[::2]
                every *= 2

    def _look(self) -> None:
        resident = _resident()
        if resident is not None:
            self.samples.append(MemorySample(time.perf_counter() - self.begin, resident, _on_device()))

    def end(self) -> list[MemorySample]:
        """Stop sampling and return the samples."""
        self.ended.set()
        self.thread.join()
        self._look()
        return self.samples


def _resident() -> int | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None


def _on_device() -> int:
    """Bytes of tensors that torch has on the current GPU; 0 where the program has not used one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.memory_allocated())
