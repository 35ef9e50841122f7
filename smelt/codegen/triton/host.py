"""Schedule in, Triton kernels and host program out. A run of kernels is a segment, which C launches together.

Segments are bound when the program is loaded, by `kernels`, which the loader supplies. A matrix product that a kernel
may compute with its prologue and epilogue is called as `product0(table, out, a, b)`, which chooses between the kernel
and the library (runtime/triton/products.py).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from smelt.abi.faults import CHECK_BYTES, Check, Checks
from smelt.abi.kernel_source import KernelSource
from smelt.abi.random_source import key_step
from smelt.abi.rendered import Rendered
from smelt.abi.steps import Step
from smelt.base.errors import CompileError
from smelt.base.text import Writer, on_one_line
from smelt.codegen.host import Host
from smelt.codegen.parameters import FAULT
from smelt.codegen.triton.combined_launch import render_bundle
from smelt.codegen.triton.kernel import TritonKernel, render_kernel
from smelt.codegen.triton.kernel_fallback import KernelFallback, kernel_fallback
from smelt.codegen.triton.product import render_product
from smelt.codegen.triton.scatter import render_scatter
from smelt.schedule.origins import computed_by, origins_of
from smelt.schedule.plan import Schedule
from smelt.schedule.products import Product
from smelt.shapes.size import Symbol, same


def render_triton(
    plan: Schedule, device: torch.device, autotune: bool = False, rounded: bool = False, contract: bool = False
) -> Rendered:
    """Render the Triton sources and the host program of a schedule whose tensors are on `device`.

    Args:
        autotune: whether kernels have several configurations, which are timed.
        rounded: whether products in float32 may round their factors to TF32.
        contract: whether a multiplication and an addition of two operators may be fused, with one rounding.
    """
    bundles = {
        tuple(bundle): render_bundle([plan.groups[n] for n in bundle], plan, autotune) for bundle in plan.bundles
    }
    bundle_kernels = {bundle: kernels for bundle, kernels in bundles.items() if kernels is not None}
    kernels = {bundle[0]: each for bundle, each in bundle_kernels.items()}
    bundled = {number for bundle in bundle_kernels for number in bundle}
    kernels |= {number: _kernels(plan, number, autotune) for number in plan.groups if number not in bundled}
    templates = {number: _templates(product, plan, rounded, autotune) for number, product in plan.products.items()}
    host = TritonHost(plan, kernels, templates, device, list(bundle_kernels), contract)
    text = host.text()
    rendered = Rendered([], [], text, host.constants, kernels=host.sources, device=device, fallbacks=host.fallbacks)
    rendered.checks, rendered.steps, rendered.text_of = host.checks, host.shown_steps, host.text_of
    return rendered


def print_kernels(sources: Sequence[KernelSource]) -> str:
    """Returns the text of all Triton modules, each with the values that it computes and its configurations."""
    texts = []
    for number, source in enumerate(sources):
        configs = "\n".join(f"#   {config}" for config in source.configs)
        texts.append(f"# kernel {number}: {on_one_line(source.name)}\n{configs}\n{source.source}")
    return "\n\n".join(texts)


def locate_checks(rendered: Rendered, graph: fx.Graph) -> Rendered:
    """Returns the program with checks that name the operator and the user's line.

    Args:
        graph: the graph from which the program was made.
    """
    if not rendered.checks:
        return rendered
    nodes = {node.name: node.meta for node in graph.nodes}
    return replace(rendered, checks=[(kernel, _located(checks, nodes)) for kernel, checks in rendered.checks])


def _located(checks: Sequence[Check], nodes: Mapping[str, Mapping[str, Any]]) -> tuple[Check, ...]:
    metas = ((check, nodes.get(_maker(check.node, nodes), {})) for check in checks)
    return tuple(
        replace(check, operator=str(meta.get("from") or ""), line=str(meta.get("line") or "")) for check, meta in metas
    )


def _maker(name: str, nodes: Container[str]) -> str:
    """Returns the graph's node from which a value was lowered; lowering and schedule add suffixes (`sum_1_part`)."""
    while name not in nodes and "_" in name:
        name = name.rpartition("_")[0]
    return name


def _kernels(plan: Schedule, number: int, autotune: bool) -> list[TritonKernel]:
    group = plan.groups[number]
    if any(same(v.size, 0) for v in group.order):
        return []
    return render_scatter(group, plan, autotune) if group.scatter else [render_kernel(group, plan, autotune)]


def _templates(product: Product, plan: Schedule, rounded: bool, autotune: bool) -> list[Template]:
    """Returns kernels that may compute a product: with its prologues inlined, and with prologue kernels before it."""
    whole = Template([], render_product(product, plan, rounded, autotune))
    if not product.prologues:
        return [whole]
    return [whole, Template(product.prologues, render_product(product, plan, rounded, autotune, prologues=False))]


@dataclass(frozen=True)
class Template:
    """A kernel that computes a product, and the prologue groups that must run before it."""

    before: list[int]
    kernel: TritonKernel


class TritonHost(Host):
    """Writes the host program of Triton kernels. Equal sources are built once.

    Args:
        kernels: kernels by number of their group; the kernels of a bundle belong to its first group.
        bundles: lists of groups that run together.
        contract: see `render_triton`.
    """

    def __init__(
        self,
        plan: Schedule,
        kernels: dict[int, list[TritonKernel]],
        templates: dict[int, list[Template]],
        device: torch.device,
        bundles: Sequence[Sequence[int]],
        contract: bool,
    ) -> None:
        self.kernels, self.templates, self.device, self.contract = kernels, templates, device, contract
        self.sources: list[KernelSource] = []
        self.fallbacks: list[KernelFallback | None] = []
        self.known: dict[tuple[object, ...], int] = {}
        self.checks: list[Checks] = []
        self.asserts = plan.on_gpu
        self.products: list[list[str]] = []
        buffers = {number: [b for k in each for b in k.buffers] for number, each in kernels.items()}
        for number, each in templates.items():
            around = (b for group in plan.products[number].group_numbers for b in buffers[group])
            buffers[number] = [*around, *(b for template in each for b in template.kernel.buffers)]
        super().__init__(plan, buffers, bundles)

    def launches(self, body: Writer, groups: Sequence[int], bound: set[str]) -> None:
        lines = self.launch_lines(body, groups, bound)
        if lines:
            body(f"segment{len(self.segments)}(table)")
            steps = self.shown_steps.segments[f"segment{len(self.segments)}"] = []
            for number in groups:
                for _ in self.kernels.get(number, ()):
                    steps.append(Step(origins_of(self.plan.program, self.values_of(number))))
                    self.shown_steps.of[self.plan.made_by(number)[0]] = steps[-1]
            self.segments.append(lines)

    def text_of(self, number: int) -> tuple[str, str]:
        """Returns names and texts of the kernels of a unit."""
        kernels = [template.kernel for template in self.templates.get(number, ())] or self.kernels.get(number, [])
        return self.kernel_names(number), "\n\n".join(kernel.source.source for kernel in kernels)

    def values_of(self, number: int) -> list[str]:
        """Returns the values that the launches of a group compute; the values of a bundle belong to its first group."""
        return [name for each in self.bundle_of.get(number, [number]) for name in computed_by(self.plan, each)]

    def kernel_names(self, number: int) -> str:
        product = self.plan.products.get(number)
        if product is not None:
            return f"product {product.name}"
        return ", ".join(kernel.source.name for kernel in self.kernels.get(number, ())) or "no kernel"

    def launch_lines(self, body: Writer, groups: Sequence[int], bound: set[str]) -> list[str]:
        return [self.launch(body, kernel, bound) + "," for number in groups for kernel in self.kernels.get(number, ())]

    def launch(self, body: Writer, kernel: TritonKernel, bound: set[str]) -> str:
        """Returns a launch as data, for buffers that are already bound."""
        arguments = [self.pointer(body, name, bound) for name in kernel.buffers]
        if self.asserts and FAULT in kernel.buffers:
            arguments[kernel.buffers.index(FAULT)] = f"({self.fault}, {CHECK_BYTES * len(self.checks)})"
            self.checks.append((kernel.source.name, kernel.checks))
        arguments += [self.symbol(s) for s in kernel.symbols]
        arguments += [str(key_step(stream)) for stream in kernel.streams]
        extents = "".join(f"({size}, {block!r}), " for size, block in kernel.extents)
        return f"({self.source(kernel)}, ({extents}), ({''.join(a + ', ' for a in arguments)}))"

    def product(self, body: Writer, product: Product, bound: set[str]) -> None:
        refs = [operand.name for operand in product.operands]
        arguments = ", ".join(self.argument(name) for name in (product.name, *refs))
        after = [] if product.epilogue is None else [product.epilogue]
        lines = [f"{self.define_extern(product.extern, refs)},"]
        for groups in (product.prologues, after):
            lines.append(f"[{' '.join(self.launch_lines(body, groups, bound))}],")
        templates = (
            f"([{' '.join(self.launch_lines(body, t.before, bound))}], {self.launch(body, t.kernel, bound)}),"
            for t in self.templates[product.number]
        )
        lines += ["[", *(f"    {template}" for template in templates), "],"]
        body(f"product{len(self.products)}(table, {arguments})")
        made = Step(origins_of(self.plan.program, computed_by(self.plan, product.number)))
        self.shown_steps.products[f"product{len(self.products)}"] = made
        self.shown_steps.of[product.name] = self.shown_steps.of[self.plan.made_by(product.number)[0]] = made
        self.products.append(lines)

    def source(self, kernel: TritonKernel) -> int:
        """Returns the number of a kernel's source."""
        source = replace(kernel.source, contract=True) if self.contract else kernel.source
        key = (source.source, source.signature, source.divisible, source.configs, source.contract)
        if key not in self.known:
            self.known[key] = len(self.sources)
            self.sources.append(source)
            self.fallbacks.append(kernel_fallback(kernel, self.plan, self.device))
        return self.known[key]

    def pointer(self, body: Writer, name: str, bound: set[str]) -> str:
        if name == FAULT:
            self.fault = self.fault or self.new_slot()
            return f"({self.fault}, 0)"
        if self.in_arena(name):
            return f"(0, {self.location_of(name)})"
        self.bind(body, name, bound)
        return f"({self.slots[name]}, 0)"

    def location_of(self, name: str) -> str:
        """Returns the location of a buffer: its arena offset, or its name."""
        return f"offsets[{self.arena_numbers[name]}]" if self.symbols else str(self.plan.memory.offsets[name])

    def symbol(self, symbol: Symbol) -> str:
        if symbol not in self.symbols:
            raise CompileError(f"codegen: a kernel needs the size {symbol}, which is no input")
        return str(symbol)

    def define_segments(self, w: Writer) -> None:
        for number, lines in enumerate(self.segments):
            with w.block(f"segment{number} = kernels.segment([", "])"):
                w(*lines)
        for number, lines in enumerate(self.products):
            with w.block(f"product{number} = kernels.product(", ")"):
                w(*lines)

    def uses_workspace(self) -> bool:
        return bool(self.products) or super().uses_workspace()

    def addresses(self) -> dict[int, str]:
        return {}
