"""Compiles comparisons of integer expressions over sizes to programs of a stack machine in the C core.

native/sizes.c runs the programs. Other conditions (on real numbers, with `or`) are evaluated in Python.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from smelt.base.class_tables import isinstance
from smelt.capture import _native as native
from smelt.shapes.size import LARGEST

_OPS = {name: number for number, name in enumerate(native.SIZE_OPS)}
_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "ADD", ast.Sub: "SUB", ast.Mult: "MUL", ast.FloorDiv: "FLOORDIV", ast.Mod: "MOD",
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "EQ", ast.NotEq: "NE", ast.Lt: "LT", ast.LtE: "LE", ast.Gt: "GT", ast.GtE: "GE",
}  # fmt: skip
_MAX_EXPONENT = 8
_MAX_STACK_DEPTH = 32


def size_program(condition: str, index_of: Mapping[str, int]) -> tuple[int, ...] | None:
    """The program of one condition, in which `index_of` maps each name to the index of its value; None if the condition
    must be evaluated in Python."""
    try:
        tree = ast.parse(condition, mode="eval").body
        comparisons = tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]
        return tuple(number for comparison in comparisons for number in _comparison(comparison, index_of))
    except _OtherwiseError:
        return None


class _OtherwiseError(Exception):
    """The condition is not a comparison of integer expressions that the stack machine supports."""


def _comparison(node: ast.expr, index_of: Mapping[str, int]) -> list[int]:
    if isinstance(node, ast.Constant) and node.value is True:
        return []
    if not isinstance(node, ast.Compare):
        raise _OtherwiseError
    if any(1 + _depth(each) > _MAX_STACK_DEPTH for each in (node.left, *node.comparators)):
        raise _OtherwiseError
    operands = [_expression(each, index_of) for each in (node.left, *node.comparators)]
    out: list[int] = []
    for left, sign, right in zip(operands, node.ops, operands[1:], strict=False):
        if type(sign) not in _COMPARISONS:
            raise _OtherwiseError
        out += [*left, *right, _OPS[_COMPARISONS[type(sign)]], 0]
    return out


def _expression(node: ast.expr, index_of: Mapping[str, int]) -> list[int]:
    """The steps that push the value of an expression."""
    match node:
        case ast.Constant(value=int(value)) if type(value) is int and abs(value) <= LARGEST:
            return [_OPS["CONSTANT"], value]
        case ast.Name(id=name) if name in index_of:
            return [_OPS["VALUE"], index_of[name]]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return [_OPS["CONSTANT"], 0, *_expression(operand, index_of), _OPS["SUB"], 0]
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if 1 <= power <= _MAX_EXPONENT:
            base = _expression(left, index_of)
            return base + [*base, _OPS["MUL"], 0] * (power - 1)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return [*_expression(left, index_of), *_expression(right, index_of), _OPS[_BINARY[type(op)]], 0]
    raise _OtherwiseError


def _depth(node: ast.expr) -> int:
    """The maximum depth of the stack during the steps of an expression."""
    match node:
        case ast.BinOp(left=left, op=ast.Pow()):
            return 1 + _depth(left)
        case ast.BinOp(left=left, right=right):
            return max(_depth(left), 1 + _depth(right))
        case ast.UnaryOp(operand=operand):
            return 1 + _depth(operand)
    return 1
