"""Runs a compiler; kills it and its children on a timeout, when its result is not needed, or if this process dies.

A compiler is a driver that starts other processes. It runs in its own process group under a shell that shares a socket
with this process. If this process closes its end, because it no longer waits or was killed, the group is killed. If the
shell's end closes, the compiler has ended. (The end of its output does not show this, because a server that the
compiler started may keep the output open.)
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
"""Text of the shell's program; its standard input is the socket. The group is killed when a read returns the end of the
stream.

The compiler runs in the foreground: `wait` for a background process never returns if SIGCHLD is blocked. The mask of
blocked signals is inherited, and programs that handle signals in one thread block them in all others.
"""
_KEPT_BYTES = 1 << 18
"""Maximum number of bytes of a compiler's output that are kept; the first bytes name the error."""

_current: ContextVar[CompilerGroup | None] = ContextVar("smelt_compilers", default=None)
switch("compilers", _current.get, _current.set)


class CompilerGroup:
    """The compilers started in a context, by any thread that runs in a copy of it.

    `with CompilerGroup() as group`: leaving the block by an exception, an interrupt included, kills the compilers.
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
        """Kill all compilers, also those that start later; waiting for one then raises an error which says that it was
        stopped.
        """
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


def is_stopped() -> bool:
    """Whether this context's group was stopped."""
    group = _current.get()
    return group is not None and group.ended


class CompilerProcess:
    """Runs `command` and keeps the beginning of its standard output and standard error.

    Args:
        folder: directory for its temporary files, which remain if it is killed.
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
        self._outputs = {self._process.stdout.fileno(): bytearray(), self._process.stderr.fileno(): bytearray()}
        self.output, self.errors = self._outputs.values()
        _running.add(self)
        self._group = _current.get()
        if self._group is not None:
            self._group.add(self)

    def wait(self) -> int:
        """Wait for the end of the compiler; returns its exit status, which is -9 (killed) after a timeout.

        If waiting ends by an exception, an interrupt included, the compiler and its children are killed.
        """
        try:
            with selectors.DefaultSelector() as selector:
                for each in (self._ours.fileno(), *self._outputs):
                    os.set_blocking(each, False)
                    selector.register(each, selectors.EVENT_READ)
                ended = False
                while not ended:
                    left = self._deadline - time.monotonic()
                    ready = [key.fd for key, _ in selector.select(max(left, 0.0))]
                    ended = self._ours.fileno() in ready
                    for each in ready:
                        if each in self._outputs and not self._read(each):
                            selector.unregister(each)
                    if left <= 0 and not ended:
                        self.timed_out = True
                        break
            return self._finish()
        finally:
            self.stop()

    def _read(self, descriptor: int) -> bool:
        """Read available output, up to a limit; returns whether more may follow."""
        try:
            read = os.read(descriptor, 65536)
        except BlockingIOError:
            return True
        kept = self._outputs[descriptor]
        kept += read[: _KEPT_BYTES - len(kept)]
        return bool(read)

    def _finish(self) -> int:
        """Kill the remaining processes of the group and return the status of the shell."""
        for each, kept in self._outputs.items():
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
        self._end_group()  # the shell was not reaped yet, so the group's number cannot belong to another group
        return self._process.wait()

    def stop(self) -> None:
        """Kill the compiler, if it still runs, and its children."""
        if self._group is not None:
            self._group.discard(self)
        if self._process.returncode is None:
            self.kill()
            self._process.wait()
        self.close()

    def close(self) -> None:
        """Close the descriptors; the group is killed once no process has this end of the socket open."""
        _running.discard(self)
        self._ours.close()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def kill(self) -> None:
        """Kill all processes of the group."""
        self.stopped = not self.timed_out
        self._end_group()

    def _end_group(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


_running: weakref.WeakSet[CompilerProcess] = weakref.WeakSet()


def _forget_parents() -> None:
    """In a forked child: close the parent's sockets, which would keep its compilers alive."""
    for each in list(_running):
        each.close()


os.register_at_fork(after_in_child=_forget_parents)
