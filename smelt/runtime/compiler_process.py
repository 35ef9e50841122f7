"""A compiler's process: ends in time, with its children, when it hangs, when nobody waits any more and when we die.

A compiler is a driver that starts others. It runs in a process group of its own under a shell that watches a pipe: the
other end is ours, and when it closes, because we ended the wait or because this process was killed, the group goes.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from contextvars import ContextVar

from smelt.base.locks import new_lock

_WATCH = r"""
exec 3<&0 </dev/null
"$@" 3<&- &
compiler=$!
{ read -r _ <&3; kill -KILL 0; } >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait "$compiler"
status=$?
kill -KILL "$watch" 2>/dev/null
exit "$status"
"""
"""Standard input is the pipe. A read that ends, without a line, ends the group."""

_current: ContextVar[CompilerGroup | None] = ContextVar("smelt_compilers", default=None)


class CompilerGroup:
    """The compilers that are started in a context, by any thread that runs in a copy of it.

    `with CompilerGroup() as group`: what ends the block early, an interrupt included, ends the compilers.
    """

    def __init__(self) -> None:
        self._lock = new_lock()
        self._running: set[CompilerProcess] = set()
        self._ended = False

    def __enter__(self) -> CompilerGroup:
        self._token = _current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _current.reset(self._token)
        if kind is not None:
            self.stop()

    def stop(self) -> None:
        """End all compilers, also those that would start later; whoever waits for one sees that it was stopped."""
        with self._lock:
            self._ended = True
            for each in self._running:
                each.kill()

    def add(self, process: CompilerProcess) -> None:
        with self._lock:
            self._running.add(process)
            if self._ended:
                process.kill()

    def discard(self, process: CompilerProcess) -> None:
        with self._lock:
            self._running.discard(process)


class CompilerProcess:
    """Runs `command`; what it says on standard error is kept."""

    def __init__(self, command: Sequence[str], limit_s: float) -> None:
        self.limit_s, self.errors, self.timed_out, self.stopped = limit_s, b"", False, False
        self._deadline = time.monotonic() + limit_s
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._group = _current.get()
        if self._group is not None:
            self._group.add(self)

    def wait(self) -> int:
        """The exit status, once it is there; that of a killed process (-9) where the time is over.

        Whatever ends the wait, an interrupt included, ends the compiler and its children.
        """
        errors = self._process.stderr
        assert errors is not None
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(errors, selectors.EVENT_READ)
                while not self.timed_out:
                    left = self._deadline - time.monotonic()
                    if left <= 0 or not selector.select(left):
                        self.timed_out = True
                        break
                    read = os.read(errors.fileno(), 65536)
                    if not read:
                        break
                    self.errors += read
            if self.timed_out:
                self.kill()
            return self._process.wait()
        finally:
            self.stop()

    def stop(self) -> None:
        """End the compiler, if it still runs, and all that it started."""
        if self._group is not None:
            self._group.discard(self)
        if self._process.poll() is None:
            self.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stderr):
            if stream is not None:
                stream.close()

    def kill(self) -> None:
        """Send the end to all of the process group."""
        self.stopped = not self.timed_out
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
