"""Equal layers are fused and rendered once, and the programs are those of fusing and rendering each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt import pipeline
from smelt.codegen.cpp import host as cpp_host
from smelt.schedule import plan as plans
from smelt.schedule.machine import CPU
from smelt.schedule.order import CycleError


class Layer(nn.Module):
    """A residual layer whose numbers may depend on its place."""

    def __init__(self, factor: float = 0.5) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1, self.training) * self.factor


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.first(self.norm(x)).view(2, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
        weights = F.dropout(torch.softmax(q @ k.transpose(2, 3) * 0.3, -1), 0.1, self.training)
        return x + self.second((weights @ v).transpose(1, 2).reshape(2, 8, 16))


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.norm(self.convolution(x)))


class Shared(nn.Module):
    """Each layer multiplies by one large mask."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.linear, self.mask = nn.Linear(32, 32), mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x) * self.mask)


class Stack(nn.Module):
    def __init__(
        self, layers: list[nn.Module], join: Callable[[list[torch.Tensor]], torch.Tensor] | None = None
    ) -> None:
        super().__init__()
        self.layers, self.join = nn.ModuleList(layers), join

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = []
        for layer in self.layers:
            x = layer(x)
            found.append(x)
        return x if self.join is None else self.join(found)


def sequence() -> torch.Tensor:
    return torch.randn(2, 8, 16)


def tied() -> nn.Module:
    layer = Layer()
    return Stack([layer] * 24)


def mask() -> nn.Module:
    shared = torch.randn(32, 32)
    return Stack([Shared(shared) for _ in range(40)])


ALIKE: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "residual": (lambda: Stack([Layer() for _ in range(30)]), sequence),
    "attention": (lambda: Stack([Attention() for _ in range(24)]), sequence),
    "two kinds": (lambda: Stack([(Layer, Attention)[i % 2]() for i in range(48)]), sequence),
    "two numbers": (lambda: Stack([Layer((0.5, 0.25)[i % 2]) for i in range(48)]), sequence),
    "convolutions": (lambda: Stack([Convolution() for _ in range(24)]), lambda: torch.randn(2, 4, 8, 8)),
    "tied": (tied, sequence),
    "one mask": (mask, lambda: torch.randn(32, 32)),
    "all results": (lambda: Stack([Layer() for _ in range(30)], lambda found: found[-1] + found[15]), sequence),
}
OTHERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "numbers of their own": (lambda: Stack([Layer(0.5 + i / 64) for i in range(24)]), sequence),
    "each is read": (lambda: Stack([Layer() for _ in range(24)], lambda found: torch.stack(found).mean(0)), sequence),
    "few": (lambda: Stack([Layer() for _ in range(6)]), sequence),
}
BACKWARD = ("residual", "attention", "two kinds", "two numbers", "one mask")
"""Models whose backward has blocks that are alike, too."""


class Compiled:
    """What a step of a model compiles to: the sources, results, and how many programs had blocks that are alike."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, make: Callable[[], nn.Module], x: torch.Tensor, **kw: Any):
        self.sources: list[Any] = []
        self.alike = self.rendered = 0
        self.watch(monkeypatch)
        smelt.reset()
        torch.manual_seed(0)
        model = make()
        train = kw.pop("train", True)
        compiled = smelt.compile(model.train(train), **kw)
        torch.manual_seed(1)
        with torch.set_grad_enabled(train):
            self.results = [compiled(x)]
        if train:
            self.results[0].square().sum().backward()
            self.results += [p.grad for p in model.parameters() if p.grad is not None]

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fuse, render, kernel = plans.fuse_blocks, pipeline.render_cpp, cpp_host.render_kernel

        def fused(*args: Any) -> Any:
            found = fuse(*args)
            self.alike += found is not None
            return found

        def rendered(plan: Any) -> Any:
            found = render(plan)
            self.sources.append((found.cpp_sources, found.host_source))
            return found

        def counted(*args: Any) -> Any:
            self.rendered += 1
            return kernel(*args)

        monkeypatch.setattr(plans, "fuse_blocks", fused)
        monkeypatch.setattr(pipeline, "render_cpp", rendered)
        monkeypatch.setattr(cpp_host, "render_kernel", counted)


def both(make: Callable[[], nn.Module], x: torch.Tensor, **kw: Any) -> tuple[Compiled, Compiled]:
    """With the blocks found, and with each of them fused by itself."""
    with pytest.MonkeyPatch.context() as patch:
        first = Compiled(patch, make, x, **kw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans, "fuse_blocks", lambda *args: None)
        return first, Compiled(patch, make, x, **kw)


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("name", [*ALIKE, *OTHERS])
def test_the_same_programs(name: str, train: bool):
    make, given = (ALIKE | OTHERS)[name]
    found, whole = both(make, given(), train=train)
    assert found.sources == whole.sources
    assert all(torch.equal(a, b) for a, b in zip(found.results, whole.results, strict=True))
    if name in ALIKE:  # the forward at least; a backward begins at the other end
        assert found.alike >= (2 if train and name in BACKWARD else 1)
    else:
        assert found.alike == 0


def test_a_model_of_few_layers():
    found, whole = both(lambda: Stack([Attention() for _ in range(13)]), sequence())
    assert found.sources == whole.sources and found.alike == 2


@pytest.mark.parametrize("layers", [CPU.fusion.readers - 2, CPU.fusion.readers, CPU.fusion.readers + 4])
def test_a_buffer_that_nearly_too_many_groups_read(layers: int):
    """Whether pairs of its readers are tried depends on all layers, also on those that are left out."""
    shared = torch.randn(32, 32)
    found, whole = both(lambda: Stack([Shared(shared) for _ in range(layers)]), torch.randn(32, 32))
    assert found.sources == whole.sources


def test_symbolic_sizes():
    found, whole = both(lambda: Stack([Layer() for _ in range(30)]), sequence(), dynamic=True)
    assert found.sources == whole.sources and found.alike == 2


def test_kernels_of_equal_layers_are_rendered_once():
    counts = []
    for depth in (30, 60):
        with pytest.MonkeyPatch.context() as patch:
            counts.append(Compiled(patch, lambda d=depth: Stack([Layer() for _ in range(d)]), sequence()).rendered)
    assert counts[0] == counts[1]


def test_layers_draw_numbers_of_their_own():
    """Equal kernels get streams of random numbers by their layer: no two masks are alike."""

    class Masks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(24))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = []
            for layer in self.layers:
                x = F.dropout(layer(x).sigmoid(), 0.5)
                found.append(x)
            return found

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        compiled = Compiled.__new__(Compiled)
        compiled.sources, compiled.alike, compiled.rendered = [], 0, 0
        compiled.watch(patch)
        masks = [mask == 0 for mask in smelt.compile(Masks())(torch.randn(8, 16))]
    assert compiled.alike == 1
    assert all(not torch.equal(a, b) for i, a in enumerate(masks) for b in masks[:i])


def test_copied_kernels_that_wait_for_each_other_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program is known where they do; then the whole program is fused."""
    copied: list[bool] = []
    fuse_blocks, fuse, order_units = plans.fuse_blocks, plans.fuse, plans.order_units

    def of_blocks(*args: Any) -> Any:
        found = fuse_blocks(*args)
        copied.append(found is not None)
        return found

    def of_all(*args: Any) -> Any:
        copied.append(False)
        return fuse(*args)

    def ordered(*args: Any) -> Any:
        if copied[-1]:
            raise CycleError("planted")
        return order_units(*args)

    monkeypatch.setattr(plans, "fuse_blocks", of_blocks)
    monkeypatch.setattr(plans, "fuse", of_all)
    monkeypatch.setattr(plans, "order_units", ordered)
    torch.manual_seed(0)
    model, x = Stack([Layer() for _ in range(30)]).eval(), sequence()
    with torch.no_grad():
        torch.testing.assert_close(smelt.compile(model)(x), model(x))
    assert copied == [True, False]
