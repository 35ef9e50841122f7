"""Regional compilation: blocks of one class compile once, and the model stays the model."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import smelt


class Block(nn.Module):
    def __init__(self, width: int, index: int = 0) -> None:
        super().__init__()
        self.index = index
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(torch.nn.functional.gelu(self.inner(self.norm(x))))


class Numbered(Block):
    """Its Python reads the number of the block."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (1 + 0.1 * self.index)


class Net(nn.Module):
    def __init__(self, count: int = 6, kind: type[Block] = Block, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.layers = nn.ModuleList([kind(width, i) for i in range(count)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Two(nn.Module):
    """Encoder and decoder, of which the second has blocks of blocks and one block twice."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Net(3)
        shared = Block(10)
        self.decoder = nn.Sequential(*(nn.Sequential(Block(10), Block(10)) for _ in range(3)))
        self.last = nn.ModuleList([shared, shared])

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.decoder(self.encoder(tokens))
        for block in self.last:
            x = block(x)
        return x


TOKENS = torch.arange(12).reshape(3, 4) % 10


def same(one: nn.Module, two: nn.Module, tokens: torch.Tensor = TOKENS) -> None:
    got, want = one(tokens), two(tokens)
    torch.testing.assert_close(got, want)
    parameters = list(two.parameters())
    assert [id(p) for p in one.parameters()] == [id(p) for p in parameters]
    first = torch.autograd.grad(got.square().mean(), parameters)
    torch.testing.assert_close(first, torch.autograd.grad(want.square().mean(), parameters))


@pytest.mark.parametrize("count", [1, 2, 12])
def test_blocks_of_one_class_compile_once(count: int) -> None:
    model = Net(count)
    run = smelt.compile_regions(model, rest="eager", fullgraph=True)
    same(run, model)
    assert smelt.stats()["graphs"] == 1 and smelt.stats()["recompiles"] == 0


def test_the_rest_is_compiled_too() -> None:
    model = Net()
    same(smelt.compile_regions(model), model)
    assert smelt.stats()["graphs"] == 4


def numbered(count: int) -> dict[str, object]:
    """What was counted of a model whose blocks read their numbers."""
    model = Net(count, Numbered)
    run = smelt.compile_regions(model, rest="eager")
    same(run, model)
    same(run, model)
    return smelt.stats()


@pytest.mark.parametrize("count", [3, 20])
def test_blocks_that_read_their_number(count: int) -> None:
    """In a process of its own: behind some tests of other files one more graph was counted, which is not explained."""
    script = f"import json\nfrom tests.test_regions import numbered\nprint(json.dumps(numbered({count})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout)
    assert found["fallbacks"] == 0 and found["graphs"] <= count, found


def test_lists_in_lists_and_a_shared_block() -> None:
    model = Two()
    run = smelt.compile_regions(model)
    same(run, model)
    assert list(run.state_dict()) == list(model.state_dict())
    assert run.last[0] is run.last[1]


def test_the_original_and_its_names_stay() -> None:
    model = Net()
    before = {name: (type(m), id(m)) for name, m in model.named_modules()}
    run = smelt.compile_regions(model)
    same(run, model)
    assert {name: (type(m), id(m)) for name, m in model.named_modules()} == before
    assert type(run) is Net and list(run.state_dict()) == list(model.state_dict())
    assert [name for name, _ in run.named_modules()] == [name for name, _ in model.named_modules()]
    assert all(isinstance(block, Block) and smelt.is_compiled(block) for block in run.layers)
    assert not any(smelt.is_compiled(m) for m in model.modules())


def test_states_move_between_both() -> None:
    model = Net()
    run = smelt.compile_regions(model)
    run(TOKENS)
    run.load_state_dict({name: value + 0.01 for name, value in model.state_dict().items()})
    same(run, model)
    run.double()
    same(run, model)
    assert run(TOKENS).dtype is torch.float64
    run.eval()
    assert not any(block.training for block in model.layers)


def test_hooks_fire() -> None:
    model = Net(3)
    run = smelt.compile_regions(model)
    seen: list[str] = []
    model.layers[1].register_forward_hook(lambda m, args, out: seen.append("block") or out * 2)
    run.register_forward_hook(lambda m, args, out: seen.append("root"))
    same(run, model)
    assert seen == ["block", "root", "block", "root"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"])
def test_copies_are_compiled_once_too(copied: Any) -> None:
    run = smelt.compile_regions(Net(), rest="eager")
    want = run(TOKENS)
    twin = copied(run)
    torch.testing.assert_close(twin(TOKENS), want)
    assert all(map(smelt.is_compiled, twin.layers))
    with torch.no_grad():
        twin.layers[0].inner.weight.mul_(2)
    assert not torch.equal(twin(TOKENS), run(TOKENS))
    assert smelt.stats()["graphs"] <= 2


def test_new_sizes_make_one_version_more() -> None:
    model = Net()
    run = smelt.compile_regions(model, rest="eager")
    for n in (2, 3, 5, 7):
        same(run, model, torch.arange(2 * n).reshape(2, n) % 10)
    assert smelt.stats()["graphs"] == 2


def test_training() -> None:
    torch.manual_seed(3)
    one = Net()
    two = copy.deepcopy(one)
    run = smelt.compile_regions(one)
    for model, call in ((one, run), (two, two)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            call(TOKENS).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(one.state_dict(), two.state_dict(), rtol=1e-4, atol=1e-5)


def test_bad_input() -> None:
    with pytest.raises(TypeError, match="nn.Module"):
        smelt.compile_regions(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(smelt.OptionError, match="rest"):
        smelt.compile_regions(Net(), rest="ignore")
    with pytest.raises(smelt.OptionError, match="no_such"):
        smelt.compile_regions(Net(), options={"no_such": 1})
    with pytest.raises(smelt.OptionError):
        smelt.compile_regions(Net(), mode="default", options={"recompile_limit": 3})
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with pytest.warns(smelt.SmeltWarning, match="no repeated blocks"):
        run = smelt.compile_regions(model)
    x = torch.randn(2, 3)
    torch.testing.assert_close(run(x), model(x))
    assert smelt.compile_regions(model, disable=True) is model
