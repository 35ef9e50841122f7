"""The template of matrix products: one Triton function computes a product with its prologues and epilogue.

    y, x    rows and columns of the result: the grid divides them, in groups of blocks that share factors
    k, l    the dimension that is summed over, walked in one loop: along rows of the first factor (k) and
            along columns of the second (l)

Factors are loaded as they are stored, or computed by a prologue. The accumulator is float32; it is rounded to the
product's dtype, as by the library, and then is an ordinary value for the epilogue.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from smelt.codegen.coordinates import Coordinates
from smelt.codegen.scope import V
from smelt.codegen.triton.blocks import product_configs
from smelt.codegen.triton.kernel import TileKernel, TritonKernel
from smelt.codegen.triton.target import NARROW
from smelt.codegen.triton.tiles import Axis
from smelt.loops.ir import Index
from smelt.schedule.group import Role
from smelt.schedule.plan import Schedule
from smelt.schedule.products import Operand, Product
from smelt.schedule.realize import metas_of
from smelt.shapes.expr import ZERO, Expr, Var, flat_index, variable
from smelt.shapes.size import IntLike, same


@dataclass
class Depth(Axis):
    """The dimension that is summed over, as one side of a factor's tile."""

    @property
    def block(self) -> str:
        return "KBLOCK"


def render_product(
    product: Product, plan: Schedule, rounded: bool, autotune: bool, prologues: bool = True
) -> TritonKernel:
    """Render the kernel of a product.

    Args:
        rounded: whether float32 factors are rounded to TF32, as torch's current setting allows.
        prologues: whether the kernel computes factors for which the product has prologue groups.
    """
    return ProductKernel(product, plan, rounded, autotune, prologues).render()


def precision_of(product: Product, dtype: torch.dtype, rounded: bool) -> str:
    """Returns Triton's `input_precision` for the factors.

    Tensor cores multiply float32 as a sum of products of narrower terms: three products of TF32 if both factors are
    stored and contiguous along the depth, as TF32 needs, else six of bf16. Both are as exact as float32 products, and
    faster.
    """
    if dtype is not torch.float32:
        return "ieee"  # the precision applies only to float32
    first, second = product.operands
    along = same(first.view.stride[-1], 1) and same(second.view.stride[-2], 1)
    return "tf32" if rounded else "tf32x3" if along and not product.prologues else "bf16x6"


def _each(shape: Sequence[IntLike]) -> list[Var]:
    """Returns a loop variable for each dimension."""
    return [Var(f"d{d}", n) for d, n in enumerate(shape)]


class Loops(Coordinates):
    """The loops over the result, merged where memory allows it. The roles are KEPT for batch dimensions, FOLDED for
    rows and INNER for columns.
    """

    def __init__(self, product: Product, plan: Schedule) -> None:
        super().__init__(product.group, plan)
        self.order = [*product.batch, *product.rows, *product.columns]
        self.roles = dict.fromkeys(product.batch, Role.KEPT)
        self.roles |= dict.fromkeys(product.rows, Role.FOLDED) | dict.fromkeys(product.columns, Role.INNER)
        self.split_divisions()
        self.merge_neighbours()


class ProductKernel(TileKernel):
    """Renders a product."""

    def __init__(self, product: Product, plan: Schedule, rounded: bool, autotune: bool, prologues: bool) -> None:
        self.product, self.dtype = product, metas_of(product.extern).dtype
        batch = math.prod(v.size for v in product.batch)
        self.loops = Loops(product, plan)
        y, x = Axis("y", self.loops.of(Role.FOLDED)), Axis("x", self.loops.of(Role.INNER))
        self.folded: list[Axis] = [Depth(name, [Var(f"fold_{name}", product.depth)], walked=True) for name in "kl"]
        configs = product_configs(y.size, x.size, product.depth, batch, self.dtype, rounded, autotune, plan.machine)
        extents = ((y.size, "YBLOCK"), (x.size, "XBLOCK"), (batch, None))
        super().__init__(plan, [y, x, *self.folded], configs, extents)
        self.precision = precision_of(product, self.dtype, rounded)
        # factors are addressed by whole rows and columns, independent of the loops into which the epilogue splits these
        self.full_index = {"b": Var("whole_b", batch), "y": Var("whole_y", y.size), "x": Var("whole_x", x.size)}
        self.computed = set(product.group.members)
        if prologues:
            made = (plan.groups[number] for number in product.prologues)
            self.computed |= {name for group in made for name in group.members}

    def arranged(self, axis: Axis) -> str:
        """Returns the indices within a block, along the rows of a tile for y and l, along its columns for x and k."""
        return f"tl.arange(0, {axis.block})" + ("[:, None]" if axis.name in "yl" else "[None, :]")

    def render(self) -> TritonKernel:
        members = self.loops.members
        self.arguments.written |= {n for n in members if n in self.plan.stored}
        self.decide_width(self.reach())
        self.open_grid()
        self.fold()
        narrow = NARROW.get(self.dtype)
        text = f"acc.to({narrow}).to(tl.float32)" if narrow else "acc"
        self.result = self.scopes.define("", text, self.dtype, self.bit(self.axes[0]) | self.bit(self.axes[1]))
        for member in members.values():
            if self.product.kept if member.name == self.product.name else member.name in self.plan.stored:
                self.store(member.name, member.index, self.load(member.name, member.index))
        return self.finish(self.product.group.label())

    def reach(self) -> list[tuple[IntLike, IntLike]]:
        """Returns the ranges of all offsets that the kernel touches."""
        found = [self.offset(o, tuple(map(variable, _each(o.view.shape)))).range() for o in self.product.operands]
        groups = [self.product.group, *(self.plan.groups[number] for number in self.product.prologues)]
        for group in groups:
            for name, indices in group.accesses.items():
                if name in self.plan.stored:
                    found += [flat_index(index, self.plan.strides[name]).range() for index in indices]
            found += [offset.range() for member in group.members.values() for offset in member.index_values]
        return found

    def offset(self, operand: Operand, index: Index) -> Expr:
        """Returns the offset of an element of a factor in its buffer."""
        return flat_index(index, operand.view.stride) + operand.view.offset

    def open_grid(self) -> None:
        y, x = self.axes[:2]
        wide = ".to(tl.int64)" if self.wide else ""
        self.used.add("grouped_blocks")
        self.scopes.line("yblock, xblock = grouped_blocks(GROUP)")
        if batch := self.loops.of(Role.KEPT):
            self.scopes.line(f"bindex = tl.program_id(2){wide}")
            self.decode(batch, "bindex", 0, "b")
            self.names[self.full_index["b"]], self.depths[self.full_index["b"]] = "bindex", 0
        for axis in (y, x):
            self.open_axis(axis, f"{axis.name}block{wide} * {axis.block}")
            index = self.full_index[axis.name]
            self.names[index], self.depths[index] = f"{axis.name}index", self.bit(axis)

    def fold(self) -> None:
        """Write the loop over the depth."""
        self.scopes.line("acc = tl.zeros([YBLOCK, XBLOCK], tl.float32)", 0)
        self.scopes.open()
        self.scopes.walked = sum(map(self.bit, self.folded))
        for axis in self.folded:
            self.open_axis(axis, "kstart")
        batch, rows, columns = (variable(var) for var in self.full_index.values())
        if not self.product.batch:
            batch = ZERO
        k, m = (variable(axis.variables[0]) for axis in self.folded)
        first, second = self.product.operands
        a = self.tile_of(first, (batch, rows, k), "YBLOCK, KBLOCK")
        b = self.tile_of(second, (batch, m, columns), "KBLOCK, XBLOCK")
        self.scopes.line(f'acc = tl.dot({a}, {b}, acc, input_precision="{self.precision}")', self.scopes.walked)
        self.scopes.walked = 0
        depth = self.size(self.product.depth)
        self.scopes.close([f"for kstart in range(0, {depth}, KBLOCK):"], [])

    def tile_of(self, operand: Operand, index: Index, shape: str) -> str:
        """Returns a tile of a factor in its own dtype, zero beyond the depth."""
        index, base = index[-len(operand.view.shape) :], operand.view.base
        if base not in self.computed:
            address, masks, axes = self.pointers(base, self.offset(operand, index))
            guard = f", {masks}, other=0" if masks else ""
            return self.scopes.define("", f"tl.load({address}{guard})", self.dtype, axes, "factor").text
        value = self.load(operand.name, index)
        axes = value.depth
        text = f"tl.broadcast_to({value.text}, [{shape}])"
        for axis in self.folded:
            mask = self.axis_masks.get(self.bit(axis))
            if mask is not None and axis.variables[0] in {atom for offset in index for atom in offset.atoms()}:
                text, axes = f"tl.where({mask.text}, {text}, 0.0)", axes | mask.depth
        narrow = NARROW.get(self.dtype)
        text = f"{text}.to({narrow})" if narrow else text
        return self.scopes.define("", text, self.dtype, axes | self.scopes.walked, "factor").text

    def value_of(self, name: str, index: Index) -> V:
        if name == self.product.name:
            return self.result
        return self.inlined(name, index) if name in self.computed else super().value_of(name, index)
