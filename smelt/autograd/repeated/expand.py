"""Joint prim graph of a graph with four blocks in; the joint prim graph of the graph with all its blocks out.

The calls of block 1 are copied for each missing block. They may be: `places.py` has checked that the calls of block 2
are such copies, so tracing any number of blocks makes them.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import fx
from torch.fx import Node

from smelt.autograd.repeated.masks import Masks
from smelt.autograd.repeated.places import NAMES, RANDOM, Part, Place, Places, Refused
from smelt.autograd.repeated.returned import Returned
from smelt.autograd.repeated.shorten import Result, Short
from smelt.autograd.trace.call_facts import call_facts
from smelt.autograd.trace.plan import Constant, Fresh, Joint, Repeated
from smelt.base.torch_private import OpOverload
from smelt.graph.ir.module import Graph, GraphModule
from smelt.graph.ir.seeds import FROM_SEEDS
from smelt.prims.registry import STREAMS
from smelt.prims.table import PRIMS

T = TypeVar("T")


def expand(joint: Joint, prims: fx.GraphModule, short: Short) -> tuple[Joint, fx.GraphModule] | None:
    """Returns the joint graph's plan and the prim graph for all blocks; None if blocks are not copies of each other.

    The plan's module has the graph's inputs and the metadata of its results, and no calls.

    Args:
        prims: the prim graph of `joint`, the joint graph of `short.module`.
    """
    if not (_is_plain(joint) and _draws_from_seeds(joint)) or any(map(_is_unique, prims.graph.nodes)):
        return None
    try:
        return _Expansion(prims, joint, short).run()
    except Refused:
        return None


def _is_plain(joint: Joint) -> bool:
    """Whether a plan only says which gradients there are: no writes, numbers or custom functions."""
    simple = all(isinstance(o, (Fresh, Constant, Repeated)) for o in joint.outputs)
    special = (joint.mutations, joint.touched, joint.invalid_histories, joint.states)
    numbers = (joint.sizes, joint.numbers, joint.reals, joint.reads, joint.num_found)
    sparse = any(g is not None and not isinstance(g, int) for g in joint.gradients)
    chosen = joint.flow is not None and joint.flow.choices
    return simple and not any(special) and not any(numbers) and not sparse and not chosen


def _draws_from_seeds(joint: Joint) -> bool:
    """Whether all random numbers of a graph are functions of its seeds and of a stream for each operator."""
    return all(node.target in FROM_SEEDS for node in joint.module.graph.nodes if node.meta.get(RANDOM))


def _is_unique(node: Node) -> bool:
    """Whether a node may not be copied: operators of eager are counted."""
    return isinstance(node.target, OpOverload)


class _Expansion:
    def __init__(self, prims: fx.GraphModule, joint: Joint, short: Short) -> None:
        self.prims, self.joint, self.short = prims, joint, short
        nodes = list(prims.graph.nodes)
        self.output = nodes[-1]
        self.calls = [n for n in nodes[:-1] if n.op != "placeholder"]
        given = [n for n in nodes if n.op == "placeholder"]
        self.primals, self.others = given[: joint.num_primals], given[joint.num_primals :]
        values, self.gradients, _ = joint.split_results(self.output.args[0])
        metas, self.gradient_metas, _ = joint.split_results(self.output.meta["val"])
        self.returned = Returned(joint, short, values, metas)
        of_results = self.returned.places(self.others)
        self.places = Places(self.primals, self.others, self.calls, short, of_results)
        self.returned.check_blocks(values, metas, self.places)
        self.graph = Graph()
        self.env: dict[Node, Node] = {}
        self.made: dict[Place, Node] = {}
        self.templates: list[int] = []
        self.facts = call_facts(joint)

    def run(self) -> tuple[Joint, fx.GraphModule]:
        self.copy_inputs()
        self.copy_calls(self.places.parts)
        joint = self.finish()
        return joint, GraphModule(self.prims, self.graph)

    # -- the whole graph --------------------------------------------------------------------------------------------

    def block_in_whole(self, block: int) -> int:
        return block if block <= 1 else block + self.short.left_out

    def keep(self, node: Node, copy: Node) -> None:
        self.env[node] = copy
        place = self.places.of.get(node)
        if place is not None:
            self.made[place[0], self.block_in_whole(place[1])] = copy

    def operand(self, reader: int | None, node: Node) -> Node:
        """Returns the operand of a node of the short graph, in the whole graph.

        Args:
            reader: the block of the node, as `block_of` returns it.

        Raises:
            Refused: it is unknown whether the operand is a value of the same block or of the one beside it.
        """
        place = self.places.of.get(node)
        if place is None:
            return self.env[node]
        root, block = place
        if reader is None:
            if block in (1, 2):
                raise Refused
            return self.env[node]
        if (reader <= 1) == (block <= 1):
            return self.env[node]
        if reader not in (1, 2) or block not in (1, 2):
            raise Refused
        return self.made_at((root, self.block_in_whole(reader) + block - reader))

    def operand_of_copy(self, later: int, node: Node) -> Node:
        """Returns the operand of a copy of a node of block 1, for the block that is `later` blocks after it."""
        place = self.places.of.get(node)
        return self.env[node] if place is None else self.made_at((place[0], place[1] + later))

    def made_at(self, place: Place) -> Node:
        """Returns the value at a place of the whole graph.

        Raises:
            Refused: it does not exist (yet).
        """
        if place not in self.made:
            raise Refused
        return self.made[place]

    def copy_inputs(self) -> None:
        """Copy the placeholders: those of the whole graph's primals have its numbers."""
        short, saved = self.short, {n.meta["as_saved"]: n for n in self.others if "as_saved" in n.meta}
        first = {short.chain[i]: i for i, block in enumerate(short.block) if block == 1}
        templates = self.templates
        for i, (chain, at) in enumerate(zip(short.chain, short.position, strict=True)):
            template = at if at is not None else short.position[first[chain]] if chain in first else None
            if template is None:
                raise Refused
            templates.append(template)
            node, name = self.primals[template], f"primals_{i}"
            copy = self.graph.create_node("placeholder", name, (), {}, name)
            copy.meta = dict(node.meta)
            if at is not None:
                self.keep(node, copy)
            else:
                assert chain is not None
                block = short.blocks.level[short.blocks.inputs[i]]
                self.made[("input", chain), block] = copy
        tangents = self.returned.tangents(self.others)
        for node in self.others:
            if "as_saved" not in node.meta and node not in tangents.values():
                self.keep(node, self.graph.node_copy(node))
        for at in self.returned.differentiable:
            self.copy_of_result(at, tangents[self.returned.sources[at]], f"tangents_{at}", {})
        self.copy_saved(saved)

    def copy_of_result(self, at: int, node: Node, name: str, meta: Mapping[str, Any]) -> None:
        """Copy a placeholder that belongs to a program output for the program output at a position of the whole
        graph.
        """
        copy = self.graph.create_node("placeholder", name, (), {}, name)
        copy.meta = {**node.meta, **meta}
        later = self.returned.origins[at].later
        if later:
            root, block = self.places.of[node]
            self.made[root, block + later] = copy
        else:
            self.keep(node, copy)

    def copy_saved(self, saved: Mapping[tuple[str, Any], Node]) -> None:
        """Copy the placeholders of inputs and results as they are when the backward runs, in the inputs' order."""
        of_inputs: dict[int, list[tuple[str, Node]]] = {}
        rest = []
        names = {node.name: at for at, node in enumerate(self.primals)}
        for (kind, which), node in saved.items():
            if which in names:
                of_inputs.setdefault(names[which], []).append((kind, node))
            else:
                rest.append(node)
        if [n for at in sorted(of_inputs) for _, n in of_inputs[at]] + rest != list(saved.values()):
            raise Refused
        for i, template in enumerate(self.templates):
            for kind, node in of_inputs.get(template, ()):
                self.copy_saved_input(i, kind, node)
        of_results = self.returned.saved(rest)
        if [*of_results.values()] != rest or [*of_results] != sorted(of_results):
            raise Refused
        for at, source in enumerate(self.returned.sources):
            if source in of_results:
                saved_as = {"as_saved": ("output", at)}
                self.copy_of_result(at, of_results[source], f"result_{at}_saved", saved_as)

    def copy_saved_input(self, i: int, kind: str, node: Node) -> None:
        name = node.name.replace(node.meta["as_saved"][1], f"primals_{i}")
        copy = self.graph.create_node("placeholder", name, (), {}, name)
        copy.meta = {**node.meta, "as_saved": (kind, f"primals_{i}")}
        if self.short.position[i] is not None:
            self.keep(node, copy)
        else:
            root, _ = self.places.of[node]
            self.made[root, self.short.blocks.level[self.short.blocks.inputs[i]]] = copy

    def copy_calls(self, parts: Sequence[Part]) -> None:
        forward = {part.first + part.size: part for part in parts if part.second > part.first}
        backward = {part.first: part for part in parts if part.second < part.first}
        left_out, later_draws = self.short.left_out, self.places.first_draw_after(parts[0])
        for at, call in enumerate(self.calls):
            if at in forward:
                for later in range(1, left_out + 1):
                    self.copy_block(forward[at], later)
            if at in backward:
                for later in range(left_out, 0, -1):
                    self.copy_block(backward[at], later)
            copy = self.graph.node_copy(call, functools.partial(self.operand, self.places.block_of(call)))
            if later_draws is not None and call.meta.get(RANDOM, 0) >= later_draws:
                self.draw_later(copy, left_out)
            self.keep(call, copy)

    def copy_block(self, part: Part, later: int) -> None:
        """Copy the calls of block 1 for the block that is `later` blocks after it."""
        for call in self.calls[part.first : part.first + part.size]:
            copy = self.graph.node_copy(call, functools.partial(self.operand_of_copy, later))
            for key in NAMES:
                if key in copy.meta:
                    copy.meta[key] = self.places.copied_name(copy.meta[key], later)
            if RANDOM in copy.meta:
                self.draw_later(copy, later)
            root, block = self.places.of[call]
            self.made[root, block + later] = copy

    def draw_later(self, copy: Node, blocks: int) -> None:
        """Let the copy of a call draw other random numbers: those of the operator that many blocks later."""
        count = blocks * self.places.draws
        copy.meta[RANDOM] += count
        if copy.target is PRIMS["random"]:
            seed, stream, *rest = copy.args
            copy.args = (seed, stream + STREAMS * count, *rest)  # type: ignore[operator]

    # -- results and the plan ---------------------------------------------------------------------------------------

    def finish(self) -> Joint:
        joint, short, returned = self.joint, self.short, self.returned
        gradients, gradient_metas = self.gradients, self.gradient_metas
        given = [k for k in joint.gradients if k is not None]
        if given != [*range(len(gradients))]:
            raise Refused
        results: list[Any] = [*map(self.result, returned.values, returned.origins)]
        metas, positions = [*returned.metas], list[int | None]()
        num_values = len(results)
        for i, template in enumerate(self.templates):
            k = joint.gradients[template]
            positions.append(None if k is None else len(results) - num_values)
            if k is None:
                continue
            assert isinstance(k, int)
            results.append(self.gradient(i, gradients[k]))
            metas.append(gradient_metas[k])
        self.check_plans(gradients, gradient_metas)
        masks = Masks(self.prims.graph, joint, returned, self.graph, results[num_values:])
        made = self.graph.output(tuple(results))
        made.meta = {**self.output.meta, "val": tuple(metas)}
        return replace(
            joint,
            module=self.signature(tuple(metas)),
            num_primals=len(short.position),
            num_outputs=num_values,
            outputs=tuple(returned.plans),
            differentiable=returned.differentiable,
            unsaved_outputs=returned.spread(joint.unsaved_outputs),
            gradients=tuple(positions),
            cloned=self.spread(joint.cloned),
            unsaved=self.spread(joint.unsaved),
            saved_itself=self.spread(joint.saved_itself),
            saved_both=self.spread(joint.saved_both),
            idle=tuple(sorted(self.spread(joint.idle))),
            reached=masks.reached(positions, self.spread_values(joint.reached)),
            flow=masks.flow,
            layouts_returned=self.spread_values(joint.layouts_returned),
            facts=replace(
                self.facts,
                needed=self.spread(self.facts.needed),
                computed_from=self.spread(self.facts.computed_from),
            ),
        )

    def result(self, value: Any, origin: Result) -> Any:
        """Returns a result of the whole graph; `value` is that of the short graph from which it is copied."""
        if not isinstance(value, Node):
            return value
        return self.operand_of_copy(origin.later, value) if origin.later else self.operand(origin.block, value)

    def gradient(self, i: int, node: Any) -> Any:
        """Returns the gradient of an input of the whole graph; `node` is that of its template."""
        if not isinstance(node, Node):
            return node
        at = self.short.position[i]
        if at is not None:
            return self.operand(self.places.block_of(self.primals[at]), node)
        return self.operand_of_copy(self.short.blocks.level[self.short.blocks.inputs[i]] - 1, node)

    def templates_of_blocks(self) -> Iterator[tuple[int, int]]:
        """Yields the positions of the short graph's inputs of block 1 and of the corresponding ones of block 2."""
        by_place = {
            place: at for at, node in enumerate(self.primals) if (place := self.places.of.get(node)) is not None
        }
        for (root, block), at in by_place.items():
            if block == 1:
                if (root, 2) not in by_place:
                    raise Refused
                yield at, by_place[root, 2]

    def check_plans(self, gradients: Sequence[Any], metas: Sequence[Any]) -> None:
        """Check that the plan says the same of the inputs of blocks 1 and 2.

        Raises:
            Refused: it does not.
        """
        joint = self.joint
        sets: list[Collection[int]] = [joint.cloned, joint.unsaved, joint.saved_itself, joint.saved_both, joint.idle]
        sets += [self.facts.needed, self.facts.computed_from]
        for one, other in self.templates_of_blocks():
            k, m = joint.gradients[one], joint.gradients[other]
            same = (k is None) == (m is None) and all((one in each) == (other in each) for each in sets)
            same = same and joint.layouts_returned.get(one) == joint.layouts_returned.get(other)
            # if blocks return values with tangents, `Masks` finds anew what is reached
            same = same and (self.places.have_tangents or joint.reached.get(one) == joint.reached.get(other))
            if not same:
                raise Refused
            if isinstance(k, int) and isinstance(m, int):
                x, y = gradients[k], gradients[m]
                if metas[k] != metas[m] or not (self.places.follows(x, y) if isinstance(x, Node) else x is y):
                    raise Refused

    def spread(self, positions: Collection[int]) -> frozenset[int]:
        """Returns the positions of the whole graph's inputs whose templates are at these positions."""
        return frozenset(i for i, template in enumerate(self.templates) if template in positions)

    def spread_values(self, values: Mapping[int, T]) -> dict[int, T]:
        """Returns the values by positions of the whole graph's inputs, given those of their templates."""
        return {i: values[template] for i, template in enumerate(self.templates) if template in values}

    def signature(self, metas: tuple[Any, ...]) -> fx.GraphModule:
        """Returns a graph with the whole graph's inputs and the metadata of its results, without its calls."""
        graph = Graph()
        for node in self.graph.nodes:
            if node.op == "placeholder" and "as_saved" not in node.meta:
                graph.node_copy(node)
        graph.output(()).meta["val"] = metas
        return GraphModule(self.prims, graph)
