"""Folders and files that nobody else can write: the cache, reports of failures, traces.

Code is loaded from the cache, and files are written under names that can be guessed. So a folder is used only if it and
every folder above it can be changed by nobody but this user and root, and no file is opened through a symbolic link.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
import tempfile
from pathlib import Path

_OPEN_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
"""No symbolic link is followed, and a FIFO in a file's place does not block."""


class UnsafeFolder(OSError):
    """A folder that others could write to, or that is none; the message says which and why."""


def is_trusted(owner: int) -> bool:
    """Whether files of that user may be used: this user's own and root's."""
    return owner in (os.getuid(), 0)


def make_private(folder: Path, inside: Path | None = None) -> Path:
    """The folder, made with mode 0700 where it is missing, as are those above it.

    Args:
        inside: a folder above it that a group shares by intent: its members are trusted not to replace folders there.

    Raises:
        UnsafeFolder: somebody else could change what lies in it.
        OSError: it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    check_private(folder, inside)
    return folder


def check_private(folder: Path, inside: Path | None = None) -> None:
    """Check the folder and all those above it, where a symbolic link leads to as well as where it lies.

    Args:
        inside: see `make_private`.

    Raises:
        UnsafeFolder: somebody else could change what lies in it.
        OSError: it cannot be read.
    """
    absolute = Path(os.path.abspath(folder))
    real = absolute.resolve(strict=True)
    state = real.stat()
    if not stat.S_ISDIR(state.st_mode):
        raise UnsafeFolder(f"{real} is no folder")
    if not is_trusted(state.st_uid):
        raise UnsafeFolder(f"{real} belongs to another user")
    if _others_write(state):
        raise UnsafeFolder(f"others may write to {real}")
    shared = inside.resolve() if inside is not None else None
    for parent in dict.fromkeys((*real.parents, *absolute.parents)):
        state = parent.stat()
        if parent.resolve() == shared and not state.st_mode & stat.S_IWOTH:
            continue
        if not is_trusted(state.st_uid) or (_others_write(state) and not state.st_mode & stat.S_ISVTX):
            raise UnsafeFolder(f"others may replace what lies in {parent}")
    for part in (absolute, *absolute.parents):
        if not is_trusted(part.lstat().st_uid):  # a link that another user may turn elsewhere
            raise UnsafeFolder(f"{part} belongs to another user")


def is_shared(folder: Path) -> bool:
    """Whether a folder is meant for several users: others may write to it, or it is sticky or setgid."""
    state = folder.stat()
    return bool(_others_write(state) or state.st_mode & (stat.S_ISVTX | stat.S_ISGID))


def _others_write(state: os.stat_result) -> bool:
    if state.st_mode & stat.S_IWOTH:
        return True
    return bool(state.st_mode & stat.S_IWGRP) and not _is_own_group(state.st_gid)


def _is_own_group(group: int) -> bool:
    """Whether a group has this user alone, as distributions make one for each user; root's counts as well."""
    if group == 0:
        return True
    try:
        entry = grp.getgrgid(group)
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return False
    return entry.gr_name == user and not set(entry.gr_mem) - {user}


def read_private(path: Path) -> tuple[bytes, os.stat_result] | None:
    """A regular file's content and state; None where nothing of that name can be read as one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _OPEN_FLAGS)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            return None
        return file.read(), state


def write_private(path: Path, text: str) -> None:
    """Write a file for this user alone, under a name at which no link and nobody else's file may lie.

    Raises:
        UnsafeFolder: a link, another user's file or no regular file lies there.
        OSError: the disk refused.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | _OPEN_FLAGS, 0o600)
    except OSError as error:
        if path.is_symlink():
            raise UnsafeFolder(f"{path} is a symbolic link") from error
        raise
    with open(descriptor, "w", encoding="utf-8") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_uid != os.getuid() or state.st_nlink != 1:
            raise UnsafeFolder(f"{path} is not this user's own file")
        file.truncate(0)
        file.write(text)


def replace_atomically(path: Path, parts: tuple[bytes, ...], mode: int) -> None:
    """Write a file beside `path` and rename it to `path`: readers see all of it or what was there before.

    Raises:
        OSError: the disk refused; nothing is left behind.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=NEW_FILE_PREFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in parts:
                file.write(part)
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        remove(Path(name))
        raise


NEW_FILE_PREFIX = ".new-"
"""Of files that are being written; one that is left over comes from a process that was killed."""


def remove(path: Path) -> None:
    """Remove a file, unless another process was faster or the folder is read-only."""
    try:
        path.unlink()
    except OSError:
        pass
