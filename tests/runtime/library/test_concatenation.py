"""Concatenations of many small tensors: copied as torch.cat does, in every dimension, dtype and size; what does not lie
in rows, or is large, is left to ATen."""

import pytest
import torch

import smelt
from smelt.runtime.library.externs import extern
from smelt.runtime.library.fallback import Slot
from smelt.runtime.tuned import LIBRARY

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.complex64)


def parts(shapes, dtype=torch.float32):
    torch.manual_seed(len(shapes))
    return [(torch.rand(shape) * 100).to(dtype) for shape in shapes]


def bound(tensors, dim):
    out = torch.cat(tensors, dim)
    params = {"args": ([Slot(i) for i in range(len(tensors))], dim), "kwargs": {}}
    return extern("aten.cat.default", params, tensors, [out]), out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shapes", "dim"),
    [
        ([(4,)] * 70, 0),
        ([(i % 5,) for i in range(70)], 0),
        ([(3, i % 4, 2) for i in range(70)], 1),
        ([(2, 3, i % 3 + 1) for i in range(70)], 2),
        ([(i % 3, 5) for i in range(70)], 0),
        ([(0, 4)] * 3, 1),
        ([(1, 1, 1)] * 65, 2),
    ],
)
def test_it_copies_as_torch_does(shapes, dim, dtype):
    tensors = parts(shapes, dtype)
    kernel, wanted = bound(tensors, dim)
    for _ in range(2):
        out = kernel(*tensors)
        assert torch.equal(out, wanted) and out.stride() == wanted.stride() and out.dtype is dtype
    assert kernel.chosen == "copies"
    given = torch.empty_like(wanted)
    assert kernel.into(given, *tensors) is given and torch.equal(given, wanted)


def test_results_are_new_each_time():
    tensors = parts([(4,)] * 70)
    kernel, _ = bound(tensors, 0)
    first = kernel(*tensors)
    kept = first.clone()
    tensors[3].fill_(7)
    assert not torch.equal(kernel(*tensors), kept) and torch.equal(first, kept)


@pytest.mark.parametrize(
    "tensors",
    [
        [torch.rand(4, 3).t() for _ in range(70)],
        [torch.rand(3, 8)[:, ::2] for _ in range(70)],
        [torch.rand(3, 1).expand(3, 4) for _ in range(70)],
        [torch.rand(3, LIBRARY.serial_copy_bytes // 2), torch.rand(3, 4)],
    ],
    ids=["transposed", "steps", "expanded", "large"],
)
def test_unsupported_layouts_and_sizes_are_left_to_aten(tensors):
    kernel, wanted = bound(tensors, 1)
    assert torch.equal(kernel(*tensors), wanted) and kernel.chosen == "aten"


def test_one_tensor_may_stand_in_several_places():
    tensor, other = parts([(2, 3)] * 2)
    tensors = [tensor, other] * 40
    kernel, wanted = bound(tensors, 0)
    assert torch.equal(kernel(*tensors), wanted)


def test_a_tensor_without_memory_is_an_error():
    tensors = parts([(4,)] * 70)
    kernel, _ = bound(tensors, 0)
    kernel(*tensors)
    tensors[9].untyped_storage().resize_(0)
    with pytest.raises(RuntimeError):
        kernel(*tensors)


@pytest.mark.parametrize("offset", [0, 1, 5])
def test_slices_of_larger_tensors(offset):
    base = torch.arange(1000.0)
    tensors = [base[offset + 3 * i : offset + 3 * i + 3] for i in range(70)]
    kernel, wanted = bound(tensors, 0)
    assert torch.equal(kernel(*tensors), wanted) and kernel.chosen == "copies"


LAZY = {
    "conjugate": lambda x: x.to(torch.complex64).mul(1 + 2j).conj(),
    "negative": torch._neg_view,
    "imaginary part of a conjugate": lambda x: x.to(torch.complex64).mul(1 + 2j).conj().imag,
}


@pytest.mark.parametrize("lazy", LAZY.values(), ids=LAZY)
@pytest.mark.parametrize("inside", [False, True])
def test_lazy_views_give_their_values(lazy, inside):
    def f(xs):
        return torch.cat([lazy(x) for x in xs] if inside else xs)

    xs = parts([(4,)] * 70)
    given = xs if inside else [lazy(x) for x in xs]
    compiled = smelt.compile(f)
    for _ in range(2):
        assert torch.equal(compiled(given), f(given))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_functions_of_many_subgraphs(dim, dynamic):
    def f(xs, y):
        return torch.cat([x * y for x in xs], dim), torch.cat(xs, dim) + 1, torch.cat(xs, dim)

    compiled = smelt.compile(f, dynamic=dynamic)
    for size in (3, 5, 1, 2):
        xs, y = parts([(size, size, 2)] * 70), torch.tensor(2.0)
        for ours, theirs in zip(compiled(xs, y), f(xs, y), strict=True):
            assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()


def test_gradients_of_many_slices():
    def f(xs):
        return (torch.cat(xs) * torch.arange(280.0)).sum()

    ours, theirs = ([x.requires_grad_() for x in parts([(4,)] * 70)] for _ in range(2))
    smelt.compile(f)(ours).backward()
    f(theirs).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))


STRANGE = (torch.uint16, torch.uint32, torch.uint64, torch.float8_e5m2, torch.float8_e4m3fn)


@pytest.mark.parametrize("dtype", STRANGE, ids=str)
@pytest.mark.parametrize("dynamic", [False, True])
def test_types_that_no_kernel_computes_with(dtype, dynamic):
    def calls(x):
        e = x.reshape(-1)[:0]
        return (
            torch.cat([x, x.clone(), x[:1]]), torch.cat([x, x[:, :2]], dim=1), torch.cat([x, x], -2), torch.cat([e, x]),
            torch.cat([e, x, x], 1), torch.cat((x.t(), x.t())), torch.vstack([x, x]), torch.hstack([x, x]),
        )  # fmt: skip

    x = torch.arange(12).to(torch.float32).to(dtype).view(2, 6)
    call = smelt.compile(calls, dynamic=dynamic)
    for given in (x, torch.cat([x, x]), x[1:]):
        for got, want in zip(call(given), calls(given), strict=True):
            assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())
            assert got.contiguous().view(torch.uint8).tolist() == want.contiguous().view(torch.uint8).tolist()
