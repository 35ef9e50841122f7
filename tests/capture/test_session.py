"""Versions, guards that keep them right, limits, fallbacks."""

from __future__ import annotations

import gc
import itertools
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn

from smelt.base.errors import SmeltWarning, Unsupported
from smelt.base.options import Options
from smelt.base.stats import reset_stats, stats
from smelt.capture import compiled as entry
from smelt.capture.compiled import compile_callable
from tests.capture.harness import compiled, eager_graph

X = torch.arange(6.0).reshape(2, 3)
FACTOR = 2
COUNT = itertools.count()
CONFIG = {"k": 1, "list": [1, 2]}


def versions(run):
    return sum(len(site.versions) for site in run._smelt_session.sites.values())


def counted(fn, *args_list, **options):
    """Calls with each tuple of arguments, compares with eager, gives the number of versions."""
    run = compiled(fn, fullgraph=True, recompile_limit=50, **options)
    for args in args_list:
        want = fn(*args)
        got = run(*args)
        assert type(want) is type(got) and (torch.equal(want, got) if isinstance(want, torch.Tensor) else want == got)
    return versions(run)


def test_one_version_serves_equal_calls():
    assert counted(lambda x: x + 1, (X,), (X.clone(),), (X * 2,)) == 1


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(3, 3), X.double(), X.t().contiguous().t(), X[:1], X.to("meta").new_zeros(2, 3).to("meta"),
        nn.Parameter(X), X.clone().requires_grad_(), X[0], X.to(torch.int64),
    ],
)  # fmt: skip
def test_tensor_metadata_makes_a_version(other):
    run = compiled(lambda x: x * 2, fullgraph=True)
    run(X), run(other), run(X), run(other)
    assert versions(run) == 2


def test_scalars_and_strings_are_guarded():
    assert counted(lambda x, k: x * k, (X, 2), (X, 3), (X, 2), (X, 2.0), (X, True)) == 4
    assert counted(lambda x, k: x * len(k), (X, "a"), (X, "b"), (X, "a")) == 2
    assert counted(lambda x, k=None: x if k is None else x + k, (X,), (X, 1), (X,)) == 2


def test_unused_arguments_are_not_guarded():
    assert counted(lambda x, k: x + 1, (X, 1), (X, 2), (X, "c")) == 1


def test_containers_are_guarded_by_what_is_read():
    assert counted(lambda x, d: x * d["a"], (X, {"a": 1, "b": 1}), (X, {"a": 1, "b": 2}), (X, {"a": 2})) == 2
    assert counted(lambda x, v: x * sum(v), (X, [1, 2]), (X, [1, 2]), (X, [1, 2, 3]), (X, (1, 2))) == 3
    assert counted(lambda x, d: x * d.get("z", 1), (X, {}), (X, {"a": 2}), (X, {"z": 2})) == 2
    assert counted(lambda x, d: len(d) * x, (X, {}), (X, {"a": 2}), (X, {"b": 2})) == 2


def test_fresh_lambda_with_the_same_code_does_not_recompile():
    def call(x, fn):
        return fn(x)

    def make(k):
        return lambda v: v * k

    assert counted(call, (X, make(2)), (X, make(2)), (X, make(3))) == 2


def test_globals_and_closures_are_guarded():
    global FACTOR
    factor = 5

    def fn(x):
        return x * FACTOR * factor * CONFIG["k"]

    run = compiled(fn, fullgraph=True)
    for FACTOR, factor, CONFIG["k"] in ((2, 5, 1), (3, 5, 1), (3, 6, 1), (3, 6, 4), (2, 5, 1)):  # noqa: B007
        assert torch.equal(run(X), fn(X))
    assert versions(run) == 4


def test_replaced_function_and_method_are_seen(monkeypatch):
    class Thing:
        def act(self, x):
            return x + 1

    thing = Thing()

    def fn(x):
        return thing.act(x)

    run = compiled(fn, fullgraph=True)
    assert torch.equal(run(X), X + 1)
    monkeypatch.setattr(Thing, "act", lambda self, x: x + 2)
    assert torch.equal(run(X), X + 2)
    thing.act = lambda x: x + 3
    assert torch.equal(run(X), X + 3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Dropout(0.5)])
        self.scale = 1.0
        self.register_buffer("shift", torch.ones(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * self.scale + self.shift


def agree(run, net):
    torch.manual_seed(0)
    want = net(X)
    torch.manual_seed(0)
    assert torch.equal(run(X), want)


def test_changes_of_a_module_are_seen():
    net = Net()
    run = compiled(net.forward, fullgraph=True, recompile_limit=50)
    changes = [
        lambda: None,
        lambda: net.eval(),
        lambda: net.train(),
        lambda: setattr(net, "scale", 2.0),
        lambda: net.layers.append(nn.ReLU()),
        lambda: net.layers[0].weight.requires_grad_(False),
        lambda: setattr(net.layers[0], "bias", None),
        lambda: setattr(net.layers[0], "weight", nn.Parameter(torch.ones(3, 3))),
        lambda: setattr(net.layers[0], "forward", lambda x: x + 1),
        lambda: delattr(net.layers[0], "forward"),
        lambda: net.register_buffer("shift", torch.zeros(1)),
        lambda: setattr(net.layers[1], "p", 0.1),
        lambda: net.layers[0].register_forward_hook(lambda m, a, out: out * 10),
        lambda: net.layers[0]._forward_hooks.clear(),
    ]
    for change in changes:
        change()
        agree(run, net)
        agree(run, net)
    assert 8 <= versions(run) <= len(changes)


def test_parameter_values_and_new_objects_of_the_same_kind_need_no_version():
    net = Net().eval()
    run = compiled(net.forward, fullgraph=True)
    agree(run, net)
    with torch.no_grad():
        net.layers[0].weight.mul_(3)
    net.layers[0] = nn.Linear(3, 3)
    agree(run, net)
    assert versions(run) == 1


def test_equal_modules_share_a_version():
    nets = [Net().eval() for _ in range(3)]

    def fn(net, x):
        return net(x)

    run = compiled(fn, fullgraph=True)
    for net in nets:
        assert torch.equal(run(net, X), net(X))
    assert versions(run) == 1


def test_modes_are_guarded():
    w = torch.ones(3, 3, requires_grad=True)

    def fn(x):
        return (x @ w) * (2 if torch.is_grad_enabled() else 3)

    run = compiled(fn, fullgraph=True)
    for _ in range(2):
        assert run(X).requires_grad
        with torch.no_grad():
            out = run(X)
            assert not out.requires_grad and torch.equal(out, fn(X))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert run(X).dtype == fn(X).dtype == torch.bfloat16
    assert versions(run) == 3


def test_aliased_arguments():
    def fn(a, b):
        return a is b, a + b

    run = compiled(fn, fullgraph=True)
    y = X.clone()
    assert run(X, X)[0] and not run(X, y)[0] and run(y, y)[0]

    def write(a, b):
        a.add_(1)
        return a + b

    run = compiled(write, fullgraph=True)
    for pair in ((X.clone(), X.clone()), 2 * [X.clone()], (X.clone(), X.clone())):
        other = [t.clone() for t in pair] if pair[0] is not pair[1] else 2 * [pair[0].clone()]
        assert torch.equal(run(*pair), write(*other)) and torch.equal(pair[0], other[0])


def test_arguments_that_share_memory():
    def write(a, b):
        a.add_(1)
        return b * 2

    run = compiled(write)
    for shared in (False, True, False):
        base, other = torch.zeros(6), torch.zeros(6)
        want = write(base[:4], (base if shared else torch.zeros(6))[2:])
        got = run(other[:4], (other if shared else torch.zeros(6))[2:])
        assert torch.equal(want, got) and torch.equal(base, other)


def test_global_hooks_are_seen():
    linear = nn.Linear(3, 3)
    run = compiled(linear)
    assert torch.equal(run(X), linear(X))
    handle = nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 2)
    try:
        assert torch.equal(run(X), linear(X))
    finally:
        handle.remove()
    assert torch.equal(run(X), linear(X))


def test_random_numbers_clocks_and_counters_are_never_constants():
    import datetime
    import random
    import time

    import numpy

    generator = numpy.random.RandomState(0)
    for source in (
        random.random,
        time.perf_counter,
        lambda: datetime.datetime.now().microsecond,
        numpy.random.rand,
        generator.rand,
        lambda: random.randint(0, 10**9),
        lambda: next(COUNT),
    ):

        def fn(x, source=source):
            return x + 1, source()

        run = compiled(fn)
        assert len({run(X)[1] for _ in range(3)}) > 1, source


def test_arrays_are_not_frozen():
    import numpy

    array = numpy.ones(3, dtype=numpy.float32)

    def fn(x):
        return x + torch.from_numpy(array), float(array.sum())

    run = compiled(fn)
    assert run(X)[1] == 3.0
    array[:] = 5
    out = run(X)
    assert out[1] == 15.0 and torch.equal(out[0], X + 5)


def test_numpy_scalars_are_constants():
    import numpy

    count = numpy.int64(4)

    def fn(x):
        chunk = numpy.lcm(count, 6)
        places = numpy.prod(x.shape)
        y = x.reshape(-1)[: int(places)] * chunk / numpy.sqrt(x.shape[0]) + numpy.float32(0.5) * x.reshape(-1)
        return y, chunk, places % chunk != 0, max(numpy.int64(3), -chunk), chunk.item(), torch.zeros(chunk // 4)

    run = compiled(fn, fullgraph=True)
    for number in (4, 10):
        count = numpy.int64(number)
        got, want = run(X), fn(X)
        for g, w in zip(got, want, strict=True):
            assert type(g) is type(w) and (torch.allclose(g, w) if isinstance(g, torch.Tensor) else g == w)


def test_numpy_on_tensors_breaks_the_graph():
    import numpy

    def fn(x):
        return numpy.abs((x * 2).numpy()).sum(), x + 1

    got = compiled(fn)(-X)
    assert got[0] == fn(-X)[0] and torch.equal(got[1], 1 - X)


def test_two_backends_do_not_share_versions():
    def fn(x):
        return x + 1

    seen = []

    def other(gm, inputs, report, options):
        seen.append(1)
        return lambda *args: tuple(t * 0 for t in gm(*args))

    a, b = compiled(fn), compile_callable(fn, other, Options())
    assert torch.equal(a(X), X + 1) and torch.equal(b(X), X * 0) and torch.equal(a(X), X + 1) and seen == [1]


def test_recompile_limit_warns_once_and_names_the_guard():
    def fn(x, k):
        return x + k

    run = compiled(fn, recompile_limit=3, dynamic=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(8):
            assert torch.equal(run(X, k), X + k)
    messages = [str(w.message) for w in caught if issubclass(w.category, SmeltWarning)]
    assert len(messages) == 1 and "the guard on k failed 3 times" in messages[0] and versions(run) == 3


def test_recompile_limit_is_an_error_with_fullgraph():
    run = compiled(lambda x, k: x + k, recompile_limit=2, fullgraph=True, dynamic=False)
    run(X, 1), run(X, 2)
    with pytest.raises(Unsupported, match="compiled 2 times"):
        run(X, 3)


def test_failing_backend_falls_back_to_eager(monkeypatch):
    def broken(gm, inputs, report, options):
        raise RuntimeError("no code today")

    def fn(x):
        return x + 1

    with pytest.raises(RuntimeError, match="no code today"):
        compile_callable(fn, broken, Options())(X)
    monkeypatch.setenv("SMELT_STRICT", "0")
    reset_stats()
    run = compile_callable(fn, broken, Options())
    with pytest.warns(SmeltWarning, match="no code today"):
        assert torch.equal(run(X), X + 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(run(X), X + 1)
    assert stats()["fallbacks"] == 1


def test_counts():
    reset_stats()
    run = compiled(lambda x: (x + 1).sin())
    run(X), run(X), run(X.double())
    found = stats()
    assert found["graphs"] == 2 and found["ops"] == 4 and found["recompiles"] == 1 and found["breaks"] == 0
    assert found["stage_s"]["capture"] > 0


def test_threads_share_versions():
    run = compiled(lambda x: x * 2 + 1, fullgraph=True)
    run(X)
    bad = []

    def work():
        for _ in range(50):
            if not torch.equal(run(X), X * 2 + 1):
                bad.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert not bad and versions(run) == 1


def test_reset_forgets():
    run = compiled(lambda x: x + 1)
    run(X)
    entry.reset()
    assert versions(run) == 0
    run(X)
    assert versions(run) == 1


def test_compiled_inside_of_compiled_is_one_graph():
    inner = compiled(lambda x: x + 1)

    def fn(x):
        return inner(x) * 2

    run = compiled(fn, fullgraph=True)
    assert torch.equal(run(X), (X + 1) * 2) and versions(run) == 1


def test_metadata_of_the_wrapped_function():
    def fn(x):
        """What it does."""
        return x

    run = compiled(fn)
    assert run.__name__ == "fn" and run.__doc__ == "What it does." and run.__wrapped__ is fn


def test_callable_objects_modules_and_methods():
    class Adder:
        def __init__(self, k):
            self.k = k

        def __call__(self, x):
            return x + self.k

        def method(self, x):
            return x - self.k

    adder, linear = Adder(3), nn.Linear(3, 3)
    assert torch.equal(compiled(adder)(X), X + 3)
    assert torch.equal(compiled(adder.method)(X), X - 3)
    for target in (linear, nn.Sequential(linear, nn.ReLU())):
        run = compiled(target, fullgraph=True)
        assert torch.equal(run(X), target(X)) and versions(run) == 1


def test_generators_and_coroutines_run_as_they_are():
    def gen(x):
        yield x + 1
        yield x + 2

    assert [t.sum().item() for t in compiled(gen)(X)] == [21.0, 27.0]


def test_gradients_flow_through_the_graph():
    net = Net().eval()
    x = X.clone().requires_grad_()
    out = compile_callable(net.forward, eager_graph)(x)
    out.sum().backward()
    got = [x.grad.clone(), net.layers[0].weight.grad.clone()]
    x.grad, net.layers[0].weight.grad = None, None
    net(x).sum().backward()
    assert torch.equal(got[0], x.grad) and torch.equal(got[1], net.layers[0].weight.grad)


def test_versions_do_not_keep_a_model_alive():
    def use():
        net = Net()
        run = compiled(net, fullgraph=True)
        run(X), net.eval()(X), run(X)
        return weakref.ref(net), weakref.ref(net.layers[0].weight)

    refs = use()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]
