"""`__torch_function__` subclasses: calls, classes, attributes, gradients and errors are those of eager."""

from __future__ import annotations

import pytest
import torch

import smelt
from tests.capture.harness import compiled, raises

LOG: list[str] = []


class Plain(torch.Tensor):
    """Inherits torch's `__torch_function__`."""


class Logged(torch.Tensor):
    tag = "logged"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        LOG.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs)

    @property
    def double(self):
        return self * 2

    def plus(self, other):
        return self + other

    @classmethod
    def of(cls, x):
        return x.as_subclass(cls)


class Narrow(Logged):
    def add(self, other):
        return super().add(other) * 2

    @property
    def sizes(self):
        return list(super().shape)


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.mul:
            return NotImplemented
        if func is torch.sin:
            with torch._C.DisableTorchFunctionSubclass():
                return torch.cos(*args).as_subclass(cls)
        return super().__torch_function__(func, types, args, kwargs)


class WithUnit(torch.Tensor):
    @staticmethod
    def __new__(cls, x, unit):
        out = x.as_subclass(cls)
        out.unit = unit
        return out

    def __init__(self, x, unit):
        self.seen = [unit]

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs)
        if isinstance(out, WithUnit):
            out.unit = "".join(each.unit for each in args if isinstance(each, WithUnit))
        return out


def x() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3) + 1


def alike(a, b) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            same = a.dtype == b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad
            return same and torch.allclose(a, b) and alike(vars(a), vars(b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, dict):
        return alike(list(a), list(b)) and alike(list(a.values()), list(b.values()))
    return a == b


def check(fn, make, breaks: int = 0) -> None:
    """Compare results, arguments and the logged calls of eager and of two compiled calls."""
    run = compiled(fn, fullgraph=breaks == 0)
    for _ in range(2):
        given, again = make(), make()
        LOG.clear()
        want = fn(*given), [*LOG], given
        LOG.clear()
        got = run(*again), [*LOG], again
        assert alike(want, got), f"eager {want}\ncompiled {got}"


def logged():
    return (x().as_subclass(Logged),)


@pytest.mark.parametrize("cls", [Plain, Logged, Narrow, Refusing])
@pytest.mark.parametrize(
    "fn",
    [
        lambda a: (a + 1, 1 - a, -a, abs(a), a == 1, a @ a.T, a[1:], a[0, 1]),
        lambda a: (a.shape, a.size(0), len(a), a.dtype, a.requires_grad, a.ndim, a.data, torch.is_tensor(a)),
        lambda a: (torch.relu(a), torch.nn.functional.gelu(a), torch.nn.functional.softmax(a, -1), torch.sin(a)),
        lambda a: (a.split(1), a.max(0), [row + 1 for row in a], torch.stack([a, a]), torch.cat((a, a))),
        lambda a: (isinstance(a, Logged), type(a + 1), a.__class__, hasattr(a, "nothing"), type(torch.ones(2))),
        lambda a: (torch.add(torch.ones(3), a), torch.ones(3) + a, torch.addmm(a[:, :2], a, a.T)),
        lambda a: (torch.ops.aten.add(a, 1), torch.zeros_like(a), a.new_zeros(2), a.as_subclass(torch.Tensor)),
    ],
)
def test_functions_and_operators(cls, fn):
    check(fn, lambda: (x().as_subclass(cls),))


def test_methods_properties_and_values_of_the_class():
    check(lambda a: (a.double, a.plus(3), a.tag, Logged.of(a.as_subclass(torch.Tensor))), logged)
    check(lambda a: (a.add(1), a.sizes, a.T), lambda: (x().as_subclass(Narrow),))


def test_subclasses_are_asked_before_their_bases():
    both = lambda: (x().as_subclass(Logged), x().as_subclass(Narrow))  # noqa: E731
    check(lambda a, b: (torch.mul(a, b), torch.mul(b, a), torch.cat([a, b])), both)


def test_a_refused_call_raises_what_eager_raises():
    raises(lambda a: a.as_subclass(Refusing) * 2, TypeError, x())
    raises(lambda a: torch.add(a.as_subclass(Logged), "text"), TypeError, x())


def test_an_error_of_the_programs_function_reaches_the_program():
    class Raising(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            raise ValueError(func.__name__)

    raises(lambda a: a.as_subclass(Raising) + 1, ValueError, x())


def test_instances_made_inside_keep_class_and_attributes():
    check(lambda a: (Plain(a), a.as_subclass(Plain) + 1, torch.Tensor._make_subclass(Plain, a) * 2), lambda: (x(),))
    check(lambda a: (WithUnit(a, "m"), WithUnit(a, "m") * WithUnit(a, "s"), WithUnit(a, "kg").seen), lambda: (x(),))


def test_an_instance_made_of_an_argument_leaves_the_argument_as_it_is():
    given = x()
    made = compiled(lambda a: a.as_subclass(Plain))(given)
    assert type(given) is torch.Tensor and type(made) is Plain and made.data_ptr() == given.data_ptr()


def test_indices_and_values_of_a_subclass_in_a_plain_tensor():
    def write(a, v):
        a[0] = v
        a[a > 4] = 0.0
        return a

    check(lambda a, i: (torch.arange(10)[i], a[i > 1]), lambda: (x(), torch.tensor([1, 2]).as_subclass(Logged)))
    check(write, lambda: (x(), torch.ones(3).as_subclass(Logged)))


def test_attributes_are_set_and_deleted():
    def change(a):
        b = WithUnit(a, "m")
        del b.seen
        setattr(b, "first", 1)  # noqa: B010
        object.__setattr__(b, "second", 2)
        b.__dict__["third"] = 3
        return b, hasattr(b, "seen"), b.__dict__

    check(change, lambda: (x(),))


def test_attributes_of_arguments_are_read_and_guarded():
    def given(unit: str) -> WithUnit:
        return WithUnit(x(), unit)

    run = compiled(lambda a: (a * 2, a.unit), fullgraph=True)
    for unit in ("m", "s", "m"):
        out, read = run(given(unit))
        assert (out.unit, read, type(out)) == (unit, unit, WithUnit)


def test_the_class_is_guarded():
    run = compiled(lambda a: a + 1, fullgraph=True)
    for cls in (torch.Tensor, Plain, Logged, torch.Tensor, Plain):
        assert type(run(x().as_subclass(cls))) is cls


def test_a_replaced_torch_function_is_noticed():
    class Replaced(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return 1

    run = compiled(lambda a: a + 1, fullgraph=True)
    assert run(x().as_subclass(Replaced)) == 1
    Replaced.__torch_function__ = classmethod(lambda cls, func, types, args=(), kwargs=None: 2)
    assert run(x().as_subclass(Replaced)) == 2


@pytest.mark.parametrize("context", [torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction])
def test_contexts_that_switch_torch_functions_off(context):
    def inside(a):
        with context():
            y = a * 2
        return y, a * 3

    def with_break(a):
        with context():
            y = a * 2
            smelt.graph_break()
            y = y + a
        return y, a * 3

    check(inside, logged)
    check(with_break, logged, breaks=1)

    def outside(a):
        return a * 2

    run = compiled(outside, fullgraph=True)
    assert type(run(*logged())) is Logged
    with context():
        assert type(run(*logged())) is torch.Tensor
    assert type(run(*logged())) is Logged


def test_writes_and_out():
    def write(a):
        a.add_(1)
        a[0] = 5
        b = a * 1
        b += 2
        a.mul_(b)
        return a, b

    def out(a, o):
        torch.mul(a, 2, out=o)
        return o

    check(write, logged)
    check(out, lambda: (*logged(), x()))


def test_gradients_of_arguments_and_parameters():
    def loss(a):
        return (a * a).sin().sum()

    want, got = x().as_subclass(Logged).requires_grad_(), x().as_subclass(Logged).requires_grad_()
    loss(want).backward()
    compiled(loss, fullgraph=True)(got).backward()
    assert type(want.grad) is type(got.grad) and torch.allclose(want.grad, got.grad)

    def step(a):
        y = (a * a).sin()
        y.sum().backward()
        return y.detach(), a.grad

    check(step, lambda: (x().as_subclass(Logged).requires_grad_(),))


def test_a_module_with_instances_as_parameters():
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(x().T.as_subclass(Logged))
            self.register_buffer("bias", torch.ones(2).as_subclass(Logged))

        def forward(self, a):
            return a @ self.weight + self.bias

    model = Scale()
    check(model.forward, lambda: (x(),))


def test_sizes_that_change():
    run = compiled(lambda a: (a * a.shape[0], a.sum(0), a.size(0) + 1), fullgraph=True)
    for rows in (2, 3, 4, 5):
        given = torch.ones(rows, 3).as_subclass(Logged)
        out = run(given)
        assert alike(out, (given * rows, given.sum(0), rows + 1))


def test_numbers_read_from_instances():
    check(lambda a: a.sum().item() + float(a.mean()), logged)


def test_breaks_where_the_class_of_a_result_is_not_known():
    def branch(a, condition):
        if condition.sum() > 0:
            return a * 2
        return a * 3

    def mapped(a):
        return torch.vmap(lambda row: row * 2)(a)

    both = lambda: (x().as_subclass(Plain), x())  # noqa: E731
    check(branch, both, breaks=1)
    check(mapped, logged, breaks=1)


def test_hooks_and_optimizers_on_instances():
    def hooked(a):
        b = a * 2
        b.register_hook(lambda g: g * 3)
        return (b * b).sum()

    def step(a):
        optimizer = torch.optim.SGD([a], lr=0.1)
        (a * a).sum().backward()
        optimizer.step()
        return a

    check(hooked, lambda: (x().as_subclass(Logged).requires_grad_(),), breaks=1)
    check(step, lambda: (x().as_subclass(Logged).requires_grad_(),))
