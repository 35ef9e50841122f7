"""A compiled module is the same module in every way but speed."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import smelt


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 2)
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))) * self.scale

    def describe(self) -> str:
        return f"scale {self.scale}"


@pytest.fixture
def pair() -> tuple[Net, Net]:
    net = Net()
    return net, smelt.compile(net)


def test_result_and_class(pair: tuple[Net, Net]) -> None:
    net, twin = pair
    x = torch.randn(3, 4)
    torch.testing.assert_close(twin(x), net(x))
    assert isinstance(twin, Net)
    assert type(twin).__name__ == "Net"
    assert smelt.stats()["graphs"] == 1


def test_state_is_shared(pair: tuple[Net, Net]) -> None:
    net, twin = pair
    assert list(twin.state_dict()) == list(net.state_dict())
    assert all(a is b for a, b in zip(twin.parameters(), net.parameters(), strict=True))
    twin.eval()
    assert not net.training and not net.first.training
    twin.scale = 3.0
    assert net.scale == 3.0 and twin.describe() == "scale 3.0"
    twin.load_state_dict({k: torch.zeros_like(v) for k, v in net.state_dict().items()})
    assert twin(torch.randn(1, 4)).abs().sum() == 0


def test_changed_attribute_is_seen(pair: tuple[Net, Net]) -> None:
    net, twin = pair
    x = torch.randn(3, 4)
    before = twin(x)
    net.scale = 4.0
    torch.testing.assert_close(twin(x), before * 2)


def test_replaced_parameter_is_seen(pair: tuple[Net, Net]) -> None:
    net, twin = pair
    x = torch.randn(3, 4)
    twin(x)
    net.second = nn.Linear(8, 2)
    torch.testing.assert_close(twin(x), net(x))


def test_hooks_run(pair: tuple[Net, Net]) -> None:
    net, twin = pair
    seen: list[str] = []
    net.register_forward_hook(lambda *_: seen.append("whole"))
    net.first.register_forward_hook(lambda *_: seen.append("first"))
    twin(torch.randn(3, 4))
    twin(torch.randn(3, 4))
    assert seen == ["first", "whole"] * 2


def test_deepcopy_is_compiled_and_separate(pair: tuple[Net, Net]) -> None:
    net, twin = pair
    other = copy.deepcopy(twin)
    assert smelt.is_compiled(other) and isinstance(other, Net)
    x = torch.randn(3, 4)
    torch.testing.assert_close(other(x), twin(x))
    with torch.no_grad():
        other.first.weight.zero_()
    assert net.first.weight.abs().sum() > 0


def test_pickle(pair: tuple[Net, Net]) -> None:
    _, twin = pair
    other = pickle.loads(pickle.dumps(twin))
    assert smelt.is_compiled(other)
    x = torch.randn(3, 4)
    torch.testing.assert_close(other(x), twin(x))


def test_child_of_another_module(pair: tuple[Net, Net]) -> None:
    _, twin = pair
    model = nn.Sequential(twin, nn.Linear(2, 2))
    assert list(model.state_dict())[0] == "0.first.weight"
    x = torch.randn(3, 4)
    torch.testing.assert_close(smelt.compile(model)(x), model(x))


def test_compiling_twice_is_compiling_once(pair: tuple[Net, Net]) -> None:
    net, twin = pair
    again = smelt.compile(twin)
    assert again._orig_mod is net


def test_gradients_reach_the_original(pair: tuple[Net, Net]) -> None:
    net, twin = pair
    x = torch.randn(3, 4)
    net(x).sum().backward()
    expected = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    twin(x).sum().backward()
    torch.testing.assert_close([p.grad for p in net.parameters()], expected)


@pytest.mark.parametrize("layer", [nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 4), nn.GELU()), nn.LayerNorm(4)])
def test_torch_modules(layer: nn.Module) -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(smelt.compile(layer)(x), layer(x))
    assert smelt.stats()["graphs"] == 1


def test_scripted_module_is_refused() -> None:
    with pytest.raises(smelt.OptionError, match="cannot be compiled"):
        smelt.compile(torch.jit.script(nn.Linear(2, 2)))


def test_what_was_pickled_under_the_former_name_is_loaded(pair: tuple[Net, Net]) -> None:
    net, twin = pair
    under_new = pickle.dumps(twin, protocol=2)  # a protocol in which names of modules are lines of text
    under_old = under_new.replace(b"csmelt.compiled_module\n", b"csmelt.twin\n")
    assert under_old != under_new
    x = torch.randn(3, 4)
    torch.testing.assert_close(pickle.loads(under_old)(x), net(x))
