"""Several threads compile and call the same functions at once while another one forgets all versions."""

from __future__ import annotations

import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import smelt

SECONDS = 4.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 4), 0

    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        self.calls += 1
        for i in range(n):
            x = torch.relu(self.linear(x)) + i
        return x * 2 if x.sum() > 1e9 else x


def multiples(x: torch.Tensor) -> Iterator[torch.Tensor]:
    for i in range(3):
        yield x * i


def broken(x: torch.Tensor, n: int) -> Any:
    total = sum(multiples(x), torch.zeros(()))
    try:
        smelt.graph_break()
        if n == 2:
            raise ValueError(n)
    except ValueError as error:
        smelt.graph_break()
        return total, error.args
    return total * 2, [n]


def multiplied(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def writing(x: torch.Tensor, n: int) -> Any:
    held = {"n": n}
    held["n"] += 1
    return (x * held["n"]).sum(), held


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("resets", [False, True])
def test_threads(resets: bool) -> None:
    functions: list[tuple[Callable[..., Any], Callable[..., Any]]] = []
    for fn in (Net(), broken, writing):
        functions.append((smelt.compile(fn, backend="eager"), fn))
    end, errors, calls = time.monotonic() + SECONDS, [], [0]

    def work(seed: int) -> None:
        rng = random.Random(seed)
        try:
            while (time.monotonic() < end or not calls[0]) and not errors:
                compiled, fn = rng.choice(functions)
                x, n = torch.randn(rng.choice((1, 2, 5)), 4), rng.choice((1, 2, 3))
                torch.testing.assert_close(compiled(x, n), fn(x, n))
                calls[0] += 1
        except BaseException as error:
            errors.append(error)

    def forget() -> None:
        rng = random.Random(0)
        while time.monotonic() < end and not errors:
            time.sleep(rng.random() / 20)
            smelt.reset()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    threads += [threading.Thread(target=forget)] * resets
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert calls[0] > 0


def test_threads_that_wait_for_a_compilation_that_fails_do_not_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else eight threads wait eight times for a compiler that hangs, one after another."""
    monkeypatch.setenv("SMELT_STRICT", "0")
    tried: list[int] = []

    def hangs(gm: Any, inputs: Any) -> Any:
        tried.append(threading.get_ident())
        while waiting():
            time.sleep(0.01)
        raise RuntimeError("no compiler ends")

    def waiting() -> bool:
        frames = sys._current_frames()
        return any(
            frame is not None and frame.f_code.co_name != "_attempt_alone"
            for frame in (frames.get(t.ident or 0) for t in threads if t.ident not in tried)
        )

    run = smelt.compile(multiplied, backend=hangs)
    results: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: results.append(run(torch.ones(3)))) for _ in range(4)]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(tried) == 1 and len(results) == 4 and all(torch.equal(r, torch.full((3,), 2.0)) for r in results)
    assert [str(each.message) for each in told if "no compiler ends" in str(each.message)]
