"""Decoding agrees with the standard library's `dis`, for every function of a few large modules."""

from __future__ import annotations

import argparse
import ast
import dis
import inspect
import types
import typing

import pytest

from smelt.capture.core.bytecode import Decoded
from smelt.capture.opcodes.decoding import TABLE, decode


def codes(module):
    stack = [c.__code__ for c in vars(module).values() if isinstance(c, types.FunctionType)]
    stack += [f.__code__ for c in vars(module).values() if isinstance(c, type) for f in vars(c).values()
              if isinstance(f, types.FunctionType)]  # fmt: skip
    while stack:
        code = stack.pop()
        yield code
        stack += [c for c in code.co_consts if isinstance(c, types.CodeType)]


@pytest.mark.parametrize("module", [argparse, ast, inspect, typing], ids=lambda m: m.__name__)
def test_like_dis(module):
    for code in codes(module):
        decoded = Decoded(code, TABLE)
        expected = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
        assert decoded.names == [i.opname for i in expected]
        opcodes_with_arg = [(n, i) for n, i in enumerate(expected) if i.arg is not None]
        assert all(decoded.raw[n] == i.arg for n, i in opcodes_with_arg)
        for number, i in enumerate(expected):
            assert decoded.units(number) == i.offset // 2
            target = decoded.targets.get(number)
            if target is not None and i.opname not in ("FOR_ITER", "SEND"):
                assert expected[target].offset >= i.argval >= decoded.offsets[target]


@pytest.mark.parametrize("module", [argparse, ast, inspect, typing], ids=lambda m: m.__name__)
def test_exception_table_like_dis(module):
    for code in codes(module):
        decoded = Decoded(code, TABLE)
        rows = dis._parse_exception_table(code)
        assert len(rows) == len(decoded.handlers)
        for mine, row in zip(decoded.handlers, sorted(rows), strict=True):
            assert (mine.depth, mine.lasti) == (row.depth, bool(row.lasti))
            assert decoded.offsets[mine.target] <= row.target
            assert decoded.handler_at(mine.start) == mine and decoded.handler_at(mine.end - 1) == mine


def test_code_is_decoded_once():
    assert decode(codes.__code__) is decode(codes.__code__)


def test_every_opcode_of_functions_is_known():
    unknown = set()
    for module in (argparse, ast, inspect, typing, dis):
        for code in codes(module):
            unknown |= {name for name in Decoded(code, TABLE).names if name not in TABLE}
    assert unknown <= {"LOAD_CLASSDEREF", "STORE_NAME", "LOAD_NAME", "PREP_RERAISE_STAR", "LOAD_LOCALS", "DELETE_NAME"}
