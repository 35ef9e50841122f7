"""Backwards for calls in which some results were not used."""

import contextlib
import itertools
import sys
from typing import Any

import pytest
import torch

import smelt
from smelt import driver
from smelt.autograd.call import absent_tangents
from smelt.base.locks import held_locks
from smelt.graph.ir.meta import TensorMeta, contiguous_stride


def several(a, b):
    y = torch.nn.functional.layer_norm(a * 2, (8,))
    z = torch.nn.functional.gelu(a @ b)
    return y.sum(-1), z, torch.softmax(z, -1)


@pytest.mark.parametrize("used", [u for u in itertools.product((False, True), repeat=3) if any(u)])
def test_gradients_are_those_of_eager_whatever_was_used(used):
    a, b = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    found = []
    for f in (several, smelt.compile(several)):
        a.grad = b.grad = None
        weighed = [(out * torch.arange(1.0, 1 + out.shape[-1])).sum() for out in f(a, b)]
        sum(itertools.compress(weighed, used)).backward()
        found.append((a.grad, b.grad))
    for mine, eager in zip(*found[::-1], strict=True):
        assert (mine is None) == (eager is None)
        if eager is not None:
            torch.testing.assert_close(mine, eager, atol=1e-4, rtol=1e-4)


def test_nothing_is_computed_from_what_is_absent(monkeypatch):
    made = []
    original = absent_tangents.without_tangents

    def without_tangents(gm, absent):
        graph = original(gm, absent)
        made.append([(n.op, n.name, str(n.target)) for n in graph.graph.nodes])  # compilation gives up the nodes
        return graph

    monkeypatch.setattr(absent_tangents, "without_tangents", without_tangents)

    def loss_and_logits(x, w):
        logits = x @ w
        return logits.pow(2).mean(), logits

    x, w = torch.randn(8, 16), torch.randn(16, 32, requires_grad=True)
    loss_and_logits_compiled = smelt.compile(loss_and_logits)
    for _ in range(2):
        loss_and_logits_compiled(x, w)[0].backward()
    (nodes,) = made  # compiled once
    assert sum(op == "placeholder" and name.startswith("tangents_") for op, name, _ in nodes) == 1
    assert not any("full" in target for _, _, target in nodes)


def loss_and_logits(x, w):
    logits = x @ w
    return logits.pow(2).mean(), logits


def test_the_backward_with_all_gradients_is_compiled_once_it_is_needed(monkeypatch):
    names = []
    original = driver.render
    monkeypatch.setattr(
        driver, "render", lambda part, o, r, name, *more: names.append(name) or original(part, o, r, name, *more)
    )
    x, w = torch.randn(8, 16), torch.randn(16, 32, requires_grad=True)
    compiled = smelt.compile(loss_and_logits)
    for _ in range(2):
        compiled(x, w)[0].backward()
    assert names == ["forward", "backward"]
    found = []
    for f in (loss_and_logits, compiled, compiled):
        w.grad = None
        loss, logits = f(x, w)
        (loss + logits.sum()).backward()
        found.append(w.grad)
    torch.testing.assert_close(found, [found[0]] * 3)
    assert len(names) == 3
    w.grad = None
    compiled(x, w)[1].sum().backward()
    assert len(names) == 4


@pytest.mark.parametrize(
    ("shapes", "absent"),
    [([(), (8, 8)], (1,)), ([(8, 8), (1,)], (0,)), ([(), ()], None), ([(8,), (8,)], None), ([()], ()), ([(8,)], ())],
)
def test_a_number_among_large_results_is_the_loss(shapes, absent):
    metas = [TensorMeta(shape, torch.float32, contiguous_stride(shape), torch.device("cpu")) for shape in shapes]
    graph = absent_tangents.Graph()
    for i, meta in enumerate(metas):
        graph.placeholder(f"tangents_{i}").meta["val"] = meta
    graph.output(()).meta["val"] = ()
    gm = absent_tangents.GraphModule(torch.nn.Module(), graph)
    likely, without = absent_tangents.likely_backward(gm, metas)
    assert (None if likely is None else without) == absent
    assert absent_tangents.likely_backward(gm, metas, some=True)[0] is not None


def test_the_backward_is_compiled_on_first_use_if_uses_are_unknown(monkeypatch):
    names = []
    original = driver.render
    monkeypatch.setattr(
        driver, "render", lambda part, o, r, name, *more: names.append(name) or original(part, o, r, name, *more)
    )
    x, w = torch.randn(8, 16), torch.randn(16, 32, requires_grad=True)
    compiled = smelt.compile(lambda x, w: (x @ w, (x @ w).sin()))
    for _ in range(2):
        compiled(x, w)
    assert names == ["forward"]
    for _ in range(2):
        compiled(x, w)[0].sum().backward()
    assert names == ["forward", "backward_less"]
    found = []
    for f in (compiled, lambda x, w: (x @ w, (x @ w).sin())):
        w.grad = None
        sum(out.sum() for out in f(x, w)).backward()
        found.append(w.grad)
    torch.testing.assert_close(*found)
    assert len(names) == 3


def test_a_late_backward_that_cannot_be_compiled_runs_in_eager(monkeypatch):
    monkeypatch.setenv("SMELT_STRICT", "0")
    x, w = torch.randn(8, 16), torch.randn(16, 32, requires_grad=True)
    compiled = smelt.compile(loss_and_logits)
    compiled(x, w)[0].backward()
    monkeypatch.setattr(driver, "render", lambda *_: 1 / 0)
    found = []
    for f in (loss_and_logits, compiled):
        w.grad = None
        loss, logits = f(x, w)
        with contextlib.ExitStack() as stack:
            if f is compiled:
                stack.enter_context(pytest.warns(smelt.SmeltWarning, match="another backward of .* failed: division"))
            (loss + logits.sum()).backward()
        found.append(w.grad)
    torch.testing.assert_close(*found)
    monkeypatch.setenv("SMELT_STRICT", "1")


INFINITE = {
    "sqrt": lambda a: a.sqrt(),
    "rsqrt": lambda a: (a.abs() + 1e-45).rsqrt() / a.sqrt(),
    "log": lambda a: a.log(),
    "power": lambda a: a**0.3,
    "norm": lambda a: a.norm(dim=-1),
    "product": lambda a: a @ torch.full((3, 2), float("inf"), dtype=a.dtype),
    "softmax": lambda a: (a - float("inf")).softmax(-1),
    "std": lambda a: (a * 0).std(-1),
    "divided": lambda a: 1 / a,
}


@pytest.mark.parametrize("name", list(INFINITE))
@pytest.mark.parametrize("shape", [(2, 3), (3,), (600, 3)], ids=str)
@pytest.mark.parametrize("dynamic", [None, True])
def test_unused_result_with_infinite_derivative_adds_no_nan(name, shape, dynamic):
    """The gradient of the first result was NaN wherever the second one's derivative is infinite."""
    other = INFINITE[name]
    for order in (False, True):

        def function(a, order=order):
            results = a.sum(-1) * 2, other(a)
            return results[::-1] if order else results

        one, two = (torch.zeros(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
        smelt.compile(function, dynamic=dynamic)(one)[order].sum().backward()
        function(two)[order].sum().backward()
        assert torch.equal(one.grad, two.grad) and torch.equal(one.grad, torch.full(shape, 2.0, dtype=torch.float64))


def test_programs_for_many_patterns(monkeypatch):
    monkeypatch.setattr(absent_tangents, "MAX_PROGRAMS", 2)
    x = torch.ones(4, requires_grad=True)
    run = smelt.compile(lambda x: (x * 2, x * 3, x * 4))
    for used in itertools.product((0, 1), repeat=3):
        if any(used):
            x.grad = None
            sum(out.sum() * flag for out, flag in zip(run(x), used, strict=True) if flag).backward()
            assert x.grad.tolist() == [2.0 * used[0] + 3.0 * used[1] + 4.0 * used[2]] * 4


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_beyond_the_limit_of_programs_nothing_is_multiplied_by_zeros(monkeypatch, dynamic, dtype):
    """There absent gradients were zeros, and zeros times infinite derivatives are NaN."""
    monkeypatch.setattr(absent_tangents, "MAX_PROGRAMS", 2)

    def function(x, table, rows):
        looked_up = torch.nn.functional.embedding(rows, table, sparse=True)
        return x.sum(), x.sqrt(), x.exp() * 2, (x + 1).log(), looked_up * 3, looked_up.sum() * x.sin()

    compiled = smelt.compile(function, dynamic=dynamic)
    rows = torch.tensor([1, 0, 1])
    for used in itertools.product((0, 1), repeat=6):
        if any(used):
            found = []
            for f in (compiled, function):
                x, table = (
                    torch.tensor([0.0, 1.0, 2.0], dtype=dtype).requires_grad_(),
                    torch.ones(2, 2).requires_grad_(),
                )
                sum(out.abs().sum() * 2 for out in itertools.compress(f(x, table, rows), used)).backward()
                found.append([x.grad, None if table.grad is None else table.grad.to_dense()])
            for mine, eager in zip(*found, strict=True):
                assert (mine is None) == (eager is None), used
                if eager is not None:
                    torch.testing.assert_close(mine, eager, equal_nan=used[1] == 1)


F, PLACES = torch.nn.functional, torch.tensor([0, 2, 0])

BEHIND = {
    "slice": lambda s: s[1:] * 1,
    "step": lambda s: s[::2] * 1,
    "one": lambda s: s[1] * 1,
    "pad": lambda s: F.pad(s, (1, 2)),
    "cat": lambda s: torch.cat([s, s]),
    "stack": lambda s: torch.stack([s, s * 2]),
    "roll": lambda s: s.roll(1),
    "index": lambda s: s[PLACES],
    "gather": lambda s: s.gather(0, PLACES),
    "index_add": lambda s: torch.zeros(5, dtype=s.dtype).index_add(0, PLACES, s),
    "scatter": lambda s: torch.zeros(5, dtype=s.dtype).scatter(0, torch.arange(3), s),
    "put": lambda s: torch.zeros(5, dtype=s.dtype).index_put((PLACES,), s, accumulate=True),
    "cumsum": lambda s: s.cumsum(0),
    "unfold": lambda s: s.unfold(0, 2, 1) * 1,
    "strided": lambda s: s.as_strided((2, 2), (1, 1)) * 1,
    "convolution": lambda s: F.conv1d(s[None, None], torch.ones(1, 1, 2, dtype=s.dtype)),
    "transposed convolution": lambda s: F.conv_transpose1d(s[None, None], torch.ones(1, 1, 2, dtype=s.dtype)),
    "complex factor": lambda s: s * 1j,
    "tril": lambda s: s.expand(3, 3).tril(),
    "diagonal": lambda s: torch.diag(s),
    "product": lambda s: torch.ones(3, 3, dtype=s.dtype) @ s,
}
OF_REAL_NUMBERS = {
    "write": lambda s: torch.zeros(5, dtype=s.dtype).slice_scatter(s, 0, 1, 4),
    "sort": lambda s: s.sort()[0],
    "topk": lambda s: s.topk(2)[0],
    "average pool": lambda s: F.avg_pool1d(s[None], 2),
    "max pool": lambda s: F.max_pool1d(s[None], 2),
    "embedding": lambda s: F.embedding(PLACES, s[:, None]),
    "complex": lambda s: torch.complex(s, s),
    "transform": lambda s: torch.fft.rfft(s),
    "interpolate": lambda s: F.interpolate(s[None, None], scale_factor=2.0, mode="linear"),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name in BEHIND for dtype in (torch.float64, torch.complex128)]
    + [(name, torch.float64) for name in OF_REAL_NUMBERS],
    ids=str,
)
def test_unused_result_behind_linear_operations_adds_no_gradient(name, dtype, dynamic):
    """The gradients of these operations, and all of complex numbers, became zeros, and those NaN behind them."""
    behind = {**BEHIND, **OF_REAL_NUMBERS}[name]

    def function(x):
        return x.sum(), behind(x.sqrt())

    found = []
    for f in (function, smelt.compile(function, dynamic=dynamic)):
        x = torch.tensor([0.0, 1.0, 2.0], dtype=dtype, requires_grad=True)
        f(x)[0].abs().backward()
        found.append(x.grad)
    assert torch.equal(*found)


def test_operators_of_torch_that_are_linear_exist_and_are_no_primitives():
    names = {*absent_tangents.LINEAR_IN, *absent_tangents.PRODUCTS}
    assert all(hasattr(torch.ops.aten, name) and name not in absent_tangents.PRIMS for name in names)


def _mean_and_its_sum(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = torch.outer(x.flatten(), x.flatten()).mean(0)
    return mean.sum(0, keepdim=True), mean


def _transposed(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.exp()
    return y.t().sum(0), y.view(-1)


def _expanded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.sin()
    return y.sum(), y.reshape(-1).cos()


@pytest.mark.parametrize("used", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("function", [_mean_and_its_sum, _transposed, _expanded])
def test_gradient_sum_with_absent_terms_may_change_strides(function: Any, used: tuple[bool, bool]) -> None:
    """Gradients that are expanded, or lie in another order, where the sum with an absent one was dense."""
    found = []
    for run in (smelt.compile(function), function):
        x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
        loss = sum((3 * result).sum() for result, wanted in zip(run(x), used, strict=True) if wanted)
        loss.backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


LAYOUTS = [
    ((2, 3), (3, 1)), ((2, 3), (1, 2)), ((2, 2), (0, 0)), ((2, 3, 4), (1, 0, 2)), ((4, 2, 3), (3, 12, 1)), ((), ()),
    ((5,), (0,)), ((0, 3), (3, 1)), ((1, 3), (3, 1)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
@pytest.mark.parametrize("of_prims", [True, False])
@pytest.mark.parametrize(("shape", "stride"), [*LAYOUTS, ((2, 3), (8, 1))], ids=str)
def test_zeros_have_the_layout_of_the_tensor_they_replace(
    shape: tuple[int, ...], stride: tuple[int, ...], of_prims: bool, dtype: torch.dtype
) -> None:
    meta = TensorMeta(shape=shape, stride=stride, dtype=dtype, device=torch.device("cpu"))
    without = absent_tangents._Without(torch.fx.GraphModule({}, torch.fx.Graph()), ())
    without.of_prims = of_prims
    node = without.made(meta)
    without.graph.output(node)
    wanted = stride if (shape, stride) in LAYOUTS else contiguous_stride(shape)  # values inside of graphs have no gaps
    assert node.meta["val"].shape == shape and node.meta["val"].stride == wanted
    if not of_prims:
        value = torch.fx.GraphModule({}, without.graph)()
        assert value.dtype is dtype and tuple(value.shape) == shape and value.stride() == wanted and not value.any()


class _TurnedAndGrown(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return x.t(), x.exp()

    @staticmethod
    def backward(ctx: Any, turned: Any, grown: Any) -> Any:  # type: ignore[override]
        return turned.t() * 3 + grown


@pytest.mark.parametrize("used", [0, 1, 2])
def test_absent_sums_of_transposed_values(used: int) -> None:
    """The gradient of a sum is expanded; where nobody uses the sum, what is turned again is zeros of that layout."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned, grown = _TurnedAndGrown.apply(x * 2)  # type: ignore[no-untyped-call]
        return grown, turned.sum(), grown.sum()

    found = []
    for run in (function, smelt.compile(function)):
        x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
        run(x)[used].sum().backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


def test_no_lock_remains_when_its_release_fails():
    """As a profile function that raises does it, between the compilation of a backward and the end of its block."""
    x = torch.randn(4, requires_grad=True)
    result = smelt.compile(lambda x: (x.sin(), x.cos()))(x)[0].sum()
    before = held_locks()

    def profile(frame, event, called):
        if event == "c_call" and frame.f_code.co_filename == absent_tangents.__file__ and "exit" in str(called):
            sys.setprofile(None)
            raise OSError("no")

    sys.setprofile(profile)
    try:
        with pytest.raises(OSError, match="no"):
            result.backward(retain_graph=True)
    finally:
        sys.setprofile(None)
    assert held_locks() == before
    result.backward()
    torch.testing.assert_close(x.grad, x.detach().cos())
