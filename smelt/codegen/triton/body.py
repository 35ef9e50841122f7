"""The `Ops` handler that renders bodies for Triton: each operation becomes a value over the axes of its operands."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from smelt.abi.faults import DIVIDED_BY_ZERO, OUT_OF_RANGE, Check
from smelt.base.errors import CompileError
from smelt.codegen.ops import OpsRenderer
from smelt.codegen.parameters import FAULT, Arguments
from smelt.codegen.scope import V
from smelt.codegen.triton.scopes import TileScopes
from smelt.codegen.triton.target import (
    NARROW,
    QUICK_OPS,
    VALUE_TYPES,
    WIDENED_OPS,
    literal,
    operator,
    quotient,
    whole_division,
)
from smelt.loops.facts import BOOLEAN, DIVISIONS
from smelt.loops.ir import REFUSE, Condition, Index
from smelt.schedule.plan import Schedule
from smelt.schedule.realize import metas_of
from smelt.shapes.expr import Atom, Expr, Runtime, flat_index
from smelt.shapes.size import IntLike, Size, same

CALLS = re.compile(r"\b(m_\w+|random_\w+)\(")
"""Pattern of calls of functions of library.py in a text."""


class TileBody(OpsRenderer):
    """Renders bodies. Depths are sets of axes (bits); `axis_masks`: the mask of a block's valid elements by bit of the
    axis.

    Attributes:
        checks: the checks of a kernel on a GPU; a check's number is its index + 1.
        running: the nodes whose bodies are currently rendered, innermost last.
        loaded: the axes along which elements have been loaded so far.
        quick: for some values a faster text, which is exact enough if the value is immediately rounded to low
            precision.
    """

    quotient = "//"
    long = "{}"
    widened = "{}.to(tl.int64)"
    scopes: TileScopes

    def __init__(self, plan: Schedule) -> None:
        super().__init__(plan, TileScopes(), Arguments(), set())
        self.axis_masks: dict[int, V] = {}
        self.constants: dict[str, bool | int | float] = {}
        self.wide = False
        self.checks: list[Check] = []
        self.running: list[str] = []
        self.loaded = 0
        self.quick: dict[str, str] = {}

    # axes

    def depth_of(self, expr: Expr) -> int:
        axes = 0
        for atom, _ in expr.terms:
            axes |= self.atom_depth(atom)
        return axes

    def is_narrow(self, atom: Atom) -> bool:
        return not self.wide and super().is_narrow(atom)

    def inside(self, axes: int) -> list[V]:
        """Returns the masks of a value that varies along these axes: first the axes' masks, then the body's
        conditions.
        """
        return [*(m for bit, m in self.axis_masks.items() if axes & bit), *self.masks]

    def number(self, expr: Expr, dtype: torch.dtype = torch.int64) -> str:
        """Returns an index expression as a tensor."""
        if not expr.terms:
            return f"tl.full([], {self.size(expr.const)}, {VALUE_TYPES[dtype]})"
        return f"({self.text_of(expr)}).to({VALUE_TYPES[dtype]})"

    # Ops

    def inlined(self, name: str, index: Index) -> V:
        self.running.append(name)
        value = super().inlined(name, index)
        self.running.pop()
        return value

    def from_memory(self, name: str, index: Index) -> V:
        dtype = metas_of(self.plan.program.nodes[name]).dtype
        address, masks, axes = self.address(name, index)
        self.loaded |= axes
        guard = f", {masks}, other=0" if masks else ""
        text = self.completed(name, index, f"tl.load({address}{guard})", axes)
        if dtype is torch.bool:
            text = f"({text} != 0)"
        elif dtype in NARROW:
            text = f"{text}.to(tl.float32)"
        return self.scopes.define("", text, dtype, axes)

    def completed(self, name: str, index: Index, load: str, axes: int) -> str:
        """Hook: returns the loaded value with elements added that the load cannot read; this class has no such
        elements.
        """
        return load

    def address(self, name: str, index: Index, also: int = 0) -> tuple[str, str, int]:
        """Returns (pointers to an element, their mask or nothing, the axes along which these vary).

        Args:
            also: axes along which the pointers must vary besides the axes of the offset.
        """
        return self.pointers(name, flat_index(index, self.plan.strides[name]), also)

    def pointers(self, name: str, offset: Expr, also: int = 0) -> tuple[str, str, int]:
        """Returns the pointers, mask and axes as `address` does, but for an offset in a buffer, counted in elements."""
        pointer = self.arguments.pointer(name)
        axes = self.depth_of(offset)
        masks = self.inside(axes | also)
        spread = also & ~axes
        for m in masks:
            spread |= m.depth & ~axes
        text = f"{pointer} + ({self.text_of(offset)})"
        if spread:
            text += f" + {self.zeros(spread)}"
        return text, " & ".join(dict.fromkeys(m.text for m in masks)), axes | spread

    def zeros(self, axes: int) -> str:
        """Returns zeros that vary along these axes."""
        raise NotImplementedError("kernels know their tile")

    def constant(self, value: bool | int | float | Size, dtype: torch.dtype) -> V:
        if isinstance(value, Size):
            number = V(f"tl.full([], {self.size(value)}, tl.int64)", torch.int64, 0)
            return self.convert(number, torch.int64, dtype)
        text = literal(value, dtype)
        self.constants[text] = value
        return V(text, dtype, 0)

    def integer(self, expr: Expr, dtype: torch.dtype) -> V:
        return self.scopes.define("", self.number(expr, dtype), dtype, self.depth_of(expr))

    def apply(self, op: str, dtype: torch.dtype, *args: V) -> V:
        if op.startswith(REFUSE):
            self.fault(args[1].text, args[1], int(op.removeprefix(REFUSE)))
            return args[0]
        result = torch.bool if op in BOOLEAN else dtype
        texts = [a.text for a in args]
        text = self._expression(op, dtype, args, texts)
        self.used.update(CALLS.findall(text))
        axes = 0
        for a in args:
            axes |= a.depth
        if op in WIDENED_OPS and dtype in (torch.int8, torch.int16, torch.uint8):
            text = f"({text}).to({VALUE_TYPES[dtype]})"
        value = self.scopes.define("", text, result, axes)
        if op in QUICK_OPS and dtype is torch.float32:
            self.quick[value.text] = QUICK_OPS[op].format(*texts)
        return value

    def _expression(self, op: str, dtype: torch.dtype, args: Sequence[V], texts: list[str]) -> str:
        divisor = self.constants.get(texts[1]) if len(texts) == 2 else None
        doubtful = op in DIVISIONS and not dtype.is_floating_point and not divisor
        if doubtful and not self.plan.on_gpu:  # eager's kernel on a GPU divides by 0
            self.fault(f"({texts[1]} == 0)", args[1], DIVIDED_BY_ZERO)
        try:
            if doubtful and self.plan.on_gpu:
                return whole_division(op, dtype, *texts)
            return quotient(dtype, texts, divisor) if op == "div" and divisor else operator(op, dtype, texts)
        except KeyError:
            raise CompileError(f"triton has no {op} of {dtype}") from None

    def convert(self, value: V, source: torch.dtype, target: torch.dtype) -> V:
        if source is target:
            return value
        kind = VALUE_TYPES[target]
        if target is torch.bool:
            text = f"({value.text} != 0)"
        elif target in NARROW:
            wide = "" if source in NARROW or source is torch.float32 else ".to(tl.float32)"
            text = f"{self.quick.get(value.text, value.text)}{wide}.to({NARROW[target]}).to(tl.float32)"
        elif source in NARROW and target is torch.float32:
            return V(value.text, target, value.depth)
        elif source.is_floating_point and target in SATURATED:  # eager on a GPU keeps the low bits of such values
            text = f"{value.text}.to({SATURATED[target]}).to({kind})"
        else:
            text = f"{value.text}.to({kind})"
        return self.scopes.define("", text, target, value.depth)

    def choose(self, mask: V, value: V, other: V) -> V:
        axes = mask.depth | value.depth | other.depth
        return self.scopes.define("", f"tl.where({mask.text}, {value.text}, {other.text})", value.dtype, axes)

    def mask(self, conditions: Sequence[Condition]) -> V:
        tests, axes = [], 0
        for c in conditions:
            text = self.text_of(c.expr)
            axes |= self.depth_of(c.expr)
            if c.low is not None and c.open_low():
                tests.append(f"(({text}) >= {self.size(c.low)})")
            if c.high is not None and c.open_high():
                tests.append(f"(({text}) < {self.size(c.high)})")
            if not same(c.step, 1):
                low = self.size(0 if c.low is None else c.low)
                tests.append(f"((({text}) - {low}) % {self.size(c.step)} == 0)")
        return self.scopes.define("", " & ".join(tests), torch.bool, axes, "m")

    def indirect(self, value: V, size: IntLike, wrap: bool) -> Expr:
        """Convert a loaded value to an index: a negative value wraps; one out of range sets the fault and reads element
        0.
        """
        position, count = (
            self.scopes.define("", f"{value.text}.to(tl.int64)", torch.int64, value.depth, "j"),
            self.size(size),
        )
        if wrap:
            wrapped = f"tl.where({position.text} < 0, {position.text} + {count}, {position.text})"
            position = self.scopes.define("", wrapped, torch.int64, value.depth, "j")
        out = f"(({position.text} < 0) | ({position.text} >= {count}))"
        self.fault(out, position, OUT_OF_RANGE, (position.text, count), wrap)
        position = self.scopes.define("", f"tl.where({out}, 0, {position.text})", torch.int64, value.depth, "j")
        return Expr(((Runtime(position.text, size, position), 1),), 0)

    def fault(self, test: str, of: V, code: int, reported: tuple[str, str] | None = None, wraps: bool = False) -> None:
        """Report `code` where the test of a value and the masks are true.

        An interpreted kernel sets the program's fault word. A kernel on a GPU reports the check's number and traps, as
        eager's assertions do, so that no later kernel uses its results.

        Args:
            reported: an index and the size of its dimension, if they are known.
            wraps: see `Check`.
        """
        masks = self.inside(of.depth)
        axes = of.depth
        for m in masks:
            axes |= m.depth
        test = " & ".join([test, *dict.fromkeys(m.text for m in masks)])
        key = ("checked", test)
        if self.scopes.find(key) is not None:
            return
        self.scopes.remember(key, V("", torch.bool, axes))
        if self.plan.on_gpu:
            check = Check(code, self.running[-1] if self.running else "", wraps, reports_index=reported is not None)
            number = self.check_number(check)
            value, size = reported or ("tl.full([], 0, tl.int64)", "0")
            words = self.arguments.pointer(FAULT)
            self.used.add("m_refuse")
            self.scopes.line(f"m_refuse({words}, {test}, {number}, {value}, {size})", axes)
            return
        spread = f" + {self.zeros(axes)}" if axes else ""
        self.scopes.line(f"tl.store({self.arguments.pointer(FAULT)}{spread}, {code}, {test})", axes)

    def check_number(self, check: Check) -> int:
        """Returns the number of a check in the kernel, counted from 1."""
        if check not in self.checks:
            self.checks.append(check)
        return self.checks.index(check) + 1

    def random(self, seed: V, stream: int, index: Expr, count: IntLike) -> V:
        self.used |= {"random_key", "random_uniform"}
        made = f"random_key({seed.text}, {self.arguments.stream(stream)})"
        key = self.scopes.define("", made, torch.int64, seed.depth, "key")
        axes = self.depth_of(index)
        large = not (isinstance(count, int) and count <= 2**32)
        counter = self.number(index, torch.int64 if large or self.wide else torch.int32)
        if large:
            whole = self.scopes.define("", counter, torch.int64, axes, "c")
            counter = f"({whole.text} + ({whole.text} >> 32) * 0x9E3779B1)"
        return self.scopes.define("", f"random_uniform({key.text}, {counter})", torch.float32, axes | key.depth)


SATURATED = {torch.uint8: "tl.int64", torch.int8: "tl.int32", torch.int16: "tl.int32"}
"""Type to which CUDA first converts a float that becomes a small integer; this conversion saturates."""
