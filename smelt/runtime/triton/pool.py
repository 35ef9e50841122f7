"""The pool of processes that compile Triton kernels: started with the first kernel, ended after an idle minute.

A server process imports Triton and forks workers (triton/worker.py); one thread here feeds each worker. A process
forked from this one starts its own server; if no process can be started, kernels are compiled in this one.
"""

from __future__ import annotations

import atexit
import itertools
import os
import queue
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from smelt.base.eviction import TemporaryFolder, new_build_folder
from smelt.base.locks import new_lock
from smelt.base.options import environment
from smelt.base.store import store
from smelt.runtime.triton import worker as triton_worker
from smelt.runtime.triton.worker import Reply

MAX_WORKERS = 32
IDLE_S = 60.0
"""Number of seconds after which an idle worker ends."""
_START_S = 120.0
"""Timeout in seconds for an answer of a server, after which it is treated as failed."""

_TIMEOUT_MESSAGE = "it was not built within {:g} s; SMELT_BUILD_TIMEOUT_S allows more"

_lock = new_lock()
_pool: Pool | None = None


def pool() -> Pool:
    """The pool of this process."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = Pool(min(MAX_WORKERS, _processors()))
        return _pool


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def _after_fork() -> None:
    """In a forked child: forget the parent's pool, whose threads do not exist here and whose connections are in use."""
    global _pool
    _pool = None


def _at_exit() -> None:
    if _pool is not None:
        _pool.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)


class NoServer(Exception):
    """Raised when no process could be started."""


class Pool:
    """Compiles on up to `workers` processes."""

    def __init__(self, workers: int) -> None:
        self.most = workers
        self.lock, self.here = new_lock(), new_lock()
        self.hopeless = False
        # long jobs first, so that the last worker is not left with a long one; equal jobs in order of submission
        self.jobs: queue.PriorityQueue[tuple[int, int, tuple[dict[str, Any], Future[Reply]] | None]]
        self.jobs, self.numbers = queue.PriorityQueue(), itertools.count()
        self.pending = self.threads = 0
        self.server: _Server | None = None
        self.folder: TemporaryFolder | None = None

    def start(self) -> None:
        """Start the server, which imports Triton, because kernels will follow."""
        with self.lock:
            if self.server is None:
                self.server = self._start_server()

    def _start_server(self) -> _Server:
        if self.folder is None:
            try:
                self.folder = new_build_folder(store().root)  # killed assemblers leave their files
            except OSError:
                return _Server(_command(), None)
        return _Server(_command(), self.folder.path)

    def close(self) -> None:
        """End the server, and the workers as soon as they are idle."""
        with self.lock:
            server, self.server = self.server, None
            for _ in range(self.threads):
                self.jobs.put((0, next(self.numbers), None))
            folder, self.folder = self.folder, None
        if server is not None:
            server.close()
        if folder is not None:
            folder.close()

    def submit(self, request: dict[str, Any]) -> Future[Reply]:
        """Returns a future of the answer of `worker.compile_kernel` to the request."""
        self.start()
        future: Future[Reply] = Future()
        with self.lock:
            self.pending += 1
            self.jobs.put((-len(request["source"]), next(self.numbers), (request, future)))
            if self.threads < min(self.most, self.pending):
                self.threads += 1
                threading.Thread(target=self._feed, name="smelt-triton", daemon=True).start()
        return future

    def _feed(self) -> None:
        """Pass jobs to one worker until there are none."""
        worker: _Worker | None = None
        while True:
            try:
                _, _, job = self.jobs.get(timeout=IDLE_S)
            except queue.Empty:
                with self.lock:
                    if not self.jobs.empty():
                        continue
                    self.threads -= 1
                break
            if job is None:
                break
            request, future = job
            try:
                worker, reply = self._answer(worker, request)
            except BaseException as error:  # the owner of the future must see the error
                worker, reply = None, ({"error": f"{type(error).__name__}: {error}"}, b"")
            with self.lock:
                self.pending -= 1
            future.set_result(reply)
        if worker is not None:
            worker.close()

    def _answer(self, worker: _Worker | None, request: dict[str, Any]) -> tuple[_Worker | None, Reply]:
        """Returns the worker and its answer. After a crash a second worker retries: memory may have run out, or an idle
        worker may have been killed.
        """
        log = ""
        for _ in range(2):
            try:
                worker = worker or self._new_worker()
            except NoServer:
                with self.here:
                    return None, triton_worker.compile_kernel(request)
            try:
                return worker, worker.ask(request)
            except TimeoutError:
                worker.close()  # closing also ends the worker
                return None, ({"error": _TIMEOUT_MESSAGE.format(worker.limit_s)}, b"")
            except (EOFError, OSError):
                log = worker.log()
                worker.close()
                worker = None
        return None, ({"error": "the compiler's process died, twice", "log": log}, b"")

    def _new_worker(self) -> _Worker:
        """Returns a worker of the server, or of a second server if the first is gone; a third server is not tried."""
        for _ in range(2):
            with self.lock:
                if self.hopeless:
                    raise NoServer
                server = self.server = self.server or self._start_server()
            try:
                return server.worker()
            except (EOFError, OSError, NoServer):
                server.close()
                with self.lock:
                    if self.server is server:
                        self.server = None
        self.hopeless = True
        raise NoServer


def _command() -> list[str]:
    # -P: do not import from the script's folder
    return [sys.executable, "-P", triton_worker.__file__] if sys.executable else []


class _Server:
    """The process that forks workers."""

    def __init__(self, command: list[str], folder: Path | None) -> None:
        self.lock = new_lock()
        self.ready = False
        self.control: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None
        if not command:
            return
        ours, theirs = socket.socketpair()
        # the same installation of Triton as in this process
        path = os.pathsep.join(entry for entry in sys.path if entry)
        variables = {**os.environ, "PYTHONPATH": path, "TRITON_DISABLE_LINE_INFO": "1"}
        if folder is not None:
            variables["TMPDIR"] = str(folder)
        variables.pop("TRITON_INTERPRET", None)
        with theirs:
            try:
                self.process = subprocess.Popen(
                    [*command, str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            except OSError:
                ours.close()
                return
        ours.settimeout(_START_S)
        self.control = ours

    def worker(self) -> _Worker:
        """Returns a new worker.

        Raises:
            NoServer, EOFError, OSError: no process was started, or it died.
        """
        with self.lock:
            if self.control is None:
                raise NoServer
            if not self.ready:
                head, _ = triton_worker.receive(self.control)
                if "error" in head:
                    # the compilation in this process raises the same error, as the answer to the request
                    raise NoServer
                self.ready = True
            ours, theirs = socket.socketpair()
            log = os.memfd_create("smelt-triton-log")
            with theirs:
                socket.send_fds(self.control, [b"w"], [theirs.fileno(), log])
            return _Worker(ours, log)

    def close(self) -> None:
        if self.control is not None:
            self.control.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class _Worker:
    """The connection to one worker."""

    def __init__(self, connection: socket.socket, log: int) -> None:
        self.connection, self.descriptor = connection, log
        self.limit_s = environment().build_timeout_s
        connection.settimeout(self.limit_s)

    def ask(self, request: dict[str, Any]) -> Reply:
        triton_worker.send(self.connection, request)
        return triton_worker.receive(self.connection)

    def log(self) -> str:
        return triton_worker.log_tail(self.descriptor)

    def close(self) -> None:
        self.connection.close()
        os.close(self.descriptor)
