"""A compiled module is the same module in every way but speed."""

from __future__ import annotations

import copy
import inspect
import io
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt import api, compiled_module, regions


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


MODULE = """
import torch, smelt

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return x + self.linear(x).tanh()

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

@smelt.compile
def function(x):
    return x.sin() + 1

class Holder:
    @smelt.compile
    def method(self, x):
        return x.cos() * 2
"""

WRITE = """
import pickle, sys, torch, smelt, kept
made = {"whole": smelt.compile(kept.Model()), "regions": smelt.compile_regions(kept.Model()), "function": kept.function}
x = torch.randn(3, 4)
want = {name: each(x).detach() for name, each in made.items()} | {"method": kept.Holder().method(x)}
with open(sys.argv[1], "wb") as file:
    pickle.dump((made, kept.Holder.method, x, want), file)
"""

READ = """
import pickle, sys, torch
with open(sys.argv[1], "rb") as file:
    made, method, x, want = pickle.load(file)
import smelt, kept
made["method"] = lambda x: method(kept.Holder(), x)
for name, each in made.items():
    torch.testing.assert_close(each(x), want[name])
    assert name == "method" or smelt.is_compiled(made["regions"].blocks[1] if name == "regions" else each)
print(smelt.stats()["graphs"], smelt.stats()["fallbacks"])
"""


def test_pickles_are_read_by_another_process(tmp_path: Path) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "kept.py").write_text(MODULE)
    path = os.pathsep.join((str(tmp_path / "modules"), str(Path(smelt.__file__).parents[1])))
    for number, program in enumerate((WRITE, READ)):
        folder = tmp_path / str(number)
        folder.mkdir()
        env = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": str(number + 1)}
        command = [sys.executable, "-c", program, str(tmp_path / "kept.pkl")]
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    graphs, fallbacks = done.stdout.split()
    assert int(graphs) >= 4 and fallbacks == "0"


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


@pytest.mark.parametrize("compile", [smelt.compile, smelt.compile_regions])
@pytest.mark.parametrize("calls", [False, True], ids=["plain", "own call"])
def test_a_class_that_derives_from_a_compiled_one_compiles(
    compile: Any, calls: bool, pair: tuple[Net, Net], recwarn: pytest.WarningsRecorder
) -> None:
    class Derived(type(pair[1])):  # type: ignore[misc]
        if calls:

            def __call__(self, x: torch.Tensor) -> Any:
                return super().__call__(x) * 2

    module, x = Derived(), torch.randn(3, 4)
    assert not smelt.is_compiled(module) and module(x).shape == (3, 2)
    for ordinary in (copy.copy(module), copy.deepcopy(module)):
        assert type(ordinary) is Derived and list(ordinary.state_dict()) == list(module.state_dict())
        torch.testing.assert_close(ordinary(x), module(x))
    assert copy.deepcopy(module).first.weight is not module.first.weight
    with pytest.raises(smelt.OptionError, match="not compiled"):
        module.aot_compile(x)
    compiled = compile(module)
    assert smelt.is_compiled(compiled) and compiled._orig_mod is module and isinstance(compiled, Derived)
    torch.testing.assert_close(compiled(x), module(x))
    assert type(type(compiled)()) is Derived and smelt.stats()["graphs"] >= 1
    again = smelt.compile(copy.deepcopy(compiled))
    torch.testing.assert_close(again(x), module(x))


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


class FormerPickle:
    """What compiled modules left in pickles: a function of ours, an object of ours, the original."""

    def __init__(self, twin: Any) -> None:
        self.twin = twin

    def __reduce__(self) -> tuple[Any, ...]:
        return compiled_module._unpickle, (compiled_module.Remake(smelt.compile, {}), self.twin._orig_mod)


def test_pickles_of_former_versions_are_loaded(pair: tuple[Net, Net]) -> None:
    net, twin = pair
    before = pickle.dumps(FormerPickle(twin), protocol=2)  # a protocol in which names of modules are lines of text
    still_before = before.replace(b"csmelt.compiled_module\n", b"csmelt.twin\n")
    assert still_before != before
    x = torch.randn(3, 4)
    for each in (before, still_before):
        loaded = pickle.loads(each)
        assert smelt.is_compiled(loaded)
        torch.testing.assert_close(loaded(x), net(x))


@pytest.mark.parametrize("regional", [False, True])
def test_saved_models_are_loaded_as_data(regional: bool) -> None:
    """What eager's model needs to be allowed is all that the compiled one needs."""
    net = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)))
    saved = smelt.compile_regions(net) if regional else smelt.compile(net, dynamic=True, options={"gemm": "aten"})
    file = io.BytesIO()
    torch.save(saved, file)
    file.seek(0)
    with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.ReLU]):
        loaded = torch.load(file, weights_only=True)
    x = torch.randn(3, 4, requires_grad=True)  # as what one block gives the next
    torch.testing.assert_close(loaded(x), net(x))
    assert smelt.is_compiled(loaded[0] if regional else loaded) and smelt.stats()["graphs"] == 1
    if not regional:
        loaded(torch.randn(5, 4, requires_grad=True))
        assert smelt.stats()["graphs"] == 1  # it has the arguments


@pytest.mark.parametrize(
    "what",
    [
        (api.compiled_again, ("print", {})),
        (api.compiled_again, (nn.ReLU(), "x")),
        (regions.block_again, (print, nn.ReLU())),
        (regions.block_group, ({"mode": "x"}, 1)),
    ],
    ids=["a name", "text for arguments", "a function", "a mode for blocks"],
)
def test_files_of_strangers_compile_modules_alone(what: tuple[Any, tuple[Any, ...]]) -> None:
    function, args = what
    with pytest.raises((TypeError, smelt.OptionError)):
        function(*args)


class ForgedGroup(regions.BlockGroup):
    """Names what a file may name, and sets attributes of it that nobody has checked."""

    def __reduce__(self) -> tuple[Any, ...]:
        function, args = super().__reduce__()
        return function, args, {"options": "anything", "_first": "anything"}


def test_files_of_strangers_set_no_attributes() -> None:
    file = io.BytesIO()
    torch.save(ForgedGroup({}, 1), file)
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="BlockGroup"):
        torch.load(file, weights_only=True)


def _doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


doubled = smelt.compile(_doubled)
_doubled.__qualname__ = doubled.__qualname__ = "doubled"


def test_functions_are_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(doubled)) is doubled


def test_functions_are_pickled_by_value() -> None:
    cloudpickle = pytest.importorskip("cloudpickle")
    factor = 3
    written = cloudpickle.dumps(smelt.compile(lambda x: x * factor, fullgraph=True))
    loaded, x = pickle.loads(written), torch.randn(3)
    torch.testing.assert_close(loaded(x), x * 3)
    assert smelt.is_compiled(loaded) and smelt.stats()["graphs"] == 1 and loaded._smelt_session.options.fullgraph


class Calls(Net):
    def __call__(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return super().__call__(x) * scale


@pytest.mark.parametrize("make", [Net, Calls, lambda: nn.Linear(2, 3)])
def test_signatures(make: Any) -> None:
    net = make()
    twin = smelt.compile(net)
    assert inspect.signature(twin) == inspect.signature(net)
    assert inspect.signature(type(twin)) == inspect.signature(type(net))
    assert inspect.getsource(type(twin)) == inspect.getsource(type(net))

    class Derived(type(twin)):  # type: ignore[misc]
        def __init__(self, width: int) -> None:
            super().__init__()

    assert list(inspect.signature(Derived).parameters) == ["width"]


def test_the_original_is_what_is_wrapped(pair: tuple[Net, Net]) -> None:
    _, twin = pair
    assert inspect.unwrap(twin) is twin.__wrapped__ is twin._orig_mod
    assert not hasattr(type(twin), "__wrapped__") and inspect.unwrap(type(twin)) is type(twin)
