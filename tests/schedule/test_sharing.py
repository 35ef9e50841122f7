"""What a library's kernel returns as a view of its argument lies in that argument's memory."""

from __future__ import annotations

import torch

from smelt.graph.ir.meta import TensorMeta
from smelt.loops.ir import Extern, Input, Item, LoopProgram, Ref
from smelt.schedule.sharing import find_sharing, shared_buffers

META = TensorMeta((4,), torch.float32, (1,), torch.device("cpu"))


def call(name: str, *inputs: str, shares: tuple[str, ...] = ()) -> Extern:
    return Extern(name, META, inputs, name, tuple(map(Ref, inputs)), shares=shares)


def program(*nodes: Extern | Item) -> LoopProgram:
    inputs = {name: Input(name, META) for name in ("x", "y")}
    return LoopProgram({**inputs, **{node.name: node for node in nodes}}, [], ["x", "y"], [], {}, {})


def test_views_of_views_are_of_the_buffer_itself() -> None:
    found = find_sharing(
        program(
            call("own", "x", "y"),
            call("view", "x", shares=("x",)),
            call("further", "view", "y", shares=("view", "y")),
            call("split", "view", shares=("view",)),
            Item("half", META, ("split",), 0),
            Item("fresh", META, ("own",), 0),
        ),
        {},
    )
    assert found == {
        "view": frozenset("x"),
        "further": frozenset("xy"),
        "split": frozenset("x"),
        "half": frozenset("x"),
    }
    assert shared_buffers(found, ["half", "own", "y"]) == {"x"}
    assert shared_buffers(found, ["own"]) == set() == shared_buffers({}, ["half"])


def test_the_base_of_a_strided_argument_counts() -> None:
    class Strided:
        base = "x"

    found = find_sharing(program(call("view", "turned", shares=("turned",))), {"turned": Strided()})  # type: ignore[dict-item]
    assert found == {"view": frozenset("x")}
