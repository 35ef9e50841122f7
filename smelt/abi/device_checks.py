"""Reports which check of which kernel failed on a GPU: kernels write it to host memory, and errors include it.

A kernel that finds an index out of range writes there which check it was, and traps (`m_refuse` of
codegen/triton/library.py). As after an assertion of eager's kernels the context is lost: no later kernel runs, and
whoever calls CUDA next gets an error. Where that is smelt, the error says what the kernel has told; where PyTorch calls
first (`.item()`), the message is printed beside its error.

Each launch that checks something has words of its own, so that a failure is told of the program that it belongs to.
They are never reused: a kernel may still run when its program is gone.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType

import torch

from smelt.abi.faults import CHECK_BYTES, Checks
from smelt.base.locks import new_lock
from smelt.base.text import visible

PAGE = 2048
"""Launches whose words are allocated together: 64 KiB."""

WORDS = CHECK_BYTES // 8

ENDED = "the CUDA context is lost, as after eager's assertions: nothing runs there until the process is started anew"

_made: list[DeviceChecks] = []


class DeviceChecks:
    """The words of all launches of a process.

    Args:
        allocate: allocates a number of 64-bit zeros in host memory that every GPU can write.
    """

    def __init__(self, allocate: Callable[[int], torch.Tensor]) -> None:
        self.allocate = allocate
        self.lock = new_lock()
        self.pages: list[tuple[torch.Tensor, list[Checks]]] = []
        self.reported = False

    def reserve(self, checks: Sequence[Checks]) -> int:
        """The address of words for these launches, one launch behind the other."""
        with self.lock:
            if not self.pages or len(self.pages[-1][1]) + len(checks) > len(self.pages[-1][0]) // WORDS:
                self.pages.append((self.allocate(WORDS * max(PAGE, len(checks))), []))
            words, known = self.pages[-1]
            position = len(known)
            known.extend(checks)
            return words.data_ptr() + position * CHECK_BYTES

    def message(self) -> str | None:
        """The message of a kernel that trapped; None where none did."""
        for words, launches in list(self.pages):
            table = words.view(-1, WORDS)
            for position in table[: len(launches), 0].nonzero().flatten().tolist():
                number, value, size, _ = table[position].tolist()
                return _message(launches[position], number, value, size)
        return None

    def report(self) -> str | None:
        """The message, marked as reported."""
        message = self.message()
        self.reported = self.reported or message is not None
        return message

    def print_once(self) -> None:
        """Print the message unless an error has included it."""
        message = None if self.reported else self.report()
        if message is not None:
            print(visible(f"smelt: {message}"), file=sys.stderr, flush=True)


def _message(launch: Checks, number: int, value: int, size: int) -> str:
    kernel, checks = launch
    if not 0 < number <= len(checks):
        return f"a check of kernel {kernel!r} failed; {ENDED}"
    check = checks[number - 1]
    at = f"{check.line}: " if check.line else ""
    operator = f"{check.operator or check.node}, in kernel {kernel!r}" if check.operator or check.node else repr(kernel)
    return f"{at}{check.message(value, size)} ({operator}); {ENDED}"


@functools.cache
def device_checks() -> DeviceChecks:
    """The checks of this process; once created, unreported messages are printed with errors and at exit."""
    made = DeviceChecks(functools.partial(torch.zeros, dtype=torch.int64, device="cpu", pin_memory=True))
    _made.append(made)
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        made.print_once()
        before(kind, error, trace)

    before_of_threads = threading.excepthook

    def hook_of_threads(failed: threading.ExceptHookArgs) -> None:
        made.print_once()
        before_of_threads(failed)

    sys.excepthook, threading.excepthook = hook, hook_of_threads
    atexit.register(made.print_once)
    return made


def failure() -> str | None:
    """What is known of the kernel that ended the context (for cuda.c); None where it was none that checks."""
    return _made[0].report() if _made else None


def mark_unreported() -> None:
    """The error that says what a kernel told does not get to the user: it is to be printed."""
    for made in _made:
        made.reported = False


def context_is_lost(error: Exception) -> bool:
    """Whether this is an error that CUDA's functions give once a kernel has failed, whatever is called.

    If a kernel told something before it trapped, the error then says that.
    """
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    if "CUDA context is lost" in text:
        return True
    if "CUDA error" not in text:
        return False
    message = failure()
    if message is not None:
        error.args = (f"CUDA error: device-side assert triggered: {message}\n{text}",)
    return True
