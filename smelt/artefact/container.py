"""Reads and writes the file of an artefact: a first line with its kind, a header, contents, blobs, and a checksum.

    smelt artefact 2\\n
    {"header": ..., "contents": ..., "blobs": [[offset, bytes], ...]}     JSON; the line before contains its length
    blobs                                                                libraries, code objects, texts and tensors
    \\n# smelt sha256 ...\\n                                                over every byte before

The file contains no pickle and nothing compressed. The checksum detects damage, not malice: an artefact is code.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from smelt.base.errors import SmeltError
from smelt.base.private_folder import is_trusted, read_private, replacing

_NAME = b"smelt artefact "
MAGIC = _NAME + b"2\n"
_MARK = b"\n# smelt sha256 "
_FOOTER_BYTES = len(_MARK) + 64 + 1
_LENGTH_BYTES = 16
MAX_FILE_BYTES = 2**31
"""Maximum size of a file in bytes; larger files are not read."""


class ArtefactError(SmeltError):
    """An artefact cannot be made, read or used here; the message says why. None of its code has run."""

    page: ClassVar[str] = "errors/artefact-error.md"


class Blobs(list[bytes]):
    """A numbered list of byte strings; equal strings have the same number."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[bytes, int] = {}

    def number(self, data: bytes) -> int:
        """The number of these bytes, which are added if they are new."""
        if data not in self._numbers:
            self._numbers[data] = len(self)
            self.append(data)
        return self._numbers[data]


@contextmanager
def refused_as(what: str) -> Iterator[None]:
    """Context that turns errors in reading damaged contents into an ArtefactError.

    Raises:
        ArtefactError: the block raised an error other than a SmeltError; its message is `what`.
    """
    try:
        yield
    except (SmeltError, MemoryError):
        raise
    except Exception as error:  # damaged contents may raise any error of Python or PyTorch
        raise ArtefactError(what, why=f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Container:
    """The content of a file.

    Attributes:
        header: the machine and the versions for which the artefact was made.
        contents: the data of versions and graphs, as JSON.
        blobs: byte strings, to which the contents refer by number.
    """

    header: dict[str, Any]
    contents: dict[str, Any]
    blobs: Sequence[bytes]


def write(path: str | os.PathLike[str], container: Container) -> None:
    """Write the file under a random name and rename it; only this user can read and write it.

    Raises:
        OSError: writing failed; no partly written file is left.
    """
    extents, offset = [], 0
    for blob in container.blobs:
        extents.append([offset, len(blob)])
        offset += len(blob)
    document = {"header": container.header, "contents": container.contents, "blobs": extents}
    text = json.dumps(document, separators=(",", ":"))
    body = text.encode()
    digest = hashlib.sha256()
    with replacing(Path(path), 0o600) as file:
        for chunk in (MAGIC, b"%016d" % len(body), body, *container.blobs):
            digest.update(chunk)
            file.write(chunk)
        file.write(_MARK + digest.hexdigest().encode() + b"\n")


def read(path: str | os.PathLike[str]) -> Container:
    """Read and check a file, as text and numbers only: none of its contents is executed.

    Raises:
        FileNotFoundError: the file does not exist.
        ArtefactError: the file was not written by smelt, was changed or truncated, or other users could have written
            it.
    """
    data = _bytes_of(Path(path))
    if not data.startswith(MAGIC):
        another = data.startswith(_NAME)
        raise _not_ours(path, "another version of smelt wrote it" if another else "it does not begin as one")
    body, footer = memoryview(data)[:-_FOOTER_BYTES], data[-_FOOTER_BYTES:]
    if footer != _MARK + hashlib.sha256(body).hexdigest().encode() + b"\n":
        raise _not_ours(path, "it was changed or cut off: its checksum does not fit")
    try:
        start = len(MAGIC) + _LENGTH_BYTES
        end = start + int(bytes(body[len(MAGIC) : start]))
        document = json.loads(bytes(body[start:end]))
        blobs = [bytes(_blob(body[end:], *extent)) for extent in document["blobs"]]
        header, contents = document["header"], document["contents"]
        if type(header) is not dict or type(contents) is not dict:
            raise ValueError("it has no header or no contents")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _not_ours(path, f"{type(error).__name__}: {error}") from error
    return Container(header, contents, blobs)


def _blob(blobs: memoryview, at: int, count: int) -> memoryview:
    if type(at) is not int or type(count) is not int or not 0 <= at <= at + count <= len(blobs):
        raise ValueError("a blob lies outside of the file")
    return blobs[at : at + count]


def _bytes_of(path: Path) -> bytes:
    try:
        found = read_private(path, MAX_FILE_BYTES)
    except OSError as error:
        why = "it is a symbolic link" if path.is_symlink() else error.strerror or str(error)
        raise _not_ours(path, why) from error
    if found is None:
        if not path.exists():
            raise FileNotFoundError(f"there is no artefact {path}")
        raise _not_ours(path, "it is no regular file")
    data, state = found
    if not is_trusted(state.st_uid):
        raise _not_ours(path, "it belongs to another user")
    if state.st_mode & stat.S_IWOTH:
        raise _not_ours(path, "other users may write to it")
    if state.st_size > MAX_FILE_BYTES:
        raise _not_ours(path, f"it is larger than {MAX_FILE_BYTES:,} bytes")
    return data


def _not_ours(path: str | os.PathLike[str], why: str) -> ArtefactError:
    return ArtefactError(f"{os.fspath(path)} is no artefact that smelt can use", why=why, hint="save it again")
