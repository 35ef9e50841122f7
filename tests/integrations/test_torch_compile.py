"""torch.compile with smelt as its backend, and both compilers in one program."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.capture import _native as native


@pytest.fixture(autouse=True)
def fresh_torch_compile() -> Iterator[None]:
    smelt.uninstall()
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm = nn.Linear(8, 16), nn.Linear(16, 4), nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.nn.functional.gelu(self.norm(self.one(x))))


def trained(model: Any, run: Any, sizes: tuple[int, ...]) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for n in sizes:
        optimizer.zero_grad()
        run(torch.linspace(-1, 1, n * 8).reshape(n, 8)).square().mean().backward()
        optimizer.step()
    return [*model.parameters(), *model.buffers()]


# -- torch.compile(backend="smelt")


@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead", "max-autotune"])
def test_training(dynamic: bool | None, mode: str | None) -> None:
    torch.manual_seed(1)
    one = Net()
    torch.manual_seed(1)
    two = Net()
    run = torch.compile(one, backend="smelt", mode=mode, dynamic=dynamic)
    torch.testing.assert_close(trained(one, run, (4, 4, 6, 5, 9)), trained(two, two, (4, 4, 6, 5, 9)))
    assert smelt.stats()["graphs"] and not smelt.stats()["fallbacks"]


def test_a_new_size_compiles_once_more() -> None:
    run = torch.compile(Net().eval(), backend="smelt")
    with torch.no_grad():
        for n in (4, 5, 6, 7, 8):
            run(torch.randn(n, 8))
    assert smelt.stats()["graphs"] == 2


def test_options_and_errors() -> None:
    x = torch.randn(5)
    run = torch.compile(lambda x: x.sin() * 2, backend="smelt", options={"recompile_limit": 3})
    torch.testing.assert_close(run(x), x.sin() * 2)
    wrong = torch.compile(lambda x: x.sin() * 3, backend="smelt", options={"no_such": 3})
    with pytest.raises(Exception, match="no_such"):
        wrong(x)


def test_the_ecosystems_other_forms() -> None:
    assert "smelt" in torch.compiler.list_backends()
    assert "smelt" in smelt.list_backends()
    x = torch.randn(3, 8)
    model = Net().eval()
    want = model(x)
    model.compile(backend="smelt")
    torch.testing.assert_close(model(x), want)
    graphs = smelt.stats()["graphs"]
    assert graphs
    if hasattr(torch.compiler, "set_default_backend"):
        torch.compiler.set_default_backend("smelt")
        try:
            torch.testing.assert_close(torch.compile(lambda x: x.cos() + 1)(x), x.cos() + 1)
        finally:
            torch.compiler.set_default_backend(None)
        assert smelt.stats()["graphs"] == graphs + 1


def test_a_break_inputs_that_are_written_and_results_that_are_views() -> None:
    def function(x: torch.Tensor, n: int) -> Any:
        x.add_(1)
        print(end="")
        y = x * n
        return y, y.t(), x[1:], y.sum().item(), {"k": y[0]}

    run = torch.compile(function, backend="smelt")
    for n in (2, 3, 4):
        a, b = torch.ones(3, 4), torch.ones(3, 4)
        torch.testing.assert_close((run(a, n), a), (function(b, n), b))


@pytest.mark.parametrize("name", ["smelt", "aot_eager", "eager"])
def test_looked_up_backends_take_graphs(name: str) -> None:
    gm = torch.fx.symbolic_trace(lambda x, y: (x.sin() + y, x * 2))
    x, y = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(smelt.lookup_backend(name)(gm, [x, y])(x, y), (x.sin() + y, x * 2))
    with pytest.raises(smelt.OptionError, match="smelt"):
        smelt.lookup_backend("smlet")


# -- both in one program


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.compile(nn.Linear(8, 8), backend="eager")
        self.b = nn.Linear(8, 8)
        self.b.compile(backend="eager")

    @torch.compile(backend="eager")
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(x) * 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(self.a(x))


def test_module_compiled_by_torch_inside_a_model_is_captured_from_its_original() -> None:
    model, x = Mixed(), torch.randn(3, 8)
    run = smelt.compile(model, fullgraph=True)
    torch.testing.assert_close(run(x), model(x))
    run(x).sum().backward()
    assert smelt.stats()["graphs"] == 1 and smelt.stats()["recompiles"] == 0


def test_argument_compiled_by_torch_is_compiled_from_its_original() -> None:
    x = torch.randn(3, 8)
    model = Net().eval()
    run = smelt.compile(torch.compile(model, backend="eager"), fullgraph=True)
    assert type(run) is not type(torch.compile(model, backend="eager")) and isinstance(run, Net)
    torch.testing.assert_close(run(x), model(x))
    function = torch.compile(lambda x: x.sin() * 2, backend="eager")
    torch.testing.assert_close(smelt.compile(function, fullgraph=True)(x), x.sin() * 2)
    model.compile(backend="eager")
    torch.testing.assert_close(smelt.compile(model, fullgraph=True)(x), run(x))
    assert smelt.stats()["breaks"] == 0


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_steps_of_optimizers_are_one_graph_after_torch_compile(name: str) -> None:
    """At its first use torch.compile marks parts of all optimizers as disabled."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    one, two = nn.Linear(4, 2), nn.Linear(4, 2)
    two.load_state_dict(one.state_dict())
    for model, compiled in ((one, True), (two, False)):
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)

        def step(x: torch.Tensor, model: Any = model, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run = smelt.compile(step, fullgraph=True) if compiled else step
        for _ in range(3):
            run(torch.linspace(-1, 1, 8).reshape(2, 4))
    torch.testing.assert_close(one.state_dict(), two.state_dict())


def test_modules_are_made_inside_after_torch_compile() -> None:
    """At its first module torch.compile replaces `Module.__init__`."""
    torch.compile(nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
    x = torch.linspace(-1, 1, 6).reshape(2, 3)
    run = smelt.compile(lambda x: nn.CrossEntropyLoss()(x, torch.tensor([0, 2])), fullgraph=True)
    torch.testing.assert_close(run(x), nn.functional.cross_entropy(x, torch.tensor([0, 2])))


def test_disabled_functions_stay_so() -> None:
    @torch.compiler.disable
    def outside(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    x = torch.randn(3)
    torch.testing.assert_close(smelt.compile(lambda x: outside(x) + 1)(x), x * 3 + 1)
    with pytest.raises(smelt.Unsupported, match="disable"):
        smelt.compile(lambda x: outside(x) + 1, fullgraph=True)(x)


def test_torch_compile_calls_what_smelt_compiled_and_warns_once() -> None:
    from smelt.capture import compiled

    compiled._on_other_left.cache_clear()
    x = torch.randn(3, 8)
    inner = smelt.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.cos()) + 1

    outer, function = Outer(), smelt.compile(lambda x: x * 2 + 1)
    want = outer(x)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = torch.compile(outer, backend="eager")
        for _ in range(3):
            torch.testing.assert_close(run(x), want)
        run(x).sum().backward()
        torch.testing.assert_close(torch.compile(function, backend="eager")(x), x * 2 + 1)
    ours = [str(w.message) for w in caught if issubclass(w.category, smelt.SmeltWarning)]
    assert len(ours) == 1 and "leave torch.compile away" in ours[0]
    assert not [w for w in caught if "smelt.capture" in str(w.message)], "torch.compile looked inside"


def test_torch_compile_inside_of_what_smelt_runs_is_not_captured() -> None:
    """Its own frames, among them those that it makes of text, were captured while it compiled."""
    kept: dict[str, Any] = {}

    def function(x: torch.Tensor) -> torch.Tensor:
        kept["f"] = kept.get("f") or eval("torch.compile(g, backend='aot_eager')")
        eval("1")
        return kept["f"](x) + 1

    def g(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    function.__globals__["g"] = g
    try:
        run = smelt.compile(function)
        for n in (3, 4, 5, 6):
            x = torch.randn(n, requires_grad=True)
            torch.testing.assert_close(run(x), x.sin() * 2 + 1)
            run(x).sum().backward()
            torch.testing.assert_close(x.grad, x.detach().cos() * 2)
    finally:
        del function.__globals__["g"]
    reasons = smelt.stats()["break_reasons"]
    assert not [reason for reason in reasons if "_dynamo" in reason]


def test_both_in_threads_of_their_own() -> None:
    ours, theirs = smelt.compile(lambda x: x.sin() * 2 + 1), torch.compile(lambda x: x.cos() * 3, backend="eager")
    failed: list[BaseException] = []

    def work(run: Any, want: Any) -> None:
        try:
            for n in range(1, 40):
                x = torch.full((n % 5 + 1,), 0.25 * n)
                torch.testing.assert_close(run(x), want(x))
        except BaseException as error:
            failed.append(error)

    pairs = [(ours, lambda x: x.sin() * 2 + 1), (theirs, lambda x: x.cos() * 3)]
    threads = [threading.Thread(target=work, args=pair) for pair in pairs * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_after_torch_compile_has_run_frames_are_captured_as_before() -> None:
    x = torch.randn(4)
    torch.compile(lambda x: x + 1, backend="eager")(x)
    run = smelt.compile(lambda x: x.exp() * 2)
    run(x)
    smelt.reset()
    run(x)
    assert smelt.stats()["graphs"] == 1


def test_functions_of_torch_compile_without_a_file_are_not_captured() -> None:
    """Dataclasses are given functions as text; whether one runs inside of a compiled call depends on earlier ones."""
    from torch._dynamo.types import ConvertFrameReturn

    run = smelt.compile(lambda x: x + 1)
    run(torch.ones(2))
    session = run._smelt_session
    assert isinstance(native.call(ConvertFrameReturn, (), {}, session), ConvertFrameReturn)
    assert not any(site.key.co_filename == "<string>" for site in session.sites.values())
