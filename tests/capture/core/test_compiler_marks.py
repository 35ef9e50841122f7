"""Marks of torch.compiler on functions of third parties are respected, and read without importing its compiler."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import pytest
import torch

import smelt
from smelt.capture import _native as native
from smelt.capture.explain import describe
from tests.capture.harness import check, compiled

X = torch.ones(2, 3)


@pytest.fixture(scope="module")
def compiler():
    """The other compiler, imported late: only these tests need it."""
    return pytest.importorskip("torch._dynamo")


def test_disable(compiler):
    active = []

    def inner(x):
        active.append(native.is_active())
        return x + 1

    @torch.compiler.disable(reason="it is slow")
    def outside(x):
        return inner(x)

    found = check(lambda x: outside(x * 2) * 3, X, breaks=1)
    assert "it is slow" in found.break_reasons[0].why and set(active) == {False}


def test_disable_reached_from_code_that_is_not_captured(compiler):
    active = []

    def inner(x):
        active.append(native.is_active())
        return x + 1

    outside = torch.compiler.disable(inner)
    check(lambda x: sorted([x], key=lambda t: outside(t).sum().item())[0] + 1, X, breaks=1)
    assert True not in active


def test_disable_without_recursion(compiler):
    def callee(x):
        return x.sin() + 1

    @torch.compiler.disable(recursive=False)
    def outside(x):
        return callee(x)

    run = compiled(lambda x: outside(x) * 2)
    assert torch.equal(run(X), (X.sin() + 1) * 2)
    names = [site.name for site in run._smelt_session.sites.values()]
    assert any("callee" in name for name in names) and not any(name.endswith(".outside") for name in names)


def test_allow_in_graph_and_constants(compiler):
    calls = []

    @torch.compiler.allow_in_graph
    def whole(x):
        return x.sin() + x.cos()

    @torch.compiler.assume_constant_result
    def number():
        calls.append(1)
        return 7

    run = compiled(lambda x: whole(x) * number(), fullgraph=True)
    assert torch.equal(run(X), (X.sin() + X.cos()) * 7) and torch.equal(run(X), (X.sin() + X.cos()) * 7)
    assert describe(run._smelt_session).op_count == 2 and len(calls) == 1


def test_breaks_and_hints(compiler):
    def program(x):
        compiler.mark_dynamic(x, 0)
        compiler.maybe_mark_dynamic(x, 0)
        x = x + 1
        compiler.graph_break()
        return x * 2, torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling()

    run = compiled(program)
    out, *flags = run(X)
    assert torch.equal(out, X * 2 + 2) and flags == [True, True]
    (reason,) = run._smelt_session.breaks
    assert reason.title == "graph_break() is called"


def test_nothing_is_imported():
    code = (
        "import sys, torch, smelt\n"
        "run = smelt.compile(lambda x: x + 1, backend='eager')\n"
        "run(torch.ones(2))\n"
        "assert 'torch._dynamo' not in sys.modules, 'imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_wrappers_of_compiled_functions_run() -> None:
    """`functools.wraps` copies the marks of what it wraps: the wrapper's own body was left out."""
    x = torch.ones(3)
    for inner in (smelt.compile(lambda x: x * 2), torch.compile(lambda x: x * 2, backend="eager")):

        @functools.wraps(inner)
        def wrapper(x: torch.Tensor, inner: Any = inner) -> torch.Tensor:
            return inner(x) + 1

        class Module(torch.nn.Module):
            forward = functools.wraps(inner)(lambda self, x, inner=inner: inner(x) + 1)

        assert not smelt.is_compiled(wrapper)
        assert smelt.compile(lambda x, wrapper=wrapper: wrapper(x) * 1, fullgraph=True)(x).tolist() == [3.0] * 3
        assert smelt.compile(wrapper, fullgraph=True)(x).tolist() == [3.0] * 3
        assert smelt.compile(Module(), fullgraph=True)(x).tolist() == [3.0] * 3
