"""smelt/capture/torch/higher_order: `cond`, `while_loop`, `scan`, `map`, `associative_scan` and `flex_attention`.

All run with `fullgraph=True`: none of them may end the graph. In eager these operators start torch's own compiler,
which takes seconds; most tests compare with the same computation in plain Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._pytree import tree_flatten, tree_leaves

import smelt

CPU_OR_GPU = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def run(function: Callable[..., Any], args: tuple[Tensor, ...]) -> tuple[Any, list[Any]]:
    """(result, its leaves and the gradients of the arguments) of one call."""
    leaves = [each.detach().clone().requires_grad_(each.requires_grad) for each in args]
    result = function(*leaves)
    made = [each for each in tree_leaves(result) if isinstance(each, Tensor)]
    trained = [each for each in made if each.requires_grad]
    if trained:
        torch.stack([each.sin().sum() for each in trained]).sum().backward()
    return result, made + [each.grad for each in leaves]


def agree(want: Callable[..., Any], function: Callable[..., Any], *args: Tensor, **tolerance: float) -> None:
    """`function`, compiled whole, gives what `want` gives: structure, values, layouts and gradients."""
    (expected, values), (result, compiled) = run(want, args), run(smelt.compile(function, fullgraph=True), args)
    assert tree_flatten(expected)[1] == tree_flatten(result)[1]
    for a, b in zip(values, compiled, strict=True):
        torch.testing.assert_close(a, b, **tolerance)
        assert a is None or _strides(a) == _strides(b)


def _strides(tensor: Tensor) -> list[int]:
    """Strides of the dimensions in which there are several elements; others are arbitrary."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def inputs(*shape: int, device: str = "cpu", count: int = 1) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*shape, device=device).requires_grad_() for _ in range(count)]


# -------------------------------------------------------------------------------------------------- cond and while_loop


def _doubled(x: Tensor) -> dict[str, Any]:
    return {"a": x * 2, "b": [x.sin(), None]}


def _shifted(x: Tensor) -> dict[str, Any]:
    return {"a": x - 1, "b": [x.cos(), None]}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("device", CPU_OR_GPU)
def test_cond_runs_one_function_and_keeps_nested_results(sign: int, device: str) -> None:
    (x,) = inputs(5, 3, device=device)
    x = (x.abs() * sign).detach().requires_grad_()
    agree(
        lambda x: _doubled(x) if x.sum() > 0 else _shifted(x),
        lambda x: torch.cond(x.sum() > 0, _doubled, _shifted, (x,)),
        x,
    )


@pytest.mark.parametrize("bias", [3.0, 0.5, -3.0])
def test_cond_within_cond_and_several_conds(bias: float) -> None:
    def inner(x: Tensor) -> Tensor:
        return torch.cond(x.mean() > 2, lambda x: x * 3, lambda x: x * 4, (x,))

    def function(x: Tensor) -> Tensor:
        y = torch.cond(x.mean() > 0, inner, lambda x: x + 1, (x,))
        return torch.cond(y.max() > 5, lambda y: y.sin(), lambda y: y.cos(), (y,))

    def want(x: Tensor) -> Tensor:
        y = (x * 3 if x.mean() > 2 else x * 4) if x.mean() > 0 else x + 1
        return y.sin() if y.max() > 5 else y.cos()

    agree(want, function, (torch.rand(4, 3) * 0.1 + bias).requires_grad_())


def test_cond_is_not_captured_again_for_the_other_function() -> None:
    compiled = smelt.compile(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), fullgraph=True)
    before = smelt.stats()["graphs"]
    x = torch.rand(3)
    assert torch.equal(compiled(x), smelt.compile(torch.sin)(x)) and torch.allclose(compiled(-x), torch.cos(-x))
    assert smelt.stats()["graphs"] - before == 2  # one of them is that of `torch.sin`


@pytest.mark.parametrize("size", [2, 5])
def test_cond_on_sizes(size: int) -> None:
    function = smelt.compile(
        lambda x: torch.cond(x.shape[0] > 3, lambda x: x + 1, lambda x: x - 1, (x,)), fullgraph=True, dynamic=True
    )
    assert torch.equal(function(torch.ones(size)), torch.ones(size) + (1 if size > 3 else -1))


def test_while_loop_of_a_known_condition_is_unrolled() -> None:
    def function(x: Tensor) -> Any:
        return while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, {"y": y["y"].sin()}), (torch.tensor(0), {"y": x}))

    agree(lambda x: (torch.tensor(3), {"y": x.sin().sin().sin()}), function, *inputs(4))


def test_while_loop_that_never_runs_copies() -> None:
    (x,) = inputs(4)
    function = smelt.compile(lambda x: while_loop(lambda y: False, lambda y: (y * 2,), [x]), fullgraph=True)
    (result,) = function(x)
    assert torch.equal(result, x) and result is not x and result.data_ptr() != x.data_ptr()


def test_while_loop_of_an_unknown_condition_runs_between_graphs() -> None:
    function = smelt.compile(lambda x: while_loop(lambda y: y.sum() < 100, lambda y: (y * y + 1,), (x + 1,))[0] * 2)
    want = y = torch.ones(3) + 1
    while y.sum() < 100:
        want = y = y * y + 1
    assert torch.equal(function(torch.ones(3)), want * 2)


# ------------------------------------------------------------------------------------------------------ rows of tensors


@pytest.fixture(scope="module")
def outputs_along_dim() -> bool:
    """Whether `scan` along `dim` stacks its outputs along `dim`; older versions of torch stack them along 0."""
    out = scan(lambda carry, row: (carry + row, carry * row), torch.zeros(2), torch.ones(2, 3), dim=1)[1]
    return out.shape == (2, 3)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize(("dim", "reverse"), [(0, False), (1, True), (-1, False)])
@pytest.mark.parametrize("device", CPU_OR_GPU)
def test_scan(rows: int, dim: int, reverse: bool, device: str, outputs_along_dim: bool) -> None:
    """A carry of two tensors, an output of two, nested; compared with a loop."""

    def step(carry: Any, row: Any) -> Any:
        return (carry[0] + row["a"], carry[1] * row["b"]), {"q": carry[0] * row["a"], "r": [carry[1].sin()]}

    def function(x: Tensor) -> Any:
        zero = torch.zeros(3, device=device)
        return scan(step, (zero, zero + 1), {"a": x, "b": x * 2}, dim=dim, reverse=reverse)

    def want(x: Tensor) -> Any:
        carry: Any = (torch.zeros(3, device=device), torch.ones(3, device=device))
        steps = []
        for row in reversed(x.unbind(dim)) if reverse else x.unbind(dim):
            carry, out = step(carry, {"a": row, "b": row * 2})
            steps.append(out)
        steps = steps[::-1] if reverse else steps
        q, r = torch.stack([s["q"] for s in steps]), torch.stack([s["r"][0] for s in steps])
        to = dim if outputs_along_dim else 0
        return carry, {"q": torch.movedim(q, 0, to), "r": [torch.movedim(r, 0, to)]}

    (x,) = inputs(rows, 3, device=device)
    agree(want, function, x if dim == 0 else x.detach().T.contiguous().requires_grad_())


def test_map_over_nested_rows() -> None:
    def of_row(row: Any, y: Tensor) -> Any:
        return {"a": row[0] * y, "b": (row[1] + y).sum()}

    def want(x: Tensor, y: Tensor) -> Any:
        rows = [of_row((a, a * 2), y) for a in x]
        return {name: torch.stack([row[name] for row in rows]) for name in ("a", "b")}

    agree(want, lambda x, y: map_rows(of_row, (x, x * 2), y), *inputs(4, 3), *inputs(3))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 16])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("device", CPU_OR_GPU)
def test_associative_scan_of_a_recurrence(rows: int, reverse: bool, device: str) -> None:
    """`h[t] = a[t] * h[t-1] + b[t]`, the scan of Mamba-like layers, along dimension 1."""

    def combine(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return left[0] * right[0], right[0] * left[1] + right[1]

    def function(a: Tensor, b: Tensor) -> Tensor:
        out = associative_scan(combine, (a, b), 1, reverse=reverse, combine_mode="generic")[1]
        return out.clone(memory_format=torch.contiguous_format)

    def want(a: Tensor, b: Tensor) -> Tensor:
        states: list[Tensor] = []
        for t in reversed(range(rows)) if reverse else range(rows):
            states.append(a[:, t] * states[-1] + b[:, t] if states else b[:, t])
        return torch.stack(states[::-1] if reverse else states, dim=1)

    agree(want, function, *inputs(2, rows, 3, device=device, count=2), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_associative_scan_pointwise() -> None:
    (x,) = inputs(6, 3, device="cuda")
    agree(
        lambda x: x.cumsum(0),
        lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="pointwise"),
        x,
        rtol=1e-4,
        atol=1e-5,
    )


# ------------------------------------------------------------------------------------------------------- flex_attention

BIAS = torch.linspace(-1, 1, 64).reshape(4, 16)
LENGTHS = torch.tensor([5, 9])

SCORES: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]] = {
    "alibi": (
        lambda s, b, h, i, j: s + (j - i) * (h + 1) * 0.1,
        lambda s: s + (_columns(s) - _rows(s)) * (torch.arange(4).view(-1, 1, 1) + 1) * 0.1,
    ),
    "table": (lambda s, b, h, i, j: s + BIAS[h, j], lambda s: s + BIAS[:, None, :]),
    "chained": (lambda s, b, h, i, j: s + BIAS[h][j], lambda s: s + BIAS[:, None, :]),
    "lengths": (
        lambda s, b, h, i, j: torch.where(j < LENGTHS[b], s, -1e9),
        lambda s: torch.where(_columns(s) < LENGTHS.view(-1, 1, 1, 1), s, -1e9),
    ),
    "capped": (lambda s, b, h, i, j: 20 * torch.tanh(s / 20), lambda s: 20 * torch.tanh(s / 20)),
    "causal": (
        lambda s, b, h, i, j: torch.where(i >= j, s, -math.inf),
        lambda s: torch.where(_rows(s) >= _columns(s), s, -math.inf),
    ),
}
"""name -> (function of scalars for `flex_attention`, function of all scores)."""


def _rows(scores: Tensor) -> Tensor:
    return torch.arange(scores.shape[-2], device=scores.device)[:, None]


def _columns(scores: Tensor) -> Tensor:
    return torch.arange(scores.shape[-1], device=scores.device)


def dense(change: Callable[[Tensor], Tensor] = lambda s: s) -> Callable[..., Tensor]:
    """Attention (batch, heads, tokens, features) whose scores are changed by a function."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = change(q.float() @ k.float().transpose(-2, -1) / math.sqrt(q.shape[-1]))
        return torch._safe_softmax(scores, -1).to(q.dtype) @ v

    return attention


@pytest.mark.parametrize("name", SCORES)
def test_flex_attention_changes_scores(name: str) -> None:
    score_mod, change = SCORES[name]
    with torch.no_grad():
        agree(
            dense(change),
            lambda q, k, v: flex_attention(q, k, v, score_mod=score_mod),
            *[each.detach() for each in inputs(2, 4, 16, 8, count=3)],
        )


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["capped", "causal"])
def test_flex_attention_has_gradients(name: str) -> None:
    score_mod, change = SCORES[name]
    q, k, v = inputs(2, 4, 128, 16, device="cuda", count=3)
    agree(dense(change), lambda q, k, v: flex_attention(q, k, v, score_mod=score_mod), q, k, v, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", ["queries", "one query", "transposed", "groups", "bfloat16", "masked rows"])
def test_flex_attention_is_that_of_eager(shape: str) -> None:
    """Result, logarithm of the sum and layouts, with a mask."""
    q, k, v = (each.detach() for each in inputs(2, 4, 128, 8, count=3))
    documents = torch.arange(128) // 40 + (1 if shape == "masked rows" else 0)
    other = documents - 1 if shape == "masked rows" else documents

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return documents[i] == other[j]

    rows = 1 if shape == "one query" else 128
    mask = create_block_mask(mask_mod, None, None, rows, 128, device="cpu")
    if shape == "one query":
        q = q[:, :, :1]
    if shape == "transposed":
        q, k, v = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (q, k, v))
    if shape == "groups":
        k, v = k[:, :2], v[:, :2, :, :5]
    if shape == "bfloat16":
        q, k, v = q.bfloat16(), k.bfloat16(), v.bfloat16()

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, block_mask=mask, scale=0.3, enable_gqa=shape == "groups", return_lse=True)

    agree(function, function, q, k, v)


def test_flex_attention_under_autocast_casts_its_inputs_alone() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return flex_attention(q, k, v, score_mod=SCORES["capped"][0])

    agree(function, function, *[each.detach() for each in inputs(1, 2, 16, 8, count=3)])


def test_flex_attention_refuses_what_eager_refuses() -> None:
    q, k = (each.detach() for each in inputs(1, 4, 16, 8, count=2))
    for function in (flex_attention, smelt.compile(flex_attention)):
        with pytest.raises(ValueError, match="same number of heads"):
            function(q, k[:, :3], k[:, :3])
    with pytest.raises(smelt.Unsupported, match="needs the values of a tensor"):
        smelt.compile(
            lambda q: flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s if h.item() else s * 2), fullgraph=True
        )(q)


def test_index_outside_of_flex_attention_is_read_as_a_number() -> None:
    """After a call of flex_attention, indices without dimensions are numbers, which may count from the end."""

    def function(q: Tensor, at: Tensor) -> Tensor:
        out = flex_attention(q, q, q, score_mod=SCORES["table"][0])
        return out + BIAS[at][: q.shape[-1]]

    (q,) = (each.detach() for each in inputs(2, 4, 16, 8))
    at = torch.tensor(-1)
    want = dense(SCORES["table"][1])(q, q, q) + BIAS[-1][:8]
    torch.testing.assert_close(smelt.compile(function)(q, at), want)
