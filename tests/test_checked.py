"""smelt/checked.py and the verifier between passes: a layout that is not as recorded is an error under SMELT_STRICT."""

from __future__ import annotations

import pytest
import torch
from torch import fx

import smelt
from smelt import pipeline
from smelt.checked import WrongLayout, boundary
from smelt.graph.meta import meta_of
from smelt.graph.verify import InvalidGraph, verified

aten = torch.ops.aten


def doubled(x: torch.Tensor, recorded: torch.Tensor) -> fx.GraphModule:
    """A graph of `exp` with the metadata of these tensors."""
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = meta_of(x)
    made = graph.call_function(aten.exp.default, (node,))
    made.meta["val"] = meta_of(recorded)
    out = graph.output((made,))
    out.meta["val"] = (meta_of(recorded),)
    return fx.GraphModule(torch.nn.Module(), graph)


GAPS = torch.zeros(4, 8)[:, :3]


@pytest.mark.parametrize(
    "recorded", [torch.zeros(3, 4), torch.zeros(4, 3, dtype=torch.float64), GAPS, torch.zeros(4, 1).expand(4, 3)]
)
@pytest.mark.parametrize("stage", ["joint", "prims"])
def test_metadata_follows_from_operands(stage: str, recorded: torch.Tensor) -> None:
    with pytest.raises(InvalidGraph, match="its operands give"):
        verified(doubled(torch.zeros(4, 3), recorded), stage)
    verified(doubled(torch.zeros(4, 3), torch.zeros(3, 4).t()), stage)  # a dense order of one's own is a choice


@pytest.mark.parametrize(
    "given", [torch.zeros(4, 3), GAPS.double(), torch.zeros(5, 8)[:, :3], torch.zeros(4, 16)[:, :6:2]]
)
def test_another_layout_than_the_program_was_made_for(given: torch.Tensor) -> None:
    run = boundary("f", doubled(GAPS, torch.zeros(4, 3)).graph)(lambda inputs: [inputs[0].exp().contiguous()])
    run([GAPS])
    with pytest.raises(WrongLayout, match="f: x"):
        run([given])


def test_results_are_checked() -> None:
    run = boundary("f", doubled(torch.zeros(4, 3), torch.zeros(4, 3)).graph)(lambda inputs: [inputs[0].t()])
    with pytest.raises(WrongLayout, match="f: result 0"):
        run([torch.zeros(4, 3)])


def test_a_pass_that_loses_a_layout_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(gm: fx.GraphModule) -> fx.GraphModule:
        copy = fx.GraphModule(gm, fx.Graph())
        copy.graph.output(copy.graph.graph_copy(gm.graph, {}))
        out = copy.graph.output_node()
        out.meta.update(gm.graph.output_node().meta)
        node = next(n for n in copy.graph.nodes if n.op == "call_function")
        node.meta["val"] = meta_of(torch.zeros(4, 8)[:, :3])
        return copy

    monkeypatch.setattr(pipeline, "with_channels_last", wrong)
    with pytest.raises(InvalidGraph, match="it records strides"):
        smelt.compile(lambda x: x.exp() * 2)(torch.zeros(4, 3))


def test_nothing_is_checked_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_STRICT", "0")
    environment = pipeline.environment
    if hasattr(environment, "cache_clear"):
        environment.cache_clear()
    try:
        program = list[torch.Tensor].copy
        assert boundary("f", doubled(GAPS, GAPS).graph)(program) is program
    finally:
        monkeypatch.undo()
        if hasattr(environment, "cache_clear"):
            environment.cache_clear()
