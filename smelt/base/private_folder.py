"""Folders and files that only this user can write: the cache, reports of failures, traces.

Code is loaded from the cache, and files are written under names that can be guessed. So a folder is used only if no
user but this one and root can change it or a folder above it, and no file is opened through a symbolic link.
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
"""Flags of `os.open` by which a symbolic link is not followed and a FIFO does not block."""


class UnsafeFolder(OSError):
    """A path is not a folder, or other users could write to the folder; the message says which folder and why."""


def is_trusted(owner: int) -> bool:
    """Whether the user id `owner` is this user or root, whose files may be used."""
    return owner in (os.getuid(), 0)


def make_private(folder: Path, inside: Path | None = None) -> Path:
    """Make the folder and missing folders above it, check it (`check_private`), and return it.

    Args:
        inside: a folder above it that a group shares by intent: its members are trusted not to replace folders there.

    Raises:
        UnsafeFolder: another user could change its contents.
        OSError: the folder cannot be made.
    """
    make_folder(folder)
    check_private(folder, inside)
    return folder


def make_folder(folder: Path) -> None:
    """Make the folder and missing folders above it, each with mode 0700.

    (`Path.mkdir` makes missing parents with the mode that the umask allows, which may let a group or all users in.)

    Raises:
        OSError: the folder cannot be made, or the path exists and is not a folder.
    """
    missing = []
    for each in (folder, *folder.parents):
        if each.is_dir():
            break
        missing.append(each)
    for each in reversed(missing):
        try:
            each.mkdir(mode=0o700)
        except FileExistsError:  # another process made it, or the path is not a folder
            if not each.is_dir():
                raise


def check_private(folder: Path, inside: Path | None = None) -> None:
    """Check the folder, all folders above it, and every folder and symbolic link that resolving its path passes.

    Args:
        inside: see `make_private`.

    Raises:
        UnsafeFolder: another user could change its contents.
        OSError: the folder cannot be read.
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
            raise UnsafeFolder(f"other users may replace files in {path}")
    path, state = walked[-1]
    if not is_trusted(state.st_uid) or _others_write(path, state):
        raise UnsafeFolder(f"others may write to {path}")


def is_private(folder: Path) -> bool:
    """Whether only this user (or root) can write to a folder; the folders above it must be checked already."""
    state = folder.lstat()
    return stat.S_ISDIR(state.st_mode) and is_trusted(state.st_uid) and not _others_write(str(folder), state)


def is_executable(folder: Path) -> bool:
    """Whether libraries can be loaded from a folder: its file system may be mounted noexec."""
    return not os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0)


def _path_states(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The folders and links that resolving a folder's path passes, each with its `os.lstat`; the last is the folder.

    Raises:
        OSError: a folder of the path is missing, or links form a cycle.
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
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))
            target = Path(os.readlink(path))
            waiting += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            at = "/" if target.is_absolute() else at
        yield path, state
    yield at, os.lstat(at)


_MAX_LINKS = 40
"""Maximum number of symbolic links in one path, as in Linux."""


def is_shared(folder: Path) -> bool:
    """Whether a folder is meant for several users: others may write to it, or it is sticky or setgid."""
    state = folder.stat()
    return bool(_others_write(str(folder), state) or state.st_mode & (stat.S_ISVTX | stat.S_ISGID))


def _others_write(path: str, state: os.stat_result) -> bool:
    if state.st_mode & stat.S_IWOTH:
        return True
    return bool(state.st_mode & stat.S_IWGRP) and (not _is_own_group(state.st_gid) or _has_access_list(path))


def _has_access_list(path: str) -> bool:
    """Whether a path has an access control list, which may name further users and groups. The group bits of its mode
    are then the list's mask.
    """
    try:
        return "system.posix_acl_access" in os.listxattr(path)
    except (AttributeError, OSError):  # macOS lacks the function, some file systems lack the lists
        return False


def _is_own_group(group: int) -> bool:
    """Whether a group has no member but this user (many distributions make such a group), or is root's group."""
    if group == 0:
        return True
    try:
        entry = grp.getgrgid(group)
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return False
    return entry.gr_name == user and not set(entry.gr_mem) - {user}


def read_private(path: Path, most: int) -> tuple[bytes, os.stat_result] | None:
    """The content and `os.stat_result` of a regular file; None if the file does not exist or is not regular.

    The content is empty if the file has more than `most` bytes (a sparse file may report any size) or grows while it is
    read.
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
    """Write a file that only this user can read, in the place of the former one once it is whole.

    Raises:
        UnsafeFolder: the path is a link, another user's file, or not a regular file.
        OSError: writing failed; the former file is unchanged.
    """
    require_own(path)
    # names of the user's program may contain characters without an encoding
    replace_atomically(path, (text.encode("utf-8", "backslashreplace"),), 0o600)


def require_own(path: Path) -> None:
    """Check that nothing is at a path, or a file that only this user has.

    Raises:
        UnsafeFolder: the path is a link, another user's file, or not a regular file.
    """
    try:
        state = path.lstat()
    except OSError:  # missing; writing reports other errors
        return
    if stat.S_ISLNK(state.st_mode):
        raise UnsafeFolder(f"{path} is a symbolic link")
    if not stat.S_ISREG(state.st_mode) or state.st_uid != os.getuid() or state.st_nlink != 1:
        raise UnsafeFolder(f"{path} is not this user's own file")


@contextmanager
def replacing(path: Path, mode: int) -> Iterator[BinaryIO]:
    """Context that gives a new temporary file in the folder of `path`, and renames it to `path` if the block succeeds.

    Raises:
        OSError: the path is a folder, a pipe, a socket or a device, or writing failed; the temporary file is removed.
    """
    _require_replaceable(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=NEW_FILE_PREFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        remove(Path(name))
        raise


def _require_replaceable(path: Path) -> None:
    """Check that a path is a file or is missing: a rename by root would put a file in the place of /dev/null, too.

    Raises:
        OSError: it is, or links to, something else.
    """
    try:
        mode = path.stat().st_mode
    except OSError:  # missing, or a link that leads nowhere; making the temporary file reports other errors
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, NOT_A_FILE, str(path))


def replace_atomically(path: Path, chunks: tuple[bytes, ...], mode: int) -> None:
    """Replace the file `path` atomically: readers see either the new content or the former one.

    Raises:
        OSError: writing failed; the file is unchanged and no temporary file is left.
    """
    with replacing(path, mode) as file:
        for chunk in chunks:
            file.write(chunk)


NOT_A_FILE = "it is a pipe, a socket or a device, not a file"
"""Text of the error about a path from which a file cannot be read, or that a file must not replace."""

NEW_FILE_PREFIX = ".new-"
"""Prefix of the names of partly written files; killed processes leave such files."""


def close(descriptor: int) -> None:
    """Close a descriptor without written data (a lock, a folder); it is closed even if the system reports an error."""
    try:
        os.close(descriptor)
    except OSError:
        pass


def remove_folder(folder: Path) -> None:
    """Remove a folder with its contents; files that cannot be removed are left."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # CPython 3.11 and 3.12 raise if closing a descriptor fails
        pass


def remove_empty(folder: Path) -> None:
    """Remove a folder if nothing is in it."""
    try:
        folder.rmdir()
    except OSError:
        pass


def remove(path: Path) -> None:
    """Remove a file; nothing happens if another process has removed it or the folder is read-only."""
    try:
        path.unlink()
    except OSError:
        pass
