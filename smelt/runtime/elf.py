"""Whether a file is a whole shared object: mapping one that was cut off ends the process (SIGBUS) when it is read."""

from __future__ import annotations

import struct
import sys

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
"""Of a 64-bit ELF file: identification, type ... program header offset and section header offset, sizes and counts."""
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_LOAD = 1
_SHARED_OBJECT = 3


def problem_of(image: bytes) -> str | None:
    """What is wrong with a shared object's bytes, or None. Only Linux's format is looked at."""
    if not sys.platform.startswith("linux"):
        return None
    if len(image) < _HEADER.size or image[:6] != b"\x7fELF\x02\x01":
        return "it is no 64-bit ELF file"
    fields = _HEADER.unpack_from(image)
    kind, programs, sections = fields[1], fields[5], fields[6]
    program_size, program_count, section_size, section_count = fields[9:13]
    if kind != _SHARED_OBJECT:
        return "it is no shared object"
    if program_size != _PROGRAM_HEADER.size or program_count == 0:
        return "it has no program headers"
    if programs + program_size * program_count > len(image) or sections + section_size * section_count > len(image):
        return "its end is missing"
    for at in range(programs, programs + program_size * program_count, program_size):
        segment, _, offset, _, _, size, _, _ = _PROGRAM_HEADER.unpack_from(image, at)
        if segment == _LOAD and offset + size > len(image):
            return "its end is missing"
    return None
