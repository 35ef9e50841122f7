"""The store: results that are costly to make (built kernels, timings), saved on disk under a content hash.

Every stage that caches uses it. An entry is one file, `<root>/<kind>/<key[:2]>/<key><suffix>`, whose last line
(`_MARK`) contains the SHA-256 of its kind, key and content. A loader ignores bytes after an ELF image, so a shared
object can contain its own checksum, and one atomic rename publishes both. An entry copied over another one is detected.
Entries are plain text, shared objects or code objects of Python (`runtime/host_code.py`), never pickles.
`private_folder` checks who may write to a folder, `eviction` limits the size of the store.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from smelt.base import eviction
from smelt.base.errors import SmeltWarning
from smelt.base.eviction import CACHE_FOLDER_PREFIX, TemporaryFolder
from smelt.base.locks import new_lock
from smelt.base.options import environment
from smelt.base.private_folder import (
    NEW_FILE_PREFIX,
    UnsafeFolder,
    close,
    is_executable,
    is_private,
    is_shared,
    is_trusted,
    make_folder,
    make_private,
    read_private,
    remove,
    remove_folder,
    replace_atomically,
)

_MARK = b"\n# smelt sha256 "
_FOOTER_BYTES = len(_MARK) + 64 + 1
MAX_ENTRY_BYTES = 2**28
"""Maximum size of an entry in bytes, more than a hundred times that of a kernel. Larger files are not read."""
_POLL_S = 0.02
"""Seconds between two checks by a process that waits for another process to build an entry."""
_lock = new_lock()
_opened: dict[Path, Store] = {}


def content_key(*components: str | bytes) -> str:
    """SHA-256 of `components` in hex. Each one is preceded by its length, so ("ab", "c") and ("a", "bc") differ."""
    digest = hashlib.sha256()
    for component in components:
        data = component.encode() if isinstance(component, str) else component
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

    In a folder that several users share (sticky, setgid or writable by a group) a private subfolder is used. Entries of
    a folder that cannot be written are still read.

    Args:
        root: the folder; made with mode 0700 if it is missing, otherwise left as it is. If another user could change
            its contents, or its file system is mounted noexec, a private temporary directory is used instead, with one
            SmeltWarning, and removed at exit.
        limit: size in bytes above which entries are evicted; None: the smaller of 10 GiB and a tenth of the disk.

    Attributes:
        refused: the reason why entries of this process do not outlive it; empty if they do.
    """

    def __init__(self, root: Path, limit: int | None = None) -> None:
        self.root, self.readable, self.writable, self.refused = _usable_directory(Path(root))
        self.limit = eviction.limit_bytes(self.root, limit)
        self._checked: set[Path] = set()
        self._reported: set[tuple[str, int | None]] = set()
        if self.writable and eviction.is_due(self.root):
            eviction.sweep(self.root, self.limit)

    def path(self, kind: str, key: str, suffix: str = "") -> Path:
        """The path of the entry, which may not exist yet."""
        return self.root / kind / key[:2] / f"{key}{suffix}"

    def get(self, kind: str, key: str, suffix: str = "") -> bytes | None:
        """The entry's content, or None when it is missing or fails its checksum (warned once, then removed)."""
        if not self.readable:
            return None
        path = self.path(kind, key, suffix)
        try:
            found = read_private(path, MAX_ENTRY_BYTES) if self._is_private(path.parent) else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._warn_once("read", error, f"smelt cannot read {path} ({error.strerror or error}) and makes it again")
            return None
        if found is None:
            return None
        data, state = found
        body = checked_entry(kind, key, suffix, data)
        if body is None or not is_trusted(state.st_uid):
            # entries of an earlier version, whose checksums did not cover the key, are removed without a warning
            if data[-_FOOTER_BYTES:] != _MARK + hashlib.sha256(data[:-_FOOTER_BYTES]).hexdigest().encode() + b"\n":
                _warn(f"smelt ignores a damaged or foreign cache entry and makes it again: {path}")
            remove(path)
            return None
        eviction.touch(path, state)
        return body

    def put(self, kind: str, key: str, data: bytes, suffix: str = "") -> Path | None:
        """Publish an entry by an atomic rename. Returns its path, or None if writing failed (with one warning)."""
        if not self.writable:
            return None
        path = self.path(kind, key, suffix)
        if len(data) + _FOOTER_BYTES > MAX_ENTRY_BYTES:
            _warn(f"smelt does not keep {len(data):,} bytes for {path}: that is larger than an entry may be")
            return None
        try:
            make_folder(path.parent)
            if not self._is_private(path.parent):
                raise UnsafeFolder(f"others may write to {path.parent}")
            _clear_path(path)
            footer = _footer(kind, key, suffix, data)
            replace_atomically(path, (data, footer), 0o700 if suffix == ".so" else 0o600)
        except OSError as error:
            self._warn_once("write", error, f"smelt cannot write its cache ({error}); the result is used but not kept")
            return None
        if eviction.is_sweep_due(key, len(data), self.limit):
            eviction.sweep(self.root, self.limit)
        return path

    def get_text(self, kind: str, key: str) -> str | None:
        """The entry's content decoded as UTF-8; None if it is missing or fails its checksum."""
        data = self.get(kind, key, ".txt")
        return None if data is None else data.decode()

    def put_text(self, kind: str, key: str, text: str) -> None:
        """Publish a text as an entry, encoded as UTF-8; see `put`."""
        self.put(kind, key, text.encode(), ".txt")

    def get_library(self, kind: str, key: str) -> Path | None:
        """The path of a shared object whose checksum is right, ready for dlopen; None if it is missing or damaged."""
        return None if self.get(kind, key, ".so") is None else self.path(kind, key, ".so")

    def put_library(self, kind: str, key: str, built: Path) -> Path:
        """Publish the shared object at `built`; returns the path of the entry, or `built` if publishing failed."""
        return self.put(kind, key, built.read_bytes(), ".so") or built

    def discard(self, kind: str, key: str, suffix: str = "") -> None:
        """Remove an entry that proved useless, such as a library that does not load."""
        if self.writable:
            remove(self.path(kind, key, suffix))

    @contextmanager
    def building(
        self, kind: str, key: str, until: float = 0.0, stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[bool]:
        """Context in which no other process makes the same entry; gives whether this process is to make it.

        If another process is making the entry, this one waits until that process finishes or ends, until the monotonic
        clock reaches `until`, or until `stopped()` is true. Without support for locks no process waits.
        """
        path = self.path(kind, key, ".lock")
        descriptor, alone = self._wait_for_lock(path, until, stopped)
        try:
            yield alone
        finally:
            if descriptor is not None:
                if alone:  # a waiting process has this file open, and checks whether the path still names it
                    _remove_if_same(path, descriptor)
                    _unlock(descriptor)
                close(descriptor)

    def _wait_for_lock(self, path: Path, until: float, stopped: Callable[[], bool]) -> tuple[int | None, bool]:
        """The descriptor of the lock file, and whether it was locked; (None, True) if the file cannot be opened."""
        while True:
            descriptor = self._lock_file(path)
            if descriptor is None:
                return None, True
            try:
                alone = _try_lock(descriptor)
                while not alone and time.monotonic() < until and not stopped():
                    time.sleep(_POLL_S)
                    alone = _try_lock(descriptor)
            except BaseException:
                close(descriptor)
                raise
            if not alone or _is_same(path, descriptor):
                return descriptor, alone
            close(descriptor)  # the process that had locked it removed it

    def _lock_file(self, path: Path) -> int | None:
        if not self.writable:
            return None
        try:
            make_folder(path.parent)
            if not self._is_private(path.parent):
                return None
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except OSError:
            return None

    def _is_private(self, folder: Path) -> bool:
        """Whether only this user can write to a folder of the store; checked once per folder and process."""
        if folder not in self._checked:
            for each in (folder.parent, folder):
                if not is_private(each):
                    _warn(f"smelt does not use {each}: it is no folder of this user's alone")
                    return False
            self._checked.add(folder)
        return True

    def _warn_once(self, what: str, error: OSError, message: str) -> None:
        """Warn once for each kind of error: if writing one entry fails, writing all entries of a model fails."""
        if (what, error.errno) not in self._reported:
            self._reported.add((what, error.errno))
            _warn(message, stacklevel=5)

    def size(self) -> int:
        """Total size of all entries in bytes."""
        return sum(state.st_size for path, state in eviction.files(self.root) if not eviction.is_passing(path))

    def clear(self) -> None:
        """Remove every entry. Libraries that are loaded stay loaded."""
        for path, _ in eviction.files(self.root):
            remove(path)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # a file system without locks
    return True


def _unlock(descriptor: int) -> None:
    """Release a lock explicitly: after a mere close, a process forked in the meantime would still have it locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    except OSError:
        pass


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except OSError:
        return False


def _remove_if_same(path: Path, descriptor: int) -> None:
    if _is_same(path, descriptor):
        remove(path)


def _clear_path(path: Path) -> None:
    """Remove whatever is no file at the path of an entry, where a rename fails. (smelt makes only files there.)

    A missing entry is left alone: a removal would hit the entry that another process publishes in the meantime.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        remove_folder(path)
    elif not stat.S_ISREG(mode):
        remove(path)


def _footer(kind: str, key: str, suffix: str, body: bytes) -> bytes:
    return _MARK + content_key(kind, key, suffix, body).encode() + b"\n"


def sealed_entry(kind: str, key: str, suffix: str, body: bytes) -> bytes:
    """The content of an entry's file: `body` followed by its checksum."""
    return body + _footer(kind, key, suffix, body)


def checked_entry(kind: str, key: str, suffix: str, data: bytes) -> bytes | None:
    """The content of an entry without its checksum; None if the checksum is wrong."""
    body, footer = data[:-_FOOTER_BYTES], data[-_FOOTER_BYTES:]
    return body if footer == _footer(kind, key, suffix, body) else None


_SHOWN = 1000
"""Maximum number of characters of a warning: the name of a folder may have any length."""


def _warn(message: str, stacklevel: int = 4) -> None:
    if len(message) > _SHOWN:
        message = f"{message[: _SHOWN // 2]} ... {message[-_SHOWN // 2 :]}"
    warnings.warn(message, SmeltWarning, stacklevel=stacklevel)


def _usable_directory(root: Path) -> tuple[Path, bool, bool, str]:
    """The folder to use for `root`, whether entries are read from it, whether it can be written, and the reason why
    entries do not outlive the process ("" if they do).
    """
    shared = None
    try:
        root = root.absolute()  # a program may change its working directory
        if root.is_dir() and is_shared(root):
            root, shared = root / f"smelt-{os.getuid()}", root
        make_private(root, shared)
        if not is_executable(root):
            raise UnsafeFolder("its file system is mounted noexec, and kernels are loaded from it")
        writable = _can_write(root)
        return root, True, writable, "" if writable else f"{root} cannot be written"
    except OSError as error:
        problem = error.strerror or str(error)
    try:
        temporary = TemporaryFolder(CACHE_FOLDER_PREFIX, Path(tempfile.gettempdir()))
    except OSError as error:
        _warn(f"smelt cannot use the cache directory {root} ({problem}), nor a temporary one ({error})")
        return root, False, False, f"{root} cannot be used: {problem}"
    atexit.register(temporary.close)
    kept = f"results of this process are kept in {temporary.path}"
    _warn(f"smelt cannot use the cache directory {root} ({problem}); {kept}")
    return temporary.path, True, True, f"{root} cannot be used: {problem}"


def _can_write(root: Path) -> bool:
    """Whether files can be made in a folder.

    Raises:
        OSError: files cannot be made in it, and it is empty.
    """
    try:
        with tempfile.TemporaryFile(dir=root, prefix=NEW_FILE_PREFIX):
            return True
    except OSError:
        if any(root.iterdir()):
            return False
        raise
