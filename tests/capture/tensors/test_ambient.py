"""Modes that the program switches: real during capture, regions of the graph, undone afterwards, left as in eager."""

from __future__ import annotations

import contextlib

import torch
from torch import fx
from torch.nn.attention import SDPBackend, sdpa_kernel

import smelt
from smelt.capture.guards.calibrate import calibrate
from smelt.capture.tensors.ambient import Ambient, present_modes
from smelt.capture.torch.escapes import graph_break
from smelt.graph.nodes import modes
from tests.capture.harness import check, compiled

X = torch.ones(3, 3)


def test_regions_nest_and_close():
    calibrate()
    ambient, graph = Ambient(), fx.Graph()
    ambient.switch(torch.set_grad_enabled, (False,), {})
    ambient.sync(graph)
    ambient.switch(torch.set_autocast_enabled, ("cpu", True), {})
    ambient.sync(graph)
    ambient.close(graph)
    targets = [n.target for n in graph.nodes]
    assert targets == [modes.enter_grad_mode, modes.enter_autocast, modes.exit_autocast, modes.exit_grad_mode]
    ambient.restore()
    assert ambient.left_switched and torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_regions_left_out_of_order_close():
    calibrate()
    ambient, graph = Ambient(), fx.Graph()
    for enabled in (False, True, False):
        ambient.switch(torch.set_grad_enabled, (enabled,), {})
        ambient.sync(graph)
    ambient.switch(torch.set_autocast_enabled, ("cpu", True), {})
    ambient.sync(graph)
    ambient.switch(torch.set_grad_enabled, (True,), {})
    ambient.sync(graph)
    ambient.close(graph)
    ambient.restore()
    entered = {n for n in graph.nodes if n.target in (modes.enter_grad_mode, modes.enter_autocast)}
    assert entered == {n.args[0] for n in graph.nodes if n.target in (modes.exit_grad_mode, modes.exit_autocast)}


def test_nothing_leaks_when_capture_stops_inside_a_region():
    before = present_modes()

    def fn(x):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
            if y.sum() > 0:
                return y
        return x

    run = compiled(fn)
    assert run(X).dtype == torch.bfloat16 and present_modes() == before


def test_modes_left_switched():
    def fn(x):
        torch.set_grad_enabled(False)
        return x * 2

    for call in (fn, compiled(fn, fullgraph=True)):
        try:
            call(X)
            assert not torch.is_grad_enabled()
        finally:
            torch.set_grad_enabled(True)


def test_decorators_and_nested_regions():
    @torch.no_grad()
    def quiet(x):
        return x * 2

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def cast(x):
        return x @ x

    def fn(x):
        w = x * 1
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            a = quiet(w)
            with torch.set_grad_enabled(True):
                b = w * 3
        return a.requires_grad, b.requires_grad, cast(x), cast(x).dtype

    check(fn, X.clone().requires_grad_(), graphs=1)


def test_break_inside_nested_regions():
    def fn(x):
        with torch.no_grad():
            with torch.autocast("cpu", dtype=torch.bfloat16):
                a = x @ x
                graph_break()
                b = x @ x
            c = x @ x
            d = torch.is_grad_enabled()
        return a, b, c, d, torch.is_grad_enabled()

    check(fn, X, breaks=1)


def test_kernels_of_attention_are_chosen_in_the_graph_and_given_back():
    before = present_modes()
    x = torch.randn(1, 2, 8, 4, requires_grad=True)

    def fn(x):
        with sdpa_kernel(SDPBackend.MATH):
            y = torch.nn.functional.scaled_dot_product_attention(x, x, x)
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
                y = torch.nn.functional.scaled_dot_product_attention(y, x, x)
        return torch.nn.functional.scaled_dot_product_attention(y, x, x)

    (graph,) = check(fn, x).graphs
    assert [n.target for n in graph.graph.nodes if n.target in modes.MODE_CHANGES] == [
        modes.enter_attention_kernels,
        modes.enter_attention_kernels,
        modes.exit_attention_kernels,
        modes.exit_attention_kernels,
    ]
    assert present_modes() == before
    torch.testing.assert_close(smelt.compile(fn)(x), fn(x))


def test_kernels_of_attention_that_stay_chosen_are_chosen_afterwards():
    def fn(x):
        torch.backends.cuda.enable_math_sdp(False)
        return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    x = torch.randn(1, 2, 8, 4)
    try:
        compiled(fn, fullgraph=True)(x)
        assert not torch.backends.cuda.math_sdp_enabled()
    finally:
        torch.backends.cuda.enable_math_sdp(True)
