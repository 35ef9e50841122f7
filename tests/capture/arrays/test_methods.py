"""Arrays that share memory with tensors of the graph: writes, views, numbers, operators, reductions, functions."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch

from smelt.base.errors import Unsupported
from tests.capture.arrays.test_ufuncs import same
from tests.capture.harness import compiled

X = torch.arange(12.0).reshape(3, 4) / 7 - 0.5
WHOLE = torch.tensor([[3, 1, 2], [-4, 5, 0]])


def close(a, b):
    """Equal within the rounding of the array's largest element."""
    if a.dtype.kind not in "fc" or same(a, b, 64):
        return a.dtype == b.dtype and (a.dtype.kind in "fc" or np.array_equal(a, b))
    most = np.abs(a).max(initial=0) * np.finfo(a.dtype).eps * 16
    return a.dtype == b.dtype and a.shape == b.shape and np.allclose(a, b, rtol=0, atol=most)


def steps(array):
    """The strides along axes with several elements."""
    return [step for step, size in zip(array.strides, array.shape, strict=True) if size > 1]


def alike(a, b):
    if isinstance(a, (np.ndarray, np.generic)):
        return type(a) is type(b) and close(a, b) and steps(a) == steps(b)
    if isinstance(a, torch.Tensor):
        return type(a) is type(b) and a.dtype == b.dtype and torch.allclose(a, b, equal_nan=True)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(alike, a, b))
    return type(a) is type(b) and a == b


def check(fn, *args, whole=True):
    """Compiled gives what eager gives, and leaves its arguments as eager does; returns the results."""
    run = compiled(fn, fullgraph=whole)
    for _ in range(2):
        eager_args, compiled_args = copy.deepcopy(args), copy.deepcopy(args)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want, got = fn(*eager_args), run(*compiled_args)
        assert alike(want, got), f"{want!r}\n{got!r}"
        assert alike(eager_args, compiled_args)
    return got


def test_writes_to_an_array_are_writes_to_its_tensor():
    def made(x):
        t = x * 2
        a = t.numpy()
        a[0] = 1
        a[1:, ::2] += np.float32(3)
        a[:, 0] *= 3
        a[a > 1] = 0
        np.add(a, 1, out=a)
        return t, a[1], t.sum()

    def given(x):
        x.numpy()[0] = 1
        x[1].numpy().fill(7)
        return x + 1

    def shared(x):
        a = (x + 0).numpy()
        t = torch.from_numpy(a)
        t[0] = 5
        a[1] = torch.ones(4).numpy()
        return a, t, torch.as_tensor(a) + 1

    check(made, X)
    check(given, X)
    got = check(shared, X)
    assert got[1].data_ptr() == got[0].ctypes.data


def test_copies_and_numbers_do_not_see_later_writes():
    def fn(x):
        a = (x + 0).numpy()
        number, copied, kept, tensor = a[0, 0], a.copy(), np.array(a), torch.tensor(a)
        flat, typed, same_type = a.flatten(), a.astype(np.float64), a.astype(np.float32, copy=False)
        a[...] = 9
        return number, copied, kept, tensor, flat, typed, same_type, a.ravel()

    check(fn, X)


def test_numbers_and_kinds_of_values():
    def fn(x):
        a = x.numpy()
        number = a.max()
        kinds = type(a), type(number), isinstance(a, np.ndarray), isinstance(number, np.floating), a.dtype
        return kinds, len(a), a.shape, a.ndim, a.size, a.strides, x * number, number * x, float(a.min()), [*a[0]]

    def branches(x):
        a = x.numpy() + 1
        if a.sum() > 100:
            a = a * 2
        return a

    check(fn, X)
    check(branches, X, whole=False)


def test_operators():
    def fn(x):
        a = x.numpy()
        return (-a, abs(a), 2 / a, a // 0.3, a % -0.3, a**2, a**0.5, 1 - a, a @ a.T, a[0] @ a[1], ~(a > 0) & (a < 1))

    def numbers(x):
        s = x.numpy().sum()
        s += 1
        return s, s * np.float64(2), s**2, -s

    check(fn, X)
    check(numbers, X)
    check(numbers, WHOLE)


@pytest.mark.parametrize("name", ["sum", "prod", "mean", "max", "min", "std", "var", "any", "all", "argmax", "argmin"])
def test_reductions(name):
    def fn(x):
        a = x.numpy()
        return getattr(a, name)(), getattr(np, name)(a, axis=0), getattr(a, name)(axis=-1, keepdims=True)

    for x in (X, X.double(), WHOLE, WHOLE.to(torch.int8), WHOLE > 1):
        check(fn, x)
    breaks = {"std", "var"} if name in ("std", "var") else {"max"}
    check(fn, X.half(), whole=name not in breaks)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: (np.cumsum(a), a.cumsum(axis=1), a.cumprod(0), np.ptp(a, axis=0)),
        lambda a: (np.where(a > 0, a, 0), np.where(a > 0, np.float64(1), a), np.nonzero(a > 0)),
        lambda a: (np.concatenate([a, a * 2], 1), np.stack([a, a], axis=1), np.vstack([a, a[0]]), np.hstack((a, a))),
        lambda a: (a.reshape(-1, 2), np.transpose(a), a.swapaxes(0, 1), np.expand_dims(a, 1).squeeze(1), a[None]),
        lambda a: (np.repeat(a, 2, axis=1), np.tile(a, (2, 1)), np.roll(a, 1), np.roll(a, -1, axis=0)),
        lambda a: (np.clip(a, 0, 0.5), a.clip(None, 1), np.round(a), np.tril(a), np.triu(a, 1)),
        lambda a: (np.zeros_like(a), np.ones_like(a, dtype=np.int32), np.full_like(a, 2.5), np.array(a, np.int64)),
        lambda a: (np.dot(a, a.T), np.inner(a, a), np.outer(a, a[0]), np.einsum("ij,kj->ik", a, a), np.trace(a)),
        lambda a: (
            np.linalg.norm(a),
            np.linalg.norm(a, axis=1),
            np.linalg.norm(a[0], 1),
            np.linalg.det(a[:, :3] + 2 * np.eye(3, dtype=a.dtype)),
        ),
        lambda a: (np.fft.fft(a), np.fft.rfft(a, axis=0), np.fft.ifft2(a), np.fft.irfft(np.fft.rfft(a), norm="ortho")),
        lambda a: (a[0, 1], a[1], a[:, 1:3], a[..., -1], a[a > 0.2], a[[0, 2]], a[np.array([1, 0])], a[0, ...]),
    ],
)
def test_functions(fn):
    check(lambda x: fn(x.numpy()), X)
    check(lambda x: fn((x * 3).numpy()), X.double())


def test_arrays_from_outside_take_part():
    array = np.linspace(-1, 1, 4)
    check(
        lambda x, a: (x.numpy() + a, np.maximum(a, x.numpy()), a * x.numpy()[0], np.stack([a, x[0].numpy()])), X, array
    )
    check(lambda x: np.multiply(x.numpy(), np.arange(4)), X)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a: a[::-1],
        lambda a: np.linalg.inv(a[:, :3] + 9 * np.eye(3)),
        lambda a: np.median(a),
        lambda a: a.tolist(),
        lambda a: str(a),
        lambda a: bytes(memoryview(a)),
        lambda a: np.ndarray.sum(a),
        lambda a: np.add(a, 1, out=np.zeros((3, 4), np.float32)),
        lambda a: np.sum(a, axis=()),
        lambda a: np.sum(a, where=a > 0),
    ],
)
def test_what_torch_would_compute_otherwise_is_left_to_numpy(fn):
    with pytest.raises(Unsupported):
        compiled(lambda x: fn(x.numpy()), fullgraph=True)(X)
    check(lambda x: fn((x + 1).numpy()), X, whole=False)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.requires_grad_().numpy(),
        lambda x: x.bfloat16().numpy(),
        lambda x: x.numpy()[5],
        lambda x: x.numpy() @ x.numpy(),
        lambda x: np.concatenate([x.numpy(), x[0].numpy()]),
        lambda x: np.add(x.numpy(), 1.5, out=x.int().numpy()),
        lambda x: x.numpy().argmax(axis=7),
        lambda x: x.byte().numpy() + 300,
    ],
)
def test_errors_are_numpys(fn):
    with pytest.raises(Exception) as want:  # noqa: PT011
        fn(X.clone())
    with pytest.raises(type(want.value)) as got:
        compiled(fn)(X.clone())
    assert str(got.value) == str(want.value)


def test_settings_for_floating_point_errors_are_respected():
    def fn(x):
        return np.log(x.numpy())

    run = compiled(fn)
    run(X.abs() + 1)
    with np.errstate(invalid="raise"), pytest.raises(FloatingPointError):
        run(X)


BOUND = {
    "compared": "(a.sum != a.mean, a.sum == a.sum, x.numpy().sum == a.sum, a.sum in (a.mean, a.sum))",
    "hashed": "(isinstance(hash(a.sum), int), len({a.sum: 1}))",
    "text": "(str(a.sum)[:22], f'{a.sum}'[:22], repr([a.sum])[:22], str(a.__len__)[:20])",
    "attributes": "(a.sum.__name__, a.sum.__self__ is a, a.sum.__doc__[:5], a.sum.__class__.__name__)",
    "classes": "(type(a.sum).__name__, type(a.__add__).__name__, isinstance(a.sum, type(len)), callable(a.sum))",
    "called later": "[each() for each in (a.sum, a.mean)] + [getattr(a, 'max')(), copy.copy(a.sum)()]",
    "operators by name": "a.__add__(1).tolist()",
    "listed": "(dir(a)[:3], dir(a.sum)[:3])",
}


@pytest.mark.parametrize("name", BOUND)
def test_methods_are_those_of_numpy(name: str) -> None:
    scope: dict[str, object] = {"copy": copy}
    exec(f"def fn(x):\n x = x + 1\n a = x.numpy()\n return x * 2, {BOUND[name]}", scope)
    fn = scope["fn"]
    assert compiled(fn)(torch.arange(3.0))[1] == fn(torch.arange(3.0))[1]
