"""Outputs that are a reshape or a transpose of a matrix product: the product writes them, and no kernel copies them.

Examples: logits, computed as one product over the rows of all sequences and returned as batch x length x vocabulary;
gradients of weights that an `einsum` transposes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from smelt.loops.ir import Extern, Index, LoopProgram, Output, Pointwise
from smelt.schedule.buffer_assignment import writes_into
from smelt.schedule.realize import base_of_views, metas_of
from smelt.shapes.expr import Var, flat_index, variable
from smelt.shapes.size import IntLike, is_symbolic, same, same_all


def products_write_outputs(program: LoopProgram, updated: Container[int]) -> LoopProgram:
    """Returns the program whose outputs name the products that write them, with strides of the output's memory.

    Args:
        updated: positions of outputs that are new values of inputs; these are not changed.
    """
    count = Counter(o.name for o in program.outputs)
    users = program.users()
    nodes = dict(program.nodes)
    outputs: list[Output] = []
    taken: dict[str, str] = {}
    for position, output in enumerate(program.outputs):
        base = None if position in updated else _product(program, output, users)
        if base is None or count[base.name] or taken.setdefault(base.name, output.name or "") != output.name:
            outputs.append(output)
        else:
            outputs.append(replace(output, name=base.name))
            nodes[base.name] = base
    return replace(program, outputs=outputs, nodes=nodes) if taken else program


def _product(program: LoopProgram, output: Output, users: Mapping[str, Sequence[str]]) -> Extern | None:
    """Returns the product of which an output is a view, with its strides in the output's memory, or None."""
    node = program.nodes.get(output.name or "")
    if not isinstance(node, Pointwise) or not node.view or output.meta is None:
        return None
    base, index, own = base_of_views(program, node.name)
    source = program.nodes[base]
    if not isinstance(source, Extern) or not writes_into(source):
        return None
    inside = metas_of(source)
    if not same(inside.numel, output.meta.numel):
        return None
    stride = _strides(index, own, output.meta.stride, inside.stride)
    if stride is None:
        return None
    if same_all(stride, inside.stride):
        return source
    if is_symbolic([*stride, *inside.shape]) or not _alone(base, node.name, users):
        return None
    return replace(source, meta=replace(inside, stride=tuple(map(int, stride))))


def _strides(
    index: Index, own: Sequence[Var], outer: Sequence[IntLike], inner: Sequence[IntLike]
) -> tuple[IntLike, ...] | None:
    """Returns the strides of a product that is stored in an output with strides `outer`, if element `own` of the output
    is element `index` of the product; None if no strides fit.

    Args:
        inner: strides for dimensions of one element.
    """
    offset = flat_index([variable(v) for v in own], outer)
    if flat_index(index, inner) == offset:
        return tuple(inner)
    step = dict(zip(own, outer, strict=True))
    stride: list[IntLike] = []
    for entry, known in zip(index, inner, strict=True):
        unit = next((atom for atom, c in entry.terms if isinstance(atom, Var) and atom in step and same(c, 1)), None)
        if unit is None and entry.terms:
            return None
        stride.append(known if unit is None else step[unit])
    return tuple(stride) if flat_index(index, stride) == offset else None


def _alone(base: str, last: str, users: Mapping[str, Sequence[str]]) -> bool:
    """Whether only the views that end at `last` read a value: other users would have to read it with large strides."""
    while base != last:
        if len(users[base]) != 1:
            return False
        (base,) = users[base]
    return not users[last]
