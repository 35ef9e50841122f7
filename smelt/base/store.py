"""The store: results that are costly to make (built kernels, timings) kept on disk under a content hash.

Every stage that caches uses it. An entry is one file, `<root>/<kind>/<key[:2]>/<key><suffix>`, whose last line
(`_MARK`) holds the SHA-256 of its kind, key and content: a loader ignores bytes after an ELF image, so a shared object
can carry its own checksum and one atomic rename publishes both, and an entry copied over another is noticed. Entries
are plain text or shared objects, never pickle. Who may write where is the concern of `private_folder`, how large the
store becomes that of `eviction`.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from smelt.base import eviction
from smelt.base.errors import SmeltWarning
from smelt.base.locks import new_lock
from smelt.base.options import environment
from smelt.base.private_folder import (
    UnsafeFolder,
    is_shared,
    is_trusted,
    make_private,
    read_private,
    remove,
    replace_atomically,
)

_MARK = b"\n# smelt sha256 "
_FOOTER_BYTES = len(_MARK) + 64 + 1
_POLL_S = 0.02
"""How often a process that waits for another's build looks."""
_lock = new_lock()
_opened: dict[Path, Store] = {}


def content_key(*parts: str | bytes) -> str:
    """SHA-256 over `parts` in hex. Each part is preceded by its length, so ("ab", "c") and ("a", "bc") differ."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


def store() -> Store:
    """The store under `environment().cache_dir`, opened once per process and directory."""
    root = environment().cache_dir
    with _lock:
        if root not in _opened:
            _opened[root] = Store(root, environment().cache_bytes)
        return _opened[root]


class Store:
    """A directory of checksummed entries, shared safely by many processes.

    A folder that several users share (sticky, setgid or writable by a group) gets a private subfolder. One that cannot
    be written is used for what it holds.

    Args:
        root: made with mode 0700 when missing, otherwise left as it is. Where somebody else could change what is
            loaded from it, or nothing may be executed from it, a private temporary directory is used instead, with
            one SmeltWarning; it is removed at exit.
        limit: bytes from which on entries are evicted; None: 10 GiB or a tenth of the disk.
    """

    def __init__(self, root: Path, limit: int | None = None) -> None:
        self.root, self.writable = _usable_directory(Path(root))
        self.limit = eviction.limit_bytes(self.root, limit)
        self._written = 0
        self._checked: set[Path] = set()
        if self.writable and eviction.is_due(self.root):
            eviction.sweep(self.root, self.limit)

    def path(self, kind: str, key: str, suffix: str = "") -> Path:
        """Where the entry lies or would lie."""
        return self.root / kind / key[:2] / f"{key}{suffix}"

    def get(self, kind: str, key: str, suffix: str = "") -> bytes | None:
        """The entry's content, or None when it is missing or fails its checksum (warned once, then removed)."""
        path = self.path(kind, key, suffix)
        try:
            found = read_private(path) if self._is_private(path.parent) else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            _warn(f"smelt cannot read {path} ({error.strerror or error}) and makes it again")
            return None
        if found is None:
            return None
        data, state = found
        body, footer = data[:-_FOOTER_BYTES], data[-_FOOTER_BYTES:]
        if not is_trusted(state.st_uid) or footer != _footer(kind, key, suffix, body):
            # those of an earlier version, whose checksums did not cover the key, go without a word
            if footer != _MARK + hashlib.sha256(body).hexdigest().encode() + b"\n":
                _warn(f"smelt ignores a damaged or foreign cache entry and makes it again: {path}")
            remove(path)
            return None
        eviction.touch(path, state)
        return body

    def put(self, kind: str, key: str, data: bytes, suffix: str = "") -> Path | None:
        """Publish an entry by an atomic rename. Returns its path, or None when the disk refused (one warning)."""
        if not self.writable:
            return None
        path = self.path(kind, key, suffix)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._is_private(path.parent):
                raise UnsafeFolder(f"others may write to {path.parent}")
            _make_way(path)
            footer = _footer(kind, key, suffix, data)
            replace_atomically(path, (data, footer), 0o700 if suffix == ".so" else 0o600)
        except OSError as error:
            _warn(f"smelt cannot write its cache ({error}); the result is used but not kept")
            return None
        self._written += len(data)
        if self._written > self.limit // 20:
            self._written = 0
            eviction.sweep(self.root, self.limit)
        return path

    def get_text(self, kind: str, key: str) -> str | None:
        """Like `get`, decoded as UTF-8."""
        data = self.get(kind, key, ".txt")
        return None if data is None else data.decode()

    def put_text(self, kind: str, key: str, text: str) -> None:
        """Like `put`, for text."""
        self.put(kind, key, text.encode(), ".txt")

    def get_library(self, kind: str, key: str) -> Path | None:
        """The path of a shared object whose checksum holds, ready for dlopen; None when there is none."""
        return None if self.get(kind, key, ".so") is None else self.path(kind, key, ".so")

    def put_library(self, kind: str, key: str, built: Path) -> Path:
        """Publish the shared object at `built`; the path to load: the entry, or `built` itself as last resort."""
        return self.put(kind, key, built.read_bytes(), ".so") or built

    def discard(self, kind: str, key: str, suffix: str = "") -> None:
        """Remove an entry that proved useless, such as a library that does not load."""
        if self.writable:
            remove(self.path(kind, key, suffix))

    @contextmanager
    def building(self, kind: str, key: str, limit_s: float) -> Iterator[bool]:
        """Keep other processes from making the same entry meanwhile; gives whether this one is to make it.

        A process that finds another at work waits until that is done or gone, at most `limit_s` seconds, and then
        makes the entry itself if it is still missing. Where nothing can be locked, nobody waits.
        """
        path = self.path(kind, key, ".lock")
        descriptor = self._lock_file(path)
        if descriptor is None:
            yield True
            return
        try:
            alone = _try_lock(descriptor)
            end = time.monotonic() + limit_s
            while not alone and time.monotonic() < end:
                time.sleep(_POLL_S)
                alone = _try_lock(descriptor)
            yield alone
        finally:
            remove(path)  # whoever waits for this file has it open
            os.close(descriptor)

    def _lock_file(self, path: Path) -> int | None:
        if not self.writable:
            return None
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return None

    def _is_private(self, folder: Path) -> bool:
        """Whether nobody else can write to a folder of the store; looked at once in a process."""
        if folder not in self._checked:
            for each in (folder.parent, folder):
                state = each.lstat()
                if not stat.S_ISDIR(state.st_mode) or not is_trusted(state.st_uid) or state.st_mode & 0o022:
                    _warn(f"smelt does not use {each}: it is no folder of this user's alone")
                    return False
            self._checked.add(folder)
        return True

    def size(self) -> int:
        """Bytes of all entries."""
        return sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())

    def clear(self) -> None:
        """Remove every entry. Libraries that are loaded stay loaded."""
        for child in self.root.iterdir():
            shutil.rmtree(child, ignore_errors=True)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def _make_way(path: Path) -> None:
    """A folder in an entry's place keeps a rename from succeeding; it can only be empty or somebody's mistake."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)


def _footer(kind: str, key: str, suffix: str, body: bytes) -> bytes:
    return _MARK + content_key(kind, key, suffix, body).encode() + b"\n"


def _warn(message: str) -> None:
    warnings.warn(message, SmeltWarning, stacklevel=4)


def _usable_directory(root: Path) -> tuple[Path, bool]:
    """The folder to use for `root`, and whether it can be written."""
    shared = None
    try:
        if root.is_dir() and is_shared(root):
            root, shared = root / f"smelt-{os.getuid()}", root
        make_private(root, shared)
        if os.statvfs(root).f_flag & getattr(os, "ST_NOEXEC", 0):
            raise UnsafeFolder("its file system is mounted noexec, and kernels are loaded from it")
        return root, _can_write(root)
    except OSError as error:
        problem = error.strerror or str(error)
    temporary = Path(tempfile.mkdtemp(prefix="smelt-"))
    atexit.register(_remove_own, temporary, os.getpid())
    _warn(f"smelt cannot use the cache directory {root} ({problem}); results of this process are kept in {temporary}")
    return temporary, True


def _can_write(root: Path) -> bool:
    """Whether files can be made in a folder.

    Raises:
        OSError: they cannot, and there are none to use.
    """
    try:
        with tempfile.TemporaryFile(dir=root):
            return True
    except OSError:
        if any(root.iterdir()):
            return False
        raise


def _remove_own(folder: Path, process: int) -> None:
    """At the exit of the process that made the folder, not of one that was forked from it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
