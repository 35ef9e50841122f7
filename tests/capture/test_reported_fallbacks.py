"""Every frame that is given up is told: in `explain` and `stats`, and as an error with `fullgraph`."""

import asyncio
import functools
import inspect
import sys
import warnings

import pytest
import torch

import smelt
from smelt.base.errors import Unsupported

X = torch.ones(2, 3)


@torch.library.custom_op("smelt_told::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("no shape of it is known")


def only_capture_raises(x: torch.Tensor) -> torch.Tensor:
    return double(x) + 1


def test_an_exception_that_only_capture_raises() -> None:
    smelt.reset()
    told = smelt.explain(only_capture_raises)(X)
    assert torch.equal(told.result, X * 2 + 1)
    assert any("no shape of it is known" in str(reason) for reason in told.break_reasons), str(told)
    assert smelt.stats()["breaks"] >= 1
    run = smelt.compile(only_capture_raises, fullgraph=True)
    for _ in range(12):  # not only at first
        with pytest.raises(Unsupported, match="no shape of it is known"):
            run(X)


def test_the_programs_own_exception_needs_no_word() -> None:
    def raises(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    run = smelt.compile(raises, fullgraph=True)
    for _ in range(12):
        with pytest.raises(KeyError, match="mine"):
            run(X)
    assert not run._smelt_session.breaks and not run._smelt_session.raised


def test_an_exception_that_the_program_catches_needs_no_word() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    def catches(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        try:
            return inner(x), ""
        except KeyError as error:
            return x, str(error)

    run = smelt.compile(catches, fullgraph=True)
    for _ in range(3):
        assert run(X) == (X, "'mine'")
    assert not run._smelt_session.breaks and not run._smelt_session.raised


def test_a_frame_over_the_limit_of_versions() -> None:
    def fn(x: torch.Tensor, word: str) -> torch.Tensor:
        return x + len(word)

    run = smelt.compile(fn, options={"recompile_limit": 2})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for word in ("a", "bb", "ccc"):
            run(X, word)
    assert any("compiled 2 times" in reason.title for reason in run._smelt_session.breaks)
    whole = smelt.compile(fn, fullgraph=True, options={"recompile_limit": 2})
    whole(X, "a")
    whole(X, "bb")
    for _ in range(2):
        with pytest.raises(Unsupported, match="compiled 2 times"):
            whole(X, "ccc")


def test_a_backend_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_STRICT", "0")

    def refuses(gm: object, inputs: object) -> object:
        raise NotImplementedError("not this graph")

    run = smelt.compile(lambda x: x + 1, backend=refuses)
    with pytest.warns(smelt.base.errors.SmeltWarning):
        run(X)
    assert any("not this graph" in str(reason) for reason in run._smelt_session.breaks)


def test_a_stack_that_ends_while_a_frame_is_captured() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).sum(-1)

    want, raised = fn(X), 0
    run = smelt.compile(fn, backend="aot_eager", fullgraph=True)

    def deep(levels: int) -> torch.Tensor:
        return run(X) if not levels else deep(levels - 1)

    left = sys.getrecursionlimit() - len(inspect.stack())
    for levels in range(left - 130, left - 10, 8):
        smelt.reset()
        try:
            assert torch.equal(deep(levels), want)
            assert smelt.stats()["graphs"], "it ran in eager, and nobody was told"
        except (RecursionError, Unsupported):
            raised += 1
    assert raised


def test_bodies_that_run_as_they_are_written() -> None:
    def steps(x: torch.Tensor):
        yield x + 1

    async def step(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    told = smelt.explain(steps)(X)
    assert torch.equal(next(told.result), X + 1)
    assert [reason.title.split(" test_")[0] for reason in told.break_reasons] == ["the body of the generator"]
    run = smelt.compile(step)
    assert torch.equal(asyncio.run(run(X)), X + 1)
    assert "is suspended between its steps" in str(run._smelt_session.breaks[0])
    with pytest.raises(Unsupported, match="the body of the generator"):
        smelt.compile(steps, fullgraph=True)(X)
    with pytest.raises(Unsupported, match="the body of the coroutine"):
        asyncio.run(smelt.compile(functools.partial(step, X), fullgraph=True)())
