"""Second derivatives: the gradients of a compiled graph as a graph that is compiled when they are asked for.

Under `create_graph=True` this graph runs instead of the compiled backward: the program as captured, then the autograd
engine on it (`torch.autograd.grad` as a node). It is traced, compiled and wrapped like any graph, so that its backward
is the second derivative, and so on. It starts from the inputs of the call, which `Memory` remembers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.utils.weak import TensorWeakRef

from smelt.autograd.call.unpacked import lie_together, memory_marks
from smelt.autograd.trace.plan import Fresh, Joint, SparseGradient
from smelt.base._native import heard_from_handlers
from smelt.base.process_state import preserving
from smelt.base.torch_private import version_of
from smelt.graph.ir.module import Graph, GraphModule
from smelt.graph.ir.symint import owner_of
from smelt.graph.nodes.casts import present_casts, under_casts
from smelt.graph.nodes.custom_functions import forget_state
from smelt.graph.nodes.modes import enter_autocast, exit_autocast

aten = torch.ops.aten
CompileGraph = Callable[[fx.GraphModule, Sequence[torch.Tensor]], Callable[..., Any]]


class DoubleBackward:
    """Compiles the gradients of one captured graph.

    Args:
        gm: the torch-level graph; joint: what was made of it.
        compile_graph: as the graph itself was compiled.
    """

    def __init__(self, gm: fx.GraphModule, joint: Joint, compile_graph: CompileGraph) -> None:
        self.gm, self.joint, self.compile = gm, joint, compile_graph
        self.casts = present_casts()
        self._made: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._in_numbers = False

    @cached_property
    def refusal(self) -> str | None:
        """Why there is no such graph, if there is none."""
        joint = self.joint
        if joint.numbers or joint.reals:
            return "the graph takes numbers that change between calls (with dynamic=False each number has its graph)"
        if any(type(made) is SparseGradient for made in joint.gradients):
            return "a gradient is sparse"
        if self.joint.reads:
            return "the graph reads numbers from tensors (with dynamic=False it ends there)"
        if any(m.grad for m in joint.mutations) or any(m.input in self.needed for m in joint.mutations):
            return "the graph writes to an input that its gradients depend on"
        if not all(Fresh(k) in joint.outputs for k in joint.differentiable):
            return "an output shares memory with an input or another output"
        return None

    @cached_property
    def recomputes(self) -> bool:
        """Whether nodes of the graph are inside `torch.utils.checkpoint`, which eager runs twice."""
        return any("checkpoint" in node.meta for node in self.joint.module.graph.nodes)

    @cached_property
    def needed(self) -> frozenset[int]:
        """Primals whose values the gradients depend on."""
        return self._reached(_depends_on)

    @cached_property
    def computed_from(self) -> frozenset[int]:
        """Those of `needed` that the forward computes from; others the backward only reads as they are when it runs."""
        late = ("input", "alias")
        return self._reached(lambda node: [] if node.meta.get("as_saved", "?")[0] in late else _depends_on(node))

    def _reached(self, before: Callable[[fx.Node], Sequence[fx.Node]]) -> frozenset[int]:
        graph = self.joint.module.graph
        primals = {node: i for i, node in enumerate(n for n in graph.nodes if n.op == "placeholder")}
        output: Any = graph.output_node().args[0]
        waiting = [node for node in self.joint.split_results(output)[1] if isinstance(node, fx.Node)]
        seen = set(waiting)
        while waiting:
            for node in before(waiting.pop()):
                if node not in seen:
                    seen.add(node)
                    waiting.append(node)
        return frozenset(i for node, i in primals.items() if node in seen and i < self.joint.num_primals)

    @cached_property
    def wanted(self) -> tuple[int, ...]:
        """Primals that have gradients."""
        return tuple(i for i, made in enumerate(self.joint.gradients) if made is not None)

    def inputs_of(self, found: Sequence[torch.Tensor | None]) -> list[torch.Tensor] | None:
        """Recalled inputs, with arbitrary tensors for those not needed; None where a needed one is gone."""
        out = []
        metas = [n.meta["val"] for n in self.joint.module.graph.nodes if n.op == "placeholder"]
        for i, tensor in enumerate(found):
            if tensor is None and (i in self.needed or metas[i].symbolic):
                return None
            if tensor is None:
                m = metas[i]
                tensor = torch.zeros(m.shape, dtype=m.dtype, device=m.device, requires_grad=i in self.wanted)
            out.append(tensor)
        return out

    def __call__(
        self, inputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None], changed: bool = False
    ) -> dict[int, Any]:
        """The gradients by primal, with a history that leads to `inputs` and `tangents`.

        Args:
            tangents: of each result that has gradients; None where it was not used.
            changed: what a backward of the program's own reads is no longer what it was.
        """
        if changed:
            self._made.clear()
        used = tuple(k for k, tangent in enumerate(tangents) if tangent is not None)
        given = [*inputs, *(tangent for tangent in tangents if tangent is not None)]
        run = self._made.get(self._key(given, used))
        if run is None:
            with under_casts(self.casts):
                run = self._compiled(given, used)
        return dict(zip(self.wanted, run(*given), strict=True))

    def _key(self, given: Sequence[torch.Tensor], used: tuple[int, ...]) -> tuple[Any, ...]:
        tracked = (used, *(t.requires_grad for t in given[len(given) - len(used) :]))
        return (*tracked, *(t.shape for t in given)) if self._in_numbers else tracked

    def _compiled(self, given: Sequence[torch.Tensor], used: tuple[int, ...]) -> Callable[..., Any]:
        """Compiled for all sizes where possible; some formulas need numbers, or hold for the first call's only."""
        run = preserving(self._compiled_in_some_way, self.graph(used), given)
        self._made[self._key(given, used)] = run
        return run

    def _compiled_in_some_way(self, graph: fx.GraphModule, given: Sequence[torch.Tensor]) -> Callable[..., Any]:
        if not self.joint.sizes or self._in_numbers:
            return self.compile(self._as_known(graph), given)
        take_back = owner_of(self.gm).taken_back()  # no guard is added any more: this graph must serve every size
        try:
            run = self.compile(self._as_known(graph), given)
        except RuntimeError:
            if heard_from_handlers() is not None:
                raise
        else:
            if not take_back():
                return run
        take_back()
        self._in_numbers = True
        return self.compile(self._as_known(graph), given)

    def _as_known(self, graph: fx.GraphModule) -> fx.GraphModule:
        if self._in_numbers:
            for node in graph.graph.nodes:
                if node.op == "placeholder":
                    node.meta.pop("val", None)
        return graph

    def replayed(
        self,
        inputs: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        replaced: Mapping[int, torch.Tensor],
    ) -> dict[int, Any]:
        """The gradients by eager's engine, where these inputs get other memory (`x.data = y`) after the forward."""
        used = tuple(k for k, tangent in enumerate(tangents) if tangent is not None)

        def engine(*args: Any, **options: Any) -> Any:
            for i, new in replaced.items():
                inputs[i].data = new
            return torch.autograd.grad(*args, **options)

        run = self.graph(used, engine)
        with under_casts(self.casts), torch.enable_grad():
            found = run(*inputs, *(tangent for tangent in tangents if tangent is not None))
        return dict(zip(self.wanted, found, strict=True))

    def graph(self, used: Sequence[int], engine: Callable[..., Any] = torch.autograd.grad) -> fx.GraphModule:
        """The program and its gradients: inputs and tangents of these results -> gradients of `wanted`.

        Eager's engine does not come to what leads to other results alone.
        """
        joint, graph = self.joint, Graph()
        differentiable = [joint.differentiable[k] for k in used]
        env: dict[fx.Node, fx.Node] = {}
        inputs: list[fx.Node] = []
        outputs: Any = None
        for node in self.gm.graph.nodes:
            if node.op == "output":
                outputs = node.args[0]
                continue
            env[node] = graph.node_copy(node, env.__getitem__)
            forget_state(env[node])
            if node.op == "placeholder":
                inputs.append(env[node])
        body = next((n for n in graph.nodes if n.op != "placeholder"), None)
        assert body is not None
        with graph.inserting_before(body):
            tangents = [self._tangent(graph, i) for i in differentiable]
            for each in joint.mutations:  # the caller's tensor was written once
                copy = graph.call_method("clone", (inputs[each.input],))
                copy.meta["val"] = inputs[each.input].meta.get("val")
                inputs[each.input].replace_all_uses_with(copy)
                copy.args = (inputs[each.input],)
        heads = [env[outputs[joint.outputs.index(Fresh(k))]] for k in differentiable]
        regions = [graph.call_function(enter_autocast, (device, None, False)) for device in joint.autocast]
        leaves = [inputs[i] for i in self.wanted]
        options: dict[str, Any] = {"create_graph": True, "allow_unused": True}
        found = graph.call_function(engine, (heads, leaves, tangents), options)
        for region in reversed(regions):
            graph.call_function(exit_autocast, (region,))
        graph.output(tuple(graph.call_function(operator.getitem, (found, k)) for k in range(len(leaves))))
        return GraphModule(self.gm, graph)

    def _tangent(self, graph: fx.Graph, output: int) -> fx.Node:
        node = graph.placeholder(f"tangent_{output}")
        node.meta["val"] = self.joint.tangent_meta(output)
        return node


def _depends_on(node: fx.Node) -> list[fx.Node]:
    """The nodes whose values make this one's. In training, only new running statistics depend on the old ones."""
    if node.target is operator.getitem and _is_batch_norm(node.args[0]) and node.args[1] in (3, 4):
        return [node.all_input_nodes[0], *node.all_input_nodes[0].all_input_nodes]
    if _is_batch_norm(node):
        return [arg for arg in node.args[:3] if isinstance(arg, fx.Node)]
    return node.all_input_nodes


def _is_batch_norm(node: Any) -> bool:
    target = aten._native_batch_norm_legit_functional.default
    return isinstance(node, fx.Node) and node.target is target and bool(node.args[5])


class _InFormerMemory(torch.autograd.Function):
    """A tensor with the memory that it had before `x.data = y`; gradients go on to the tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        return memory.detach()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


def in_former_memory(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """`tensor` where it still lies in `memory`, else what it was."""
    if lie_together(tensor, memory):
        return tensor
    return _InFormerMemory.apply(tensor, memory)


class Memory:
    """How calls of one compiled graph remember their inputs while keeping as little memory as possible alive.

    Args:
        inputs, saved: of the first call; where saved tensors come from is the same at each.
        needed: positions of inputs whose values matter.
        remembered: inputs whose memory is saved besides.

    Attributes:
        leaves: positions of the caller's leaves, which live as long as the autograd graph.
        saved: for each input that is saved, its position there.
        kept: positions of others that matter; eager keeps most of them, or what it made of them. They are let go when
            gradients are computed without a history.
    """

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        saved: Sequence[torch.Tensor | None],
        needed: frozenset[int],
        remembered: frozenset[int],
    ) -> None:
        self.leaves = frozenset(i for i, t in enumerate(inputs) if t.is_leaf and t.requires_grad)
        positions = {id(t): k for k, t in enumerate(saved)}
        self.saved = {i: positions[id(t)] for i, t in enumerate(inputs) if id(t) in positions and i not in self.leaves}
        self.kept = needed - self.leaves - self.saved.keys()
        self._let_go = [i for i in range(len(inputs)) if i not in self.leaves and i not in self.kept]
        self._checked = sorted(needed - self.saved.keys())  # autograd checks what it saves
        self._remembered = needed & remembered
        alone = needed - remembered
        self._marked = (*sorted(alone - self.saved.keys()), *sorted(alone & self.saved.keys()))
        self._noted = sum(i not in self.saved for i in self._marked)

    def note(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """What to keep of a call."""
        noted: list[Any] = [*inputs]
        for i in self._let_go:
            noted[i] = None if i in self.saved else TensorWeakRef(inputs[i])
        return noted

    def marks(self, inputs: Sequence[torch.Tensor]) -> bytes | None:
        """Addresses of the inputs whose values matter and whose memory is not kept alive (`x.data = y` is no write)."""
        return memory_marks([*inputs], self._marked, True)

    def as_they_were(
        self, inputs: list[torch.Tensor], former: Mapping[int, torch.Tensor], marks: bytes | None, hooked: bool
    ) -> list[torch.Tensor] | None:
        """The inputs with the memory that the call has read; None where that of one is gone.

        Args:
            former: the memory that is saved besides.
            marks: of the call.
            hooked: what is saved has come back through hooks, in memory of any kind.
        """
        found = self.marks(inputs)
        size = 8 * self._noted if hooked else None
        if found is None or marks is None or found[:size] != marks[:size]:
            return None if found is not None and marks is not None else inputs
        return [
            in_former_memory(tensor, former[i]) if i in self._remembered else tensor for i, tensor in enumerate(inputs)
        ]

    def moved(self, inputs: Sequence[torch.Tensor], marks: bytes | None, hooked: bool, among: Collection[int]) -> bool:
        """Whether one `among` the inputs may have other memory than at the call; `marks`, `hooked`: as there."""
        found = self.marks(inputs)
        if found is None or marks is None:
            return bool(among)
        known = self._marked[: self._noted] if hooked else self._marked
        return any(found[8 * k : 8 * k + 8] != marks[8 * k : 8 * k + 8] for k, i in enumerate(known) if i in among)

    def release(self, noted: list[Any]) -> list[Any]:
        """The notes of a call without the tensors that may be released."""
        if not self.kept:
            return noted
        return [TensorWeakRef(t) if i in self.kept and type(t) is not TensorWeakRef else t for i, t in enumerate(noted)]

    def recall(self, noted: Sequence[Any], saved: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The inputs of that call; None for those that are gone."""
        found = [saved[self.saved[i]] if i in self.saved else t for i, t in enumerate(noted)]
        return [t() if type(t) is TensorWeakRef else t for t in found]

    def version(self, inputs: Sequence[Any]) -> int:
        """Grows with every write to an input whose value matters."""
        try:
            return sum([version_of(inputs[i]) for i in self._checked])
        except RuntimeError:  # a tensor of inference mode, which counts none
            return -1
