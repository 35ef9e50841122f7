"""An operator of a library whose fake kernel tells another result than the operator gives: an error that names both."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.abi.fake_kernels import WrongFake

library = torch.library.Library("smelt_wrong_fakes", "DEF")


def operator(name: str, real: Callable[..., Any], fake: Callable[..., Any], results: str = "Tensor") -> Any:
    library.define(f"{name}(Tensor x) -> {results}")
    library.impl(name, real, "CPU")
    torch.library.register_fake(f"smelt_wrong_fakes::{name}", fake, lib=library)
    return getattr(torch.ops.smelt_wrong_fakes, name)


def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), x.cos()


OPERATORS = {
    "shape": (operator("shape", torch.sin, lambda x: x.new_empty(x.shape[0] + 1, 4)), "says float32[4, 4]"),
    "elements": (operator("elements", torch.sin, lambda x: x.new_empty(x.shape[0], 1)), "says float32[3, 1]"),
    "dimensions": (operator("dimensions", torch.sin, lambda x: x.new_empty(x.shape[0])), "says float32[3]"),
    "dtype": (
        operator("dtype", torch.sin, lambda x: torch.empty_like(x, dtype=torch.float64)),
        "says float64[3, 4]",
    ),
    "second": (
        operator("second", pair, lambda x: (torch.empty_like(x), x.new_empty(x.shape[0])), "(Tensor, Tensor)"),
        "result 1 is float32[3, 4], and the fake kernel (register_fake) says float32[3]",
    ),
    "device": (
        operator("device", lambda x: torch.empty_like(x, device="meta"), torch.empty_like),
        "result 0 is on meta, and the fake kernel (register_fake) says cpu",
    ),
    "layout": (
        operator("layout", lambda x: x.to_sparse(), torch.empty_like),
        "result 0 has the layout torch.sparse_coo, and the fake kernel (register_fake) says torch.strided",
    ),
    "nothing": (
        operator("nothing", lambda x: None, torch.empty_like),
        "there are 0 tensors among its results, and the fake kernel (register_fake) says 1",
    ),
}
STRIDES = {
    "transposed": (lambda x: x.sin().t().contiguous().t(), torch.empty_like),
    "contiguous": (torch.sin, lambda x: x.new_empty(x.shape[::-1]).t()),
    "gaps": (lambda x: torch.stack([x.sin(), x], 2)[..., 0], torch.empty_like),
    "expanded": (lambda x: x[:1, :1].expand(x.shape), torch.empty_like),
    "steps": (lambda x: torch.cat([x.sin(), x], 1)[:, : x.shape[1]], torch.empty_like),
    "offset": (lambda x: torch.cat([x, x.sin()])[x.shape[0] :], torch.empty_like),  # where it begins says nothing
}
ORDERS = {name: operator(f"strides_{name}", *made) for name, made in STRIDES.items()}
BACKENDS = ("smelt", "aot_eager")
AFTER: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda y: y,
    "used": lambda y: y * 2 + 1 if isinstance(y, Tensor) else (y[0] * 2, y[1] + 1),
    "summed": lambda y: y.sum() if isinstance(y, Tensor) else y[0].sum() + y[1].sum(),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_wrong_fake_kernel_is_reported(name: str, after: str, dynamic: bool, backend: str) -> None:
    run, said = OPERATORS[name]
    f = smelt.compile(lambda x: AFTER[after](run(x.cos())), dynamic=dynamic, backend=backend)
    if name == "nothing" and after != "as it is" or name == "layout" and after != "as it is":
        with pytest.raises((WrongFake, TypeError, AttributeError, RuntimeError)):  # eager's error, where there is one
            f(torch.rand(3, 4))
        return
    with pytest.raises(WrongFake, match=rf"smelt_wrong_fakes.{name}.default(.|\n)*{re.escape(said)}"):
        f(torch.rand(3, 4))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ORDERS)
def test_strides(name: str, dynamic: bool, backend: str) -> None:
    f = smelt.compile(lambda x: ORDERS[name](x.cos()) * 2, dynamic=dynamic, backend=backend)
    for size in (0, 1) if name == "expanded" else (0,):
        assert f(torch.rand(size, 4 if size == 0 else 1)).shape[0] == size  # no element lies elsewhere
    if name == "offset":
        f(torch.rand(3, 4))
        return
    with pytest.raises(WrongFake, match=rf"strides_{name}.default(.|\n)*result 0 has strides .*says \("):
        f(torch.rand(3, 4))


def test_strides_of_operands_do_not_decide_strides_of_results() -> None:
    """aot_eager may run an operator on other strides than those that its results were foretold from."""
    like = operator("like", lambda x: x.sin(), torch.empty_like)

    def f(x: Tensor) -> Tensor:
        y = x.t().clone()
        y.add_(1)
        return like(y.t()) + like(x.t().t() * 2)

    x = torch.rand(3, 4)
    for backend in BACKENDS:
        torch.testing.assert_close(smelt.compile(f, backend=backend)(x), f(x))


def _honest(name: str, run: Callable[..., Any], schema: str = "(Tensor x) -> Tensor", fake: Any = None) -> Any:
    library.define(name + schema)
    library.impl(name, run, "CPU")
    library.impl(name, fake or run, "Meta")
    return getattr(torch.ops.smelt_wrong_fakes, name)


def _add_to_each(xs: list[Tensor]) -> None:
    for x in xs:
        x.add_(1)


MEMORY = _honest(
    "memory",
    lambda x: x.as_strided((x.numel(),), (1,), x.storage_offset()).clone(),
    fake=lambda x: x.new_empty(x.numel()),
)
APART = _honest("apart", lambda x: torch.stack([x.sin(), x], 2)[..., 0])
ROWS = _honest("rows", lambda x: x[1:], "(Tensor(a) x) -> Tensor(a)")
WRITES = _honest("writes", _add_to_each, "(Tensor(a!)[] x) -> ()")


def _written(*given: Tensor) -> tuple[Tensor, ...]:
    WRITES(list(given))
    return given


HONEST: dict[str, Callable[[Tensor], Any]] = {
    "computed": lambda x: MEMORY(x * 2),
    "turned": lambda x: MEMORY(x.t().exp().mul_(2)),
    "converted and back": lambda x: MEMORY(x.double().float()),
    "expanded": lambda x: MEMORY(x.expand(2, *x.shape) * 1),
    "row-major": lambda x: MEMORY(x.softmax(-1).reshape(-1).view(x.shape)),
    "sorted": lambda x: MEMORY(x.sort(1)[0]),
    "gaps in a copy": lambda x: APART(x).clone(),
    "writes": lambda x: _written(x),
    "writes a result of its own": lambda x: _written(x * 2, x),
    "writes rows": lambda x: (_written(ROWS(x)), x),
    "writes columns": lambda x: (_written(*x.t()), x),
}
LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "own": lambda: torch.arange(12.0).view(3, 4),
    "gaps": lambda: torch.arange(36.0).view(6, 6)[:3, :4],
    "transposed": lambda: torch.arange(12.0).view(4, 3).t(),
    "both": lambda: torch.arange(25.0).view(5, 5)[1:, :3].t(),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", HONEST)
def test_operators_get_eager_s_strides_and_their_results_are_believed(name: str, layout: str, dynamic: bool) -> None:
    x, y = LAYOUTS[layout](), LAYOUTS[layout]()
    got, want = smelt.compile(HONEST[name], dynamic=dynamic)(x), HONEST[name](y)
    torch.testing.assert_close((got, x), (want, y), check_stride=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_strides_are_a_warning_by_default(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_STRICT", "0")
    run = operator(f"turned_for_{backend}", lambda x: x.sin().t().contiguous().t(), torch.empty_like)
    f = smelt.compile(lambda x: run(x.cos()) * 2, backend=backend)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for size in (3, 5, 0, 1):
            x = torch.rand(size, 4)
            torch.testing.assert_close(f(x), x.cos().sin() * 2)
    assert [f"turned_for_{backend}.default gives another result" in str(each.message) for each in told] == [True]


def _counted(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sin(), x.sum().cpu()


library.define("counted(Tensor x) -> (Tensor, Tensor)")
library.impl("counted", _counted, "CompositeExplicitAutograd")
torch.library.register_fake(
    "smelt_wrong_fakes::counted", lambda x: (torch.empty_like(x), x.new_empty((), device="cpu")), lib=library
)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", BACKENDS)
def test_results_on_several_devices(backend: str) -> None:
    """Each is where its fake kernel says, beside PyTorch's own operators that draw on a CPU."""

    def function(x: Tensor) -> tuple[Tensor, Tensor, torch.device]:
        wave, count = torch.ops.smelt_wrong_fakes.counted(x)
        return wave + 1, count + 1, torch.randn_like(x, device="cpu").device

    x = torch.arange(6.0, device="cuda")
    got = smelt.compile(function, backend=backend)(x)
    torch.testing.assert_close(got[:2], function(x)[:2])
    assert got[1].device.type == got[2].type == "cpu"
