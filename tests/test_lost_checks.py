"""What eager refuses compiled code refuses: values by a flag of the kernel, types and numbers before it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributions as D
import torch.nn.functional as F

import smelt

Function = Callable[[torch.Tensor], Any]


def outcome(function: Callable[..., Any], *args: Any) -> type[Exception] | None:
    try:
        function(*args)
    except Exception as error:
        return type(error)
    return None


NAN = float("nan")
OF_VALUES: dict[str, tuple[Function, list[list[float]]]] = {
    "bce": (lambda x: F.binary_cross_entropy(x, x.round().nan_to_num()), [[2, 0.5, 0.5], [-0.1, 0, 1], [NAN, 0, 0]]),
    "bce, each": (lambda x: F.binary_cross_entropy(x, x.clamp(0, 1), reduction="none"), [[0.5, 1.5, 0]]),
    "bce, target": (lambda x: F.binary_cross_entropy(x.clamp(0, 1), x), [[0, 1.25, 0.5], [0.5, 0.5, -1]]),
    "bernoulli": (torch.bernoulli, [[0.5, 1.01, 0], [-0.5, 0, 0], [NAN, 0, 0]]),
    "normal": (lambda x: torch.normal(torch.zeros(3), x), [[1, 1, -1], [NAN, 1, 1]]),
    "normal of a number": (lambda x: torch.normal(0.0, x), [[1, -1e-3, 1]]),
    "multinomial": (lambda x: torch.multinomial(x, 1), [[1, -1, 1], [0, 0, 0], [NAN, 1, 1], [float("inf"), 1, 1]]),
    "multinomial, again": (lambda x: torch.multinomial(x, 4, replacement=True), [[0, 0, 0], [1, -1, 1]]),
    "multinomial, rows": (lambda x: torch.multinomial(torch.stack([x * 0 + 1, x]), 1), [[0, 0, 0], [1, 1, NAN]]),
    "masked_scatter": (lambda x: torch.zeros(3).masked_scatter(x > 0.75, torch.ones(1)), [[1, 0.8, 0]]),
}


@pytest.mark.parametrize("name", OF_VALUES)
def test_values_that_operators_refuse(compiled: Any, name: str) -> None:
    """Good values before and after bad ones are served by the same code."""
    function, wrong = OF_VALUES[name]
    run, right = compiled(function), torch.tensor([0.5, 1.0, 0.25])
    for values in wrong:
        run(right)
        assert outcome(function, torch.tensor(values)) is RuntimeError
        assert outcome(run, torch.tensor(values)) is RuntimeError
    run(right)


def test_values_are_looked_at_where_gradients_are_wanted() -> None:
    def loss(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = F.binary_cross_entropy(x, torch.ones(3))
        return found.detach(), torch.autograd.grad(found, x)[0]

    run = smelt.compile(loss)
    run(torch.full((3,), 0.5, requires_grad=True))
    assert outcome(run, torch.full((3,), 1.5, requires_grad=True)) is RuntimeError


@pytest.mark.parametrize(
    "make", [lambda x: D.Normal(x, x).log_prob(x), lambda x: D.Bernoulli(x).log_prob(torch.ones(2)), lambda x:
             D.Uniform(x * 0, x).log_prob(x / 2), lambda x: D.Categorical(probs=x).log_prob(torch.tensor(1))]
)  # fmt: skip
def test_arguments_of_distributions(make: Function) -> None:
    run = smelt.compile(make)
    right, wrong = torch.tensor([0.5, 0.75]), torch.tensor([-1.0, 0.5])
    torch.testing.assert_close(run(right), make(right))
    assert outcome(run, wrong) is outcome(make, wrong) is ValueError
    torch.testing.assert_close(run(right), make(right))


def test_a_refused_argument_of_a_distribution_is_caught_by_the_program() -> None:
    def run(mean: torch.Tensor, deviation: torch.Tensor) -> torch.Tensor:
        try:
            return D.Normal(mean, deviation).log_prob(mean)
        except ValueError:
            return mean * 0 + 100

    compiled = smelt.compile(run)
    for deviation in (torch.ones(2), -torch.ones(2), torch.ones(2)):
        torch.testing.assert_close(compiled(torch.zeros(2), deviation), run(torch.zeros(2), deviation))


OF_TYPES: dict[str, Function] = {
    "argmax of bool": lambda x: (x > 0).argmax(),
    "int32 classes": lambda x: F.cross_entropy(x[:, None].expand(-1, 5), torch.zeros(len(x), dtype=torch.int32)),
    "float classes": lambda x: F.cross_entropy(x[:, None].expand(-1, 5), torch.zeros(len(x))),
    "bernoulli_": lambda x: x.clone().bernoulli_(2.0),
    "bernoulli": lambda x: torch.bernoulli(x, -0.5),
    "native_dropout": lambda x: torch.native_dropout(x, 2.0, True)[0],
    "dropout": lambda x: F.dropout(x, 2.0),
    "uniform_": lambda x: x.clone().uniform_(1, 0),
    "exponential_": lambda x: x.clone().exponential_(-1.0),
    "geometric_": lambda x: x.clone().geometric_(1.5),
    "cauchy_": lambda x: x.clone().cauchy_(0, -1),
    "log_normal_": lambda x: x.clone().log_normal_(0, -1),
    "normal_": lambda x: x.clone().normal_(0, -1),
    "normal": lambda x: torch.normal(x, -1.0),
    "rand_like of int": lambda x: torch.rand_like(x.long()),
    "randn_like of int": lambda x: torch.randn_like(x, dtype=torch.int32),
    "rand of int": lambda x: torch.rand(len(x), dtype=torch.long) + x,
    "randn of int": lambda x: torch.randn(len(x), dtype=torch.long) + x,
    "randint": lambda x: torch.randint(5, 2, (len(x),)) + x,
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x * 2, beta=-1.0),
    "huber_loss": lambda x: F.huber_loss(x, x * 2, delta=-1.0),
    "layer_norm of int": lambda x: F.layer_norm(x.long()[:, None].expand(-1, 4), (4,)),
    "layer_norm of int, by its size": lambda x: F.layer_norm(x.long(), x.shape),
    "softmax of int": lambda x: x.long().softmax(0),
    "erfinv_ of int": lambda x: x.long().erfinv_(),
    "not of float": lambda x: ~x,
    "minus of bools": lambda x: (x > 0) - (x > 0),
    "a float into bools": lambda x: (x > 0).mul_(2.5),
    "cdist": lambda x: torch.cdist(x[:, None], x[:5, None], p=-1.0),
    "gather by float": lambda x: x.gather(0, torch.zeros(3)),
    "max_pool1d of int": lambda x: F.max_pool1d(x.long()[None, None], 2),
    "max_pool1d of int, a module": lambda x: torch.nn.MaxPool1d(3, 1)(x.int()[None]) + 1,
    "cross of bool": lambda x: torch.linalg.cross((x[: len(x) // 6 * 3].view(-1, 3) > 0), x[:3] > 0),
    "cross of two types": lambda x: torch.cross(x[:3, None], x[:3, None].double(), dim=0),
    "eigvals of half": lambda x: torch.linalg.eigvals(x.half().view(-1, 2, 2)),
    "eig of bfloat16": lambda x: torch.linalg.eig(x.bfloat16().view(-1, 2, 2)),
    "multilabel_margin_loss of int": lambda x: F.multilabel_margin_loss(x.long(), torch.zeros(len(x)).long()),
    "gradient of softmax of int": lambda x: torch._softmax_backward_data(x.long(), x.long(), 0, torch.long),
    "histogram of int": lambda x: torch.histc(x.long()),
    "more bytes than 64 bits count": lambda x: torch.empty(2**62, 1),
    "more bytes than there are": lambda x: torch.empty(2**52),
    "more bytes than 64 bits count, in bits": lambda x: torch.empty(2**60),
    "a view of more than there is is copied": lambda x: x[:1].expand(2**52) + 1,
    "a view of too much is copied": lambda x: x[:1].expand(2**62) + 1,
}


@pytest.mark.parametrize("name", OF_TYPES)
@pytest.mark.parametrize("size", [8, 9000, 200_000])
def test_types_and_numbers_that_operators_refuse_at_any_size(name: str, size: int) -> None:
    function, x = OF_TYPES[name], torch.rand(size)
    expected = outcome(function, x)
    assert expected is not None
    assert outcome(smelt.compile(function), x) is expected


@pytest.mark.parametrize("others", [torch.float64, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(1, 2, 5), (8, 64, 9)])
def test_convolutions_of_two_types_are_refused_with_their_line(
    sizes: tuple[int, int, int], dims: int, others: torch.dtype
) -> None:
    """Small ones are asked as they are, larger ones in small sizes."""

    def program(x: torch.Tensor, w: torch.Tensor) -> Any:
        try:
            return convolve(x, w)
        except RuntimeError:
            return x + 1

    convolve = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    batch, channels, size = sizes
    x, w = torch.rand(batch, channels, *[size] * dims), torch.rand(3, channels, *[2] * dims)
    run = smelt.compile(program, fullgraph=True)
    assert torch.equal(run(x, w.to(others)), x + 1)
    torch.testing.assert_close(run(x, w), convolve(x, w))


@pytest.mark.parametrize("size", [4, 70])
def test_layers_of_two_types(size: int) -> None:
    """What `grid_sample` refuses, and `solve_triangular` computes in the type of the matrix."""

    def sample(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(x, grid, align_corners=False)

    x, grid = torch.rand(1, 2, size, size), torch.rand(1, size, size, 2, dtype=torch.float64)
    for run in (sample, smelt.compile(sample)):
        with pytest.raises(RuntimeError, match="scalar type"):
            run(x, grid)

    def solve(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(a, b, upper=True) * 2

    a, b = torch.rand(size, size).triu() + torch.eye(size) * size, torch.rand(size, 3)
    for given in ((a.double(), b), (a, b.double())):
        torch.testing.assert_close(smelt.compile(solve)(*given), solve(*given))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.topk(100).values,
        lambda x: x.reshape(100, -1).sum(0),
        lambda x: x.unfold(0, 64, 32) + 1,
        lambda x: x.kthvalue(500).values,
        lambda x: F.pad(x[None], (50, 50), mode="reflect"),
        lambda x: F.embedding(torch.full((4,), 700), x[:1000, None]),
        lambda x: F.nll_loss(x[:, None].expand(-1, 50), torch.full((len(x),), 40)),
        lambda x: F.multi_margin_loss(x.reshape(-1, 50), torch.full((len(x) // 50,), 40)),
        lambda x: torch.cross(x[:3000].reshape(3, 1000), x[:3000].reshape(3, 1000), dim=0),
        lambda x: F.pixel_shuffle(x[:3200].reshape(1, 16, 10, 20), 4),
        lambda x: torch.searchsorted(x.sort().values, x[:5]),
        lambda x: x.index_add(0, torch.arange(5000), x[:5000]),
        lambda x: torch.bucketize(x, torch.arange(10.0)),
        lambda x: F.layer_norm(x.reshape(-1, 100), (100,)),
        lambda x: F.layer_norm(x.reshape(-1, 100).t(), (90,), x[:90], x[90:180]),
    ],
)
def test_operation_invalid_only_for_smaller_tensors_runs(function: Function) -> None:
    x = torch.rand(9000)
    torch.testing.assert_close(smelt.compile(function)(x), function(x))


CONSTANTS: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "a deviation": lambda x, n: D.Normal(x, n).log_prob(x),
    "a tensor": lambda x, n: D.Laplace(x, torch.tensor(n)).log_prob(x),
    "a full tensor": lambda x, n: D.Normal(x, torch.full((2,), n)).sample(),
    "probabilities": lambda x, n: D.Categorical(probs=torch.tensor([n, n])).probs + x,
    "an assertion": lambda x, n: (torch._assert(torch.tensor(n) > 0, "positive"), x + n)[1],
}


@pytest.mark.parametrize("caught", [False, True])
@pytest.mark.parametrize("name", CONSTANTS)
def test_arguments_that_the_program_passes(name: str, caught: bool) -> None:
    make = CONSTANTS[name]

    def fn(x: torch.Tensor, n: float) -> Any:
        if not caught:
            return make(x, n)
        try:
            return make(x, n)
        except (ValueError, AssertionError) as error:
            return type(error)

    run, x = smelt.compile(fn), torch.ones(2)
    for n in (0.0, 1.0, -1.0, 0.0, 2.0):
        assert outcome(fn, x, n) is outcome(run, x, n)
        if caught:
            want, got = fn(x, n), run(x, n)
            assert want is got or isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor)


ASSERTED: dict[str, Function] = {
    "torch._assert": lambda x: torch._assert((x > 0).all(), "positive"),
    "torch._assert by name": lambda x: torch._assert(condition=(x > 0).all(), message="positive"),
    "torch._check_tensor_all": lambda x: torch._check_tensor_all(x > 0, lambda: "positive"),
    "torch._assert_async": lambda x: torch._assert_async((x > 0).all()),
}


@pytest.mark.parametrize("caught", [False, True])
@pytest.mark.parametrize("name", ASSERTED)
def test_assertions_on_values(compiled: Any, name: str, caught: bool) -> None:
    check = ASSERTED[name]

    def fn(x: torch.Tensor) -> Any:
        if not caught:
            check(x)
            return x + 1
        try:
            check(x)
        except (AssertionError, RuntimeError) as error:
            return type(error)
        return x + 1

    run, right, wrong = compiled(fn), torch.tensor([1.0, 2.0]), torch.tensor([1.0, -2.0])
    for values in (right, wrong, right, wrong):
        assert outcome(fn, values) is outcome(run, values)
        if caught:
            assert isinstance(run(values), type) == (values is wrong)
