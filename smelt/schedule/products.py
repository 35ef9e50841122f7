"""Matrix products that a kernel template may compute together with the pointwise values around them.

After fusion: a product (`mm`, `bmm`) is joined with a group of pointwise values that reads its result at the element
just computed (the epilogue), and with groups that only compute one of its operands (prologues). The groups stay as they
are: the unit may also run as the library's call between kernels of these groups; the launcher chooses by measuring.
Fusion works as between groups: the product is represented by a pointwise value over its result, so `merge` finds the
common loops or returns the reason why the loops differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, field

import torch

from smelt.graph.ir.meta import TensorMeta
from smelt.loops.facts import facts_of
from smelt.loops.ir import Extern, LoopProgram, Pointwise
from smelt.schedule.dependencies import Names, Reads
from smelt.schedule.fuse import Decision, Fused
from smelt.schedule.group import Group, fresh_index, looks_up, pointwise_group
from smelt.schedule.machine import Machine, Products
from smelt.schedule.merge import merge
from smelt.schedule.realize import Realized, StridedView, metas_of
from smelt.shapes.expr import Expr, Var
from smelt.shapes.size import IntLike, hint, same

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Element types of products that tensor cores multiply, accumulating in float32."""

SHARED = "it shares a launch with other kernels"


@dataclass
class Operand:
    """A factor of a product: element (batch, row, column) of the value `name`, which is `view` of a buffer.

    `prologue`: number of the group that only computes the buffer, or None.
    """

    name: str
    view: StridedView
    prologue: int | None = None


@dataclass
class Product:
    """A matrix product with its prologues and epilogue.

    Attributes:
        number: number of its unit in the schedule: the epilogue's, or the product's without an epilogue.
        group: the product as a value, with the values of the epilogue; its loops run over the result.
        batch, rows, columns: the loop variables into which each dimension of the result is split, outermost first.
        depth: number of elements that are folded.
        epilogue: number of the group that runs after the library's call, or None.
        kept: whether the product's own result is needed in memory.
    """

    number: int
    extern: Extern
    group: Group
    batch: list[Var]
    rows: list[Var]
    columns: list[Var]
    depth: IntLike
    operands: list[Operand] = field(default_factory=list)
    epilogue: int | None = None
    kept: bool = True

    @property
    def name(self) -> str:
        return self.extern.name

    @property
    def prologues(self) -> list[int]:
        """Returns the groups that run before the library's call."""
        return [o.prologue for o in self.operands if o.prologue is not None]

    @property
    def group_numbers(self) -> list[int]:
        """Returns the numbers of all groups of the unit."""
        return [*self.prologues, *([] if self.epilogue is None else [self.epilogue])]


def splits_well(product: Product, limits: Products) -> bool:
    """Whether a float32 product is faster on tensor cores, as products of several TF32 terms, than in the library.

    It must keep all tensor cores busy, and the rows of its first factor must be contiguous.
    """
    if metas_of(product.extern).dtype is not torch.float32:
        return False
    first = product.operands[0].view
    *batch, rows, columns, depth = (*map(hint, metas_of(product.extern).shape), hint(product.depth))
    blocks = math.prod(batch) * -(-rows // 128) * -(-columns // 64)
    work = math.prod(batch) * rows * columns * depth
    large = blocks >= limits.min_blocks and work >= limits.min_multiplications
    return large and min(rows, columns, depth) >= limits.min_side_elements and same(first.stride[-1], 1)


def product_of(
    number: int, extern: Extern, program: LoopProgram, real: Realized, names: Names, limits: Products
) -> Product | str:
    """Returns the product without prologue and epilogue, or the reason why no template computes it."""
    meta = metas_of(extern)
    if not facts_of(extern.target).matmul:
        return "it is no matrix product"
    if meta.dtype not in DTYPES:
        return f"products of {meta.dtype} are the library's"
    shape = metas_of(program.nodes[extern.inputs[0]]).shape
    if hint(shape[-1]) < limits.min_depth_elements:
        return f"it folds {shape[-1]} elements only"
    if any(same(n, 0) for n in (*meta.shape, shape[-1])):
        return "it has no elements"
    stand_in = Pointwise(extern.name, meta, (), _no_body, "product")
    index, order = fresh_index(meta.shape, names)
    group = pointwise_group(number, stand_in, index, order, Reads((), (), 0, 0, 1, 1, False))
    operands = [Operand(ref.name, _view(ref.name, program, real)) for ref in extern.args]
    product = Product(number, extern, group, [], [], [], shape[-1], operands)
    return product if _find_loops(product) else "its loops have no order"


def _no_body(*_: object) -> object:
    raise AssertionError("a product is no body")


def _view(name: str, program: LoopProgram, real: Realized) -> StridedView:
    return real.views.get(name) or StridedView(name, metas_of(program.nodes[name]).shape, real.strides[name], 0)


def with_epilogue(
    product: Product, number: int, group: Group, program: LoopProgram, names: Names, machine: Machine
) -> Product | str:
    """Returns the product with a group of pointwise values as its epilogue, or the reason against it."""
    if group.scatter:
        return "a scatter runs alone"
    if not group.flat:
        return "it folds what it computes"
    if looks_up(group):
        return "it reads at indices that are read from memory"
    merged = merge(product.group, group, [product.name], program, names, machine)
    if isinstance(merged, str):
        return merged
    joined = Product(number, product.extern, merged, [], [], [], product.depth, product.operands, number)
    return joined if _find_loops(joined) else "its loops go across rows and columns of the product"


def _find_loops(product: Product) -> bool:
    """Set the loop variables of each dimension of the result; False if one belongs to no dimension or to two."""
    index = product.group.members[product.name].index
    found = [_digits(position) for position in index]
    if any(each is None for each in found):
        return False
    *batch, rows, columns = [each or [] for each in found]
    product.batch, product.rows, product.columns = [v for each in batch for v in each], rows, columns
    used = [*product.batch, *rows, *columns]
    return len(set(used)) == len(used) and set(used) == set(product.group.order)


def _digits(position: Expr) -> list[Var] | None:
    """Returns the variables of a mixed-radix number, outermost first; None for any other expression."""
    if not position.is_linear() or not same(position.const, 0):
        return None
    digits: list[Var] = []
    step: IntLike = 1
    for var, coefficient in sorted(position.terms, key=lambda term: hint(term[1])):
        if not isinstance(var, Var) or not same(coefficient, step):
            return None
        digits.insert(0, var)
        step *= var.size
    return digits


class ProductSearch:
    """Finds the products of a program; its decisions are added to those of fusion.

    Args:
        stored: names of the buffers that exist.
        wanted: function that decides whether a product may be a kernel.
        shared: groups that are not joined with products, since they share launches with others.
    """

    def __init__(
        self,
        program: LoopProgram,
        real: Realized,
        fused: Fused,
        stored: set[str],
        names: Names,
        machine: Machine,
        wanted: Callable[[Product], bool],
        shared: Container[int] = (),
    ) -> None:
        self.program, self.real, self.fused = program, real, fused
        self.stored, self.names, self.machine, self.shared = stored, names, machine, shared
        self.readers: dict[str, set[int]] = {}
        for number, group in fused.groups.items():
            for name in group.accesses:
                if name not in group.members:
                    self.readers.setdefault(name, set()).add(number)
        for number, node in fused.others.items():
            for name in node.inputs:
                self.readers.setdefault(self.buffer(name), set()).add(number)
        self.outputs = {o.name for o in program.outputs}
        self.taken: set[int] = set()
        self.products: dict[str, Product] = {}
        for number, node in fused.others.items():
            if isinstance(node, Extern) and isinstance(node.meta, TensorMeta):
                product = product_of(number, node, program, real, names, machine.products)
                if isinstance(product, Product) and wanted(product):
                    self.products[node.name] = product

    def find(self) -> dict[int, Product]:
        """Returns the products by number of their unit."""
        self.join_epilogues()
        self.join_prologues()
        return {product.number: product for product in self.products.values()}

    def buffer(self, name: str) -> str:
        view = self.real.views.get(name)
        return view.base if view is not None else name

    def join_epilogues(self) -> None:
        """Join epilogues, the largest saving first; of equal savings the last, whose other operands exist by then."""
        pairs = [
            (-self.saved(product, number), -product.number, number, product)
            for product in self.products.values()
            for number in self.readers.get(product.name, ())
            if number in self.fused.groups
        ]
        for saved, _, number, alone in sorted(pairs, key=lambda pair: pair[:3]):
            group = self.fused.groups[number]
            joined = self.with_epilogue(self.products[alone.name], number, group)
            self.decide(alone.name, group.label(), -saved, joined if isinstance(joined, str) else None)
            if isinstance(joined, Product):
                joined.kept = alone.name in self.outputs or self.readers[alone.name] != {number}
                self.products[alone.name] = joined
                self.fused.order.join(alone.number, number)
                self.taken.add(number)

    def with_epilogue(self, product: Product, number: int, group: Group) -> Product | str:
        if number in self.shared:
            return SHARED
        if product.epilogue is not None:
            return "the product has an epilogue already"
        if number in self.taken:
            return "it is the epilogue of another product"
        if self.fused.order.between(product.number, number):
            return "another kernel must run between them"
        return with_epilogue(product, number, group, self.program, self.names, self.machine)

    def saved(self, product: Product, number: int) -> int:
        """Returns the bytes of the product's result that an epilogue saves: one read, and the write if no other unit
        reads the result.
        """
        size = hint(metas_of(product.extern).nbytes)
        alone = product.name not in self.outputs and self.readers[product.name] == {number}
        return 2 * size if alone else size

    def join_prologues(self) -> None:
        for product in self.products.values():
            own = self.fused.number_of[product.name]
            for operand in product.operands:
                number = self.fused.number_of.get(operand.view.base)
                if number is None or number not in self.fused.groups:
                    continue
                group = self.fused.groups[number]
                refusal = self.no_prologue(product, own, operand, number)
                size = hint(metas_of(self.program.nodes[operand.view.base]).nbytes)
                self.decide(group.label(), product.name, 2 * size, refusal)
                if refusal is None:
                    operand.prologue = number
                    self.taken.add(number)
                    self.fused.order.join(own, number)

    def no_factor(self, group: Group, base: str) -> str | None:
        """Returns the reason why a group that computes a factor is not inlined into a product's loops, or None."""
        if [name for name in group.members if name in self.stored] != [base]:
            return "it makes more than the factor"
        if group.scatter or not group.flat:
            return "it folds what it computes"
        if looks_up(group):
            return "it reads at indices that are read from memory"
        most = self.machine.products.max_prologue_operations
        if sum(m.ops for m in group.members.values()) > most:
            return f"more than {most} operations for each element of a factor"
        return None

    def no_prologue(self, product: Product, own: int, operand: Operand, number: int) -> str | None:
        """Returns the reason why a product does not compute the operand that a group makes, or None."""
        group, base = self.fused.groups[number], operand.view.base
        if number in self.shared:
            return SHARED
        if number in self.taken:
            return "it belongs to another product"
        if base in self.outputs or self.readers[base] != {own}:
            return "others need what it makes"
        if [o.view.base for o in product.operands].count(base) > 1:
            return "both factors are made of it"
        refusal = self.no_factor(group, base)
        if refusal is not None:
            return refusal
        return "another kernel must run between them" if self.fused.order.between(own, number) else None

    def decide(self, left: str, right: str, saved: int, refusal: str | None) -> None:
        self.fused.decisions.append(Decision(left, right, saved, refusal))
