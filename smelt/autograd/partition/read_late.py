"""Selects the inputs and results that the backward reads as they are when it runs, and those that are saved as copies.

Both partitions use this. The trace has added nodes for the former (`meta["as_saved"]`, see
`autograd.trace.saved.Where`).
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence

from torch.fx import Node

from smelt.autograd.trace.joint import Joint

AsSaved = Mapping[Node, Node]
"""For each node that represents an input or result when the backward runs, the node of the same value in the
forward.
"""


def as_saved(nodes: Sequence[Node], inputs: Sequence[Node], values: Sequence[Node]) -> AsSaved:
    """Returns the needed nodes of `nodes` with `meta["as_saved"]`: those with readers, and the first node of an input
    with several.
    """
    by_name = {n.name: n for n in inputs}
    late = [n for n in nodes if "as_saved" in n.meta]
    firsts = {n.meta["as_saved"][1] for n in late if n.meta["as_saved"][0] == "memory" and n.users}
    found = ((n, *n.meta["as_saved"]) for n in late)
    return {
        n: values[key] if kind == "output" else by_name[key]
        for n, kind, key in found
        if n.users or kind == "alias" or key in firsts
    }


def read_late(found: AsSaved, needed: Container[Node], chosen: Collection[Node]) -> list[Node]:
    """Returns the nodes of `found` that the backward reads. Calls save them before all other values.

    If several nodes represent one input, the first is the tensor itself, and the others are the memory that it had in
    the forward.
    """
    reread = {value for n, value in found.items() if n in needed and n.meta["as_saved"][0] == "memory"}
    reread.update(value for value in found.values() if value in chosen)
    return [n for n, value in found.items() if n in needed or (value in reread and _is_first(n))]


def _is_first(late: Node) -> bool:
    return late.meta["as_saved"][0] in ("input", "alias")


def copied(joint: Joint, inputs: Sequence[Node], values: Sequence[Node], found: AsSaved) -> set[Node]:
    """Returns the inputs and results that are saved as copies, because eager does not save them and so the caller may
    write to them.

    This includes every result that eager does not save: `logits.detach().div_(2)` is allowed before the backward.
    """
    apart = (value for n, value in found.items() if n.meta["as_saved"][0] != "alias")
    result = {inputs[i] for i in joint.unsaved}.union(apart)
    kept = {v for i, v in enumerate(values[: joint.num_outputs]) if i not in joint.unsaved_outputs}
    made = (values[i] for i in joint.unsaved_outputs)
    result.update(v for v in made if isinstance(v, Node) and v.op == "call_function" and v not in kept)
    return result
