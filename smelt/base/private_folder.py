"""Folders and files that nobody else can write: the cache, reports of failures, traces.

Code is loaded from the cache, and files are written under names that can be guessed. So a folder is used only if it and
every folder above it can be changed by nobody but this user and root, and no file is opened through a symbolic link.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_OPEN_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
"""No symbolic link is followed, and a FIFO of that name does not block."""


class UnsafeFolder(OSError):
    """A path is not a folder, or other users could write to the folder; the message says which folder and why."""


def is_trusted(owner: int) -> bool:
    """Whether files of that user may be used: this user's own and root's."""
    return owner in (os.getuid(), 0)


def make_private(folder: Path, inside: Path | None = None) -> Path:
    """The folder, made where it is missing, as are those above it.

    Args:
        inside: a folder above it that a group shares by intent: its members are trusted not to replace folders there.

    Raises:
        UnsafeFolder: somebody else could change what lies in it.
        OSError: it cannot be made.
    """
    make_folder(folder)
    check_private(folder, inside)
    return folder


def make_folder(folder: Path) -> None:
    """Make the folder and those above it that are missing, each with mode 0700.

    (`Path.mkdir` gives those above what the umask leaves: open to a group, or to all.)

    Raises:
        OSError: it cannot be made, or something else lies there.
    """
    missing = []
    for each in (folder, *folder.parents):
        if each.is_dir():
            break
        missing.append(each)
    for each in reversed(missing):
        try:
            each.mkdir(mode=0o700)
        except FileExistsError:  # another process was faster, or something else lies there
            if not each.is_dir():
                raise


def check_private(folder: Path, inside: Path | None = None) -> None:
    """Check the folder, all those above it, and every folder and link that the system passes on the way there.

    Args:
        inside: see `make_private`.

    Raises:
        UnsafeFolder: somebody else could change what lies in it.
        OSError: it cannot be read.
    """
    shared = os.path.realpath(inside) if inside is not None else None
    walked = list(_path_states(folder))
    for path, state in walked:
        if stat.S_ISLNK(state.st_mode):
            if not is_trusted(state.st_uid):
                raise UnsafeFolder(f"{path} belongs to another user, who may turn it elsewhere")
        elif not stat.S_ISDIR(state.st_mode):
            raise UnsafeFolder(f"{path} is no folder")
        elif path == shared and not state.st_mode & stat.S_IWOTH:
            continue
        elif not is_trusted(state.st_uid):
            raise UnsafeFolder(f"{path} belongs to another user")
        elif _others_write(path, state) and not state.st_mode & stat.S_ISVTX:
            raise UnsafeFolder(f"others may replace what lies in {path}")
    path, state = walked[-1]
    if not is_trusted(state.st_uid) or _others_write(path, state):
        raise UnsafeFolder(f"others may write to {path}")


def is_private(folder: Path) -> bool:
    """Whether a folder, below one that was checked, is this user's alone."""
    state = folder.lstat()
    return stat.S_ISDIR(state.st_mode) and is_trusted(state.st_uid) and not _others_write(str(folder), state)


def is_executable(folder: Path) -> bool:
    """Whether libraries can be loaded from a folder: its file system may be mounted noexec."""
    return not os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0)


def _path_states(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The folders and links that the system passes when it opens a folder, with their states; the last is the folder.

    Raises:
        OSError: something is missing, or links lead in a circle.
    """
    at, waiting, links = "/", list(reversed(folder.absolute().parts[1:])), 0
    yield at, os.lstat(at)
    while waiting:
        name = waiting.pop()
        if name == "..":
            at = os.path.dirname(at)
            continue
        path = os.path.join(at, name)
        state = os.lstat(path)
        if not stat.S_ISLNK(state.st_mode):
            at = path
        else:
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))
            target = Path(os.readlink(path))
            waiting += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            at = "/" if target.is_absolute() else at
        yield path, state
    yield at, os.lstat(at)


_MOST_LINKS = 40
"""On the way to a file, as in Linux."""


def is_shared(folder: Path) -> bool:
    """Whether a folder is meant for several users: others may write to it, or it is sticky or setgid."""
    state = folder.stat()
    return bool(_others_write(str(folder), state) or state.st_mode & (stat.S_ISVTX | stat.S_ISGID))


def _others_write(path: str, state: os.stat_result) -> bool:
    if state.st_mode & stat.S_IWOTH:
        return True
    return bool(state.st_mode & stat.S_IWGRP) and (not _is_own_group(state.st_gid) or _has_access_list(path))


def _has_access_list(path: str) -> bool:
    """Whether an access control list names more users or groups; the group's bits are its mask then."""
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except (AttributeError, OSError):  # not on macOS; a file system without them
        return False


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


def read_private(path: Path, most: int) -> tuple[bytes, os.stat_result] | None:
    """A regular file's content and state; None where nothing of that name can be read as one.

    Of a file of more than `most` bytes, or one that grows meanwhile, no content is read: one without blocks may show
    any size.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _OPEN_FLAGS)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            return None
        data = file.read(state.st_size + 1) if state.st_size <= most else b""
        return (data if len(data) <= state.st_size else b""), state


def write_private(path: Path, text: str) -> None:
    """Write a file for this user alone, under a name at which no link and nobody else's file may lie.

    Raises:
        UnsafeFolder: a link, another user's file or no regular file lies there.
        OSError: the disk refused; nothing of that name is left.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | _OPEN_FLAGS, 0o600)
    except OSError as error:
        if path.is_symlink():
            raise UnsafeFolder(f"{path} is a symbolic link") from error
        raise
    try:
        # names of the user's program may hold what has no encoding
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            state = os.fstat(descriptor)
            if not stat.S_ISREG(state.st_mode) or state.st_uid != os.getuid() or state.st_nlink != 1:
                raise UnsafeFolder(f"{path} is not this user's own file")
            file.truncate(0)
            file.write(text)
    except UnsafeFolder:
        raise
    except OSError:
        remove(path)  # half of it would be taken for all
        raise


@contextmanager
def replacing(path: Path, mode: int) -> Iterator[BinaryIO]:
    """A file beside `path`, under a name of its own, that is renamed to it when the block has ended without an error.

    Raises:
        OSError: the disk refused; nothing is left behind.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=NEW_FILE_PREFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        remove(Path(name))
        raise


def replace_atomically(path: Path, chunks: tuple[bytes, ...], mode: int) -> None:
    """Replace the file `path` atomically: readers see the new content or the former one.

    Raises:
        OSError: the disk refused; nothing is left behind.
    """
    with replacing(path, mode) as file:
        for chunk in chunks:
            file.write(chunk)


NEW_FILE_PREFIX = ".new-"
"""Prefix of the names of files that are being written; a leftover comes from a process that was killed."""


def close(descriptor: int) -> None:
    """Close what nothing was written to: a lock, a folder. Where NFS or a quota refuses it, it is closed, too."""
    try:
        os.close(descriptor)
    except OSError:
        pass


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that lies in it, as far as the file system lets us."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # CPython 3.11 and 3.12 tell of a close that was refused
        pass


def remove(path: Path) -> None:
    """Remove a file, unless another process was faster or the folder is read-only."""
    try:
        path.unlink()
    except OSError:
        pass
