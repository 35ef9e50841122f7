"""Calls of torch as graph nodes, and what capture answers by itself."""

from __future__ import annotations

import operator
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import smelt
from smelt.capture.explain import describe
from tests.capture.harness import check, compiled, same

pytestmark = pytest.mark.usefixtures("branches_end_graphs")

X = torch.arange(6.0).reshape(2, 3)


def nodes(fn, *args):
    """(op, target) of each node that computes."""
    run = compiled(fn, fullgraph=True)
    run(*args)
    (graph,) = describe(run._smelt_session).graphs
    return [(n.op, n.target) for n in graph.graph.nodes if n.op.startswith("call")]


def test_functions_methods_and_operators_are_recorded_as_written():
    assert nodes(lambda x: F.relu(x), X) == [("call_function", F.relu)]
    assert nodes(lambda x: torch.sin(x), X) == [("call_function", torch.sin)]
    assert nodes(lambda x: x.sum(0), X) == [("call_method", "sum")]
    assert nodes(lambda x: x + 1, X) == [("call_function", operator.add)]
    assert nodes(lambda x: torch.ops.aten.sin(x), X) == [("call_function", torch.ops.aten.sin)]
    assert nodes(lambda x: torch.ops.aten.sin.default(x), X) == [("call_function", torch.ops.aten.sin.default)]


def test_metadata_questions_make_no_nodes():
    assert nodes(lambda x: x * (x.size(0) + x.dim() + x.shape[1] + x.stride(0) + x.numel()), X) == [
        ("call_function", operator.mul)
    ]


def test_unused_results_are_dropped_and_writes_are_kept():
    def fn(x):
        torch.sin(x)
        x.mul_(2)
        return x.sum()

    assert [t for _, t in nodes(fn, X.clone())] == ["mul_", "sum"]
    check(fn, X)


def test_empty_mode_regions_are_dropped():
    def fn(x):
        with torch.no_grad():
            pass
        return x + 1

    assert nodes(fn, X) == [("call_function", operator.add)]


def test_every_node_has_metadata_and_inputs_name_their_source():
    linear = nn.Linear(3, 3)
    run = compiled(lambda x: linear(x).max(1), fullgraph=True)
    run(X)
    (graph,) = describe(run._smelt_session).graphs
    assert all("val" in n.meta for n in graph.graph.nodes)
    sources = [n.meta["source"] for n in graph.graph.nodes if n.op == "placeholder"]
    assert sources == ["x", "linear.weight", "linear.bias"]
    assert all(":" in str(n.meta["at"]) for n in graph.graph.nodes if n.op == "call_function" and "at" in n.meta)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 100 * x * g  # not the derivative, to be told apart


def test_own_derivatives_stay_whole():
    def fn(x):
        return Cube.apply(x) + 1

    x = X.clone().requires_grad_()
    compiled(fn, fullgraph=True)(x).sum().backward()
    assert torch.equal(x.grad, 100 * x)


def test_checkpoint_calls_the_function():
    def fn(x):
        return checkpoint(torch.sin, x, use_reentrant=False) + checkpoint(lambda v: v * 2, x, use_reentrant=True)

    check(fn, X, graphs=1)


@torch.library.custom_op("smelt_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def test_custom_operators_are_nodes():
    check(lambda x: twice(x) + torch.ops.smelt_test.twice(x), X, graphs=1)


def test_answers_while_compiling():
    def fn(x):
        return x * 1, torch.compiler.is_compiling(), torch.jit.is_scripting(), torch.jit.is_tracing()

    assert compiled(fn, fullgraph=True)(X)[1:] == (True, False, False)
    assert fn(X)[1] is False


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.manual_seed(1).initial_seed() + x,
        lambda x: torch.func.linearize(torch.sin, x)[0],
        lambda x: x.data_ptr() and x + 1,
    ],
)
def test_call_not_representable_in_a_graph_causes_a_break(fn):
    run = compiled(fn)
    try:
        want = fn(X)
    except RuntimeError:
        return
    assert same(want, run(X)) and describe(run._smelt_session).graph_break_count >= 1


def test_numbers_on_the_left_of_in_place_operators():
    def fn(x):
        total = 0
        for row in x:
            total += row
        total -= 1
        return total

    check(fn, X, graphs=1)


def test_hooks_run_around_forward():
    linear = nn.Linear(3, 3)
    linear.register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    linear.register_forward_hook(lambda m, args, out: out * 2)
    linear.register_forward_pre_hook(lambda m, args, kwargs: (args, kwargs), with_kwargs=True)
    check(lambda x: linear(x), X, graphs=1)


def test_modules_made_while_running():
    def fn(x):
        return nn.CrossEntropyLoss()(x, torch.tensor([0, 1])), nn.ReLU()(x), nn.Sequential(nn.Tanh())(x)

    check(fn, X, graphs=1)


def test_module_containers():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.ReLU()})
            self.weights = nn.ParameterList([nn.Parameter(torch.ones(3))])
            self.named = nn.ParameterDict({"k": nn.Parameter(torch.ones(3))})
            self.chain = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))

        def forward(self, x):
            for _, module in self.table.items():
                x = module(x)
            for weight in self.weights:
                x = x * weight
            x = x + self.named["k"] + sum(p.sum() for p in self.parameters())
            for module in self.chain[:2]:
                x = module(x)
            names = [name for name, _ in self.named_parameters()]
            return self.chain[1:](x), len(self.chain), "a" in self.table, names, self.chain[-1](x)

    check(Net(), X, graphs=1)


def test_fx_code_of_the_graph_runs():
    run = compiled(lambda x: (x * 2).sum(), fullgraph=True)
    run(X)
    (graph,) = describe(run._smelt_session).graphs
    assert "def forward" in graph.code and torch.equal(graph(X)[0], (X * 2).sum())


def test_small_constants_are_read_as_numbers():
    def fn(x):
        scale = torch.sqrt(torch.tensor(x.size(-1), dtype=torch.float) * 3)
        span = torch.tensor([x.size(0), 1]) * 2
        if scale > 1 and float(scale) > 2:
            x = x[: span[1]] / scale
        return x.clamp(0, torch.tensor(4.0) - span[1]) + span.tolist()[0]

    run = compiled(fn, fullgraph=True)
    assert same(run(X), fn(X))
    assert same(run(X[:, :1]), fn(X[:, :1]))


def test_a_constant_that_was_written_is_not_read():
    def fn(x):
        total = torch.tensor(1.0)
        total += x.sum()
        return x * 2 if total > 10 else x

    run = compiled(fn)
    for x in (X, X - 10):
        assert same(run(x), fn(x))


def test_jit_annotate_is_its_value():
    assert nodes(lambda x: torch.cat(torch.jit.annotate(list[torch.Tensor], [x, x])), X) == [
        ("call_function", torch.cat)
    ]


def test_a_distribution_is_built_without_a_break():
    def fn(x):
        normal = torch.distributions.Normal(x, x.exp())
        return normal, normal.log_prob(x + 1)

    run = compiled(fn, fullgraph=True)
    (ours, density), (eager, expected) = run(X), fn(X)
    assert torch.equal(density, expected) and torch.equal(ours.scale, eager.scale)
    assert ours.batch_shape == eager.batch_shape and ours._validate_args
    with pytest.raises(ValueError, match="to be within the support"):
        ours.log_prob(X * float("nan"))


def test_a_tensor_of_the_graph_may_ask_for_gradients():
    def fn(x, weight):
        hidden = x[:, None]
        hidden.requires_grad = True
        return (hidden * weight).sum()

    for backend in ("eager", "smelt"):
        weight = torch.ones(3, requires_grad=True)
        out = smelt.compile(fn, backend=backend, fullgraph=True)(X, weight)
        assert out.requires_grad
        out.backward()
        assert same(weight.grad, X.sum(0))

    def leaves(x):
        y = x * 2
        y.requires_grad_()
        return y

    check(leaves, X, breaks=1)


def test_sequences_of_scalar_tensors_are_indices():
    def fn(x, index):
        rows, columns = zip(*index, strict=True)
        y = x.clone()
        y[rows, columns] = 7.0
        return y, x[list(rows), columns], x[:, list(columns)]

    check(fn, X, torch.tensor([[0, 1], [1, 2]]), graphs=1)


def test_python_types_are_dtypes():
    check(
        lambda x: (torch.ones(3, dtype=bool), x.to(int), torch.zeros(2, dtype=float), torch.zeros(2, dtype=complex)), X
    )


def test_inputs_whose_names_look_alike_are_kept_apart():
    check(lambda d: d["a.b"] - d["a_b"], {"a.b": X, "a_b": X * 3})
    check(lambda d, e: d["a" * 300] - e["b" + "a" * 300], {"a" * 300: X}, {"b" + "a" * 300: X * 3})


@pytest.mark.parametrize("expand", [(0,), (1,)])
def test_as_strided_of_expanded_tensors_with_symbolic_sizes(expand):
    """Memory with repeated or missing elements is no value of the graph: the operator runs on the real tensor."""

    def f(x):
        return x.as_strided((2,), (1,), x.storage_offset()) * 2

    fn = smelt.compile(f, dynamic=True)
    for size in (7, 5):
        shape = [1 if d in expand else size for d in range(2)]
        x = torch.randn(shape).expand(size, size)
        assert torch.equal(fn(x), f(x))
    with pytest.raises(RuntimeError, match="out of bounds for storage"):
        fn(torch.randn(1, 1).expand(1, 3))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    ("size", "stride", "offset"), [((3, 2, 4), (0, 1, 1), 0), ((2, 2), (1, 1), 1), ((3,), (2,), 1)]
)
def test_as_strided_of_expanded_tensors(grad: bool, size: tuple[int, ...], stride: tuple[int, ...], offset: int):
    """What is repeated is one and the same: windows of an expanded signal, and its gradient in all its rows."""

    def f(x):
        y = x.as_strided(size, stride, offset) * 2
        return y, *(torch.autograd.grad((y * y).sum(), x) if grad else ())

    for base in (torch.arange(6.0)[None].expand(3, 6), torch.arange(24.0).reshape(4, 6)[:, None].expand(4, 2, 6)):
        x = base.requires_grad_(grad)
        got, want = smelt.compile(f, fullgraph=True)(x), f(x)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))

    def written(x):
        x.as_strided(size[-1:], stride[-1:], offset).mul_(3)
        return x + 1

    one, other = (torch.arange(6.0)[None].expand(3, 6) for _ in range(2))
    assert torch.equal(smelt.compile(written)(one), written(other)) and torch.equal(one, other)


def test_as_strided_counts_from_the_begin_of_the_storage():
    whole = torch.arange(12.0)
    part = whole[4:10]
    fn = smelt.compile(lambda x: torch.as_strided(x, (2,), (1,), 5) + x.as_strided((2,), (2,), 6), fullgraph=True)
    assert torch.equal(fn(part), whole[5:7] + whole[6:9:2])
    assert torch.equal(fn(whole), whole[5:7] + whole[6:9:2])
    before = smelt.compile(lambda x: torch.as_strided(x, (2,), (1,), 1) + 1)
    assert torch.equal(before(part), whole[1:3] + 1)


def test_a_function_without_tensor_work_is_one_graph_with_its_comprehension():
    fn = smelt.compile(lambda xs: [x.contiguous() for x in xs], fullgraph=True)
    (out,) = fn([X])
    assert out is X


def test_a_mask_without_dimensions_selects():
    fn = smelt.compile(torch.masked_select, fullgraph=True)
    for mask in (torch.tensor(True), torch.tensor(False)):
        assert torch.equal(fn(X, mask), torch.masked_select(X, mask))
        assert fn(X[0, 0], mask).shape == torch.masked_select(X[0, 0], mask).shape


def test_tensor_split_at_indices_in_a_tensor():
    fn = smelt.compile(lambda x: torch.tensor_split(x, torch.tensor([1, 2]), 1), fullgraph=True)
    assert [tuple(part.shape) for part in fn(X)] == [(2, 1), (2, 1), (2, 1)]


def test_a_view_that_asks_for_gradients_after_its_base():
    """It says that it requires them already, since its base does; eager gives it none unless it asks."""

    def run(compile):
        def fn(a, b):
            b.requires_grad_()
            a.requires_grad_()
            return (a * 2).sum() + (b * 3).sum()

        fn, found = compile(fn), []
        apart = [torch.ones(1, requires_grad=True), torch.ones(4, requires_grad=True)]
        shared = torch.ones(4)
        for a, b in (apart, (shared[:1], shared)):
            fn(a, b).backward()
            found += [a.grad, b.grad]
        return found

    want = run(lambda f: f)
    for backend in ("eager", "aot_eager"):
        torch.testing.assert_close(run(lambda f, backend=backend: smelt.compile(f, backend=backend)), want)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_a_sparse_argument_ends_the_graph(layout: torch.layout) -> None:
    """It runs in eager, and is guarded without strides."""
    x = torch.eye(3)

    def fn(a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (a @ x) * 2

    run = smelt.compile(fn)
    for a in (x.to_sparse(layout=layout), (x * 3).to_sparse(layout=layout)):
        assert torch.equal(run(a, x), fn(a, x))


def test_results_that_go_to_tensors_of_another_shape() -> None:
    """An empty one takes the shape; one with elements, or of the caller, is resized outside of the graph."""

    def empty(x: torch.Tensor, _: torch.Tensor) -> object:
        out, values, places = torch.empty(0), torch.empty(0), torch.empty(0, dtype=torch.int64)
        torch.add(x, 1, out=out)
        torch.sort(x, out=(values, places))
        return out * 2, out.shape, values + places.shape[0]

    def other(x: torch.Tensor, _: torch.Tensor) -> object:
        return torch.add(x, 1, out=torch.empty(7)) * 2

    def argument(x: torch.Tensor, out: torch.Tensor) -> object:
        torch.add(x, 1, out=out)
        return out * 2, out.shape

    for fn, breaks in ((empty, 0), (other, 1), (argument, 1)):
        smelt.reset()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch resizes what has elements, and complains
            x, out, wanted = torch.rand(3), torch.empty(0), torch.empty(0)
            found, want = smelt.compile(fn)(x, out), fn(x, wanted)
        torch.testing.assert_close((found, out), (want, wanted))
        assert smelt.stats()["breaks"] == breaks


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("rows", [0, 4])
def test_as_strided_reaches_memory_beside_its_argument(dynamic, rows):
    """A graph has no such memory: the call runs in eager, also where sizes vary."""
    calls = (
        lambda x: x.as_strided((10,), (1,), 5) * 1,
        lambda x: x.as_strided((x.shape[0],), (1,), 8) + x,
        lambda x: x.as_strided((6,), (3,), x.shape[0] - 7).add_(1),
        lambda x: x.as_strided((2, 3), (1, 2), 5).add_(1),
    )
    for fn in calls:
        call = smelt.compile(fn, dynamic=dynamic)
        for end in (14, 12, 19):
            one, other = torch.arange(30.0), torch.arange(30.0)
            assert torch.equal(call(one[rows:end]), fn(other[rows:end]))
            assert torch.equal(one, other)


def test_tensors_that_become_each_other() -> None:
    def swap(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        torch.utils.swap_tensors(x, y)
        return x * 2, y + 1

    swap(torch.zeros(3), torch.ones(4))  # the first call in a process writes to the tensors' class
    fn = smelt.compile(swap)
    for _ in range(2):
        given = [torch.zeros(3), torch.ones(4)]
        a, b = fn(given[0], given[1])
        assert (given[0].tolist(), given[1].tolist()) == ([1.0] * 4, [0.0] * 3)
        assert (a.tolist(), b.tolist()) == ([2.0] * 4, [1.0] * 3)
