"""Modules of one class that are compiled one by one run one program; each keeps its own parameters and state."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import smelt
from smelt.capture import _native as native
from smelt.capture.explain import watched
from smelt.capture.session import _failed_later


class Block(nn.Module):
    def __init__(self, width: int = 8, number: int = 0) -> None:
        super().__init__()
        self.number, self.lin = number, nn.Linear(width, width)
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.lin(x).relu()


class Numbered(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 + self.number / 8)


class Breaking(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.lin(x).sin()
        self._note(x)
        return x.cos() + self.number

    @torch.compiler.disable
    def _note(self, x: torch.Tensor) -> None:
        self.seen.append(self.number)


def _trained(blocks: list[nn.Module]) -> list[torch.Tensor]:
    x = torch.linspace(-1, 1, 24).view(3, 8).requires_grad_()
    y = x
    for block in blocks:
        y = block(y)
    y.square().mean().backward()
    return [y, x.grad, *(p.grad for block in blocks for p in block.parameters())]


@pytest.mark.parametrize(("kind", "graphs"), [(Block, 1), (Numbered, 4), (Breaking, 2)])
def test_one_capture_for_equal_blocks(kind: type[Block], graphs: int) -> None:
    """What their Python reads is guarded: blocks that differ in it have graphs of their own."""
    torch.manual_seed(0)
    blocks = [kind(number=n + 1 if kind is Numbered else 1) for n in range(4)]
    plain = copy.deepcopy(blocks)
    smelt.reset()
    compiled = [smelt.compile(block) for block in blocks]
    for _ in range(2):
        want, got = _trained(plain), _trained(compiled)
        torch.testing.assert_close(got, want)
        assert smelt.stats()["graphs"] == graphs
    assert [block.seen for block in blocks] == [block.seen for block in plain]


def test_sizes_of_one_do_not_count_as_changes_of_another() -> None:
    smelt.reset()
    first, second = smelt.compile(Block()), smelt.compile(Block())
    first(torch.ones(3, 8))
    second(torch.ones(5, 8))
    assert smelt.stats()["graphs"] == 2 and smelt.stats()["recompiles"] == 0


@pytest.mark.parametrize("how", ["options", "backend", "same module", "dead"])
def test_other_options_and_recompilations_share_nothing(how: str) -> None:
    smelt.reset()
    block, x, seen = Block(), torch.ones(3, 8), []

    def backend(gm, inputs):
        seen.append(gm)
        return gm.forward

    settings = {"backend": backend} if how == "backend" else {}
    other = block if how == "same module" else Block()
    first = smelt.compile(block, **settings)
    first(x)
    if how == "dead":
        del first, block
        gc.collect()
    second = smelt.compile(other, **settings, **({"dynamic": False} if how == "options" else {}))
    torch.testing.assert_close(second(x), other(x))
    assert len(seen) == 2 if how == "backend" else smelt.stats()["graphs"] == 2


def test_the_first_module_may_be_dropped() -> None:
    smelt.reset()
    first, second = smelt.compile(Breaking()), smelt.compile(Breaking())
    x = torch.ones(3, 8)
    first(x)
    second(x)
    gone = weakref.ref(first._orig_mod)
    del first
    gc.collect()
    assert gone() is None
    torch.testing.assert_close(second(x), second._orig_mod(x))
    second(torch.ones(4, 8))
    assert smelt.stats()["fallbacks"] == 0


def test_failures_of_shared_code_are_reported_to_the_module_that_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the module for which it was compiled is gone; others keep what they have."""
    monkeypatch.setenv("SMELT_STRICT", "0")
    smelt.reset()
    first, second, third = (smelt.compile(Block()) for _ in range(3))
    x = torch.ones(3, 8)
    for each in (first, second, third):
        each(x)
    assert smelt.stats()["graphs"] == 1
    del first
    gc.collect()
    session = second._smelt_call._smelt_session
    (site,) = session.sites.values()
    with pytest.warns(smelt.SmeltWarning, match="injected"):
        native.call(_failed_later, (id(site.key), RuntimeError("injected")), {}, session)
    assert site.given_up and not site.versions
    for each in (second, third):
        torch.testing.assert_close(each(x), each._orig_mod(x))
    assert smelt.stats()["fallbacks"] == 1
    (other,) = third._smelt_call._smelt_session.sites.values()
    assert len(other.versions) == 1 and not other.given_up


def test_pages_show_shared_code_once() -> None:
    smelt.reset()
    with watched() as watch:
        blocks = [smelt.compile(Numbered(number=n // 2)) for n in range(4)]
        for block in blocks:
            block(torch.ones(3, 8))
    assert [len(frame.versions) for frame in watch.frames()] == [1, 1]
    assert watch.text().count("residual code:") == 2
