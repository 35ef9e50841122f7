"""Limits the size of a cache: removes the least recently used entries, and leftovers of killed processes.

Only files that smelt made are counted and removed: a user may name a folder with other files as the cache.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Container, Iterator
from pathlib import Path

from smelt.base.private_folder import NEW_FILE_PREFIX, check_private, close, is_executable, remove, remove_folder

BUILD_FOLDER_PREFIX = "smelt-build-"
"""Prefix of the names of temporary folders in which compilers work, before the user's number."""
CACHE_FOLDER_PREFIX = "smelt-cache-"
"""Prefix of the names of temporary folders that replace a cache that cannot be used."""
_ABANDONED_AFTER_S = 3600.0
"""Minimum age in seconds of a partly written file, or of a folder that no process has locked, to be removed as a
leftover of a killed process.
"""
_TOUCH_S = 3600.0
"""Minimum number of seconds between two updates of an entry's time of last use."""
_SWEEP_S = 24 * 3600.0
"""Maximum number of seconds between two searches of a cache for entries to evict; much written data triggers one
earlier.
"""
_KEPT_SHARE = 0.8
"""Share of the limit that a cache may occupy after an eviction, so that the next entries do not cause another one at
once.
"""
_DEFAULT_BYTES = 10 * 2**30
_DEFAULT_DISK_SHARE = 0.1
_SWEPT = ".swept"
_GROUP = re.compile(r"[0-9a-f]{2}")
_ENTRY = re.compile(r"[0-9a-f]{64}(\.\w+)?")
REPORTS = "failures"
"""Name of the folder of failure reports, which are evicted like entries."""
MINIFIED = "minified.py"
"""Name of the file in a report to which `smelt minify` writes a smaller graph that fails."""
_REPORT_FILE = re.compile(r"(\d\w*|guards|residual|repro|traceback|minified)\.\w+")


def limit_bytes(root: Path, configured: int | None) -> int:
    """Maximum size of a cache in bytes: the user's setting, else the smaller of 10 GiB and a tenth of the disk."""
    if configured is not None:
        return configured
    try:
        disk = os.statvfs(root)
    except OSError:
        return _DEFAULT_BYTES
    size = disk.f_blocks * disk.f_frsize  # 0 if a file system does not report it
    return min(_DEFAULT_BYTES, int(size * _DEFAULT_DISK_SHARE)) if size else _DEFAULT_BYTES


def touch(path: Path, state: os.stat_result) -> None:
    """Set the modification time of an entry that was used to now, if it is more than an hour old."""
    if _age(state) > _TOUCH_S:
        try:
            os.utime(path)
        except OSError:
            pass  # read-only: no entry is evicted


def is_due(root: Path) -> bool:
    """Whether the last sweep of a cache is more than `_SWEEP_S` ago."""
    try:
        return _age((root / _SWEPT).stat()) > _SWEEP_S
    except OSError:
        return True


def is_sweep_due(key: str, written: int, limit: int) -> bool:
    """Whether a cache is swept after an entry was written: on average once per twentieth of the limit that is written.

    Keys are evenly distributed hashes, so an entry triggers a sweep with a probability in proportion to its size. This
    needs no counter that processes would share.
    """
    return written * 20 >= limit or int(key[:8], 16) * limit < written * 20 << 32


def _age(state: os.stat_result) -> float:
    """Seconds between the last change of a file and now, even if a wrong clock set the time of change in the future."""
    return abs(time.time() - state.st_mtime)


def sweep(root: Path, limit: int) -> None:
    """Remove leftovers; above `limit` bytes also the least recently used entries, until `_KEPT_SHARE` of it is left."""
    try:
        (root / _SWEPT).touch(mode=0o600)
        os.utime(root / _SWEPT)
    except OSError:
        return  # read-only
    entries: list[tuple[float, int, Path]] = []
    now = time.time()
    for path, state in files(root):
        if is_passing(path):
            if _age(state) > _ABANDONED_AFTER_S:
                remove(path)
        else:
            if state.st_mtime > now:
                touch(path, state)  # else it would stay the most recently used entry
            entries.append((min(state.st_mtime, now), state.st_blocks * 512, path))
    total = sum(size for _, size, _ in entries)
    if total > limit:
        for _, size, path in sorted(entries):
            if total <= limit * _KEPT_SHARE:
                break
            remove(path)
            total -= size
    for folder in _temporary_folders(root):
        _remove_left_over(folder)


def files(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files in a cache that smelt made, each with its `os.stat_result`."""
    for path in _paths(root):
        try:
            yield path, path.lstat()
        except OSError:
            continue  # another process removed it


def _paths(root: Path) -> Iterator[Path]:
    for kind in _folders(root):
        for group in _folders(kind):
            names = _names(group)
            if kind.name == REPORTS:
                yield from (group / name for name in names if is_of_report(name))
            elif _GROUP.fullmatch(group.name):
                for name in names:
                    if name.startswith(NEW_FILE_PREFIX) or (name[:2] == group.name and _ENTRY.fullmatch(name)):
                        yield group / name
    yield from (root / name for name in _names(root) if name.startswith(NEW_FILE_PREFIX))


def is_of_report(name: str) -> bool:
    """Whether smelt gives this name to a file in a report, finished or partly written."""
    return _REPORT_FILE.fullmatch(name) is not None or name.startswith(NEW_FILE_PREFIX)


def is_passing(path: Path) -> bool:
    """Whether a file is temporary: a partly written file or a lock file."""
    return path.name.startswith(NEW_FILE_PREFIX) or path.suffix == ".lock"


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as found:
            return [Path(each.path) for each in found if each.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as found:
            return [each.name for each in found if not each.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _temporary_folders(root: Path) -> Iterator[Path]:
    mine = tuple(f"{prefix}{os.getuid()}-" for prefix in (BUILD_FOLDER_PREFIX, CACHE_FOLDER_PREFIX))
    for parent in _temporary_roots(root):
        yield from (folder for folder in _folders(parent) if folder.name.startswith(mine))


def _temporary_roots(root: Path) -> list[Path]:
    try:
        return list(dict.fromkeys((Path(tempfile.gettempdir()), root)))
    except OSError:  # no folder for temporary files
        return [root]


def remove_left_over_folders(prefix: str, parent: Path) -> None:
    """Remove what killed processes left of the `TemporaryFolder`s of a prefix and a parent."""
    for folder in _folders(parent):
        if folder.name.startswith(f"{prefix}{os.getuid()}-"):
            _remove_left_over(folder)


def _remove_left_over(folder: Path) -> None:
    """Remove a folder that is an hour old and that no process has locked. (A newer one may be about to be locked.)"""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        state = os.fstat(descriptor)
        if _age(state) > _ABANDONED_AFTER_S and state.st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_folder(folder)
    except OSError:
        pass  # another process has the lock, or locks are unsupported
    finally:
        close(descriptor)


class TemporaryFolder:
    """A temporary folder that this process keeps locked; if the process is killed, a later sweep removes the folder.

    Args:
        private: refuse a place where other users could change its contents.

    Raises:
        OSError: the folder cannot be made, or other users could change it.
    """

    def __init__(self, prefix: str, parent: Path, private: bool = True) -> None:
        self._process = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getuid()}-", dir=parent))
        try:
            if private:
                check_private(self.path)
            self._descriptor: int | None = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except BaseException:
            remove_folder(self.path)
            raise
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            pass  # locks are unsupported: no sweep removes the folder

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder if this process made it; in a forked child process nothing happens."""
        if os.getpid() != self._process:
            return
        remove_folder(self.path)
        if self._descriptor is not None:
            close(self._descriptor)
            self._descriptor = None


def new_build_folder(root: Path, full: Container[Path] = ()) -> TemporaryFolder:
    """A private folder for one compilation, from which built libraries can be loaded. It is made in the system's folder
    for temporary files, or in the cache if that folder is mounted noexec or other users could change its contents.

    Args:
        full: parent folders that have no room left and are skipped.

    Raises:
        OSError: no such folder can be made.
    """
    problem = OSError("there is no folder for temporary files")
    for parent in _temporary_roots(root):
        if parent in full:
            continue
        try:
            folder = TemporaryFolder(BUILD_FOLDER_PREFIX, parent)
            if is_executable(parent):
                return folder
            folder.close()
            problem = OSError(f"{parent} is mounted noexec, and what is built cannot be tried there")
        except OSError as error:
            problem = error
    raise problem
