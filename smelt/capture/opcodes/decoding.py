"""Decodes code objects for the running Python version; results are cached by the identity of the code."""

from __future__ import annotations

import importlib
import sys
from types import CodeType
from typing import Any

from smelt.base.errors import SmeltError
from smelt.capture.core.by_code import ByCode
from smelt.capture.core.bytecode import Decoded, Op

VERSIONS = {(3, 11): "py311", (3, 12): "py312", (3, 13): "py313"}
"""The table module of each supported version."""


def load_table() -> dict[str, Op]:
    """The opcode table of the running Python.

    Raises:
        SmeltError: the version is not supported.
    """
    found = VERSIONS.get(sys.version_info[:2])
    if found is None:
        have = ", ".join(f"{major}.{minor}" for major, minor in VERSIONS)
        raise SmeltError(f"Python {sys.version.split()[0]} is not supported", hint=f"use one of {have}")
    table: Any = importlib.import_module(f"smelt.capture.opcodes.{found}")
    return table.TABLE


TABLE = load_table()
_decoded: ByCode[Decoded] = ByCode()


def decode(code: CodeType) -> Decoded:
    """The decoded form of a code object, cached until the code dies."""
    return _decoded.get(code) or _decoded.put(code, Decoded(code, TABLE))
