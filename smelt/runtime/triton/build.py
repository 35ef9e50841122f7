"""Triton kernels in, cubins out: taken from the store, or compiled by worker processes in the background.

The key covers all that determines the machine code: source, types, alignment, configuration, Triton, ptxas and the
device's compute capability. A process that finds all its kernels in the store neither imports Triton nor starts a
worker.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from smelt.abi.kernel_source import Config, Cubin, KernelSource
from smelt.base.errors import BuildError
from smelt.base.locks import new_lock
from smelt.base.options import environment
from smelt.base.store import content_key, store
from smelt.runtime.triton.pool import pool
from smelt.runtime.triton.worker import Reply

_FORMAT = "3"
"""Version of the format of entries in the store and of answers of workers."""
_HINT = "pip install triton, in the version that this PyTorch asks for: pip show torch"
_lock = new_lock()
_builds: dict[str, Build] = {}


class Build:
    """A kernel that is being built or was built."""

    def __init__(self, key: str, source: KernelSource, reply: Future[Reply]) -> None:
        self.key, self.source, self.reply = key, source, reply
        self.cubin: Cubin | None = None

    def result(self) -> Cubin:
        """Wait until the kernel is built, and return it.

        Raises:
            BuildError: Triton refused the kernel; the message contains Triton's message.
        """
        if self.cubin is None:
            head, image = self.reply.result()
            if problem := _problem(head):
                with _lock:
                    _builds.pop(self.key, None)
                raise BuildError(f"Triton refused kernel {self.source.name!r}:\n{problem}", why=head.get("log") or None)
            self.cubin = Cubin(
                self.source.name, self.key, image, head["entry"], head["threads"], head["shared"], head["appended"]
            )
        return self.cubin


def build(source: KernelSource, config: Config, arch: int) -> Build:
    """Begin to build a kernel, or take it from the store.

    Args:
        arch: compute capability, 90 for 9.0.

    Raises:
        BuildError: Triton is not installed.
    """
    key = _key(source, config, arch)
    with _lock:
        known = _builds.get(key)
        if known is None:
            known = _builds[key] = Build(key, source, _begin(key, source, config, arch))
        return known


def start() -> None:
    """Start a process that imports Triton, because kernels will follow."""
    triton_identity()
    pool().start()


def forget() -> None:
    """Clear the cache in memory; the store keeps its entries."""
    with _lock:
        _builds.clear()


@functools.cache
def triton_identity() -> str:
    """Returns the version of Triton, without importing it, and the size of its compiler.

    Raises:
        BuildError: Triton is not installed.
    """
    try:
        found = importlib.util.find_spec("triton")
    except ValueError:
        found = None
    if found is None or found.origin is None:
        raise BuildError("kernels for GPUs need Triton, which is not installed", hint=_HINT)
    root = Path(found.origin).parent
    version = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", Path(found.origin).read_text())
    sizes = [str(path.stat().st_size) for path in sorted((root / "_C").glob("libtriton*"))]
    return " ".join([version.group(1) if version else "unknown", *sizes])


def _key(source: KernelSource, config: Config, arch: int) -> str:
    components = (
        repr(source.signature),
        repr(source.divisible),
        repr(config),
        str(arch),
        str(source.contract),
        str(source.flushes),
    )
    return content_key(_FORMAT, source.source, *components, triton_identity(), _ptxas())


def _ptxas() -> str:
    """Describe the configured assembler that replaces Triton's own: path, size and time; empty if none is
    configured.
    """
    path = environment().ptxas
    if path is None:
        return ""
    try:
        state = os.stat(path)
    except OSError:
        return path
    return f"{path} {state.st_size} {state.st_mtime_ns}"


def _begin(key: str, source: KernelSource, config: Config, arch: int) -> Future[Reply]:
    stored = store().get("triton", key, ".cubin")
    if stored is not None:
        head, _, image = stored.partition(b"\n")
        future: Future[Reply] = Future()
        future.set_result((json.loads(head), image))
        return future
    future = pool().submit(request(source, config, arch))
    future.add_done_callback(lambda done: _keep(key, done.result()))
    return future


def request(source: KernelSource, config: Config, arch: int) -> dict[str, Any]:
    """Returns the request for a worker."""
    return {
        "source": source.source,
        "signature": source.signature,
        "divisible": source.divisible,
        "constants": config.constants,
        "num_warps": config.num_warps,
        "num_stages": config.num_stages,
        "arch": arch,
        "contract": source.contract,
        "flushes": source.flushes,
        "name": re.sub(r"\W", "_", source.name),
    }


def _keep(key: str, reply: Reply) -> None:
    head, image = reply
    if _problem(head) is None:
        store().put("triton", key, json.dumps(head).encode() + b"\n" + image, ".cubin")


def _problem(head: dict[str, Any]) -> str | None:
    if "error" in head:
        return head["error"]
    if head["scratch"]:
        return "it needs scratch memory for each program, which smelt does not give"
    if not head["plain"]:
        return "it needs a cluster or a cooperative launch, which smelt does not make"
    return None
