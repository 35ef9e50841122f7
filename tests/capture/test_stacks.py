"""Stacks that take turns in one thread: greenlets, coroutines and generators, switched inside of compiled calls."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt.capture import _native as native
from tests.faults.state import changes, look

X = torch.arange(4.0)


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = look()
    yield
    assert not changes(before, look())


def switching(switch: Callable[[], Any]) -> Callable[..., Any]:
    """Computes around switches, which end graphs; gives what it computed, and who owned the hook after each."""

    def fn(x: torch.Tensor, rounds: int) -> Any:
        owners = []
        for _ in range(rounds):
            x = x * 2
            switch()
            owners.append(native.owner())
            x = x + 1
        return x, owners

    return fn


def eager(x: torch.Tensor, rounds: int) -> torch.Tensor:
    for _ in range(rounds):
        x = x * 2 + 1
    return x


def graphs() -> int:
    return int(smelt.stats()["graphs"])


@pytest.mark.parametrize("depth", [0, 1, 400], ids=["shallow", "one deeper", "over the first chunk of the data stack"])
def test_greenlets_that_take_turns(depth: int) -> None:
    greenlet = pytest.importorskip("greenlet")
    main = greenlet.getcurrent()

    def deep(levels: int, run: Callable[[], Any]) -> Any:
        return run() if levels <= 0 else deep(levels - 1, run)

    functions = [smelt.compile(switching(main.switch), backend="eager") for _ in range(3)]
    sessions = [fn._smelt_session for fn in functions]
    runs = [greenlet.greenlet(lambda fn=fn, n=n: deep(depth, lambda: fn(X, n))) for n, fn in enumerate(functions, 2)]
    found: list[Any] = [None] * 3
    for _ in range(10):
        for at, run in enumerate(runs):
            if not run.dead:
                result = run.switch()
                assert not native.is_active() and native.owner() is None
                if run.dead:
                    found[at] = result
    for n, (out, owners) in enumerate(found):
        assert torch.equal(out, eager(X, n + 2))
        assert owners == [sessions[n]] * (n + 2)


def test_code_run_by_another_greenlet_is_not_captured() -> None:
    greenlet = pytest.importorskip("greenlet")
    main = greenlet.getcurrent()
    run = greenlet.greenlet(lambda: smelt.compile(switching(main.switch), backend="eager")(X, 1))
    run.switch()
    made = graphs()

    def plain(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    assert torch.equal(plain(X), X.sin()) and graphs() == made
    compiled = smelt.compile(plain, backend="eager")  # a call in between, of another one
    assert torch.equal(compiled(X), X.sin()) and graphs() == made + 1
    out, owners = run.switch()
    assert torch.equal(out, eager(X, 1)) and owners[0] is not None


def test_a_callable_in_c_is_the_first_of_its_greenlet() -> None:
    greenlet = pytest.importorskip("greenlet")
    main = greenlet.getcurrent()
    run = greenlet.greenlet(native.Compiled(switching(main.switch)))
    run.switch(X, 1)
    assert not native.is_active()
    out, _ = run.switch()
    assert torch.equal(out, eager(X, 1)) and not native.is_active()


@pytest.mark.parametrize("end", ["killed", "dropped", "an error thrown in"])
def test_greenlets_that_do_not_end_by_themselves(end: str) -> None:
    greenlet = pytest.importorskip("greenlet")
    main = greenlet.getcurrent()
    run = greenlet.greenlet(lambda: smelt.compile(switching(main.switch), backend="eager")(X, 3))
    run.switch()
    if end == "killed":
        run.throw(greenlet.GreenletExit)
    elif end == "dropped":
        del run
        gc.collect()
    else:
        with pytest.raises(ZeroDivisionError):
            run.throw(ZeroDivisionError)
    assert not native.is_active()
    assert torch.equal(smelt.compile(eager)(X, 2), eager(X, 2))


def test_greenlets_at_random() -> None:
    greenlet = pytest.importorskip("greenlet")
    main, rng = greenlet.getcurrent(), random.Random(0)
    fn = smelt.compile(switching(lambda: rng.choice([main, *alive]).switch()), backend="eager")
    alive: list[Any] = []
    done: list[tuple[int, Any]] = []

    def work(n: int) -> None:
        out, owners = fn(X, n)
        done.append((n, out))
        assert all(owner is fn._smelt_session for owner in owners)
        alive.remove(greenlet.getcurrent())

    for n in range(30):
        alive.append(greenlet.greenlet(lambda n=n: work(n % 5 + 1)))
    while alive:
        rng.choice(alive).switch()
        assert not native.is_active()
    assert len(done) == 30 and all(torch.equal(out, eager(X, n)) for n, out in done)


def test_tasks_that_take_turns() -> None:
    async def work(n: int) -> torch.Tensor:
        x = X
        for _ in range(n):
            x = double(x)
            await asyncio.sleep(0)
            x = add(x)
        return x

    double, add = smelt.compile(lambda x: x * 2, backend="eager"), smelt.compile(lambda x: x + 1, backend="eager")
    compiled = smelt.compile(work, backend="eager")

    async def main() -> list[torch.Tensor]:
        return await asyncio.gather(*(work(n) for n in range(4)), *(compiled(n) for n in range(4)))

    for n, out in enumerate(asyncio.run(main())):
        assert torch.equal(out, eager(X, n % 4))


def test_a_task_is_cancelled_inside_a_compiled_coroutine() -> None:
    async def work(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        await asyncio.sleep(60)
        return x

    async def main() -> None:
        task = asyncio.create_task(smelt.compile(work, backend="eager")(X))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not native.is_active()

    asyncio.run(main())


@pytest.mark.parametrize("end", ["run out", "closed", "dropped", "thrown"])
def test_generators_that_are_suspended_in_a_compiled_body(end: str) -> None:
    def values(x: torch.Tensor) -> Iterator[torch.Tensor]:
        with torch.no_grad():
            for k in range(3):
                x = x * 2
                yield x + k

    kept: list[Iterator[torch.Tensor]] = []

    def starts(x: torch.Tensor) -> torch.Tensor:
        generator = values(x)
        first = next(generator)
        kept.append(generator)
        return first + 1

    compiled = smelt.compile(starts, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(X), X * 2 + 1)
        generator = kept.pop()
        torch.set_grad_enabled(True)  # as in eager, the block of a generator that waits is that of the whole thread
        if end == "run out":
            assert [v.tolist() for v in generator] == [(X * 4 + 1).tolist(), (X * 8 + 2).tolist()]
        elif end == "closed":
            generator.close()  # type: ignore[attr-defined]
        elif end == "thrown":
            with pytest.raises(ZeroDivisionError):
                generator.throw(ZeroDivisionError)  # type: ignore[attr-defined]
        del generator
        gc.collect()
        torch.set_grad_enabled(True)
        assert not native.is_active() and native.owner() is None


def test_gevent_switches_while_compilers_run() -> None:
    """Its locks and its waiting switch: compilations of several greenlets are under way at once."""
    gevent = pytest.importorskip("gevent")

    def work(n: int) -> bool:
        fn = smelt.compile(lambda x: (x * n).sin() + n)
        gevent.sleep(0)
        return all(torch.allclose(fn(X), (X * n).sin() + n) for _ in range(2))

    jobs = [gevent.spawn(work, n) for n in range(4)]
    gevent.joinall(jobs)
    assert all(job.value for job in jobs)
