"""Checks that a file is a complete shared object: a read of a truncated mapped file kills the process (SIGBUS)."""

from __future__ import annotations

import struct
import sys

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
"""The header of a 64-bit ELF file: identification, type, ..., offsets of program and section headers, sizes, counts."""
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = struct.Struct("<qQ")
_LOAD, _DYNAMIC_SEGMENT = 1, 2
_STRINGS, _SYMBOLS = 5, 6
"""Tags of dynamic entries (DT_STRTAB, DT_SYMTAB) without which the loader would read at address 0."""
_NO_SECTION, _NO_BITS = 0, 8
_SHARED_OBJECT = 3


def problem_of(image: bytes) -> str | None:
    """Describe the error in a shared object's bytes, or return None if they are correct. Only ELF, Linux's format, is
    checked.
    """
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
    if section_count and section_size != _SECTION_HEADER.size:
        return "its table of sections is damaged"
    if programs + program_size * program_count > len(image) or sections + section_size * section_count > len(image):
        return "its end is missing"
    problem = _problem_of_segments(image, range(programs, programs + program_size * program_count, program_size))
    return problem or _problem_of_sections(
        image, range(sections, sections + section_size * section_count, section_size or 1)
    )


def _problem_of_segments(image: bytes, offsets: range) -> str | None:
    dynamic = False
    for at in offsets:
        segment, _, offset, _, _, size, _, _ = _PROGRAM_HEADER.unpack_from(image, at)
        if segment in (_LOAD, _DYNAMIC_SEGMENT) and offset + size > len(image):
            return "its end is missing"
        if segment == _DYNAMIC_SEGMENT:
            tags = {tag for tag, _ in _DYNAMIC.iter_unpack(image[offset : offset + size // 16 * 16])}
            dynamic = {_STRINGS, _SYMBOLS} <= tags
    return None if dynamic else "it has no dynamic symbols"


def _problem_of_sections(image: bytes, offsets: range) -> str | None:
    """Describe the error in the section table, or return None. Linkers write it last; zeros mean that the file is
    incomplete.
    """
    for at in offsets[1:]:
        _, kind, _, _, offset, size, _, _, _, _ = _SECTION_HEADER.unpack_from(image, at)
        if kind == _NO_SECTION or (kind != _NO_BITS and offset + size > len(image)):
            return "its end is missing"
    return None
