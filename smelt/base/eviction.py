"""Keeps a cache small: removes entries used least recently, and left-overs of killed processes.

Only what smelt made is looked at, counted and removed: a user may name a folder with other files as the cache.
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
_LEFT_OVER_S = 3600.0
"""Age in seconds from which a partly written file, or a folder that no process has locked, is taken for that of a
killed process.
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
"""The folder of reports, which are evicted as entries are."""
_REPORT_FILE = re.compile(r"(\d\w*|guards|residual)\.\w+")


def limit_bytes(root: Path, given: int | None) -> int:
    """The maximum bytes of a cache: the user's setting, else 10 GiB or a tenth of the disk, whichever is less."""
    if given is not None:
        return given
    try:
        disk = os.statvfs(root)
    except OSError:
        return _DEFAULT_BYTES
    size = disk.f_blocks * disk.f_frsize  # 0 where a file system does not tell
    return min(_DEFAULT_BYTES, int(size * _DEFAULT_DISK_SHARE)) if size else _DEFAULT_BYTES


def touch(path: Path, state: os.stat_result) -> None:
    """Note that an entry was used: its time of change is that of its last use, to the hour."""
    if _age(state) > _TOUCH_S:
        try:
            os.utime(path)
        except OSError:
            pass  # a read-only cache evicts nothing


def is_due(root: Path) -> bool:
    """Whether a day has passed since a cache was looked through."""
    try:
        return _age((root / _SWEPT).stat()) > _SWEEP_S
    except OSError:
        return True


def is_much(key: str, written: int, limit: int) -> bool:
    """Whether a cache is looked through after an entry: once for each twentieth of the limit that all processes write.

    Keys are evenly spread: as many entries ask for it as bytes were written, whichever processes wrote them.
    """
    return written * 20 >= limit or int(key[:8], 16) * limit < written * 20 << 32


def _age(state: os.stat_result) -> float:
    """Seconds since a file was changed; a time to come, of a clock that was wrong, is as long ago."""
    return abs(time.time() - state.st_mtime)


def sweep(root: Path, limit: int) -> None:
    """Remove left-overs, then the entries used least recently until `_KEPT_SHARE` of `limit` bytes is left."""
    try:
        (root / _SWEPT).touch(mode=0o600)
        os.utime(root / _SWEPT)
    except OSError:
        return  # read-only
    entries: list[tuple[float, int, Path]] = []
    now = time.time()
    for path, state in files(root):
        if is_passing(path):
            if _age(state) > _LEFT_OVER_S:
                remove(path)
        else:
            if state.st_mtime > now:
                touch(path, state)  # it would be the one used last for ever
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
    """The files that smelt made in a cache, with their states."""
    for path in _paths(root):
        try:
            yield path, path.lstat()
        except OSError:
            continue  # another process was faster


def _paths(root: Path) -> Iterator[Path]:
    for kind in _folders(root):
        for group in _folders(kind):
            names = _names(group)
            if kind.name == REPORTS:
                yield from (group / name for name in names if _REPORT_FILE.fullmatch(name))
            elif _GROUP.fullmatch(group.name):
                for name in names:
                    if name.startswith(NEW_FILE_PREFIX) or (name[:2] == group.name and _ENTRY.fullmatch(name)):
                        yield group / name
    yield from (root / name for name in _names(root) if name.startswith(NEW_FILE_PREFIX))


def is_passing(path: Path) -> bool:
    """Whether a file is one that is being written, or a lock."""
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
    except OSError:  # there is none
        return [root]


def _remove_left_over(folder: Path) -> None:
    """Remove a folder that no process has locked and that is an hour old: a new one is about to be locked."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        state = os.fstat(descriptor)
        if _age(state) > _LEFT_OVER_S and state.st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_folder(folder)
    except OSError:
        pass  # somebody holds it, or nobody can tell
    finally:
        close(descriptor)


class TemporaryFolder:
    """A folder of this process, which holds it: a later process removes it where this one is killed.

    Raises:
        OSError: it cannot be made, or others could change it.
    """

    def __init__(self, prefix: str, parent: Path) -> None:
        self._process = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getuid()}-", dir=parent))
        try:
            check_private(self.path)
            self._descriptor: int | None = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except BaseException:
            remove_folder(self.path)
            raise
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            pass  # no locks here: nobody else removes it

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove it, in the process that made it; one that was forked from it goes on holding it."""
        if os.getpid() != self._process:
            return
        remove_folder(self.path)
        if self._descriptor is not None:
            close(self._descriptor)
            self._descriptor = None


def new_build_folder(root: Path, full: Container[Path] = ()) -> TemporaryFolder:
    """A private folder for one compilation, from which what was built can be loaded: where temporary files go, or else
    in the cache, as when the former is mounted noexec, or others could change what lies there.

    Args:
        full: folders that have no room for it.

    Raises:
        OSError: there is none.
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
