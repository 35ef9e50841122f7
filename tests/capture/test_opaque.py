"""Sparse and quantised tensors run in eager between compiled parts of one graph: values, gradients, guards, counts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    smelt.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def holes(rows: int = 6, columns: int = 5) -> torch.Tensor:
    torch.manual_seed(rows)
    return torch.randn(rows, columns).relu()


def dense(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to_dense() if value.layout is not torch.strided else value


def compare(f: Callable[..., Any], *args: torch.Tensor, backend: str = "smelt") -> None:
    """One graph, no break; results, their layouts, and gradients of every argument are eager's."""
    results = []
    for call in (f, smelt.compile(f, fullgraph=True, backend=backend)):
        given = [a.detach().clone().requires_grad_(a.requires_grad) for a in args]
        for _ in range(2):
            out = call(*given)
            outputs = out if isinstance(out, tuple) else (out,)
            heads = [dense(o).square().sum() for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
            if heads:
                sum(heads).backward()
        results.append((outputs, [g.grad for g in given]))
    (wanted, grads), (got, found) = results
    for a, b in zip([*wanted, *grads], [*got, *found], strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            assert (a.layout, a.dtype, a.requires_grad) == (b.layout, b.dtype, b.requires_grad)
            torch.testing.assert_close(dense(a), dense(b))


PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "coo @": lambda a, b: (a.mul(2).to_sparse() @ b).relu() + 1,
    "csr @": lambda a, b: (a.mul(2).to_sparse_csr() @ b).relu() + 1,
    "sparse.mm": lambda a, b: torch.sparse.mm(a.exp().to_sparse(), b.sin()).cos(),
    "addmm": lambda a, b: torch.sparse.addmm(b.sum(0), a.to_sparse(), b) * 2,
    "to_dense": lambda a, b: (a * 2).to_sparse().to_dense() @ b,
    "sums": lambda a, b: torch.sparse.sum(a.to_sparse(), 1).to_dense() * b.sum(),
    "arithmetic": lambda a, b: ((a.to_sparse() * 3 + a.sin().to_sparse()) @ b) / 2,
    "softmax": lambda a, b: torch.sparse.softmax(a.to_sparse(), 1).to_dense() @ b,
    "transposed": lambda a, b: a.to_sparse().t() @ (a @ b),
    "coalesced": lambda a, b: a.to_sparse().coalesce() @ b,
    "sparse result": lambda a, b: ((a * 2).to_sparse(), (a @ b).exp()),
    "csr result": lambda a, b: (a * 2).to_sparse_csr(),
    "metadata": lambda a, b: (a.to_sparse() @ b, a.to_sparse().layout, a.to_sparse().sparse_dim(), a.is_sparse),
    "detached": lambda a, b: a.to_sparse().detach() @ b + a.sum(),
}


@pytest.mark.parametrize("backend", ["smelt", "aot_eager", "eager"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_sparse_inside(name: str, backend: str) -> None:
    compare(PROGRAMS[name], holes(6, 5).requires_grad_(), torch.randn(5, 4).requires_grad_(), backend=backend)
    assert smelt.stats()["graphs"] > 0
    if backend == "smelt":
        assert smelt.stats()["fallback_ops"] > 0 and not smelt.stats()["break_reasons"]


@pytest.mark.parametrize(
    ("layout", "grad"),  # eager has no gradients of the other layouts
    [*((name, False) for name in ("coo", "csr", "csc", "bsr", "bsc", "hybrid")), ("coo", True), ("csr", True)],
)
def test_sparse_arguments(layout: str, grad: bool) -> None:
    a, b = holes(6, 4), torch.randn(4, 8)
    make: dict[str, Callable[[], torch.Tensor]] = {
        "coo": a.to_sparse, "csr": a.to_sparse_csr, "csc": a.to_sparse_csc, "bsr": lambda: a.to_sparse_bsr((2, 2)),
        "bsc": lambda: a.to_sparse_bsc((2, 2)), "hybrid": lambda: a.to_sparse(1),
    }  # fmt: skip

    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a.to_dense() * 2, b.sin()

    compare(f, make[layout]().requires_grad_(grad), b.requires_grad_(grad))
    if layout in ("coo", "csr"):
        smelt.reset()
        compare(lambda a, b: (a @ b.sin()).cos(), make[layout]().requires_grad_(grad), b)


def test_made_from_coordinates() -> None:
    def f(places: torch.Tensor, values: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.sparse_coo_tensor(places, values * 2, (4, 5)) @ b + 1

    def compressed(values: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        whole = torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 2]), values * 2, (2, 5))
        return whole @ b + 1

    b = torch.randn(5, 3, requires_grad=True)
    places = torch.tensor([[0, 1, 3], [2, 0, 4]])
    compare(f, places, torch.randn(3, requires_grad=True), b)
    compare(compressed, torch.randn(2, requires_grad=True), b)


def test_layouts_are_guarded() -> None:
    calls = []

    def backend(gm: Any, inputs: Any) -> Any:
        calls.append(gm)
        return gm.forward

    def f(a: torch.Tensor) -> torch.Tensor:
        return a.to_dense() + 1

    compiled, a = smelt.compile(f, backend=backend, fullgraph=True), holes(4, 4)
    kinds = [a, a.to_sparse(), a.to_sparse(1), a.to_sparse_csr(), a.to_sparse_csc(), a.to_sparse_bsr((2, 2))]
    for given in (*kinds, a.to_sparse_bsr((4, 4)), a.to_sparse_bsr((4, 2))):
        for _ in range(2):
            torch.testing.assert_close(compiled(given), a + 1)
    fuller = torch.ones(4, 4).to_sparse()
    torch.testing.assert_close(compiled(fuller), torch.ones(4, 4) + 1)  # as many elements as may be
    assert len(smelt.stats()["recompile_reasons"]) <= 8


def test_modes_of_the_program_hold() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = a.to_sparse() @ b
        with torch.no_grad():
            y = (a * 2).to_sparse() @ b + 1
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = a.to_sparse().to_dense() @ b
        return x, y, z

    compare(f, holes().requires_grad_(), torch.randn(5, 4))


def test_a_graph_that_only_passes_them_on() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...]:
        return a, b * 2, a.shape, a.layout

    a = holes().to_sparse()
    out = smelt.compile(f, fullgraph=True)(a, torch.ones(3))
    assert out[0] is a and out[2:] == (a.shape, torch.sparse_coo)


@pytest.mark.parametrize("per_channel", [False, True])
def test_quantised(per_channel: bool) -> None:
    scales, points = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 2])

    def made(x: torch.Tensor) -> torch.Tensor:
        if per_channel:
            return torch.quantize_per_channel(x * 2, scales, points, 0, torch.qint8)
        return torch.quantize_per_tensor(x * 2, 0.1, 3, torch.quint8)

    x = torch.randn(3, 4)
    compare(lambda x: made(x).dequantize() + 1, x)
    compare(lambda x: made(x).int_repr() + 1, x)
    q = made(x)
    compiled = smelt.compile(lambda q: (q.dequantize() * 2, q.is_quantized, q.dtype), fullgraph=True)
    got = compiled(q)
    torch.testing.assert_close(got[0], q.dequantize() * 2)
    assert got[1:] == (True, q.dtype)


def test_data_dependent_operations_end_the_graph() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...]:
        s = (a * 2).to_sparse()
        count = s._nnz()
        t = (a * 3).to_sparse()
        return (s @ b) * 2, count, t.is_coalesced(), t @ b

    a, b = holes(), torch.randn(5, 4)
    got, want = smelt.compile(f)(a, b), f(a, b)
    torch.testing.assert_close((got[0], got[3]), (want[0], want[3]))
    assert got[1:3] == want[1:3]
    reasons = "\n".join(smelt.stats()["break_reasons"])
    assert "_nnz" in reasons and "is_coalesced" in reasons


def test_in_place_writes_end_the_graph_at_their_operation() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        s = (a * 2).to_sparse()
        s.mul_(2)
        b = b * 3
        b.add_(s)
        return b * 2

    a, b = holes(), torch.randn(6, 5)
    torch.testing.assert_close(smelt.compile(f)(a, b), f(a, b))


def test_derivatives_inside_of_the_function() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = (a.to_sparse() @ b).square().sum()
        (grad,) = torch.autograd.grad(x, a)
        return grad * 2

    a, b = holes().requires_grad_(), torch.randn(5, 4)
    torch.testing.assert_close(smelt.compile(f)(a, b), f(a, b))


def test_second_derivatives() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.sin().to_sparse() @ b.exp()).square()

    found = []
    for call in (f, smelt.compile(f, fullgraph=True)):
        a, b = holes(), torch.randn(5, 4, requires_grad=True)
        torch.manual_seed(0)
        b.data.copy_(torch.randn(5, 4))
        (grad,) = torch.autograd.grad(call(a, b).sum(), b, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), b)[0])
    torch.testing.assert_close(found[0], found[1])


def test_explain_names_the_calls() -> None:
    told = smelt.explain(lambda a, b: a.to_sparse() @ b + 1)(holes(), torch.randn(5, 4))
    assert told.graph_count == 1 and told.graph_break_count == 0
    assert told.fallback_ops == {"aten._to_sparse.default": 1, "aten.mm.default": 1}
    assert len(told.cuts) == 2 and "in eager" in str(told)


class Convolution(torch.nn.Module):
    """A layer of a graph network: the neighbours are a sparse buffer."""

    def __init__(self, neighbours: torch.Tensor) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(5, 5)
        self.register_buffer("neighbours", neighbours)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.relu(torch.sparse.mm(self.neighbours, self.linear(x)))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_graph_network_learns(layout: torch.layout) -> None:
    torch.manual_seed(0)
    neighbours = torch.rand(6, 6).round().to_sparse(layout=layout)
    torch.manual_seed(0)
    nets = [torch.nn.Sequential(*(Convolution(neighbours) for _ in range(3))) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    nets[1] = smelt.compile(nets[1], fullgraph=True)  # type: ignore[assignment]
    x = torch.randn(6, 5)
    for _ in range(3):
        for net in nets:
            net(x).square().sum().backward()
            with torch.no_grad():
                for p in net.parameters():
                    p -= 0.01 * p.grad
                    p.grad = None
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(p, q)
