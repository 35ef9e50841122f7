"""The store: results that are costly to make (built kernels, timings) kept on disk under a content hash.

Every stage that caches uses it. An entry is one file, `<root>/<kind>/<key[:2]>/<key><suffix>`, whose last line
(`FOOTER`) holds the SHA-256 of what comes before it: a loader ignores bytes after an ELF image, so a shared object can
carry its own checksum and one atomic rename publishes both. Entries are plain text or shared objects, never pickle.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import warnings
from pathlib import Path

from smelt.base.errors import SmeltWarning
from smelt.base.options import environment

_MARK = b"\n# smelt sha256 "
_FOOTER_BYTES = len(_MARK) + 64 + 1
_lock = threading.Lock()
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
            _opened[root] = Store(root)
        return _opened[root]


class Store:
    """A directory of checksummed entries, shared safely by many processes.

    Args:
        root: made with mode 0700 when missing. When it cannot be written, or others may write to it, a private
            temporary directory is used instead, with one SmeltWarning; it is removed at exit.
    """

    def __init__(self, root: Path) -> None:
        self.root = _private_directory(Path(root))

    def path(self, kind: str, key: str, suffix: str = "") -> Path:
        """Where the entry lies or would lie."""
        return self.root / kind / key[:2] / f"{key}{suffix}"

    def get(self, kind: str, key: str, suffix: str = "") -> bytes | None:
        """The entry's content, or None when it is missing or fails its checksum (warned once, then removed)."""
        path = self.path(kind, key, suffix)
        try:
            with open(path, "rb") as file:
                data = file.read()
                owner = os.fstat(file.fileno()).st_uid
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            _warn(f"smelt cannot read {path} ({error.strerror}) and makes it again")
            return None
        body, footer = data[:-_FOOTER_BYTES], data[-_FOOTER_BYTES:]
        if owner != _user() or footer != _footer(body):
            _warn(f"smelt ignores a damaged or foreign cache entry and makes it again: {path}")
            _remove(path)
            return None
        return body

    def put(self, kind: str, key: str, data: bytes, suffix: str = "") -> Path | None:
        """Publish an entry by an atomic rename. Returns its path, or None when the disk refused (one warning)."""
        path = self.path(kind, key, suffix)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                    file.write(_footer(data))
                os.chmod(name, 0o700 if suffix == ".so" else 0o600)
                os.replace(name, path)
            except BaseException:
                _remove(Path(name))
                raise
        except OSError as error:
            _warn(f"smelt cannot write its cache ({error}); the result is used but not kept")
            return None
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

    def size(self) -> int:
        """Bytes of all entries."""
        return sum(path.stat().st_size for path in self.root.rglob("*") if path.is_file())

    def clear(self) -> None:
        """Remove every entry. Libraries that are loaded stay loaded."""
        for child in self.root.iterdir():
            shutil.rmtree(child, ignore_errors=True)


def _footer(body: bytes) -> bytes:
    return _MARK + hashlib.sha256(body).hexdigest().encode() + b"\n"


def _user() -> int:
    return os.getuid()


def _warn(message: str) -> None:
    warnings.warn(message, SmeltWarning, stacklevel=4)


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass  # another process was faster, or the directory is read-only: the entry is ignored either way


def _private_directory(root: Path) -> Path:
    problem = _problem(root)
    if problem is None:
        return root
    temporary = Path(tempfile.mkdtemp(prefix="smelt-"))
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    _warn(f"smelt cannot use the cache directory {root} ({problem}); results of this process are kept in {temporary}")
    return temporary


def _problem(root: Path) -> str | None:
    """Why `root` is unfit as a cache, or None. Code is loaded from it, so nobody else may be able to write there."""
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        state = root.stat()
        if state.st_uid != _user():
            return "it belongs to another user"
        if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            root.chmod(0o700)
        with tempfile.TemporaryFile(dir=root):
            return None
    except OSError as error:
        return error.strerror or str(error)
