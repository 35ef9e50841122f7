"""A backward in stages gives what the same backward gives at its end, to the bit, however it is asked for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.abi.staged import Staged
from smelt.autograd.call import stages

X = torch.linspace(-1, 1, 48).reshape(6, 8)
SMALL = 200
"""Bytes: each weight of the network below is a stage of its own."""


class Net(nn.Module):
    """Layers one behind the other, the last of them on request."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.unused = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


Run = Callable[[Callable[..., Any], nn.Module], Any]


def both(run: Run, made: Callable[[], nn.Module] = Net) -> tuple[Any, Any]:
    """What it gives without stages and with them."""
    found = []
    for size in (0, SMALL):
        smelt.reset()
        net = made()
        found.append(run(smelt.compile(net, options={"stages": size}), net))
    return found[0], found[1]


def same(run: Run, made: Callable[[], nn.Module] = Net) -> None:
    """The same bits in both ways, after it was seen that the second way has stages."""
    chains: list[int] = []
    begin = stages.Chain.begin

    def counted(self: stages.Chain, edges: list[Tensor]) -> Any:
        chains.append(len(self.stages))
        return begin(self, edges)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages.Chain, "begin", counted)
        want, got = both(run, made)
    assert chains and min(chains) > 2
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def grads(net: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in net.parameters()]


def test_gradients() -> None:
    def run(compiled: Any, net: nn.Module) -> Any:
        x = X.clone().requires_grad_()
        for _ in range(3):
            compiled(x).square().sum().backward()
        return grads(net), x.grad

    same(run)


def test_of_what_was_computed_before() -> None:
    def run(compiled: Any, net: nn.Module) -> Any:
        w = torch.ones(8, requires_grad=True)
        compiled(compiled(X * w) * w).square().sum().backward()
        return grads(net), w.grad

    same(run)


def test_retain_graph() -> None:
    def run(compiled: Any, net: nn.Module) -> Any:
        loss = compiled(X).square().sum()
        loss.backward(retain_graph=True)
        first = grads(net)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        return first, grads(net)

    same(run)


def test_create_graph() -> None:
    def run(compiled: Any, net: nn.Module) -> Any:
        x = X.clone().requires_grad_()
        weights = [p for p in net.parameters()][:-2]
        found = torch.autograd.grad(compiled(x).square().sum(), [x, *weights], create_graph=True)
        sum(g.square().sum() for g in found).backward()
        return [g.detach() for g in found], grads(net), x.grad

    same(run)


@pytest.mark.parametrize("wanted", [[0], [3], [6], [7, 0], [1, 4]])
def test_some_of_the_gradients(wanted: list[int]) -> None:
    def run(compiled: Any, net: nn.Module) -> Any:
        weights = [p for p in net.parameters()]
        loss = compiled(X).square().sum()
        one = torch.autograd.grad(loss, [weights[i] for i in wanted], retain_graph=True)
        loss.backward()  # the one before may have come to an early end
        return one, grads(net)

    same(run)


def test_some_parameters_are_frozen() -> None:
    def made() -> nn.Module:
        net = Net()
        net.layers[1].requires_grad_(False)
        return net

    same(lambda compiled, net: (compiled(X).square().sum().backward(), grads(net))[1], made)


def test_hooks() -> None:
    """Each gets its gradient, one that changes it is heard."""

    def run(compiled: Any, net: nn.Module) -> Any:
        seen: list[Tensor] = []
        weights = [p for p in net.parameters()][:-2]
        for p in weights:
            p.register_hook(lambda g: seen.append(g.clone()) or g * 2)
        compiled(X).square().sum().backward()
        return sorted(s.sum().item() for s in seen), grads(net)

    same(run)


def test_leaves_are_reached_in_order_before_the_end() -> None:
    """The gradients of late layers are at their leaves when programs still have stages to run."""
    smelt.reset()
    net = Net()
    compiled = smelt.compile(net, options={"stages": SMALL})
    names = {id(p): name for name, p in net.named_parameters()}
    events: list[str] = []
    start = stages.Handover._advance

    def advance(self: stages.Handover) -> None:
        start(self)
        events.append("stage")

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(lambda p: events.append(names[id(p)]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages.Handover, "_advance", advance)
        compiled(X).square().sum().backward()
    at = {event: i for i, event in enumerate(events) if event != "stage"}
    assert len(at) == 8
    order = [at[f"layers.{i}.weight"] for i in (3, 2, 1, 0)]
    assert order == sorted(order)
    for i in (3, 2, 1):
        assert "stage" in events[at[f"layers.{i}.weight"] : at[f"layers.{i - 1}.weight"]], events


def test_absent_gradients() -> None:
    """Of two results one is not used, first this one, then that one, then both are."""

    class Two(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            y = self.layers[1](self.layers[0](x).tanh()).tanh()
            return self.layers[3](self.layers[2](y).tanh()), self.unused(y).sin()

    def run(compiled: Any, net: nn.Module) -> Any:
        found = []
        for used in ([0, 1], [0], [1], [0, 1]):
            out = compiled(X)
            net.zero_grad()
            sum(out[i].square().sum() for i in used).backward()
            found.append(grads(net))
        return found

    want, got = both(run, Two)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert want[1][-1] is None and got[1][-1] is None


def test_an_error_in_a_later_stage() -> None:
    """It is the caller's, gradients that were given stay, and the graph runs again."""
    smelt.reset()
    net = Net()
    loss = smelt.compile(net, options={"stages": SMALL})(X).square().sum()
    advance, count = stages.Handover._advance, 0

    class _Broken:
        def __next__(self) -> Any:
            raise ArithmeticError("of a kernel")

    def broken(self: stages.Handover) -> None:
        nonlocal count
        count += 1
        if count == 3:
            self.program = _Broken()  # type: ignore[assignment]
        advance(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages.Handover, "_advance", broken)
        with pytest.raises(ArithmeticError, match="of a kernel"):
            loss.backward(retain_graph=True)
    given = [g is not None for g in grads(net)]
    assert any(given) and not all(given[:8])
    net.zero_grad()
    loss.backward()
    want = Net()
    want(X).square().sum().backward()
    torch.testing.assert_close(grads(net), grads(want))


def test_in_batches() -> None:
    """Many vectors at once (`is_grads_batched`) are computed by one program over all of them."""

    def run(compiled: Any, net: nn.Module) -> Any:
        weights = [p for p in net.parameters()][:-2]
        out = compiled(X).sum(1)
        return torch.autograd.grad(out, weights, torch.eye(6), is_grads_batched=True)

    same(run)


def test_gradients_are_not_copied() -> None:
    """A leaf takes the gradient that a stage gives it as it is: nobody else holds it."""

    def run(compiled: Any, net: nn.Module) -> Any:
        loss = compiled(X).square().sum()
        pointers: dict[int, int] = {}
        for at, p in enumerate(net.parameters()):
            p.register_hook(lambda g, at=at: pointers.__setitem__(at, g.data_ptr()))
        loss.backward()
        return [p.grad.data_ptr() == pointers[at] for at, p in enumerate(net.parameters()) if p.grad is not None]

    want, got = both(run)
    assert want == [True] * 8
    assert got == want


def test_all_at_once_of_a_program_in_stages() -> None:
    """Results go to their places, and a stage's list is the caller's."""

    def steps(inputs: list[Any]) -> Any:
        taken = inputs.pop()
        yield [taken + 2, taken]
        yield [taken + 1]

    staged = Staged(steps, [(2, 0), (1,)])
    inputs = [5]
    assert staged(inputs) == [5, 6, 7]
    assert inputs == []


def test_of_an_artefact(tmp_path: Path) -> None:
    """A backward in stages that was compiled ahead is one where it is loaded."""
    smelt.reset()
    net, loaded = Net(), Net()
    smelt.compile(net, options={"stages": SMALL}).aot_compile(X).save(tmp_path / "net.smelt")
    run = smelt.load(tmp_path / "net.smelt").apply(loaded)
    steps: list[int] = []
    take = stages.Handover.take
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages.Handover, "take", lambda self, number: steps.append(number) or take(self, number))
        run(X).square().sum().backward()
    assert len(steps) > 2
    net(X).square().sum().backward()
    torch.testing.assert_close(grads(loaded), grads(net))
