"""The public functions: arguments, backends, counters, and what bad input says."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

import smelt
from smelt.base.options import Options
from smelt.driver import triton_device
from smelt.graph.ir.meta import TensorMeta


def double(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


X = torch.linspace(-1, 1, 8)


def test_decorator_forms() -> None:
    plain = smelt.compile(double)
    with_arguments = smelt.compile(fullgraph=True)(double)
    torch.testing.assert_close(plain(X), double(X))
    torch.testing.assert_close(with_arguments(X), double(X))
    assert plain.__name__ == "double"


def test_disable_returns_the_function() -> None:
    assert smelt.compile(double, disable=True) is double


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
def test_built_in_backends(backend: str) -> None:
    x = X.clone().requires_grad_()
    smelt.compile(double, backend=backend)(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.cos(X))
    assert smelt.stats()["graphs"] == 1
    assert backend in smelt.list_backends()


def test_registered_backend_sees_the_graph() -> None:
    seen: list[fx.GraphModule] = []

    @smelt.register_backend
    def watching(gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> Callable[..., object]:
        seen.append(gm)
        assert torch.equal(example_inputs[0], X)
        return gm.forward

    torch.testing.assert_close(smelt.compile(double, backend="watching")(X), double(X))
    torch.testing.assert_close(smelt.compile(double, backend=watching)(X), double(X))
    assert len(seen) == 2
    assert "watching" in smelt.list_backends()


def test_built_in_names_are_taken() -> None:
    with pytest.raises(smelt.OptionError, match="built in"):
        smelt.register_backend(lambda gm, inputs: gm, name="smelt")


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"backend": "smlt"}, "did you mean 'smelt'"),
        ({"mode": "max-autotun"}, "did you mean 'max-autotune'"),
        ({"options": {"eager_rgn": True}}, "did you mean 'eager_rng'"),
        ({"options": {"eager_rng": 1}}, "wants bool"),
        ({"options": {"activation_memory_budget": 2.0}}, "between 0 and 1"),
        ({"options": {"gemm": "fast"}}, "valid: 'aten'"),
        ({"mode": "default", "options": {"eager_rng": True}}, "both given"),
    ],
)
def test_errors_for_bad_arguments_list_valid_ones(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises(smelt.OptionError, match=message):
        smelt.compile(double, **kwargs)


def test_stats_count_and_reset() -> None:
    f = smelt.compile(double)
    f(X)
    f(X[:4])
    stats = smelt.stats()
    assert stats["graphs"] == 2 and stats["recompiles"] == 1 and stats["breaks"] == 0
    assert stats["ops"] == 4 and stats["compile_s"] > 0
    smelt.reset()
    assert smelt.stats()["graphs"] == 0


def test_explain_lists_graphs_breaks_and_guards() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum().item() > 0:
            y = y + 1
        return y - 3

    explanation = smelt.explain(f)(X + 2)
    torch.testing.assert_close(explanation.result, f(X + 2))
    assert explanation.graph_count == 2 and explanation.graph_break_count == 1
    assert "test_api.py" in str(explanation.break_reasons[0])
    assert any("x" in line for line in explanation.guards[0])


def test_fullgraph_makes_a_break_an_error() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        print(x.sin())
        return x.cos()

    with pytest.raises(smelt.Unsupported, match="test_api.py"):
        smelt.compile(f, fullgraph=True)(X)


def test_compiler_error_falls_back_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMELT_STRICT", "0")
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))

    @smelt.register_backend(name="broken")
    def broken(gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> Callable[..., object]:
        raise RuntimeError("kaputt")

    f = smelt.compile(double, backend="broken")
    with pytest.warns(smelt.SmeltWarning, match="kaputt"):
        torch.testing.assert_close(f(X), double(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(f(X), double(X))
    assert smelt.stats()["fallbacks"] == 1
    assert list(tmp_path.glob("failures/*/1_torch.py")) or list(tmp_path.glob("failures/*/guards.py"))


def test_compiler_error_is_raised_when_strict() -> None:
    @smelt.register_backend(name="broken_too")
    def broken(gm: fx.GraphModule, example_inputs: Sequence[torch.Tensor]) -> Callable[..., object]:
        raise RuntimeError("kaputt")

    with pytest.raises(RuntimeError, match="kaputt"):
        smelt.compile(double, backend="broken_too")(X)


def test_no_compiler_warns_with_a_hint_and_runs_eager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMELT_STRICT", "0")
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    from smelt.runtime import build

    build.find_compiler.cache_clear()
    try:
        with pytest.warns(smelt.SmeltWarning, match="install g\\+\\+"):
            torch.testing.assert_close(smelt.compile(double)(X[:5]), double(X[:5]))
    finally:
        build.find_compiler.cache_clear()


def test_trace_writes_every_stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SMELT_TRACE", "1")
    monkeypatch.setenv("SMELT_TRACE_DIR", str(tmp_path))
    smelt.compile(double)(X.clone().requires_grad_())
    (folder,) = tmp_path.iterdir()
    files = sorted(path.name for path in folder.iterdir())
    assert [name[0] for name in files] == ["1", "2", *"3333333", "4", "4", "5", "5", "6", "6", "7", "7", "g", "r", "r"]
    assert "sin" in (folder / "1_torch.py").read_text()
    compile((folder / "2_joint.py").read_text(), "2_joint.py", "exec")
    compile((folder / "repro.py").read_text(), "repro.py", "exec")


def test_without_its_extensions_the_package_raises_with_a_hint(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["smelt.capture._native"] = None
import smelt
try:
    smelt.compile
except smelt.SmeltError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install" in done.stdout


def test_tensors_without_memory_are_computed_by_their_shapes() -> None:
    got = smelt.compile(double, fullgraph=True)(torch.empty(3, device="meta"))
    assert got.device.type == "meta" and got.shape == (3,)
    assert smelt.stats()["fallbacks"] == 0


def test_kernels_are_made_for_a_cpu_or_one_gpu() -> None:
    graph = fx.Graph()
    for name, device in (("x", "cuda:0"), ("y", "cuda:1")):
        graph.placeholder(name).meta["val"] = TensorMeta((3,), torch.float32, (1,), torch.device(device))
    graph.output(())
    with pytest.raises(smelt.CompileError, match="a CPU or one CUDA device"):
        triton_device(fx.GraphModule({}, graph), Options())


@pytest.mark.parametrize("fn", [torch.sin, torch.nn.functional.gelu, torch.Tensor.cos])
def test_functions_of_torch_are_compiled_too(fn: Callable[..., torch.Tensor]) -> None:
    torch.testing.assert_close(smelt.compile(fn, fullgraph=True)(X), fn(X))
    assert smelt.stats()["graphs"] == 1


@pytest.mark.parametrize(
    "bad, says",
    [
        ({"mode": []}, "mode wants a name"),
        ({"mode": "fast"}, "unknown mode"),
        ({"options": "gemm"}, "options wants a dict"),
        ({"options": {3: 4}}, "unknown option 3"),
        ({"options": {"recompile_limit": -5}}, "positive"),
        ({"options": {"recompile_limit": 0}}, "positive"),
        ({"options": {"recompile_limit": "8"}}, "wants int"),
        ({"options": {"recompile_limit": float("nan")}}, "wants int"),
        ({"options": {"activation_memory_budget": float("nan")}}, "between 0 and 1, got nan"),
        ({"options": {"activation_memory_budget": 10**400}}, "between 0 and 1"),
        ({"options": {"gemm": "aten"}, "mode": "default"}, "both given"),
        ({"dynamic": "yes"}, "dynamic wants"),
        ({"dynamic": 1}, "dynamic wants True, False or None, got 1"),
        ({"fullgraph": None}, "fullgraph wants True or False, got None"),
        ({"fullgraph": 1}, "fullgraph wants"),
        ({"fullgraph": torch.ones(2)}, "fullgraph wants"),
        ({"backend": []}, "backend wants a name or a callable"),
        ({"backend": None}, "backend wants a name or a callable"),
        ({"disable": "no"}, "disable wants"),
    ],
)
def test_bad_options_are_errors_before_anything_runs(bad: dict[str, object], says: str) -> None:
    with pytest.raises(smelt.OptionError, match=says):
        smelt.compile(double, **bad)
    with pytest.raises(smelt.OptionError, match=says):
        smelt.compile(**bad)  # a decorator, too


class Unspeakable:
    """A value that cannot be shown."""

    def __init__(self, error: type[Exception] = ValueError) -> None:
        self.error = error

    def __repr__(self) -> str:
        raise self.error("nothing to see")


class UnspeakableText(str):
    def __repr__(self) -> str:
        raise ValueError("nothing to see")


class OwnText(str):
    """A name that compares as it likes."""

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("name", ["mode", "backend"])
@pytest.mark.parametrize("value", ["default", "eager", "smelt", "nothing"])
def test_names_are_texts_of_any_class(name: str, value: str) -> None:
    if value in (("default",) if name == "mode" else ("eager", "smelt")):
        compiled = smelt.compile(double, **{name: OwnText(value)})  # type: ignore[arg-type]
        assert compiled(torch.ones(2)).tolist() == smelt.compile(double, **{name: value})(torch.ones(2)).tolist()  # type: ignore[arg-type]
    else:
        with pytest.raises(smelt.OptionError, match=f"unknown {name} '{value}'"):
            smelt.compile(double, **{name: OwnText(value)})  # type: ignore[arg-type]


class ManyLines:
    def __repr__(self) -> str:
        return "<an object\n  try: something else>"


class NamelessClass(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise ValueError("nothing to see")

    __repr__ = Unspeakable.__repr__


class Nameless(metaclass=NamelessClass):
    error = ValueError


UNUSUAL = {
    "its repr raises": Unspeakable(),
    "its repr is too deep": Unspeakable(RecursionError),
    "a text whose repr raises": UnspeakableText("a"),
    "a megabyte": "x" * 10**6,
    "a long list": [1] * 10**6,
    "a number of many digits": 10**5000,
    "lines": ManyLines(),
    "a class without a name": Nameless,
}
SETTINGS = ["fullgraph", "dynamic", "mode", "options", "disable", *smelt.list_options(), "an option"]


@pytest.mark.parametrize("value", UNUSUAL)
@pytest.mark.parametrize("name", SETTINGS)
def test_messages_show_whatever_was_passed(name: str, value: str) -> None:
    given = UNUSUAL[value]
    if name == "recompile_limit" and type(given) is int:
        pytest.skip("a limit may be as large")
    if name == "an option":
        bad: dict[str, object] = {"options": {given: 1} if value != "a long list" else {(*given,): 1}}
    else:
        bad = {name: given} if name in SETTINGS[:5] else {"options": {name: given}}
    with pytest.raises(smelt.OptionError, match="wants|unknown") as caught:
        smelt.compile(double, **bad)  # type: ignore[arg-type]
    lines = str(caught.value).splitlines()
    assert len(str(caught.value)) < 700 and all(line.startswith("  try: ") for line in lines[1:]) and len(lines) <= 2


@pytest.mark.parametrize("value", UNUSUAL)
def test_messages_show_whatever_cannot_be_compiled(value: str) -> None:
    with pytest.raises(TypeError, match="takes an nn.Module or a function") as caught:
        smelt.compile(UNUSUAL[value])
    assert len(str(caught.value)) < 700


class AnswersNothing:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def __getattr__(self, name: str) -> object:
        raise ValueError(f"asked for {name}")


def test_an_object_is_only_asked_for_its_call() -> None:
    torch.testing.assert_close(smelt.compile(AnswersNothing())(X), X * 2)


class Stepwise:
    def __init__(self, again: bool = True) -> None:
        self.again = again

    def __call__(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for k in range(3):
            x = step(x, k)
            yield x


def step(x: torch.Tensor, k: int) -> torch.Tensor:
    return x * k + 1


def test_objects_whose_call_goes_in_steps() -> None:
    want = list(Stepwise()(X))
    for found, wanted in zip(smelt.compile(Stepwise())(X), want, strict=True):
        torch.testing.assert_close(found, wanted)
    assert smelt.stats()["graphs"] == 3  # what it calls between its steps


@pytest.mark.parametrize("bad", [5, None, "aten", UNUSUAL["its repr raises"]])
def test_an_unknown_backend_is_an_error_at_once(bad: Any) -> None:
    with pytest.raises(smelt.OptionError, match="callable"):
        smelt.register_backend(bad if bad is not None else [], "mine")
    with pytest.raises(smelt.OptionError, match="callable"):
        smelt.aot_autograd(bad)
    with pytest.raises(smelt.OptionError, match="whole number"):
        smelt.mark_dynamic(X, bad if bad != 5 else 0.5)
    with pytest.raises(smelt.OptionError, match="whole number"):
        smelt.mark_dynamic(X, 0, max=bad if type(bad) not in (int, type(None)) else 0.5)


class Layer(torch.nn.Module):
    pass


async def later() -> None:
    pass


@pytest.mark.parametrize("bad", [Layer, int, None, 3, "double", X, (n for n in range(3)), [double]])
def test_uncompilable_objects_are_errors_at_once(bad: object) -> None:
    with pytest.raises(TypeError, match="takes an nn.Module or a function"):
        smelt.compile(bad)
    with pytest.raises(TypeError, match="takes an nn.Module or a function"):
        smelt.explain(bad)  # type: ignore[arg-type]


def test_a_coroutine_that_has_begun_cannot_be_compiled() -> None:
    coroutine = later()
    with pytest.raises(TypeError, match="has begun to run"):
        smelt.compile(coroutine)
    coroutine.close()


def test_a_scripted_module_cannot_be_compiled() -> None:
    with pytest.raises(smelt.OptionError, match="TorchScript"):
        smelt.compile(torch.jit.script(torch.nn.Linear(2, 2)))
    with pytest.raises(TypeError, match="TorchScript"):
        smelt.compile(torch.jit.script(double))


@pytest.mark.parametrize("name", ["SMELT_CACHE_DIR", "SMELT_CACHE_BYTES", "SMELT_BUILD_TIMEOUT_S"])
def test_a_wrong_environment_variable_is_an_error_at_compile(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for text in ("", "nan", "-1") if name != "SMELT_CACHE_DIR" else ("", " "):
        monkeypatch.setenv(name, text)
        with pytest.raises(smelt.OptionError, match=name):
            smelt.compile(double)


@pytest.mark.parametrize("seconds", ["inf", "1e300", "1e20"])
def test_a_compiler_may_take_as_long_as_it_likes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: str) -> None:
    monkeypatch.setenv("SMELT_BUILD_TIMEOUT_S", seconds)
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    run = smelt.compile(lambda x: torch.sin(x) * 2.125)
    assert run(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]
