"""Results that are another shape of a matrix product: the product writes them, no kernel copies them.

Logits are made so: rows of all sequences in one product, which the caller gets as batch x length x vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import replace

from smelt.loops.ir import Extern, LoopProgram, Output, Pointwise
from smelt.schedule.places import writes_into
from smelt.schedule.realize import behind_views, metas_of
from smelt.shapes.expr import flat_index, variable
from smelt.shapes.size import same


def show_products(program: LoopProgram, updated: Container[int]) -> LoopProgram:
    """The program whose outputs name the products that they lie in, in the output's shape.

    Args:
        updated: positions of outputs that are the new values of inputs; these stay what they are.
    """
    count = Counter(o.name for o in program.outputs)
    outputs: list[Output] = []
    taken: dict[str, str] = {}
    for position, output in enumerate(program.outputs):
        base = None if position in updated else _product(program, output)
        if base is None or count[base] or taken.setdefault(base, output.name or "") != output.name:
            outputs.append(output)
        else:
            outputs.append(replace(output, name=base))
    return replace(program, outputs=outputs)


def _product(program: LoopProgram, output: Output) -> str | None:
    """The product whose elements are the output's, in the same order in memory."""
    node = program.nodes.get(output.name or "")
    if not isinstance(node, Pointwise) or not node.view or output.meta is None:
        return None
    base, index, own = behind_views(program, node.name)
    source = program.nodes[base]
    if not isinstance(source, Extern) or not writes_into(source):
        return None
    inside = metas_of(source)
    if not same(inside.numel, output.meta.numel):
        return None
    place = flat_index(index, inside.stride)
    return base if place == flat_index([variable(v) for v in own], output.meta.stride) else None
