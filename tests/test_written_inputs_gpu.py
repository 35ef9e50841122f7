"""Inputs that a program writes and whose old values its backward reads: on a GPU the program writes them itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

import smelt
from smelt import driver
from smelt.gpu import Recordings, old_values, written_inside

aten = torch.ops.aten


def _as_written(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def run(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(2)
        return function(x, w)

    return run


def _negated(x: Tensor, w: Tensor) -> Tensor:
    return F.mse_loss(w.expand_as(x.neg_()), x, reduction="none")


def _a_part(x: Tensor, w: Tensor) -> Tensor:
    kept = (x[:, 1:] * 3) * w
    x[:, 1:].neg_()
    return kept * x[:, :-1]


def _at_places(x: Tensor, w: Tensor) -> Tensor:
    kept = (x * 3) * w
    x.index_copy_(0, torch.tensor([2, 0], device=x.device), x[:2].exp())
    return kept + x * w


PROGRAMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "negated": _negated,
    "product": _as_written(lambda x, w: x * w),
    "square": _as_written(lambda x, w: (w - x) ** 2),
    "exponential": _as_written(lambda x, w: x.exp() * w),
    "before and after": lambda x, w: (x * 3) * w + x.sin_() * w,
    "a part": _a_part,
    "at places": _at_places,
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "rows": lambda x: x.clone(),
    "steps": lambda x: torch.stack([x, x], -1)[..., 0],
    "transposed": lambda x: x.mT.contiguous().mT,
    "offset": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
}


def _gradients(device: str, function: Any, layout: str, calls: int) -> list[Tensor]:
    """What is written and the gradients, of calls whose backwards come when all have run."""
    generator = torch.Generator().manual_seed(3)
    found, losses = [], []
    for _ in range(calls):
        x = LAYOUTS[layout](torch.randn(5, 257, generator=generator).to(device))
        w = torch.randn(1, generator=generator).to(device).requires_grad_()
        losses.append((function(x, w) * torch.randn(5, 1, generator=generator).to(device)).sum())
        found += [x, w]
    for loss in reversed(losses):
        loss.backward()
    return [t.grad if t.requires_grad else t for t in found]  # type: ignore[misc]


def _check(device: str, name: str, layout: str, **options: Any) -> None:
    compiled = smelt.compile(PROGRAMS[name], **options)
    for calls in (1, 1, 3, 1):
        torch.testing.assert_close(
            _gradients(device, compiled, layout, calls),
            _gradients(device, PROGRAMS[name], layout, calls),
            rtol=1e-4,
            atol=1e-4,
        )


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("options", [{}, {"mode": "reduce-overhead"}, {"options": {"cuda_graphs": False}}], ids=str)
def test_gradients_on_a_gpu(name: str, layout: str, options: dict[str, Any]) -> None:
    _check("cuda", name, layout, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_on_a_cpu(name: str, layout: str) -> None:
    _check("cpu", name, layout)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_program_that_hands_out_old_values(layout: str) -> None:
    """They are as they were, with their strides; other results are left alone."""
    made = torch.ones(2)

    def results(inputs: list[Any]) -> list[Any]:
        return [inputs[0] + 1, inputs[0], inputs[0][1:], inputs[1], made]

    program = written_inside(results, {0: 0}, [1, 2, 3])
    x, other = LAYOUTS[layout](torch.randn(4, 6)), torch.randn(3)
    before, strides = x.clone(), x.stride()
    new, old, part, given, result = program([x, other])
    assert new is x and torch.equal(x, before + 1)
    assert torch.equal(old, before) and torch.equal(part, before[1:]) and given is other and result is made
    assert old.stride() == strides and part.stride() == strides


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.uint16, torch.int16, torch.float8_e5m2])
def test_new_values_arrive_bit_by_bit(dtype: torch.dtype, device: str) -> None:
    """A NaN keeps its other bits: torch copies many tensors of 16-bit numbers through float32 there."""
    kind = torch.int8 if dtype.itemsize == 1 else torch.int16
    bits = torch.arange(-(2 ** (8 * dtype.itemsize - 1)), 2 ** (8 * dtype.itemsize - 1)).to(kind).to(device)
    x, other = torch.zeros_like(bits).view(dtype), torch.zeros(4, device=device)
    program = written_inside(lambda inputs: [bits.view(dtype), inputs[1] + 1], {0: 0, 1: 1}, [])
    program([x, other])
    assert torch.equal(x.view(kind), bits) and torch.equal(other, torch.ones_like(other))


class _InsideEverywhere(Recordings):
    """Programs of a CPU that write their inputs as those of a GPU do, where all sharing results must be expected."""

    def of_graph(self, programs: Sequence[Any], split: Sequence[bool], old: Sequence[int]) -> list[Any]:
        places = {name: i for i, name in enumerate(self.names)}
        written = {result: places[name] for result, name in self.joint.updates().items()}
        forward, *backward = programs

        def run(inputs: list[Any]) -> list[Any]:
            begins = {inputs[i].untyped_storage().data_ptr() for i in written.values()}
            results = forward(inputs)
            for i, value in enumerate(results):
                if isinstance(value, Tensor) and value.untyped_storage().data_ptr() in begins:
                    assert i in written or i in old
            return list(results)

        return [written_inside(run, written, old) if written else forward, *backward]


@pytest.mark.parametrize("target", ["auto", "triton"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_old_values_are_known_from_the_graph(
    name: str, layout: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "Recordings", _InsideEverywhere)
    _check("cpu", name, layout, options={"target": target})


def test_results_of_programs_that_hand_out_nothing_old_are_not_compared() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    made = graph.call_function(aten.mul.Tensor, (x, y))
    shown = graph.call_function(aten.view.dtype, (x, torch.int32))
    graph.output((made, y, x, shown))
    assert old_values(graph, {0: "x"}) == [2, 3]
    assert old_values(graph, {2: "y"}) == [1]
    assert old_values(graph, {}) == []
