"""Who writes a program down (TorchScript, `torch.export`, `make_fx`, ONNX) sees the original of what is compiled."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

import smelt


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) * 2


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = inner, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x) + 1)


def _twice(x: Tensor) -> Tensor:
    return torch.sin(x) * 2 + 1


_twice_compiled = smelt.compile(_twice)


class Calls(nn.Module):
    """Calls a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.function = nn.Linear(3, 3), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.linear(x)) + 3


class Compiles(Inner):
    forward = smelt.compile(Inner.forward)


def _forward_alone() -> nn.Module:
    model = Outer(Inner())
    model.inner.forward = smelt.compile(model.inner.forward)  # type: ignore[method-assign]
    return model


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "a compiled module": (lambda: smelt.compile(Inner()), Inner),
    "with a compiled module": (lambda: Outer(smelt.compile(Inner())), lambda: Outer(Inner())),
    "compiled, with a compiled module": (lambda: smelt.compile(Outer(smelt.compile(Inner()))), lambda: Outer(Inner())),
    "in a sequence": (
        lambda: nn.Sequential(smelt.compile(Inner()), nn.ReLU()),
        lambda: nn.Sequential(Inner(), nn.ReLU()),
    ),
    "a compiled forward": (_forward_alone, lambda: Outer(Inner())),
    "a compiled method": (Compiles, Inner),
    "calls a compiled function": (lambda: Calls(_twice_compiled), lambda: Calls(_twice)),
}


def _traced(model: nn.Module, x: Tensor) -> Any:
    program = torch.jit.trace(model, x)
    return program, [node.kind() for node in program.inlined_graph.nodes() if node.kind().startswith("aten")]


def _made(model: nn.Module, x: Tensor) -> Any:
    program = make_fx(model)(x)
    return program, [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def _faked(model: nn.Module, x: Tensor, mode: str) -> Any:
    """The same without values: parameters are arguments, since `make_fx` makes fakes of arguments alone."""
    state = dict(model.named_parameters())
    program = make_fx(lambda state, x: functional_call(model, state, (x,)), tracing_mode=mode)(state, x)
    operators = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    return lambda x: program(state, x), operators


def _exported(model: nn.Module, x: Tensor, strict: bool = False) -> Any:
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=strict)
    return program.module(), [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def _symbolic(model: nn.Module, x: Tensor) -> Any:
    program = torch.fx.symbolic_trace(model)
    return program, [str(node.target) for node in program.graph.nodes]


def _scripted(model: nn.Module, x: Tensor) -> Any:
    program = torch.jit.script(model)
    return program, [node.kind() for node in program.inlined_graph.nodes() if node.kind().startswith("aten")]


def _onnx(model: nn.Module, x: Tensor, **how: Any) -> Any:
    onnx = pytest.importorskip("onnx")
    if how["dynamo"]:
        pytest.importorskip("onnxscript")
        written = torch.onnx.export(model, (x,), verbose=False, **how).model_proto
    else:
        file = io.BytesIO()
        torch.onnx.export(model, (x,), file, **how)
        written = onnx.load_model_from_string(file.getvalue())
    return None, [node.op_type for node in written.graph.node]


WAYS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "jit.trace": _traced,
    "make_fx": _made,
    "make_fx, fake": lambda model, x: _faked(model, x, "fake"),
    "make_fx, symbolic": lambda model, x: _faked(model, x, "symbolic"),
    "export": _exported,
    "export, strict": lambda model, x: _exported(model, x, strict=True),
    "symbolic_trace": _symbolic,
    "jit.script": _scripted,
    "onnx, legacy": lambda model, x: _onnx(model, x, dynamo=False),
    "onnx": lambda model, x: _onnx(model, x, dynamo=True),
}


@pytest.mark.parametrize("called", [False, True], ids=["before a call", "after a call"])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("way", WAYS)
def test_the_original_is_written_down(way: str, name: str, called: bool) -> None:
    make, plain = MODELS[name]
    model, x = make(), torch.randn(4, 3)
    if called:
        model(x)
    program, operators = WAYS[way](model, x)
    _, expected = WAYS[way](plain(), x)
    assert operators == expected and len(operators) >= 3
    if program is not None:
        other = torch.randn(4, 3)
        torch.testing.assert_close(program(other), model(other))
