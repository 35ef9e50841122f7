"""A product and a sum inside of one operator round once on a CPU, as in eager: to the bit, in every layout and size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import smelt

T = torch.Tensor
PROGRAMS: dict[str, Callable[[T, T, T], T]] = {
    "add": lambda a, b, c: torch.add(a, b, alpha=1.7),
    "sub": lambda a, b, c: torch.sub(a, b, alpha=1.7),
    "rsub": lambda a, b, c: torch.rsub(a, b, alpha=-0.3),
    "number of the call": lambda a, b, c: torch.sub(a, b, alpha=c[0, 0].item()),
    "a whole number": lambda a, b, c: torch.add(a, b, alpha=3),
    "one": lambda a, b, c: torch.add(a, b, alpha=1),
    "beside integers": lambda a, b, c: torch.add(a, (b * 9).long(), alpha=1.7),
    "beside no dimensions": lambda a, b, c: torch.add(a[0, 0], b, alpha=1.7),
    "in place": lambda a, b, c: a.clone().add_(b, alpha=-0.3),
    "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=1.7),
    "addcmul by one": lambda a, b, c: torch.addcmul(a, b, c),
    "addcdiv": lambda a, b, c: torch.addcdiv(a, b, c, value=1.7),
    "lerp": lambda a, b, c: torch.lerp(a, b, 0.3),
    "lerp from the end": lambda a, b, c: torch.lerp(a, b, 0.7),
    "lerp by a tensor": lambda a, b, c: torch.lerp(a, b, c),
    "lists": lambda a, b, c: torch._foreach_add([a], [b], alpha=1.7)[0],
    "cross": lambda a, b, c: torch.linalg.cross(a[:, :3], b[:, :3]),
    "cross with itself": lambda a, b, c: torch.linalg.cross(b[:, :3], b[:, :3]),
    "two operators": lambda a, b, c: a + b * 1.7 - c * c,
}


def _layouts(x: T) -> list[T]:
    wide = torch.zeros(x.shape[0], 2 * x.shape[1] + 1, dtype=x.dtype)
    wide[:, 1::2] = x
    return [x, x.t().contiguous().t(), wide[:, 1::2]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_are_those_of_eager(name: str, dtype: torch.dtype) -> None:
    program = PROGRAMS[name]
    compiled = smelt.compile(program)
    for shape in ((1, 7), (31, 33), (0, 3)):
        if name in ("number of the call", "beside no dimensions") and 0 in shape:
            continue
        a, b, c = torch.randn(3, *shape, generator=torch.Generator().manual_seed(3), dtype=dtype)
        for other in _layouts(b) if 0 not in shape else [b]:
            assert torch.equal(compiled(a, other, c), program(a, other, c)), shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_whole_vectors_of_16_bits(dtype: torch.dtype) -> None:
    program = PROGRAMS["add"]
    a, b, c = torch.randn(3, 4, 64, generator=torch.Generator().manual_seed(3)).to(dtype)
    exact = (a.double() + torch.tensor(1.7, dtype=dtype).double() * b.double()).to(dtype)
    assert torch.equal(smelt.compile(program)(a, b, c), exact)


def test_gradients() -> None:
    def program(a: T, b: T, c: T) -> T:
        return torch.addcmul(torch.lerp(a, b, 0.3), b, c, value=0.7).sub(c, alpha=1.3)

    results = []
    for run in (program, smelt.compile(program)):
        leaves = [x.requires_grad_() for x in torch.randn(3, 9, 17, generator=torch.Generator().manual_seed(3))]
        leaves = [x.detach().requires_grad_() for x in leaves]
        out = run(*leaves)
        out.backward(torch.ones_like(out))
        results.append([out.detach(), *(x.grad for x in leaves)])
    assert torch.equal(results[0][0], results[1][0])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", [7, 33, 1000])
def test_a_number_times_alpha(size: int) -> None:
    """Both are numbers of the tensor's type; eager rounds their product first in elements that fill no vector."""

    def program(x: T) -> T:
        return torch.add(x, 0.7, alpha=0.3)

    x = torch.randn(size, generator=torch.Generator().manual_seed(3))
    exact = (x.double() + torch.tensor(0.7).double() * torch.tensor(0.3).double()).float()
    backend = smelt.aot_autograd(lambda graph, _: graph, opset="prims")
    for compiled in (smelt.compile(program), smelt.compile(program, backend=backend)):
        assert torch.equal(compiled(x), exact)
