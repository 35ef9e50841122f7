"""Hooks around forward are guarded by their order, not by their keys, which count up over all modules."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt


class Scale:
    """A hook that is a bound method, as sharded modules have."""

    def __init__(self, by: float) -> None:
        self.by = by

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (args[0] * self.by,)

    def with_names(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (args[0] * self.by, *args[1:]), {name: value + 1 for name, value in kwargs.items()}

    def after(self, module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        return out + self.by

    def unknown(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (args[0] + len(eval("1,")) + self.by,)


class Block(nn.Module):
    def forward(self, x: Tensor, add: float = 0.0) -> Tensor:
        return x.sin() + add


X = torch.linspace(-1, 1, 12).reshape(3, 4)


def _blocks(count: int, register: Callable[[Block, Scale], object]) -> list[Block]:
    blocks = [Block() for _ in range(count)]
    for i, block in enumerate(blocks):
        register(block, Scale(1.0 + i / 16))
    return blocks


REGISTER: dict[str, Callable[[Block, Scale], object]] = {
    "before": lambda block, hook: block.register_forward_pre_hook(hook.before),
    "names": lambda block, hook: block.register_forward_pre_hook(hook.with_names, with_kwargs=True),
    "after": lambda block, hook: block.register_forward_hook(hook.after, always_call=True),
    "a break": lambda block, hook: block.register_forward_pre_hook(hook.unknown),
}


@pytest.mark.parametrize("kind", REGISTER)
def test_equal_blocks_with_hooks_share_their_graphs(kind: str) -> None:
    """Twelve blocks, more than may be compiled anew: one graph a block class or one for all, never one for each key."""
    net = nn.Sequential(*_blocks(12, REGISTER[kind]))
    run = smelt.compile(net)
    smelt.reset()
    for _ in range(2):
        torch.testing.assert_close(run(X), net(X))
    assert smelt.stats()["recompiles"] <= 2


@pytest.mark.parametrize("kind", list(REGISTER)[:3])
def test_a_function_of_one_block_serves_others(kind: str) -> None:
    blocks = _blocks(5, REGISTER[kind])

    def call(block: Block, x: Tensor) -> Tensor:
        return block(x, add=2.0)

    run = smelt.compile(call)
    smelt.reset()
    for block in (*blocks, blocks[0]):
        torch.testing.assert_close(run(block, X), call(block, X))
    assert smelt.stats()["recompiles"] <= 1  # the numbers that hooks hold become symbols


@pytest.mark.parametrize("many", [0, 1, 3])
def test_changes_of_hooks_between_calls_are_noticed(many: int) -> None:
    block = Block()
    hooks = [Scale(2.0 + i) for i in range(many)]
    for hook in hooks:
        block.register_forward_pre_hook(hook.before)
    run = smelt.compile(block)

    def same() -> None:
        for _ in range(2):
            torch.testing.assert_close(run(X, add=1.0), block(X, add=1.0))

    same()
    first = block.register_forward_pre_hook(lambda module, args: (args[0] + 5,), prepend=True)
    same()
    last = block.register_forward_hook(lambda module, args, out: out * 7)
    same()
    named = block.register_forward_pre_hook(Scale(3.0).with_names, with_kwargs=True)
    same()
    block._forward_pre_hooks.move_to_end(first.id)  # type: ignore[attr-defined]
    same()
    block._forward_pre_hooks_with_kwargs.pop(named.id)
    with pytest.raises(TypeError):
        run(X)
    named.remove()
    last.remove()
    same()
    first.remove()
    same()


@pytest.mark.parametrize("late", [False, True])
def test_registered_and_removed_while_it_runs(late: bool) -> None:
    def call(block: Block, x: Tensor) -> Tensor:
        y = block(x) if late else x
        handle = block.register_forward_pre_hook(lambda module, args: (args[0] * 3,), prepend=True)
        y = block(y)
        handle.remove()
        return block(y)

    block = _blocks(2, REGISTER["before"])[1]
    run = smelt.compile(call)
    for _ in range(3):
        torch.testing.assert_close(run(block, X), call(block, X))
        assert operator.length_hint(block._forward_pre_hooks) == 1


class _Calling(nn.Module):
    """A layer whose class has a `__call__` of its own, as those of libraries have."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def __call__(self, *args, **kwargs):
        kwargs.setdefault("scale", 2.0)
        return super().__call__(*args, **kwargs)

    def forward(self, x, scale):
        return self.inner(x).relu() * scale


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("place", ["before", "after", "both"])
def test_hooks_that_no_graph_holds_run_around_a_call_of_ones_own(place, fullgraph):
    """As around `nn.Module.__call__`: in eager's order, with its arguments, and without a graph break."""

    def run(compile):
        smelt.reset()
        torch.manual_seed(0)
        net, seen = _Calling(), []

        @torch.compiler.disable
        def before(module, args, kwargs):
            seen.append(("before", type(module).__name__, sorted(kwargs.items())))
            return (args[0] + 1,), {"scale": kwargs["scale"] + 1}

        @torch.compiler.disable
        def after(module, args, out):
            seen.append(("after", out.sum().item()))
            return out * 3

        if place != "after":
            net.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        if place != "before":
            net.register_forward_hook(after)
            net.register_forward_hook(lambda module, args, out: seen.append("last"), prepend=False)
        call, x = compile(net), torch.ones(2, 4, requires_grad=True)
        outs = [call(x), call(x, scale=5.0), call(x)]
        sum(out.sum() for out in outs).backward()
        return outs, x.grad, seen

    want, got = run(lambda net: net), run(lambda net: smelt.compile(net, fullgraph=fullgraph))
    stats = smelt.stats()
    assert stats["breaks"] == 0 and stats["graphs"] >= 1
    torch.testing.assert_close(got[:2], want[:2])
    assert [str(s)[:30] for s in got[2]] == [str(s)[:30] for s in want[2]]


def test_work_before_such_a_hook_stays_in_a_graph():
    class Scaled(_Calling):
        def __call__(self, x):
            return super().__call__(x.sin().cos() + 1)

    net = Scaled()
    net.register_forward_hook(torch.compiler.disable(lambda module, args, out: None))
    smelt.reset()
    x = torch.randn(2, 4)
    torch.testing.assert_close(smelt.compile(net)(x), net(x))
    assert smelt.stats()["breaks"] >= 1 and smelt.stats()["graphs"] >= 2
