"""Threads that process items, each with a separate measuring server; Ctrl-C and SIGTERM end them."""

from __future__ import annotations

import contextlib
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from smelt.bench.processes.servers import Servers

Item = TypeVar("Item")
Done = TypeVar("Done")


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """A context in which SIGTERM ends a run as Ctrl-C does (which a shell switches off for programs in the
    background).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Workers(Generic[Item, Done]):
    """Processes items side by side; while a task of one item is timed, the tasks of the others are stopped.

    Args:
        jobs: number of items that are processed at the same time.
        packages, threads: arguments of each server, see `Server`.
        do: function that processes an item.
        keep: callback for every result; calls do not overlap.
        retry: function that decides whether a result that was measured beside others is measured once more alone, after
            all others.
        lanes: number of tasks that one item may run side by side.
        seconds: maximum duration of the work. An item is not begun if the remaining time is shorter than the longest
            item took so far; an unfinished item is lost.
    """

    def __init__(
        self,
        jobs: int,
        packages: Sequence[str],
        threads: int | None,
        do: Callable[[Item, Servers], Done],
        keep: Callable[[Done], None],
        lanes: int = 1,
        seconds: float | None = None,
        retry: Callable[[Done], bool] = lambda done: False,
    ) -> None:
        self.do, self.keep, self.retry = do, keep, retry
        self._later: list[Item] = []
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._longest = 0.0
        self._todo: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._turns = tempfile.TemporaryDirectory(prefix="smelt-bench-turns-") if jobs > 1 else None
        turns = Path(self._turns.name) if self._turns else None
        self._servers = [Servers(lanes, packages, threads, turns) for _ in range(jobs)]

    def work(self, todo: Sequence[Item]) -> bool:
        """Process these items; False if Ctrl-C or the time limit ended it early: unfinished items are lost."""
        try:
            self._share(todo, self._servers)
            if self._later and self._todo.empty():
                todo, self._later = self._later, []
                self._share(todo, self._servers[:1])
        except (KeyboardInterrupt, TimeoutError):
            return False
        finally:
            self._stop.set()
            for server in self._servers:
                server.close()
            for thread in self._threads:
                thread.join()
            if self._turns:
                self._turns.cleanup()
        for error in self._errors:
            if not isinstance(error, KeyboardInterrupt):
                raise error
        return not self._errors and self._todo.empty() and not self._later

    def _share(self, todo: Sequence[Item], servers: Sequence[Servers]) -> None:
        """Process all items with these servers.

        Raises:
            TimeoutError: the maximum duration has passed.
        """
        for item in todo:
            self._todo.put(item)
        alone = len(servers) == 1
        begun = [threading.Thread(target=self._items, args=(server, alone), daemon=True) for server in servers]
        self._threads += begun
        for thread in begun:
            thread.start()
        for thread in begun:
            while thread.is_alive():
                thread.join(0.2)
                if self._left() <= 0:
                    raise TimeoutError

    def _left(self) -> float:
        """Returns the remaining seconds, which are infinite without a maximum."""
        return float("inf") if self._deadline is None else self._deadline - time.monotonic()

    def _items(self, server: Servers, alone: bool) -> None:
        while not self._stop.is_set() and self._left() > self._longest:
            try:
                item = self._todo.get_nowait()
            except queue.Empty:
                return
            begin = time.monotonic()
            try:
                done = self.do(item, server)
                if self._stop.is_set():
                    return  # the item was interrupted
                with self._lock:
                    self._longest = max(self._longest, time.monotonic() - begin)
                    if not alone and self.retry(done):
                        self._later.append(item)
                    else:
                        self.keep(done)
            except BaseException as error:  # a bug of the bench itself ends the run
                self._errors.append(error)
                self._stop.set()
                return
