"""Several measuring servers with the interface of one server, for tasks that may run at the same time."""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from smelt.bench.processes.process import Failure, Limits, Server


class Servers:
    """Runs as many tasks at the same time as there are servers; a further task waits for a free server.

    Args:
        number: number of servers. Each imports the packages before its first task.
        packages, threads, turns: arguments of each server, see `Server`.
    """

    def __init__(
        self, number: int, packages: Sequence[str] = (), threads: int | None = None, turns: Path | None = None
    ) -> None:
        self._servers = [Server(packages, threads, turns) for _ in range(number)]
        # last in, first out: the server that was used last has imported the packages
        self._free: queue.LifoQueue[Server] = queue.LifoQueue()
        for server in reversed(self._servers):
            self._free.put(server)

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._servers[0].closed

    def run(self, task: Mapping[str, Any], environment: Mapping[str, str], limits: Limits) -> dict[str, Any] | Failure:
        """Run one task in a fresh process, see `Server.run`; may be called from several threads."""
        server = self._free.get()
        try:
            return server.run(task, environment, limits)
        finally:
            self._free.put(server)

    def close(self) -> None:
        """End all servers and their tasks; may be called from another thread."""
        for server in self._servers:
            server.close()
