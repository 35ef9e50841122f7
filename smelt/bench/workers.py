"""Threads that each take one item after the other to a measuring server of their own; Ctrl-C and SIGTERM end them."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from smelt.bench.process import Server

Item = TypeVar("Item")
Done = TypeVar("Done")


@contextlib.contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does (which a shell switches off for what it starts in the background)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Workers(Generic[Item, Done]):
    """Runs items side by side.

    Args:
        jobs: items at a time.
        packages, threads: of each server, see `Server`.
        do: what is done with an item.
        keep: called with every result, one at a time.
    """

    def __init__(
        self,
        jobs: int,
        packages: Sequence[str],
        threads: int | None,
        do: Callable[[Item, Server], Done],
        keep: Callable[[Done], None],
    ) -> None:
        self.do, self.keep = do, keep
        self._todo: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._servers = [Server(packages, threads) for _ in range(jobs)]

    def work(self, todo: Sequence[Item]) -> bool:
        """Do these; False if Ctrl-C ended it early. What was being done then is lost, finished items are not."""
        for item in todo:
            self._todo.put(item)
        threads = [threading.Thread(target=self._items, args=(server,), daemon=True) for server in self._servers]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        except KeyboardInterrupt:
            return False
        finally:
            self._stop.set()
            for server in self._servers:
                server.close()
        for error in self._errors:
            if not isinstance(error, KeyboardInterrupt):
                raise error
        return not self._errors

    def _items(self, server: Server) -> None:
        while not self._stop.is_set():
            try:
                item = self._todo.get_nowait()
            except queue.Empty:
                return
            try:
                done = self.do(item, server)
                if self._stop.is_set():
                    return  # it was cut short
                with self._lock:
                    self.keep(done)
            except BaseException as error:  # a bug of the bench itself: the run ends with it
                self._errors.append(error)
                self._stop.set()
                return
