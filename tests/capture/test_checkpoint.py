"""torch.utils.checkpoint in captured code: what is inside is computed again and not kept; broken ones run in eager."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import smelt
from smelt.capture.explain import describe
from tests.capture.core.test_breaks import marked, operators

ROWS, WIDTH, DEPTH = 128, 16, 4


class Block(torch.nn.Module):
    def __init__(self, drop=0.0):
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.norm, self.drop = torch.nn.LayerNorm(WIDTH), drop

    def forward(self, x):
        return x + F.dropout(self.narrow(F.gelu(self.wide(self.norm(x))).sin()), self.drop)


def kept(fn, x):
    """The numbers that `fn(x)` keeps for backward, without parameters; its result and gradient."""
    sizes = {}

    def pack(tensor):
        if tensor.dim() and tensor.shape[0] == ROWS:
            sizes[tensor.untyped_storage()._cdata] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = fn(x)
    (gradient,) = torch.autograd.grad(out, x)
    return sum(sizes.values()), out.detach(), gradient


@pytest.mark.parametrize("reentrant", [False, True])
def test_nothing_inside_is_kept(reentrant):
    torch.manual_seed(0)
    blocks = [Block() for _ in range(DEPTH)]

    def fn(x):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return x.sum()

    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    run = smelt.compile(fn, fullgraph=True)
    run(x)
    size, out, gradient = kept(run, x)
    assert size <= (DEPTH + 1) * ROWS * WIDTH
    x.grad = None
    want = fn(x)
    want.backward()  # torch.autograd.grad refuses reentrant checkpoints
    assert torch.allclose(out, want, rtol=1e-4) and torch.allclose(gradient, x.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("drop", [0.0, 0.4])
def test_plain_backends_keep_as_little_and_draw_the_same(backend, drop):
    torch.manual_seed(0)
    blocks = [Block(drop) for _ in range(DEPTH)]

    def fn(x):
        for block in blocks:
            with torch.autocast("cpu", enabled=False):
                x = checkpoint(block, x, use_reentrant=False)
        return x.sum()

    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    run = smelt.compile(fn, fullgraph=True, backend=backend)
    run(x)
    results = []
    for each in (run, fn):
        torch.manual_seed(1)
        results.append((*kept(each, x), torch.rand(1)))
    (size, *found), (_, *want) = results
    masks = DEPTH if drop and backend == "aot_eager" else 0  # random numbers cannot be drawn again there
    assert size <= (2 * DEPTH + 1 + masks) * ROWS * WIDTH
    for a, b in zip(found, want, strict=True):
        torch.testing.assert_close(a, b)


def test_random_numbers_are_the_same_when_computed_again():
    block = Block(drop=0.5)
    run = smelt.compile(lambda x: checkpoint(block, x, use_reentrant=False).sum(), fullgraph=True)
    plain = smelt.compile(lambda x: block(x).sum(), fullgraph=True)
    grads = []
    for call in (run, plain):
        x = torch.ones(ROWS, WIDTH, requires_grad=True)
        torch.manual_seed(3)
        call(x).backward()
        grads.append(x.grad)
    assert torch.allclose(*grads, atol=1e-5)


def test_a_reentrant_one_without_gradients_in_its_arguments_has_none():
    block = Block()
    x = torch.ones(ROWS, WIDTH)

    def fn(x):
        y = checkpoint(block, x, use_reentrant=True)
        return y, y.requires_grad, torch.is_grad_enabled()

    with pytest.warns(UserWarning, match="None of the inputs"):
        want = fn(x)
    got = smelt.compile(fn, fullgraph=True)(x)
    assert torch.allclose(want[0], got[0], atol=1e-5) and want[1:] == got[1:] == (False, True)
    assert not got[0].requires_grad


def test_keywords_sequences_and_no_saved_random_state():
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4))

    def fn(x):
        y = checkpoint(lambda a, k: layers(a) * k, x, use_reentrant=False, preserve_rng_state=False, k=3)
        return checkpoint_sequential(layers, 2, y, use_reentrant=False)

    x = torch.randn(2, 4, requires_grad=True)
    assert torch.allclose(smelt.compile(fn, fullgraph=True)(x), fn(x), atol=1e-5)


def test_contexts_of_the_users_are_entered_as_in_eager():
    entered = []

    @contextlib.contextmanager
    def context(name):
        entered.append(name)
        yield

    def fn(x):
        both = lambda: (context("first"), context("again"))  # noqa: E731
        return checkpoint(lambda y: (y.sin() + 1).cos(), x * 2, use_reentrant=False, context_fn=both) + 1

    x = torch.ones(3, requires_grad=True)
    for call in (fn, smelt.compile(fn)):
        entered.clear()
        call(x).sum().backward()
        assert entered == ["first", "again"]


def test_one_with_a_break_inside_is_captured_both_times():
    def inside(x):
        y = F.dropout((x.sin() + 1).cos(), 0.5)
        return y * (2.0 if y.sum().item() > -100 else 1.0)

    def fn(x):
        return checkpoint(inside, x * 2, use_reentrant=False) + 1

    run = smelt.compile(fn, backend=lambda gm, inputs: marked(gm, inputs, None, None))
    grads = []
    for call in (fn, run, run):
        x = torch.ones(8, requires_grad=True)
        torch.manual_seed(5)
        call(x).sum().backward()
        grads.append(x.grad)
    assert torch.equal(grads[0], grads[1]) and torch.equal(grads[0], grads[2])
    out = run(torch.ones(8, requires_grad=True)).sum()
    inside_graphs, _ = operators(out.backward)
    assert inside_graphs >= 4 and describe(run._smelt_session).graph_break_count >= 1
