"""Ctrl-C, an out-of-memory error or a stack that ends during a compilation: the error arrives, and nothing stays half
done: modes are as before, and the next call compiles and is right."""

from __future__ import annotations

import gc
import inspect
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.base.errors import SmeltWarning
from smelt.capture import _native as native
from smelt.capture.guards.calibrate import calibrate

pytestmark = pytest.mark.usefixtures("branches_end_graphs")

X = torch.ones(2, 4)
OURS = str(Path(smelt.__file__).parent)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            shift = x.mean()
        y = self.second(torch.relu(self.first(x))) + shift
        if y.sum() > 1e9:  # a break: two graphs
            y = y * 2
        return y.sum(-1)


class Raising:
    """Raises in the `at`-th call of a function of ours while it is on.

    Not in generators: Python itself swallows what is raised in one that it closes because nobody holds it any more.
    """

    def __init__(self, error: type[BaseException], at: int) -> None:
        self.error, self.left, self.raised = error, at, False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS) and not code.co_flags & inspect.CO_GENERATOR:
            self.left -= 1
            if self.left == 0:
                self.raised = True
                raise self.error("injected")

    def __enter__(self) -> Raising:
        sys.setprofile(self)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)


def calls_of_ours(net: nn.Module) -> int:
    counting = Raising(KeyboardInterrupt, -1)
    run = smelt.compile(net, backend="aot_eager")
    with counting:
        run(X)
    return -1 - counting.left


@pytest.mark.parametrize(("error", "strict"), [(KeyboardInterrupt, "1"), (MemoryError, "1"), (MemoryError, "0")])
def test_an_error_at_any_point_leaves_a_consistent_state(
    error: type[BaseException], strict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMELT_STRICT", strict)
    calibrate()
    torch.manual_seed(0)
    net = Net()
    want = net(X)
    calls_of_ours(net)  # fills caches
    total = calls_of_ours(net)
    assert total > 1000
    before = native.state(), gc.isenabled(), torch.is_grad_enabled(), torch.random.get_rng_state()
    arrived = 0
    for at in {*range(1, 40, 9), *(int(total * k / 30) + k for k in range(30))}:
        smelt.reset()
        run = smelt.compile(net, backend="aot_eager")
        with Raising(error, at) as raising:
            try:
                out = run(X)
            except error as raised:
                assert str(raised) == "injected"
                arrived += 1
            else:
                assert torch.equal(out, want)
                assert error is MemoryError or not raising.raised, "Ctrl-C was swallowed"
        assert not native.is_active() and native.owner() is None
        after = native.state(), gc.isenabled(), torch.is_grad_enabled(), torch.random.get_rng_state()
        assert after[:3] == before[:3] and torch.equal(after[3], before[3])
        assert torch.equal(run(X), want) and torch.equal(run(X), want)
        if error is KeyboardInterrupt:
            assert smelt.stats()["graphs"] >= 2, "it is compiled at the next call"
    assert arrived > (25 if error is KeyboardInterrupt else 0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_in_any_stage_leaves_a_consistent_state(error: type[BaseException]) -> None:
    """Down to the kernels: scheduling, code generation and the build, which runs on threads of its own."""
    torch.manual_seed(0)
    net = Net()
    want, arrived, points = net(X), 0, 14
    smelt.compile(net)(X)  # the kernels are in the store from now on
    counting = Raising(error, -1)
    smelt.reset()
    with counting:
        smelt.compile(net)(X)
    total = -1 - counting.left
    for k in range(points):
        smelt.reset()
        run = smelt.compile(net)
        with Raising(error, 1 + total * k // points):
            try:
                run(X)
            except error:
                arrived += 1
        assert not native.is_active() and native.owner() is None and gc.isenabled() and torch.is_grad_enabled()
        torch.testing.assert_close(run(X), want)
        torch.testing.assert_close(run(X), want)
    assert arrived > points // 2  # one that meets a generator being dropped is lost in Python itself


@pytest.mark.parametrize("strict", ["0", "1"])
def test_a_stack_that_ends_during_a_compilation(strict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_STRICT", strict)
    net = Net()
    want = net(X)
    run = smelt.compile(net, backend="aot_eager")

    def deep(levels: int) -> torch.Tensor:
        return run(X) if not levels else deep(levels - 1)

    used, arrived = len(inspect.stack()), 0
    for levels in range(sys.getrecursionlimit() - used - 200, sys.getrecursionlimit() - used, 12):
        smelt.reset()
        try:
            assert torch.equal(deep(levels), want)
        except RecursionError:
            arrived += 1
        assert not native.is_active() and native.owner() is None and gc.isenabled()
    assert arrived
    assert torch.equal(run(X), want) and smelt.stats()["graphs"] >= 2


def test_endless_recursion_raises_eagers_error() -> None:
    def endless(x: torch.Tensor) -> torch.Tensor:
        return endless(x + 1)

    with pytest.raises(RecursionError):
        smelt.compile(endless, backend="eager")(X)
    assert not native.is_active()


def test_a_model_that_cannot_be_captured_trains_on_with_one_explanation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_STRICT", "0")

    def refuses(gm: Any, inputs: Any) -> Any:
        raise NotImplementedError("not this model")

    torch.manual_seed(0)
    net, eager = Net(), Net()
    eager.load_state_dict(net.state_dict())
    losses: list[list[float]] = [[], []]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for model, kept in ((smelt.compile(net, backend=refuses), losses[0]), (eager, losses[1])):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(4):
                loss = model(X).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                kept.append(loss.item())
    told = [str(w.message) for w in caught if issubclass(w.category, SmeltWarning)]
    assert losses[0] == losses[1] and losses[0][0] != losses[0][-1]
    assert 1 <= len(told) <= 2 and all("not this model" in text and "runs in eager" in text for text in told)
    assert len({text.splitlines()[0] for text in told}) == len(told), "each frame is told once"
