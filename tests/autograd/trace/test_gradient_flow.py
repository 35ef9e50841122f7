"""What a backward gets and gives for each set of used results: in eager the engine leaves out whole nodes."""

import itertools

import pytest
import torch

import smelt
from smelt.graph.ir.gradient_marks import marks
from tests import gradient_programs

BACKENDS = ["aot_eager", "smelt"]


class Adds(torch.autograd.Function):
    """Zeros stand for a gradient that is absent, and become other numbers."""

    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        return (a + 1) * (b + 2)


class AddsToEach(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, a, b):
        return a + 1, (b + 1).exp()


class Keeps(torch.autograd.Function):
    """None stands for a gradient that is absent."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        (x,) = ctx.saved_tensors
        if a is None:
            return b * 7 * x
        return a * 5 if b is None else a * 2 + b * 3


class GivesSaved(torch.autograd.Function):
    """It gives something when it gets nothing."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, a):
        (x,) = ctx.saved_tensors
        return x + 1 if a is None else a + x


class GivesSome(torch.autograd.Function):
    """What it gives depends on what it gets."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, a, b):
        return (None, b) if a is None else (a, None) if b is None else (b, a)


class GivesNothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * 2 + y, x * y

    @staticmethod
    def backward(ctx, a, b):
        return a + b, None


class Insists(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        if b is None:
            raise ValueError("where is b?")
        return b if a is None else a + b


class Refuses(torch.autograd.Function):
    """It raises for some sets, and gives nothing, or what depends on what it gets, for others."""

    @staticmethod
    def forward(ctx, x, y, how):
        ctx.set_materialize_grads(False)
        ctx.how = how
        return x * 2, y * 3, x * y

    @staticmethod
    def backward(ctx, a, b, c):
        match ctx.how:
            case "all" if c is not None and a is not None and b is not None:
                raise ValueError("too many")
            case "alone" if c is None:
                raise ValueError("where is c?")
            case "nothing":
                if c is None:
                    raise ValueError("where is c?")
                return None, None, None
            case "number" if c is None:
                return 7, b, None
            case "count" if a is None:
                return b, c
            case "shape" if b is None:
                return torch.ones(2), None, None
            case "spreads" if b is None:
                return torch.ones((), dtype=torch.float64), torch.ones(2, 3), None
        return (c, None, None) if a is None else (None, a, None) if b is None else (a, b, None)


class Shapes(torch.autograd.Function):
    """Results of several shapes and types, one of them without a gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        count = (x > 0).sum()
        ctx.mark_non_differentiable(count)
        return x.double().sum(), count, x[None].expand(2, -1) * 1

    @staticmethod
    def backward(ctx, a, _, b):
        if a is None:
            return b.sum(0) * 11
        return a.float() * torch.ones(3) if b is None else b[0] * 13


PROGRAMS = {
    "adds": lambda x: Adds.apply(x * 1),
    "adds, an argument": Adds.apply,
    "adds twice": lambda x: Adds.apply(Adds.apply(x)[0]),
    "adds, others": lambda x: (*Adds.apply(x), x.sqrt(), x * 2),
    "adds to each": lambda x: AddsToEach.apply(x * 1, x.exp()),
    "adds behind nothing": lambda x: (GivesNothing.apply(x, (y := Adds.apply(x))[0])[0], y[0] * 1, y[1] * 1),
    "keeps": lambda x: Keeps.apply(x * 1),
    "keeps twice": lambda x: Keeps.apply(Keeps.apply(x)[0]),
    "keeps, both ways": lambda x: (Keeps.apply((y := Keeps.apply(x))[0])[1], y[1] * 1),
    "keeps behind nothing": lambda x: (GivesNothing.apply(x, GivesSaved.apply(x * 1))[0], x * 2),
    "keeps behind nothing, twice": lambda x: (
        GivesNothing.apply(x, GivesSaved.apply(GivesNothing.apply(x, GivesSaved.apply(x) * 3)[0]) * 1)[0],
        x.exp(),
    ),
    "gives some": lambda x: GivesSome.apply(x * 2, x.exp()),
    "gives some, twice": lambda x: GivesSome.apply(*GivesSome.apply(x * 2, x.exp())),
    "gives some to one that keeps": lambda x: GivesSome.apply(*Keeps.apply(x)),
    "gives some to one that adds": lambda x: (*GivesSome.apply(*Adds.apply(x)), x * 2),
    "insists": lambda x: (*Insists.apply(x), x * 3),
    **{
        f"refuses {how}": lambda x, how=how: (*Refuses.apply(x * 2, x.exp(), how), x * 3)
        for how in ("all", "alone", "nothing", "number", "count", "shape", "spreads")
    },
    "refuses one that is not returned": lambda x: (*Refuses.apply(x * 2, x.exp(), "alone")[:2], x * 3),
    "refuses behind another": lambda x: (*Refuses.apply(*Insists.apply(x * 1), "alone"), x * 3),
    "refuses and nothing else": lambda x: Refuses.apply(x * 1, x * 2, "nothing"),
    "insists behind what refuses": lambda x: (*Insists.apply(Refuses.apply(x * 1, x * 2, "all")[0]), x * 3),
    "shapes": lambda x: (*Shapes.apply(x), x * 2),
    "sum of exponentials": lambda x: (x.sum(), x.sqrt().logcumsumexp(0)),
    "root": lambda x: (x.sum(), x.sqrt()),
    "roots in a row": lambda x: (x * 2, x.sqrt().sqrt().logcumsumexp(0) + x, x.sqrt().prod()),
    "products": lambda x: (x.sum(), x.sqrt().cumprod(0)),
    "matrix": lambda x: (x * 2, torch.linalg.svd(x.expand(3, 3))[0]),
    "parts": lambda x: ((x + 1).unbind(0)[0], x.sqrt().unbind(0)[1], x * 2),
}


def _found(function, used, create_graph=False, dtype=torch.float32):
    x = torch.tensor([0.0, 1.0, 2.0], dtype=dtype, requires_grad=True)
    results = [each for each in function(x) if each.requires_grad]
    try:
        total = sum(out.sum() * (k + 2) for k, out in enumerate(itertools.compress(results, used)))
        (first,) = torch.autograd.grad(total, x, create_graph=create_graph, allow_unused=True)
        if not create_graph or first is None or not first.requires_grad:
            return first
        return first, torch.autograd.grad(first.square().sum(), x, allow_unused=True)[0]
    except (RuntimeError, ValueError, TypeError, smelt.SmeltError) as error:
        return type(error)


def _sets(name):
    count = sum(each.requires_grad for each in PROGRAMS[name](torch.ones(3, requires_grad=True)))
    return [used for used in itertools.product((0, 1), repeat=count) if any(used)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_the_engine_whatever_is_used(name, backend, dynamic):
    compiled = smelt.compile(PROGRAMS[name], backend=backend, dynamic=dynamic)
    for used in [*_sets(name), *_sets(name)]:
        want, got = _found(PROGRAMS[name], used), _found(compiled, used)
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(got, want, equal_nan=True, msg=lambda text, used=used: f"{used}: {text}")
        else:
            assert got is want, used


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "name", ["adds", "adds to each", "keeps", "gives some", "root", "insists", "sum of exponentials"]
)
def test_second_derivatives_are_of_what_was_used(name, backend):
    compiled = smelt.compile(PROGRAMS[name], backend=backend)
    for used in _sets(name):
        want, got = _found(PROGRAMS[name], used, True), _found(compiled, used, True)
        assert type(got) is type(want), used
        if isinstance(want, (tuple, torch.Tensor)):
            torch.testing.assert_close(got, want, equal_nan=True)


def test_triton_kernels_have_no_marks(monkeypatch):
    compiled = smelt.compile(PROGRAMS["adds, others"], options={"target": "triton"})
    for used in [(1, 0, 0, 0), (0, 1, 1, 0), (1, 1, 1, 1)]:
        torch.testing.assert_close(_found(compiled, used), _found(PROGRAMS["adds, others"], used), equal_nan=True)


def test_a_backward_that_looks_at_gradients_again_is_retained():
    compiled = smelt.compile(PROGRAMS["keeps"])
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    one, two = compiled(x)
    one.sum().backward(retain_graph=True)
    two.sum().backward(retain_graph=True)
    (one.sum() + two.sum()).backward()
    assert x.grad.tolist() == [5 + 7 * v + 5 for v in (1.0, 2.0, 3.0)]


def test_a_loss_beside_logits_has_one_mark(monkeypatch):
    """Where gradients of both meet; a program of one result has none."""
    from smelt import pipeline

    joints = []
    original = pipeline.trace_joint
    monkeypatch.setattr(pipeline, "trace_joint", lambda *a: joints.append(original(*a)) or joints[-1])

    def function(x, w, both):
        logits = x @ w
        loss = logits.pow(2).mean()
        return (loss, logits) if both else loss

    for both in (True, False):
        smelt.compile(function)(torch.ones(2, 3), torch.ones(3, 4, requires_grad=True), both)
    assert [len(marks(joint.module.graph)) for joint in joints] == [1, 0]


def test_a_function_that_raises_raises_where_a_backward_comes_to_it():
    """The trace raised at the call, for a result that the backward insists on and nobody returns."""
    compiled = smelt.compile(lambda x: (Insists.apply(x)[0] * 1, x * 2))
    x = torch.ones(3, requires_grad=True)
    compiled(x)[1].sum().backward()
    assert x.grad.tolist() == [2.0] * 3
    with pytest.raises(ValueError, match="where is b"):
        compiled(x)[0].sum().backward()


@pytest.mark.parametrize(("backend", "count"), [("aot_eager", 60), ("smelt", 15)])
def test_random_programs(backend, count):
    different = [gradient_programs.differs(seed, backend) for seed in range(count)]
    assert not [text for text in different if text is not None]


FACTOR = 2.0


class ReadsLate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        return b * FACTOR if a is None else a


def test_reads_of_backward_with_an_absent_gradient_are_guarded(monkeypatch):
    compiled = smelt.compile(lambda x: ReadsLate.apply(x * 1))
    for factor in (2.0, 3.0, 2.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        x = torch.ones(3, requires_grad=True)
        compiled(x)[1].sum().backward()
        assert x.grad.tolist() == [factor] * 3


class KeepsSometimes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, keep):
        if keep:
            ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        if a is None or b is None:
            return (b if a is None else a) * 7, None
        return (a + 1) * (b + 2), None


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_call_of_a_function_records_whether_it_gets_none(backend):
    def function(x):
        return KeepsSometimes.apply(x * 1, True) + KeepsSometimes.apply(x * 1, False)

    compiled = smelt.compile(function, backend=backend)
    for used in itertools.product((0, 1), repeat=4):
        if any(used):
            torch.testing.assert_close(_found(compiled, used), _found(function, used))
