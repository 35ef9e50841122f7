"""The `Ops` handler that renders bodies as C++: each operation is emitted once, in the outermost possible loop."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from smelt.abi.faults import DIVIDED_BY_ZERO, OUT_OF_RANGE
from smelt.base.errors import CompileError
from smelt.codegen.cpp.target import ROUNDING, Renderer
from smelt.codegen.ops import OpsRenderer
from smelt.codegen.parameters import FAULT, Arguments
from smelt.codegen.scope import Scopes, V
from smelt.loops.facts import BOOLEAN, DIVISIONS, EXACT
from smelt.loops.ir import REFUSE, Condition, Index
from smelt.schedule.plan import Schedule
from smelt.schedule.realize import metas_of
from smelt.shapes.expr import Expr, Runtime, flat_index
from smelt.shapes.size import IntLike, Size, same

CALLS = re.compile(r"\bm_(\w+)[(<]")


class BodyRenderer(OpsRenderer):
    """Renders bodies into `scopes`; the kernel determines the open loops and the values that are already computed."""

    def __init__(self, plan: Schedule, target: Renderer, scopes: Scopes, arguments: Arguments, used: set[str]) -> None:
        super().__init__(plan, scopes, arguments, used)
        self.target = target
        self.met_mask = False
        self.scalar_depth = 0
        self.flags: dict[str, str] = {}
        self.not_zero: set[str] = set()
        self.truncated: set[str] = set()
        # whether a constant exceeds 32 bits: GCC saturates the cast of a constant that the integer type cannot
        # represent
        self.beyond = False

    # Ops

    def from_memory(self, name: str, index: Index) -> V:
        dtype = metas_of(self.plan.program.nodes[name]).dtype
        element, depth = self.element(name, index)
        ctype = self.target.value_types[dtype]
        if dtype is torch.bool:
            element = f"{element} != 0"
        elif dtype in ROUNDING:
            element = self.call(f"{ROUNDING[dtype]}_load", element)
        if self.masks:
            depth = max(depth, *(m.depth for m in self.masks))
            test = " && ".join(m.text for m in self.masks)
            element = f"{test} ? {element} : ({ctype})0"
        return self.scopes.define(ctype, element, dtype, depth)

    def element(self, name: str, index: Index, write: bool = False) -> tuple[str, int]:
        """Returns (`p[i]`, depth) for the memory of an element. Terms of its offset from outer loops become a pointer
        there.
        """
        pointer = self.arguments.pointer(name)
        dtype = metas_of(self.plan.program.nodes[name]).dtype
        offset = flat_index(index, self.plan.strides[name])
        depth = self.depth_of(offset)
        here = tuple(t for t in offset.terms if self.atom_depth(t[0]) == depth)
        outside = Expr(tuple(t for t in offset.terms if self.atom_depth(t[0]) < depth), offset.const)
        if depth == 0 or (not outside.terms and same(outside.const, 0)):
            return f"{pointer}[{self.text_of(offset)}]", depth
        memory = self.target.memory_types[dtype]
        if name not in self.arguments.written and not write:
            memory = f"const {memory}"
        key = ("pointer", pointer, outside)
        base = self.scopes.find(key)
        if base is None:
            level = self.depth_of(outside)
            text = self.scopes.name("q")
            self.scopes.line(f"{memory} *{text} = {pointer} + ({self.text_of(outside)});", level)
            base = self.scopes.remember(key, V(text, dtype, level))
        return f"{base.text}[{self.text_of(Expr(here, 0))}]", depth

    def call(self, function: str, argument: str) -> str:
        self.used.add(function)
        return f"{function}({argument})"

    def constant(self, value: bool | int | float | Size, dtype: torch.dtype) -> V:
        if isinstance(value, Size):
            return self.convert(V(self.size(value), torch.int64, 0), torch.int64, dtype)
        text = self.target.literal(value, dtype)
        self.beyond = self.beyond or not -(2**31) < value < 2**31
        if value:
            self.not_zero.add(text)
        return V(text, dtype, 0)

    def integer(self, expr: Expr, dtype: torch.dtype) -> V:
        text = f"(int64_t)({self.text_of(expr)})"
        return self.scopes.define(self.target.value_types[dtype], text, dtype, self.depth_of(expr))

    def apply(self, op: str, dtype: torch.dtype, *args: V) -> V:
        if op.startswith(REFUSE):
            self.fault(args[1].text, args[1], int(op.removeprefix(REFUSE)))
            return args[0]
        result = torch.bool if op in BOOLEAN else dtype
        if op in DIVISIONS and not dtype.is_floating_point and args[1].text not in self.not_zero:
            self.fault(f"({args[1].text} == 0)", args[1], DIVIDED_BY_ZERO)
        try:
            text = self.target.op(op, dtype, [a.text for a in args], self.far(op, dtype, args[0]))
        except KeyError:
            raise CompileError(f"target {self.target.name} has no {op} of {dtype}") from None
        for name in CALLS.findall(text):
            self.used.add(name)
        if result in ROUNDING and op not in EXACT:
            text = self.call(f"{ROUNDING[result]}_round", text)
        depth = max((a.depth for a in args), default=0)
        return self.scopes.define(self.target.value_types[result], text, result, depth)

    def convert(self, value: V, source: torch.dtype, target: torch.dtype) -> V:
        if source is target:
            return value
        ctype = self.target.value_types[target]
        if target is torch.bool:
            text = f"{value.text} != 0"
        elif target in ROUNDING:
            widens = source in (torch.int8, torch.uint8, torch.bool) and target is torch.float16
            text = f"(float){value.text}"
            text = text if widens else self.call(f"{ROUNDING[target]}_round", text)
        elif source in ROUNDING and target is torch.float32:
            return V(value.text, target, value.depth)
        elif source.is_floating_point and not target.is_floating_point:
            return self.truncate(value, source, target)
        else:
            number = value.text if value.text not in self.truncated else f"({value.text} + {self.zero()})"
            text = f"({ctype}){number}"
        return self.scopes.define(ctype, text, target, value.depth)

    def truncate(self, value: V, source: torch.dtype, target: torch.dtype) -> V:
        """Convert a float to an integer; numbers that the integer type cannot represent give the same result as eager's
        kernels for this type.
        """
        ctype = self.target.value_types[target]
        wide = "int32_t" if target is torch.int16 and source not in ROUNDING else "int64_t"
        number = f"({value.text} + {self.zero()})" if self.beyond else value.text
        text = f"({ctype})({wide}){number}" if target.itemsize < 4 else f"({ctype}){number}"
        made = self.scopes.define(ctype, text, target, value.depth)
        self.truncated.add(made.text)
        return made

    def zero(self) -> str:
        """Returns a zero that the compiler does not know to be zero. GCC turns a conversion float -> integer -> float
        into one trunc, which would keep the sign of -0.5 and numbers that the integer type cannot represent.
        """
        self.used.add("unknown_zero")
        return self.scopes.define("int32_t", "unknown_zero()", torch.int32, 0, "zero").text

    def choose(self, mask: V, value: V, other: V) -> V:
        depth = max(mask.depth, value.depth, other.depth)
        text = f"{mask.text} ? {value.text} : {other.text}"
        return self.scopes.define(self.target.value_types[value.dtype], text, value.dtype, depth)

    def mask(self, conditions: Sequence[Condition]) -> V:
        self.met_mask = True
        tests, depth = [], 0
        for c in conditions:
            text = self.text_of(c.expr)
            depth = max(depth, self.depth_of(c.expr))
            if c.low is not None and c.open_low():
                tests.append(f"({text} >= {self.size(c.low)})")
            if c.high is not None and c.open_high():
                tests.append(f"({text} < {self.size(c.high)})")
            if not same(c.step, 1):
                tests.append(f"(({text} - {self.size(0 if c.low is None else c.low)}) % {self.size(c.step)} == 0)")
        return self.scopes.define("bool", " & ".join(tests), torch.bool, depth, "m")

    def indirect(self, value: V, size: IntLike, wrap: bool) -> Expr:
        """Convert a loaded value to an index: a negative value wraps; one out of range sets the fault and reads element
        0.
        """
        text = f"(int64_t){value.text}"
        position, count = self.scopes.define("int64_t", text, torch.int64, value.depth, "j"), self.size(size)
        if wrap:
            wrapped = f"{position.text} + ({position.text} < 0 ? {count} : 0)"
            position = self.scopes.define("int64_t", wrapped, torch.int64, value.depth, "j")
        self.check_range(position, size)
        inside = f"(uint64_t){position.text} < {unsigned(count)} ? {position.text} : 0"
        position = self.scopes.define("int64_t", inside, torch.int64, value.depth, "j")
        return Expr(((Runtime(position.text, size, position), 1),), 0)

    def check_range(self, position: V, size: IntLike) -> None:
        """Set the program's fault word when an index is out of range; the host then raises IndexError."""
        self.fault(f"((uint64_t){position.text} >= {unsigned(self.size(size))})", position, OUT_OF_RANGE)

    def fault(self, test: str, of: V, code: int) -> None:
        """Set the program's fault word to `code` where the test of a value and all masks are true."""
        test = " & ".join([test, *(m.text for m in self.masks)])
        key = ("checked", test)
        if self.scopes.find(key) is not None:
            return
        depth = max([of.depth, *(m.depth for m in self.masks)])
        self.scopes.remember(key, V("", torch.bool, depth))
        if depth > self.scalar_depth:
            self.scopes.line(f"{self.inner_flag(BAD)} |= {test if code == 1 else f'({test}) * {code}'};", depth)
        else:
            self.scopes.line(f"if ({test}) *{self.arguments.pointer(FAULT)} = {code};", depth)
        self.met_fault(test, depth)

    def met_fault(self, test: str, depth: int) -> None:
        """Hook for additional lines after a check; `depth`: depth of the loops that contain it."""

    def inner_flag(self, stem: str) -> str:
        """Returns the variable in which the innermost loop collects whether a condition was met; see `flag_target`."""
        if stem not in self.flags:
            self.flags[stem] = self.scopes.name(stem)
        return self.flags[stem]

    def flag_target(self, stem: str) -> str:
        """Returns the pointer to the word to which a loop's flag is written if it is set."""
        return self.arguments.pointer(FAULT) if stem == BAD else FAR_POINTER

    def far(self, op: str, dtype: torch.dtype, argument: V) -> str:
        """Returns a C++ constant as text: whether an operation with an argument reduction (sin, cos) must support all
        arguments.
        """
        return "true"

    def random(self, seed: V, stream: int, index: Expr, count: IntLike) -> V:
        self.used.add("random")
        made = f"random_key({seed.text}, {self.arguments.stream(stream)})"
        key = self.scopes.define("uint64_t", made, torch.int64, seed.depth, "key")
        low = self.scopes.define("uint32_t", f"(uint32_t){key.text}", torch.int64, key.depth, "key")
        high = self.scopes.define("uint32_t", f"(uint32_t)({key.text} >> 32)", torch.int64, key.depth, "key")
        depth = self.depth_of(index)
        here = Expr(tuple(t for t in index.terms if self.atom_depth(t[0]) == depth), 0)
        outside = Expr(tuple(t for t in index.terms if self.atom_depth(t[0]) < depth), index.const)
        counter = f"(uint32_t)({self.text_of(here)})"
        if count > 2**32:
            whole = f"(int64_t)({self.text_of(index)})"
            counter = f"(uint32_t)({whole} + ({whole} >> 32) * 0x9E3779B1LL)"
        elif outside.terms or not same(outside.const, 0):
            base = f"(uint32_t)({self.text_of(outside)})"
            start = self.scopes.define("uint32_t", base, torch.int64, self.depth_of(outside), "c")
            counter = f"{start.text} + {counter}"
        text = f"random_uniform({low.text}, {high.text}, {counter})"
        return self.scopes.define("float", text, torch.float32, max(depth, key.depth))


def unsigned(size: str) -> str:
    """Returns a size as text for a comparison with an unsigned number."""
    return size if size.isdigit() else f"(uint64_t){size}"


BAD, FAR = "bad", "far"
"""Flags of inner loops: BAD for a value that eager refuses, FAR for an argument too large for the fast reduction of sin
and cos.
"""
FAR_POINTER = "far"
"""Name of the parameter through which the forms of a kernel report the FAR flag."""


def store_text(dtype: torch.dtype, value: str, used: set[str]) -> str:
    """Returns the text that converts a value to its memory type."""
    if dtype is torch.bfloat16:
        used.add("bf16_store")
        return f"bf16_store({value})"
    if dtype is torch.float16:
        used.add("f16_store")
        return f"f16_store({value})"
    return value
