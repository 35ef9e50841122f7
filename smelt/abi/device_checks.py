"""Reports which check of a kernel on a GPU failed: kernels write its number to host memory, errors include its message.

A kernel that finds an index out of range writes the number of the failed check to host memory and traps (`m_refuse` of
codegen/triton/library.py). As after an assertion in an eager kernel, the CUDA context is lost: no later kernel runs,
and the next call of CUDA returns an error. If smelt makes that call, its error contains the message of the check; if
PyTorch does (`.item()`), the message is printed along with PyTorch's error.

Each launch with checks has separate words in host memory, so that a failure is attributed to the right program. Words
are never reused, since a kernel may still run when its program has been freed.
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
"""Number of launches whose words are allocated together: 64 KiB."""

WORDS = CHECK_BYTES // 8

ENDED = "the CUDA context is lost, as after eager's assertions: nothing runs there until the process is started anew"

_made: list[DeviceChecks] = []


class DeviceChecks:
    """The host memory in which kernels report failed checks: a few words for each launch of the process.

    Args:
        allocate: function that allocates a number of 64-bit zeros in host memory that every GPU can write.
    """

    def __init__(self, allocate: Callable[[int], torch.Tensor]) -> None:
        self.allocate = allocate
        self.lock = new_lock()
        self.pages: list[tuple[torch.Tensor, list[Checks]]] = []
        self.reported = False

    def reserve(self, checks: Sequence[Checks]) -> int:
        """Reserve adjacent words for these launches, in order, and return the address of the first."""
        with self.lock:
            if not self.pages or len(self.pages[-1][1]) + len(checks) > len(self.pages[-1][0]) // WORDS:
                self.pages.append((self.allocate(WORDS * max(PAGE, len(checks))), []))
            words, known = self.pages[-1]
            position = len(known)
            known.extend(checks)
            return words.data_ptr() + position * CHECK_BYTES

    def message(self) -> str | None:
        """Returns the message of the first failed check that is found; None if no check has failed."""
        for words, launches in list(self.pages):
            table = words.view(-1, WORDS)
            for position in table[: len(launches), 0].nonzero().flatten().tolist():
                number, value, size, _ = table[position].tolist()
                return _message(launches[position], number, value, size)
        return None

    def report(self) -> str | None:
        """Returns the message, and marks it as reported."""
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
    """Returns the checks of this process; once they exist, unreported messages are printed with errors and at exit."""
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
    """Returns the message of the failed check that ended the context (for cuda.c); None if no check has failed."""
    return _made[0].report() if _made else None


def mark_unreported() -> None:
    """Mark the message as unreported, so that it is printed: the error that contains it does not reach the user."""
    for made in _made:
        made.reported = False


def context_is_lost(error: Exception) -> bool:
    """Whether the error is one that every CUDA function returns after a kernel has failed.

    If a check has failed, its message is added to the error.
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
