"""`TorchFunctionMode`, `TorchDispatchMode` and the default device: entered around compiled code, and inside of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import smelt
from tests.capture.harness import compiled, same
from tests.mode_programs import differs


class Doubled(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.seen.append(func.__name__)
        return out * 2 if func in (torch.add, torch.Tensor.add, F.relu) else out


class Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.seen.append(str(func))
        return out * 2 if func is torch.ops.aten.sin.default else out


def inner(x: Tensor) -> Tensor:
    return torch.add(x.sin(), 1)


def program(x: Tensor) -> Tensor:
    return F.relu(inner(x) * 3)


KINDS = [Doubled, Dispatched]


@pytest.fixture(autouse=True)
def no_mode_is_left() -> Iterator[None]:
    before = torch.overrides._get_current_function_mode_stack()
    yield
    assert torch.overrides._get_current_function_mode_stack() == before
    torch.set_default_device(None)


@pytest.mark.parametrize("kind", KINDS)
def test_around(kind: Any) -> None:
    run = compiled(program)
    x = torch.rand(3)
    for warm in (False, True):
        for _ in range(3):
            with kind() as eager:
                want = program(x)
            with kind() as seen:
                got = run(x)
            assert want.equal(got) and eager.seen == seen.seen
        assert run(x).equal(program(x)), warm
    assert sum(len(site.versions) for site in run._smelt_session.sites.values()) == 1


OUTER = Doubled()


def entered_inside(x: Tensor) -> Any:
    y = x * 2
    with Doubled() as mode:
        z = inner(y)
    return z + y, mode.seen


def entered_twice(x: Tensor) -> Any:
    with Doubled():
        with Dispatched():
            y = inner(x)
        y = inner(y)
    return inner(y)


def from_outside(x: Tensor) -> Any:
    with OUTER:
        return x.add(1)


def entered_in_a_callee(x: Tensor) -> Any:
    return from_outside(x) + entered_twice(x)


@contextmanager
def doubling() -> Iterator[None]:
    with Doubled():
        yield


def by_a_context_manager(x: Tensor) -> Any:
    with doubling():
        y = inner(x)
    return y, inner(x)


def left_by_an_error(x: Tensor) -> Any:
    try:
        with Dispatched():
            y = x.sin()
            raise ValueError(y.shape)
    except ValueError:
        return inner(x)


def in_a_loop(x: Tensor) -> Any:
    for _ in range(3):
        x = inner(x)
        with Doubled():
            x = inner(x)
    return x


def counted(x: Tensor) -> Any:
    with FlopCounterMode(display=False) as counter:
        y = x @ x.T
    return y, counter.get_total_flops()


INSIDE: list[Callable[[Tensor], Any]] = [
    entered_inside,
    entered_twice,
    from_outside,
    entered_in_a_callee,
    by_a_context_manager,
    left_by_an_error,
    in_a_loop,
    counted,
]


@pytest.mark.parametrize("fn", INSIDE, ids=lambda fn: fn.__name__)
def test_inside(fn: Callable[[Tensor], Any]) -> None:
    run = compiled(fn)
    for _ in range(3):
        x = torch.rand(2, 3)
        assert same(fn(x), run(x))


def test_flops_of_a_warm_module() -> None:
    layer = nn.Linear(4, 4)
    run = smelt.compile(layer, backend="eager")
    x = torch.rand(2, 4)
    run(x)
    counts = []
    for each in (layer, run):
        with FlopCounterMode(display=False) as counter:
            each(x).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


# -- default devices -----------------------------------------------------------------------------------------------


def makes() -> list[Tensor]:
    made = [torch.ones(3), torch.tensor([1]), torch.arange(2), torch.rand(2), torch.full((2,), 1.0), torch.eye(2)]
    return [
        *made,
        torch.zeros(2, device="cpu"),
        torch.linspace(0, 1, 3),
        nn.Linear(1, 1).weight,
        torch.as_tensor([1.0]),
    ]


def devices(tensors: list[Tensor]) -> list[str]:
    return [tensor.device.type for tensor in tensors]


def with_device(x: Tensor) -> Any:
    with torch.device("meta"):
        inside = makes()
        name = torch.get_default_device().type
    return devices(inside), devices(makes()), name, torch.get_default_device().type, x + 1


def with_device_nested(x: Tensor) -> Any:
    with torch.device("meta"):
        with torch.device("cpu"):
            a = torch.ones(2)
        b = torch.ones(2)
    return x + a, b.device.type, torch.ones(1).device.type


def device_of_the_outside(x: Tensor, device: torch.device) -> Any:
    with device:
        return torch.ones(3).device.type, x + 1


def set_and_reset(x: Tensor) -> Any:
    torch.set_default_device("meta")
    made = torch.ones(3)
    torch.set_default_device(None)
    return made.device.type, torch.ones(1).device.type, x + 1


def set_and_kept(x: Tensor) -> Any:
    torch.set_default_device("meta")
    return torch.ones(3).device.type, x + 1


def device_with_a_break(x: Tensor) -> Any:
    with torch.device("meta"):
        a = torch.ones(2)
        if x.sum().item() < 1e9:
            b = torch.ones(3)
        c = [torch.ones(1).device.type, x.tolist()]
    return a.device.type, b.device.type, c, torch.ones(1).device.type


def device_left_by_an_error(x: Tensor) -> Any:
    try:
        with torch.device("meta"):
            raise ValueError
    except ValueError:
        return torch.ones(1).device.type, x + 1


DEVICES = [
    with_device,
    with_device_nested,
    set_and_reset,
    set_and_kept,
    device_with_a_break,
    device_left_by_an_error,
]


@pytest.mark.parametrize("fn", DEVICES, ids=lambda fn: fn.__name__)
def test_devices_inside(fn: Callable[[Tensor], Any]) -> None:
    run = compiled(fn)
    for _ in range(3):
        found = []
        for each in (fn, run):
            found.append((each(torch.ones(2, device="cpu")), torch.ones(1).device.type))
            torch.set_default_device(None)
            assert torch.ones(1).device.type == "cpu"
        assert same(*found)


def test_a_device_from_outside() -> None:
    run = compiled(device_of_the_outside)
    for name in ("meta", "cpu", "meta"):
        assert run(torch.ones(1), torch.device(name))[0] == name


def test_a_device_inside_is_one_graph() -> None:
    run = smelt.compile(with_device_nested, fullgraph=True, backend="eager")
    assert same(run(torch.ones(2)), with_device_nested(torch.ones(2)))


def test_tensors_without_memory() -> None:
    def f(x: Tensor) -> Any:
        values, places = (x.sin() + 1).max(-1)
        return values, places, x @ x.T

    run = smelt.compile(f)
    for _ in range(2):
        want, got = f(torch.ones(2, 3, device="meta")), run(torch.ones(2, 3, device="meta"))
        assert [(t.shape, t.dtype, t.device) for t in want] == [(t.shape, t.dtype, t.device) for t in got]
    x = torch.ones(2, 3, device="meta", requires_grad=True)
    run(x)[0].sum().backward()
    assert x.grad is not None and x.grad.device.type == "meta"


@pytest.mark.parametrize("first", [Doubled, lambda: torch.device("cpu"), lambda: torch.device("meta")])
@pytest.mark.parametrize("second", [Doubled, lambda: torch.device("cpu"), lambda: torch.device("meta")])
def test_as_many_modes_of_another_kind_are_another_state(first: Any, second: Any) -> None:
    """A default device is such a mode as well: a version made under one is not for a mode that sees operators."""

    def fn(x: Tensor) -> Any:
        return F.relu(torch.add(x, 1)), str(torch.ones(1).device)

    run, x = compiled(fn), torch.rand(3)
    for make in (first, second, first):
        seen = []
        for each in (fn, run):
            with make() as mode:
                seen.append((each(x), getattr(mode, "seen", None)))
        assert same(*seen)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_programs(first: int) -> None:
    assert [text for seed in range(first, first + 20) if (text := differs(seed))] == []
