"""A compiler's process: ends in time, with its children, when it hangs, when nobody waits any more and when we die.

A compiler is a driver that starts others. It runs in a process group of its own under a shell with which we share a
socket. When our end closes, because we ended the wait or because this process was killed, the group goes; when theirs
closes, the compiler ended. (Whether its output ended says nothing: a server that it started may hold that for ever.)
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path

from smelt.base.locks import new_lock
from smelt.base.process_state import switch

_WATCH = r"""
exec 3<&0 </dev/null
{ read -r _ <&3; kill -KILL 0; } >/dev/null 2>&1 &
watch=$!
"$@" 3<&-
status=$?
kill -KILL "$watch" 2>/dev/null
exit "$status"
"""
"""Standard input is the socket. A read that ends, without a line, ends the group.

The compiler runs in the foreground: `wait` for a background one never ends where SIGCHLD is blocked, as it is in
threads of programs that take their signals in one of them, and masks are inherited.
"""
_KEPT_BYTES = 1 << 18
"""Of what a compiler says: what comes first tells what is wrong."""

_current: ContextVar[CompilerGroup | None] = ContextVar("smelt_compilers", default=None)
switch("compilers", _current.get, _current.set)


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

    @property
    def ended(self) -> bool:
        return self._ended

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


def nobody_waits() -> bool:
    """Whether what this context's compilers were started for has ended early."""
    group = _current.get()
    return group is not None and group.ended


class CompilerProcess:
    """Runs `command`; the beginning of what it says on standard output and standard error is kept.

    Args:
        folder: for its temporary files, which stay where it is killed.
    """

    def __init__(self, command: Sequence[str], limit_s: float, folder: Path | None = None) -> None:
        self.limit_s, self.timed_out, self.stopped = limit_s, False, False
        self._deadline = time.monotonic() + limit_s
        self._ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _WATCH, "sh", *command],
                    stdin=theirs.fileno(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    env=None if folder is None else dict(os.environ, TMPDIR=str(folder)),
                )
        except BaseException:
            self._ours.close()
            raise
        assert self._process.stdout is not None and self._process.stderr is not None
        self._said = {self._process.stdout.fileno(): bytearray(), self._process.stderr.fileno(): bytearray()}
        self.output, self.errors = self._said.values()
        _running.add(self)
        self._group = _current.get()
        if self._group is not None:
            self._group.add(self)

    def wait(self) -> int:
        """The exit status, once it is there; that of a killed process (-9) where the time is over.

        Whatever ends the wait, an interrupt included, ends the compiler and its children.
        """
        try:
            with selectors.DefaultSelector() as selector:
                for each in (self._ours.fileno(), *self._said):
                    os.set_blocking(each, False)
                    selector.register(each, selectors.EVENT_READ)
                ended = False
                while not ended:
                    left = self._deadline - time.monotonic()
                    ready = [key.fd for key, _ in selector.select(max(left, 0.0))]
                    ended = self._ours.fileno() in ready
                    for each in ready:
                        if each in self._said and not self._read(each):
                            selector.unregister(each)
                    if left <= 0 and not ended:
                        self.timed_out = True
                        break
            return self._finish()
        finally:
            self.stop()

    def _read(self, descriptor: int) -> bool:
        """Keep some of what there is to read; whether more may follow."""
        try:
            read = os.read(descriptor, 65536)
        except BlockingIOError:
            return True
        kept = self._said[descriptor]
        kept += read[: _KEPT_BYTES - len(kept)]
        return bool(read)

    def _finish(self) -> int:
        """The status of the shell, which ended or is ended, after what is left of its group."""
        for each, kept in self._said.items():
            left = -1
            while left < len(kept) < _KEPT_BYTES:
                left = len(kept)
                self._read(each)
        if self._group is not None:
            self._group.discard(self)
        if self.timed_out:
            self.kill()
        try:
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        except (AttributeError, ChildProcessError):  # Python 3.12 on macOS; a program that ignores its children
            pass
        self._end_group()  # as the shell was not waited for, the group's number is still its own
        return self._process.wait()

    def stop(self) -> None:
        """End the compiler, if it still runs, and all that it started."""
        if self._group is not None:
            self._group.discard(self)
        if self._process.returncode is None:
            self.kill()
            self._process.wait()
        self.close()

    def close(self) -> None:
        """Close what this process holds of it; the group ends once no process holds our end of the socket."""
        _running.discard(self)
        self._ours.close()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def kill(self) -> None:
        """Send the end to all of the process group."""
        self.stopped = not self.timed_out
        self._end_group()

    def _end_group(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


_running: weakref.WeakSet[CompilerProcess] = weakref.WeakSet()


def _forget_parents() -> None:
    """A process that was forked meanwhile would keep the compilers of its parent alive."""
    for each in list(_running):
        each.close()


os.register_at_fork(after_in_child=_forget_parents)
