"""Graph breaks: everything around them behaves as in eager, and capture goes on after them."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch

from smelt.base.errors import Unsupported
from smelt.capture.torch.escapes import disable, graph_break
from tests.capture.harness import check, compiled, raises, same

pytestmark = pytest.mark.usefixtures("branches_end_graphs")

X = torch.arange(6.0).reshape(2, 3)


@disable
def outside(x, by=1):
    return x + by


@disable
def read(v):
    return v.item()


class Box:
    def __init__(self, value):
        self.value = value

    def grow(self, x):
        if x.sum() > 0:
            self.value += 1
        return x * self.value


class Manager:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("in")
        return 2

    def __exit__(self, kind, value, trace):
        self.log.append(None if kind is None else kind.__name__)
        return kind is ValueError


CASES = {}


def case(breaks):
    def register(fn):
        CASES[fn.__name__] = (fn, breaks)
        return fn

    return register


@case(1)
def tensor_branch(x):
    y = x * 2
    if y.sum() > 3:
        y = y + 1
    else:
        y = y - 1
    return y * 3


@case(1)
def tensor_branch_not_taken(x):
    y = x * 2
    if y.sum() < 3:
        return y
    return y - 1


@case(2)
def and_or_not(x):
    a = (x.sum() > 0) and x.shape
    b = not (x.sum() > 0)
    return a, b, x + 1


@case(1)
def number_from_a_break(x):
    n = read(x.max())
    return x * n, n


@case(1)  # the list's numbers are read by the graph
def int_and_tolist(x):
    n = int(x[0, 1])
    return x * n, (x + 1).tolist()


@case(1)
def break_in_loop(x):
    out = []
    for i in range(3):
        x = x + i
        graph_break()
        out.append(x * 2)
    return out


@case(1)
def nested_loops(x):
    total = 0
    for i, row in enumerate(x):
        for j in range(2):
            total = total + row * j + i
            graph_break()
    return total


@case(1)
def while_on_tensor(x):
    n = 0
    while x.sum() < 100:
        x = x * 2
        n += 1
    return x, n


@case(1)
def in_with(x):
    log = []
    with Manager(log) as two:
        y = x * two
        graph_break()
        y = y + 1
    log.append("after")
    return y, log


@case(1)
def in_no_grad(x):
    with torch.no_grad():
        y = x * 2
        graph_break()
        z = torch.is_grad_enabled()
    return y, z, torch.is_grad_enabled()


@case(1)
def in_autocast(x):
    w = torch.ones(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
        graph_break()
        z = x @ w
    return y, z, x @ w, torch.is_autocast_enabled("cpu")


@case(1)
def in_try(x):
    log = []
    try:
        y = x + 1
        graph_break()
        log.append("body")
        raise KeyError("k")
    except KeyError as error:
        log.append(str(error))
    finally:
        log.append("finally")
    return y, log


@case(1)
def raising_call_in_try(x):
    @disable
    def fail(v):
        raise ValueError("from outside")

    try:
        x = x + 1
        fail(x)
    except ValueError as error:
        return x * 2, str(error)


@case(1)
def raising_call_in_with(x):
    @disable
    def fail():
        raise ValueError

    log = []
    with Manager(log):
        x = x + 1
        fail()
    return x, log


@case(1)
def disabled_call(x):
    y = outside(x * 2, by=3)
    return y * 2


@case(1)
def several_values_on_the_stack(x):
    return [x + 1, read((x * 2).sum()), {"k": x - 1}], x


@case(1)
def method_breaks_inside(x):
    box = Box(1)
    y = box.grow(x)
    return y + 1, box.value


@case(1)
def closure_survives(x):
    count = 0

    def bump():
        nonlocal count
        count += 1
        return x * count

    a = bump()
    graph_break()
    b = bump()
    return a, b, count


@case(1)
def comprehension(x):
    return [read(v) for v in x[0]], x * 2


@case(1)
def print_tensor(x):
    y = x + 1
    shown = str(y)
    return y * len(shown)


@case(1)
def formatted(x):
    y = x.sum()
    return f"sum={y:.1f}", y + 1


@case(1)
def local_class(x):
    class Inner:
        k = 3

    return x * Inner.k


class Rows:
    """A sequence that no graph can look into."""

    def __init__(self, x):
        self.x = x

    @disable
    def __getitem__(self, key):
        return self.x[key]

    @disable
    def __iter__(self):
        return iter(self.x.unbind())


@case(1)
def unpacked(x):
    first, second = Rows(x + 1)
    return first + 1, second


@case(1)
def subscript(x):
    y = Rows(x + 1)[1]
    return y * 2


@case(0)
def backward_inside(x):
    w = torch.ones(3, requires_grad=True)
    (x * w).sum().backward()
    return w.grad * 2


@case(1)
def enumerate_zip_state(x):
    out = []
    for i, (a, b) in enumerate(zip(x, [1, 2], strict=True)):
        graph_break()
        out.append(a * b + i)
    return out


@case(1)
def dict_iteration(x):
    out = []
    for key, value in {"a": x, "b": x + 1}.items():
        graph_break()
        out.append((key, value * 2))
    return out


@case(1)
def star_call(x):
    args, kwargs = (x,), {"by": 4}
    return outside(*args, **kwargs) * 2


@case(1)
def contextmanager_with_break(x):
    @contextlib.contextmanager
    def region():
        graph_break()
        yield 5

    with region() as five:
        return x * five


@pytest.mark.parametrize("name", CASES)
def test_like_eager(name):
    fn, breaks = CASES[name]
    check(fn, X, breaks=breaks)


def test_exception_after_a_break_is_eagers():
    def fn(x):
        y = x + 1
        graph_break()
        raise ValueError(f"later {tuple(y.shape)}")

    raises(fn, ValueError, X)


def test_exception_of_the_breaking_call_is_eagers():
    def fn(x):
        y = x + 1
        return int(y)

    raises(fn, ValueError, X)


@pytest.mark.parametrize(
    "text", ["1[0]", "'text'['key']", "1()", "None(*[x])", "1(sep=x)", "True[0:x]", "len[1]", "2 .n"]
)
def test_an_operation_that_fails_in_eager_is_done_in_silence(text):
    scope = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(f"def fn(x):\n    graph_break()\n    return {text}", {"graph_break": graph_break}, scope)
    with warnings.catch_warnings(record=True) as told:
        raises(scope["fn"], (TypeError, AttributeError), X)
    assert not told, [str(each.message) for each in told]


def test_fullgraph_names_what_where_why_and_hint():
    def fn(x):
        if x.sum() > 0:
            return x
        return x + 1

    with pytest.raises(Unsupported) as caught:
        compiled(fn, fullgraph=True)(X)
    text = str(caught.value)
    assert "branch on a tensor" in text and "test_resumption.py:" in text and "torch.where" in text


def test_callee_of_a_break_is_captured_on_its_own():
    def callee(x):
        y = x.sin()
        graph_break()
        return y.cos()

    def fn(x):
        return callee(x * 2) + 1

    found = check(fn, X, breaks=1)
    assert found.graph_count >= 3


def test_loop_over_modules_reuses_one_version():
    layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(6)])

    def fn(x):
        for layer in layers:
            x = layer(x)
            graph_break()
        return x

    run = compiled(fn)
    assert torch.equal(run(X), fn(X))
    session = run._smelt_session
    assert all(len(site.versions) <= 2 for site in session.sites.values()), session.sites


class Base:
    def scale(self, x):
        return x * 2


class Scaled(Base):
    """What needs its own first argument after a break says so in no instruction."""

    def scale(self, x):
        y = x + 1
        graph_break()
        return super().scale(y)

    def scale_in_eager(self, x):
        y = x + 1
        graph_break()
        return disable(super().scale)(y)

    def scale_with_cell(self, x):
        graph_break()
        found = super()
        return (lambda: found.scale(x) if self else None)()


@pytest.mark.parametrize("name", ["scale", "scale_in_eager", "scale_with_cell"])
def test_super_without_arguments_after_a_break(name):
    method = getattr(Scaled(), name)
    run = compiled(method)
    for _ in range(2):
        assert torch.equal(run(torch.ones(2)), method(torch.ones(2)))


def test_a_break_in_a_tuple_with_stars():
    def fn(x):
        before = x.dim(), x.shape[0]
        return *before, graph_break(), x + 1, *before

    run = compiled(fn)
    for _ in range(2):
        assert same(run(torch.ones(2)), fn(torch.ones(2)))
