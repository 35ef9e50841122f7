"""Warnings of the program and of torch's own functions: at each call, as filters say then, at the place of eager."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt


def level(n: int) -> None:
    warnings.warn(f"level {n}", FutureWarning, stacklevel=n)


def end_graph() -> int:
    return threading.get_native_id() * 0


def one(x: Tensor) -> Tensor:
    warnings.warn("one", stacklevel=1)
    return x + 1


def levels(x: Tensor) -> Tensor:
    for n in range(5):
        level(n)

    def inner() -> Tensor:
        level(2)
        level(3)
        return x * 2

    return inner()


def implicit(x: Tensor) -> Tensor:
    return F.softmax(x)


def repeated(x: Tensor) -> Tensor:
    for _ in range(3):
        x = F.softmax(x)
    return x


def of_sizes(x: Tensor) -> Tensor:
    return F.mse_loss(x, x[:1])


def in_torch(x: Tensor) -> Tensor:
    return F.l1_loss(x, x * 2, size_average=False)


def copied(x: Tensor) -> Tensor:
    return torch.tensor(x.sum())


def no_freedom(x: Tensor) -> Tensor:
    return x[:1].std(0) + x.var(0)


def no_gradient(x: Tensor) -> Any:
    y = x.clone().requires_grad_() * 2
    return y.grad, y


def by_bytes(x: Tensor) -> Any:
    rows, columns = (x.sum(1) > -9).to(torch.uint8), (x.sum(0) > -9)[:3].to(torch.uint8)
    y = x.clone()
    return x[rows], x[:, :3][rows, columns], y.index_put((rows,), x)


def upsampled(x: Tensor) -> Tensor:
    return F.upsample(x[None], 6)


def caught(x: Tensor) -> Any:
    try:
        return F.softmax(x)
    except UserWarning as error:
        return x, str(error)


def an_error_for_a_time(x: Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return F.softmax(x)
        except UserWarning as error:
            return x, str(error)


def silent_for_a_time(x: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = F.softmax(x)
    return F.softmax(x)


def recorded(x: Tensor) -> Any:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        x = F.softmax(x)
    return x, [(str(each.message), each.filename, each.lineno) for each in found]


def after_a_break(x: Tensor) -> Tensor:
    x = F.softmax(x)
    end_graph()
    level(2)
    x = F.softmax(x)
    level(3)
    return x


def in_a_transform(x: Tensor) -> Tensor:
    return torch.vmap(lambda row: F.softmax(row))(x)


def explicit(x: Tensor) -> Tensor:
    warnings.warn_explicit("explicit", UserWarning, "file.py", 3)
    return x * 2


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.softmax = nn.Softmax()

    def forward(self, x: Tensor) -> Tensor:
        for n in range(1, 6):
            level(n)
        return self.softmax(x)


LAYER = Layer()


def in_modules(x: Tensor) -> Tensor:
    return LAYER(x)


PROGRAMS = [
    *(one, levels, implicit, repeated, of_sizes, in_torch, copied, no_freedom, no_gradient, caught),
    *(by_bytes, upsampled),
    *(an_error_for_a_time, silent_for_a_time, recorded, after_a_break, in_a_transform, explicit, in_modules, Layer()),
]


def told(fn: Callable[..., Any], action: Any) -> list[Any]:
    """What three calls warn of, with filters that stand meanwhile, and three more with filters of their own."""
    x, out = torch.linspace(-1, 1, 12).view(3, 4), []
    with warnings.catch_warnings(record=True) as found:
        warnings.resetwarnings()
        warnings.simplefilter(action)
        for call in range(6):
            if call > 2:
                warnings.simplefilter(action)
            try:
                fn(x)
            except Warning as error:
                out.append((type(error), str(error)))
            out += [(each.category, str(each.message), each.filename, each.lineno) for each in found]
            found.clear()
            out.append(call)
    return out


@pytest.mark.parametrize("action", ["always", "default", "once", "error", "ignore"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: getattr(program, "__name__", "module"))
def test_warnings_are_those_of_eager(program, action):
    found = []
    for fn in (program, smelt.compile(program)):
        warnings.onceregistry.clear()
        found.append(told(fn, action))
    want, got = found
    assert got == want


def test_filters_are_asked_at_each_call():
    f = smelt.compile(implicit)
    counts = []
    for action in ("ignore", "always", "ignore", "error", "always"):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter(action)
            try:
                f(torch.ones(2, 3))
            except UserWarning:
                counts.append(-1)
        counts.append(len(found))
    assert counts == [0, 1, 0, -1, 0, 1]


def test_numbers_in_a_text_are_those_of_the_call():
    f = smelt.compile(lambda a, b: F.mse_loss(a, b))
    for n in range(3, 7):
        with pytest.warns(UserWarning, match=rf"torch.Size\(\[{n}, 5\]\)"):
            f(torch.ones(n, 5), torch.ones(1, 5))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", lambda gm, inputs: gm], ids=["eager", "aot_eager", "own"])
def test_one_warning_with_every_backend(backend):
    f = smelt.compile(implicit, backend=backend)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            f(torch.ones(2, 3))
        assert len(found) == 1


def test_a_form_for_symbolic_sizes_warns_as_well():
    f = smelt.compile(upsampled)
    for n in range(3, 6):
        with pytest.warns(UserWarning, match="upsample") as found:
            f(torch.ones(2, n))
        assert len(found) == 1 and found[0].filename == __file__


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("program", [lambda x: x.T * 2, lambda x: torch.cross(x, x)])
def test_warnings_of_torch_repeat_under_warn_always(program, first):
    x, f = torch.ones(2, 3, 2, dtype=torch.complex64), smelt.compile(program)
    program(x)  # said once
    for always in (first, not first, True, first, not first):
        torch.set_warn_always(always)
        try:
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                f(x)
        finally:
            torch.set_warn_always(False)
        assert len(found) == always


def test_other_threads_warn_as_before():
    """They are not listened to while this one captures, and the module of warnings is as it was."""
    before = warnings.filters[:], vars(warnings)["_showwarnmsg"]
    stop, given = threading.Event(), []

    def warn() -> None:
        while not stop.wait(0.0005):
            warnings.warn("noise", stacklevel=1)
            given.append(1)

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        thread = threading.Thread(target=warn)
        thread.start()
        for _ in range(5):
            smelt.compile(lambda x: F.softmax(x, 0) * 2)(torch.ones(2, 3))
        stop.set()
        thread.join()
    assert sum(str(each.message) == "noise" for each in found) == len(given)
    assert (warnings.filters, vars(warnings)["_showwarnmsg"]) == before
