"""The store as one file: for continuous integration and clusters, where machines begin with an empty cache.

The file is a zip archive of the store's entries under their kind and name, each with its checksum as on disk. An entry
counts for the machine, compiler and versions that its key was made from: elsewhere it is never asked for.
"""

from __future__ import annotations

import os
import re
import zipfile
from pathlib import Path

from smelt.base import eviction
from smelt.base.errors import SmeltError
from smelt.base.private_folder import replace_atomically
from smelt.base.store import Store, checked_entry, store

KINDS = ("compiler", "kernels", "tune", "triton", "triton-tune", "triton-product")
"""What is kept: reports of failures are not."""

_NAME = re.compile(rf"({'|'.join(KINDS)})/([0-9a-f]{{64}})(\.[a-z]+)")


def save_cache(file: str | os.PathLike[str]) -> int:
    """Write all built kernels and timings of the cache into one file, which `load_cache` reads elsewhere.

    Returns:
        How many entries were written.

    Raises:
        OSError: the file cannot be written; nothing of it is left then.
    """
    path, held = Path(file), store()
    handed = path.with_name(f".{path.name}.{os.getpid()}")
    count = 0
    try:
        with zipfile.ZipFile(handed, "w") as archive:
            for name, data in _entries(held):
                archive.writestr(name, data)
                count += 1
        replace_atomically(path, (handed.read_bytes(),), 0o600)
    finally:
        handed.unlink(missing_ok=True)
    return count


def load_cache(file: str | os.PathLike[str]) -> int:
    """Put what `save_cache` wrote into the cache of this machine. All of the file is checked before anything is kept.

    Kernels are machine code: take only files of people who may run code as you.

    Returns:
        How many entries are new.

    Raises:
        OSError: there is no such file.
        SmeltError: it is none of smelt's, or damaged.
    """
    found: list[tuple[str, str, str, bytes]] = []
    try:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                named = _NAME.fullmatch(name)
                kind, key, suffix = named.groups() if named is not None else ("", "", "")
                body = checked_entry(kind, key, suffix, archive.read(name))
                if named is None or body is None:
                    raise _not_ours(file, f"{name!r} is no entry, or was changed")
                found.append((kind, key, suffix, body))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        if isinstance(error, SmeltError):
            raise
        raise _not_ours(file, str(error)) from error
    held = store()
    new = [entry for entry in found if not held.path(*entry[:3]).exists()]
    return sum(held.put(kind, key, body, suffix) is not None for kind, key, suffix, body in new)


def _not_ours(file: str | os.PathLike[str], why: str) -> SmeltError:
    return SmeltError(f"{os.fspath(file)} was not written by smelt.save_cache", why=why, hint="write it again")


def _entries(held: Store) -> list[tuple[str, bytes]]:
    """Names and bytes of the entries that are whole."""
    entries = []
    for path, _ in sorted(eviction.files(held.root)):
        if eviction.is_passing(path):
            continue
        kind, key, suffix = path.parent.parent.name, path.stem, path.suffix
        named = _NAME.fullmatch(f"{kind}/{key}{suffix}")
        if named is not None and held.get(kind, key, suffix) is not None:
            entries.append((named.group(), path.read_bytes()))
    return entries
