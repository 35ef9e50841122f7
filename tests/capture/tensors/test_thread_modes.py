"""Inference mode and hooks on what autograd saves inside a compiled function: parts of the graph run in them."""

from __future__ import annotations

import contextlib
import io

import pytest
import torch
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu, saved_tensors_hooks

import smelt
from tests import mode_programs

BACKENDS = ("eager", "aot_eager", "smelt")
X = torch.linspace(-1, 1, 12).reshape(3, 4)
W = torch.full((4,), 0.7, requires_grad=True)


def _seen(value):
    """What a caller can tell of a result."""
    if isinstance(value, torch.Tensor):
        values = value.detach().float().tolist()
        return values, value.dtype, value.requires_grad, value.is_inference(), value.is_leaf
    return [_seen(each) for each in value] if isinstance(value, (list, tuple)) else value


def _close(a, b):
    if isinstance(a, float):
        return a == pytest.approx(b, abs=1e-6)
    return len(a) == len(b) and all(map(_close, a, b)) if isinstance(a, (list, tuple)) else a == b


def _check(fn, backend, breaks=0):
    smelt.reset()
    run = smelt.compile(fn, backend=backend, fullgraph=not breaks)
    for _ in range(2):
        want, got = _seen(fn(X.clone())), _seen(run(X.clone()))
        assert _close(got, want), f"{got}\n{want}"
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert smelt.stats().get("breaks", 0) == breaks


# -- inference mode ------------------------------------------------------------------------------------------------


@torch.inference_mode()
def _decorated(x):
    return (x * W).sin()


def _part(x):
    y = x * W
    with torch.inference_mode():
        total = y.sum() + 1
        y.add_(1)
        view = y[0]
        inside = total.is_inference(), view.is_inference(), torch.is_inference_mode_enabled()
    return y.sin(), total, view.clone(), inside, torch.is_inference_mode_enabled()


def _off_and_on(x):
    with torch.inference_mode():
        a = x * 2
        with torch.inference_mode(False):
            b = x * W
            enabled = torch.is_grad_enabled()
        c = a + 1
    with torch.no_grad(), torch.inference_mode(mode=False):
        d = x * W
    return a, b, c, d, enabled, a.clone() * W


def _in_loops_and_autocast(x):
    out = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            with torch.inference_mode():
                out.append(x @ W)
                with torch.inference_mode():
                    pass
        out.append(x @ W)
    return out


def _whole_and_more(x):
    return _decorated(x), x * W


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [_decorated, _part, _off_and_on, _in_loops_and_autocast, _whole_and_more])
def test_inference_mode_is_part_of_the_graph(fn, backend):
    _check(fn, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_called_in_inference_mode(backend):
    smelt.reset()
    run = smelt.compile(_part, backend=backend, fullgraph=True)
    with torch.inference_mode():
        assert _close(_seen(run(X.clone())), _seen(_part(X.clone())))
    assert _close(_seen(run(X.clone())), _seen(_part(X.clone())))


def _adds(state, x):
    state.mul_(0.5).add_(x.sum(0))
    return x + state


def _writes_a_view(state, x):
    state[1:].add_(x[0, 1:])
    return state * 2


def _replaces(state, x):
    state.copy_(x[0])
    return x + state, state


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [_adds, _writes_a_view, _replaces])
def test_arguments_of_inference_mode_are_written_in_the_mode(fn, backend):
    """What earlier calls in the mode have made, such as a cache of keys. Outside of it eager refuses the write."""
    smelt.reset()
    run = smelt.compile(fn, backend=backend, fullgraph=True)
    with torch.inference_mode():
        ours, theirs = torch.arange(4.0), torch.arange(4.0)
        for _ in range(2):
            assert _close(_seen(run(ours, X)), _seen(fn(theirs, X)))
    assert torch.equal(ours, theirs) and smelt.stats().get("breaks", 0) == 0
    with pytest.raises(RuntimeError, match="(?i)inference tensor"):
        smelt.compile(fn, backend=backend)(ours, X)


def test_forbidden_use_of_inference_tensors_raises_as_in_eager():
    def saved(x):
        with torch.inference_mode():
            a = x * 2
        return a * W

    def written(x):
        with torch.inference_mode():
            a = x * 2
        return a.add_(1)

    for fn in (saved, written):
        texts = []
        for run in (fn, smelt.compile(fn, backend="aot_eager")):
            with pytest.raises(RuntimeError) as error:
                run(X)
            texts.append(str(error.value))
        assert texts[0] == texts[1]


def test_the_program_may_catch_what_eager_forbids():
    def fn(x):
        with torch.inference_mode():
            a, b = x * 2, torch.vmap(lambda row: row.sin(), 1)(x)
        refused = []
        for each in (a, b):
            try:
                each.add_(1)
            except RuntimeError as error:
                refused.append(str(error))
        return x.sin(), refused  # eager raises after it has written: nobody reads `a` and `b` then

    _check(fn, "aot_eager")


def _square(t):
    return (t * 2 * t).sum()


def _vjp(x):
    out, pull = torch.func.vjp(torch.sin, x)
    return out, *pull(x)


_DERIVATIVES = {
    "grad": lambda x: (torch.func.grad(_square)(x),),
    "grad_and_value": torch.func.grad_and_value(_square),
    "vjp": _vjp,
    "jvp": lambda x: torch.func.jvp(torch.sin, (x,), (x,)),
    "jacrev": lambda x: (torch.func.jacrev(_square)(x),),
    "hessian": lambda x: (torch.func.hessian(_square)(x),),
    "of a batch": lambda x: (torch.func.vmap(torch.func.grad(_square))(x),),
    "inside of a batch": torch.func.vmap(lambda row: (torch.func.grad(_square)(row), row * 3)),
}


def _derives_in_inference_mode() -> bool:
    """torch 2.11's transforms give zeros there."""
    with torch.inference_mode():
        return torch.func.grad(torch.square)(torch.ones(())).item() == 2


@pytest.mark.skipif(not _derives_in_inference_mode(), reason="this torch derives nothing in inference mode")
@pytest.mark.parametrize("derive", _DERIVATIVES.values(), ids=_DERIVATIVES)
def test_derivatives_are_computed_outside_of_inference_mode(derive):
    def fn(x):
        with torch.inference_mode():
            made = derive(x)
            on = torch.is_inference_mode_enabled()
        return *made, on

    smelt.reset()
    run = smelt.compile(fn)
    for _ in range(2):
        assert _close(_seen(run(X.clone())), _seen(fn(X.clone())))


def test_a_mode_between_a_function_and_its_pullback():
    def fn(x):
        out, pull = torch.func.vjp(torch.sin, x)
        with torch.inference_mode():
            y = x * 2
        return out, *pull(x), y

    _check(fn, "aot_eager", breaks=2)  # before the function, and where its pullback is called


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_backward_may_save_an_inference_tensor(backend):
    """It may start from a tensor of inference mode where eager saves what came after it."""

    def fn(x):
        with torch.inference_mode():
            a = x * 2
        return (a + 1) * W

    _check(fn, backend)
    found = []
    for run in (fn, smelt.compile(fn, backend=backend)):
        found += torch.autograd.grad(run(X).sum(), W)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_inside_leaves_the_mode(backend):
    def fn(x, ids):
        with torch.inference_mode():
            return x[ids] * 2

    run = smelt.compile(fn, backend=backend, fullgraph=True)
    run(X, torch.tensor([0, 1]))
    with pytest.raises(IndexError):
        run(X, torch.tensor([0, 7]))
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def test_a_break_inside():
    def fn(x):
        with torch.inference_mode():
            a = x * 2
            smelt.graph_break()
            b = a + 1
        return a, b, x * W

    _check(fn, "aot_eager", breaks=3)


@pytest.mark.parametrize("backend", ("eager", "aot_eager"))
def test_values_that_share_memory_are_not_separated(backend):
    """A view and its base, one of which is written: the graph ends before the cut."""

    def viewed(x):
        y = x * 1
        view = y[1:]
        with torch.inference_mode():
            y.add_(2)
            total = view.sum()
        return y, view, total

    def reshaped(x):
        y = x * 1
        with torch.inference_mode():
            y.transpose_(0, 1)
            total = y.sum(0)
        return y, total

    def repeated(x):
        y = (x * 1).as_strided((2, 2), (1, 1))
        with torch.inference_mode():
            y.fill_(2.0)
        return y * 2

    def detached(x):
        y = x * W
        with torch.inference_mode():
            total = y.sum()
        return y.detach_(), total

    for fn, breaks in ((viewed, 2), (reshaped, 3), (repeated, 3), (detached, 3)):
        _check(fn, backend, breaks)


# -- hooks on what is saved ----------------------------------------------------------------------------------------


def _run(make, compile):
    w, seen = torch.full((4,), 0.7, requires_grad=True), []

    def pack(tensor):
        seen.append(tensor.shape)
        return tensor.detach().numpy().copy()

    def unpack(array):
        seen.append(array.shape)
        return torch.from_numpy(array)

    fn, x = compile(make(pack, unpack, w)), X.clone().requires_grad_()
    for _ in range(2):
        fn(x).sum().backward()
    return len(seen), x.grad, w.grad


def _some(pack, unpack, w):
    def fn(x):
        y = (x * w).exp()
        with saved_tensors_hooks(pack, unpack):
            with torch.no_grad():
                factor = y.mean()
            z = (y.sin() * factor).exp()
        return z * w

    return fn


def _nested(pack, unpack, w):
    def fn(x):
        with saved_tensors_hooks(pack, unpack):
            with saved_tensors_hooks(lambda t: t.neg(), lambda t: t.neg()):
                z = x * w
            z = z.sin()
        with disable_saved_tensors_hooks("none here"):
            z = z.exp()
        return z

    return fn


def _on_cpu(pack, unpack, w):
    def fn(x):
        with save_on_cpu():
            y = ((x * w).sin() * w).exp()
        with save_on_cpu(pin_memory=False):
            return y * w

    return fn


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [_some, _nested, _on_cpu])
def test_hooks_on_what_is_saved(make, backend):
    """They see what the compiled parts inside save: not more than eager does, and nothing of the parts outside."""
    want = _run(make, lambda f: f)
    smelt.reset()
    got = _run(make, lambda f: smelt.compile(f, backend=backend, fullgraph=True))
    torch.testing.assert_close(got[1:], want[1:])
    assert 0 < got[0] <= want[0] or got[0] == want[0] == 0


def test_hooks_where_they_are_disabled():
    def fn(x):
        with disable_saved_tensors_hooks("none here"), save_on_cpu():
            return x * W

    for run in (fn, smelt.compile(fn, backend="aot_eager")):
        with pytest.raises(RuntimeError, match="none here"):
            run(X)
    with save_on_cpu():  # not for others
        pass


def test_a_break_where_they_are_disabled():
    def fn(x):
        with disable_saved_tensors_hooks("none here"):
            y = x * W
            smelt.graph_break()
            try:
                with save_on_cpu():
                    return y
            except RuntimeError:
                return y * 2

    _check(fn, "aot_eager", breaks=2)


def test_a_hook_that_is_made_inside():
    def make(pack, unpack, w):
        def fn(x):
            factor = x.shape[0] + 1.0
            with saved_tensors_hooks(lambda t: t * factor, lambda t: t / factor):
                return (x * w).sin()

        return fn

    want = _run(make, lambda f: f)
    smelt.reset()
    torch.testing.assert_close(_run(make, lambda f: smelt.compile(f, backend="aot_eager")), want)
    assert smelt.stats()["breaks"] == 2  # where it is entered, and where it ends


def _packed(t):
    return t * 2


def _unpacked(t):
    return t / 2


@pytest.mark.parametrize("hooks", [(_packed, _unpacked), (lambda t: t * 2, lambda t: t / 2), (_packed, None)])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "smelt"])
def test_hooks_that_the_graph_holds(hooks, backend):
    """Functions are no arguments of a node: a graph that runs as text could not be given them."""
    pack, unpack = hooks

    def fn(x):
        with saved_tensors_hooks(pack, unpack or (lambda t: t / 2)):
            y = (x * x).exp()
        return y * x

    grads = []
    for run in (fn, smelt.compile(fn, backend=backend)):
        x = torch.tensor([0.5, 1.0], requires_grad=True)
        run(x).sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads)


def test_switches_of_gradients_inside_end_before_inference_mode_does():
    """Else the graph puts back the mode of inference after it: the caller goes on without gradients."""
    assert mode_programs.differs(29000182) is None


def _off_and_without_gradients(x):
    with torch.inference_mode(False):
        with torch.no_grad():
            y = x * W
        z = x * W
    return y, z, y * 2


def _on_within_gradients(x):
    with torch.inference_mode():
        with torch.enable_grad():
            y = x * W
        z = x * 2
    return y, z, x * W


@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [_off_and_without_gradients, _on_within_gradients])
def test_inference_mode_switches_gradients_for_what_is_inside(fn, backend, around):
    """A mode inside that is that of the caller was left out of the graph."""
    run, x = smelt.compile(fn, backend=backend), X.clone()
    with around():
        for _ in range(2):
            assert _close(_seen(run(x)), _seen(fn(x)))


@torch.enable_grad()
def _as_decorated():
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def _grads_entered(x):
    with torch.enable_grad():
        inside = torch.is_grad_enabled(), (x + 1).requires_grad
    return x + 2, inside, torch.is_grad_enabled()


def _grads_set(x):
    with torch.set_grad_enabled(False):
        x = x + 1
    with torch.set_grad_enabled(True):
        inside = torch.is_grad_enabled(), (x * 2).requires_grad
    return x, inside, _as_decorated(), torch.is_grad_enabled()


def _inference_inside(x):
    with torch.inference_mode(), torch.enable_grad():
        inside = torch.is_grad_enabled(), (x * 2).requires_grad, torch.is_inference_mode_enabled()
    return x * 3, inside, torch.is_grad_enabled()


@pytest.mark.parametrize("fn", [_grads_entered, _grads_set, _inference_inside])
@pytest.mark.parametrize("around", [contextlib.nullcontext, torch.no_grad])
@pytest.mark.parametrize("mode", [True, False])
def test_gradients_switched_on_in_inference_mode_are_seen(fn, around, mode):
    """It has no effect on tensors there, but the program may read it."""
    compiled = smelt.compile(fn, backend="eager")
    for _ in range(2):
        with torch.inference_mode(mode), around():
            assert repr(compiled(torch.ones(2))) == repr(fn(torch.ones(2)))


def _broken(x):
    with torch.enable_grad():
        y = x * W
        print(end="", file=io.StringIO())
        facts = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return y, facts, torch.is_grad_enabled()


def _switched_off(x):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    print(end="", file=io.StringIO())
    return x * W, before, torch.is_grad_enabled()


def _read(x):
    return x * W, torch.is_grad_enabled(), torch.is_inference_mode_enabled()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [_broken, _switched_off, _read])
def test_a_frame_begins_in_inference_mode_with_gradients_switched_on(fn, backend):
    """By the caller, or before a break: nothing is recorded, but the program reads what it has switched."""
    smelt.reset()
    run = smelt.compile(fn, backend=backend)
    for outer in (torch.no_grad, torch.enable_grad):
        for _ in range(2):
            seen = []
            for each in (run, fn):
                with torch.inference_mode(), outer():
                    seen.append((_seen(each(X)), torch.is_grad_enabled()))
            assert _close(*seen)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
