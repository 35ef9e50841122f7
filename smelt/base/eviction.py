"""What keeps a cache small: entries used least recently go, and so does what killed processes left behind."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from smelt.base.private_folder import NEW_FILE_PREFIX, remove

BUILD_FOLDER_PREFIX = "smelt-build-"
"""Of temporary folders in which compilers work; this user's and the process's numbers follow."""
_LEFT_OVER_S = 3600.0
"""A file that was being written, or a process's build folder, of this age belongs to a process that was killed."""
_TOUCH_S = 3600.0
"""An entry's time of last use is brought up to date at most so often."""
_SWEEP_S = 24 * 3600.0
"""A cache is looked through at most so often, unless much was written."""
_KEPT_SHARE = 0.8
"""Of the limit, after eviction: the next entries do not evict again at once."""
_DEFAULT_BYTES = 10 * 2**30
_DEFAULT_DISK_SHARE = 0.1
_SWEPT = ".swept"


def limit_bytes(root: Path, given: int | None) -> int:
    """How large a cache may become: what the user said, else 10 GiB or a tenth of the disk, whichever is less."""
    if given is not None:
        return given
    disk = os.statvfs(root)
    return min(_DEFAULT_BYTES, int(disk.f_blocks * disk.f_frsize * _DEFAULT_DISK_SHARE))


def touch(path: Path, state: os.stat_result) -> None:
    """Note that an entry was used: its time of change is that of its last use, to the hour."""
    if time.time() - state.st_mtime > _TOUCH_S:
        try:
            os.utime(path)
        except OSError:
            pass  # a read-only cache evicts nothing


def is_due(root: Path) -> bool:
    """Whether a day has passed since a cache was looked through."""
    try:
        return time.time() - (root / _SWEPT).stat().st_mtime > _SWEEP_S
    except OSError:
        return True


def sweep(root: Path, limit: int) -> None:
    """Remove left-overs, then the entries used least recently until `_KEPT_SHARE` of `limit` bytes is left."""
    now = time.time()
    try:
        (root / _SWEPT).touch(mode=0o600)
        os.utime(root / _SWEPT)
    except OSError:
        return  # read-only
    entries: list[tuple[float, int, Path]] = []
    for path, state in _files(root):
        if path.name.startswith(NEW_FILE_PREFIX) or path.suffix == ".lock":
            if now - state.st_mtime > _LEFT_OVER_S:
                remove(path)
        elif path.name != _SWEPT:
            entries.append((state.st_mtime, state.st_blocks * 512, path))
    total = sum(size for _, size, _ in entries)
    if total > limit:
        for _, size, path in sorted(entries):
            if total <= limit * _KEPT_SHARE:
                break
            remove(path)
            total -= size
    _remove_build_folders(now)


def _files(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            try:
                yield path, path.lstat()
            except OSError:
                continue  # another process was faster


def _remove_build_folders(now: float) -> None:
    """Those of this user's processes that are gone, after an hour: a process of another container may be alive."""
    mine = f"{BUILD_FOLDER_PREFIX}{os.getuid()}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{mine}*"):
        process = folder.name.removeprefix(mine).split("-")[0]
        try:
            state = folder.lstat()
        except OSError:
            continue
        old = now - state.st_mtime > _LEFT_OVER_S and state.st_uid == os.getuid()
        if old and not folder.is_symlink() and not Path("/proc", process).exists():
            shutil.rmtree(folder, ignore_errors=True)


def new_build_folder() -> tempfile.TemporaryDirectory[str]:
    """A private temporary folder for one compilation; a later process removes it where this one is killed."""
    return tempfile.TemporaryDirectory(prefix=f"{BUILD_FOLDER_PREFIX}{os.getuid()}-{os.getpid()}-")
