"""Exports the store as one file and imports it, for continuous integration and clusters with empty caches at start.

The file is a zip archive of the store's entries under their kind and name, each with its checksum as on disk. The key
of an entry includes the machine, the compiler and versions, so other machines never look the entry up.
"""

from __future__ import annotations

import os
import re
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from smelt.base import eviction
from smelt.base.errors import SmeltError
from smelt.base.private_folder import NOT_A_FILE, replacing
from smelt.base.store import MAX_ENTRY_BYTES, Store, checked_entry, sealed_entry, store

SUFFIXES = {
    "compiler": ".txt",
    "host": ".code",
    "kernels": ".so",
    "tune": ".txt",
    "triton": ".cubin",
    "triton-tune": ".txt",
    "triton-product": ".txt",
}
"""Kind of entry that is exported -> suffix of its files; reports of failures are not exported."""

_NAME = re.compile(rf"({'|'.join(SUFFIXES)})/([0-9a-f]{{64}})")

Entry = tuple[str, str, str]
"""Kind, key and suffix of an entry."""


def save_cache(file: str | os.PathLike[str]) -> int:
    """Write all built kernels and timings of the cache into one file, which `load_cache` reads elsewhere.

    Returns:
        The number of entries that were written.

    Raises:
        OSError: the file cannot be written; no partly written file is left.
    """
    count = 0
    with replacing(Path(file), 0o600) as new, zipfile.ZipFile(new, "w") as archive:
        for (kind, key, suffix), body in _whole_entries(store()):
            archive.writestr(f"{kind}/{key}{suffix}", sealed_entry(kind, key, suffix, body))
            count += 1
    return count


def load_cache(file: str | os.PathLike[str]) -> int:
    """Add the entries of a file of `save_cache` to the cache of this machine, after the whole file has been checked.

    Kernels are machine code: import only files from people whom you trust to run code under your account.

    Returns:
        The number of entries that are new.

    Raises:
        OSError: the file does not exist or cannot be read.
        SmeltError: the file was not written by smelt or is damaged, or the cache is too small for its new entries.
    """
    cache = store()
    kept, new = 0, 0
    with open(file, "rb", opener=_without_waiting) as archive_file:
        if not stat.S_ISREG(os.fstat(archive_file.fileno()).st_mode):
            raise _not_ours(archive_file, NOT_A_FILE)
        for _ in _checked(archive_file):
            pass
        for (kind, key, suffix), body in _checked(archive_file):
            if cache.refused or not cache.path(kind, key, suffix).exists():
                new += cache.get(kind, key, suffix) is None
                kept += not cache.refused and cache.put(kind, key, body, suffix) is not None
    if kept < new:
        why = cache.refused or "the disk refused, as the warning says"
        raise SmeltError(f"{new - kept} of {new} new entries are not kept", why=why, hint="another SMELT_CACHE_DIR")
    return kept


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; opening a pipe does not wait for somebody who writes to it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _checked(archive_file: BinaryIO) -> Iterator[tuple[Entry, bytes]]:
    """The entries of an archive, one at a time: together they may be larger than the memory.

    Raises:
        SmeltError: an entry fails its checksum or is not as `save_cache` wrote it.
    """
    try:
        with zipfile.ZipFile(archive_file) as archive:
            for info in archive.infolist():
                entry = _entry_of(Path(info.filename))
                body = None if entry is None or not _is_as_written(info) else checked_entry(*entry, archive.read(info))
                if entry is None or body is None:
                    raise _not_ours(archive_file, f"{info.filename!r} is no entry, or was changed")
                yield entry, body
    except SmeltError:
        raise
    except Exception as error:  # zipfile has no common base class for the errors of a damaged file
        raise _not_ours(archive_file, str(error)) from error


def _is_as_written(info: zipfile.ZipInfo) -> bool:
    """Whether an archive member is uncompressed (else a small file could expand to any size) and has at most
    `MAX_ENTRY_BYTES`.
    """
    stored = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
    return stored and info.file_size <= MAX_ENTRY_BYTES


def _not_ours(archive_file: BinaryIO, why: str) -> SmeltError:
    return SmeltError(f"{archive_file.name} was not written by smelt.save_cache", why=why, hint="write it again")


def _entry_of(path: Path) -> Entry | None:
    """(kind, key, suffix) of the entry that a path in the archive names; None if it names none."""
    named = _NAME.fullmatch(f"{path.parent}/{path.stem}")
    if named is None or SUFFIXES[named[1]] != path.suffix:
        return None
    return named[1], named[2], path.suffix


def _whole_entries(cache: Store) -> Iterator[tuple[Entry, bytes]]:
    for path, _ in sorted(eviction.files(cache.root)):
        entry = _entry_of(Path(path.parent.parent.name, path.name))
        body = None if entry is None else cache.get(*entry)
        if entry is not None and body is not None:
            yield entry, body
