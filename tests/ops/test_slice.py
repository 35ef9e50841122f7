"""A slice of `make test-ops`: operators from all over OpInfo's database, some samples of each, forward and gradient."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.ops.cases import Case, all_cases, copy
from tests.ops.compare import judge
from tests.ops.judge import difference, same_bits, shared_memory
from tests.ops.layouts import LAYOUTS, laid_out, lay_out

NAMES = """
    add atan2 addcdiv as_strided_scatter baddbmm cat cdist clamp cumprod diff div.floor_rounding einsum fft.rfft fmod
    gather geqrf heaviside index_put kthvalue linalg.cross linalg.svd logsumexp masked_select masked_scatter
    max.reduction_with_dim median nn.functional.avg_pool3d nn.functional.cross_entropy nn.functional.dropout
    nn.functional.gelu nn.functional.grid_sample nn.functional.huber_loss nn.functional.max_unpool2d.grad
    nn.functional.multi_margin_loss nn.functional.pad.circular normal prod resolve_conj roll scatter_reduce.amax
    sgn split_with_sizes tensor_split unsafe_chunk var_mean xlogy
""".split()
SAMPLES = 3
CASES = [c for c in all_cases(["float32", "bfloat16", "int64", "bool"]) if c.info.full_name in NAMES]


@pytest.mark.parametrize("case", CASES[::2], ids=lambda case: case.name.replace(" ", "-"))
def test_an_operator_is_right(case: Case) -> None:
    samples = list(case.samples())
    row = judge(case, list(itertools.islice(samples, 0, None, max(1, len(samples) // SAMPLES)))[:SAMPLES])
    assert row.status in ("right", "no samples"), row.wrong or row.errors


@pytest.mark.parametrize("name", ["sparse.sampled_addmm", "sparse.mm.reduce"])
def test_gradients_may_be_sparse(name: str) -> None:
    (case,) = (c for c in all_cases(["float32"]) if c.info.full_name == name)
    row = judge(case, list(case.samples())[:2])
    assert row.status == "right", row.wrong or row.errors


def test_the_judge_sees_a_difference() -> None:
    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    exact = x.double()
    assert difference(x.clone(), x, exact, "result") is None
    assert "1 of 12" in str(
        difference(x + torch.eye(3, 4)[:, [3, 0, 1, 2]] * (x == x[0, 1]) * 1e-4, x, exact, "result")
    )
    assert "strides" in str(difference(x.t().contiguous().t(), x, exact, "result"))
    assert difference(x.clone(), x[:, None].expand(3, 2, 4)[:, 0], exact, "gradient", gaps=False) is None
    assert "dtype" in str(difference(x.double(), x, exact, "result"))
    assert "shape" in str(difference(x.reshape(4, 3), x, exact, "result"))
    assert difference(x / 0, x / 0 + 0, exact, "result") is None
    assert difference(torch.full((2,), torch.nan), torch.ones(2), None, "result") is not None
    assert difference(torch.ones(2), torch.full((2,), torch.nan), None, "result") is not None
    assert difference([x], (x,), None, "result") is not None


def test_tolerance_includes_the_error_of_eager() -> None:
    exact = torch.tensor([1.0], dtype=torch.float64)
    eager = torch.tensor([1.01])
    assert difference(torch.tensor([0.99]), eager, exact, "result") is None
    assert difference(torch.tensor([1.2]), eager, exact, "result") is not None


def test_a_copy_has_the_memory_layout_of_the_original() -> None:
    whole = torch.arange(10.0)
    part = whole[2:8:2].expand(2, 3)
    made = copy(part)
    assert made.stride() == part.stride() and made.storage_offset() == part.storage_offset()
    assert torch.equal(made, part) and made.data_ptr() != part.data_ptr()


LAID_OUT = [
    c
    for dynamic in (False, True)
    for c in all_cases(["float32", "int64"], LAYOUTS[1:], most=1, dynamic=dynamic)
    if c.info.full_name in ("add", "cumsum", "index_select", "nn.functional.linear", "sort", "sum", "unfold", "where")
]


@pytest.mark.parametrize("case", LAID_OUT[::7], ids=lambda case: case.name.replace(" ", "-"))
def test_an_operator_is_right_in_a_layout(case: Case) -> None:
    row = judge(case)
    assert row.status in ("right", "no samples"), row.wrong or row.errors


def test_layouts_are_what_they_are_called() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    strides = {layout: lay_out(x, layout).stride() for layout in LAYOUTS[:5]}
    assert strides == {"own": (4, 1), "gaps": (7, 1), "steps": (8, 2), "transposed": (1, 3), "offset": (4, 1)}
    assert all(torch.equal(lay_out(x, layout), x) for layout in LAYOUTS[:5])
    assert lay_out(x, "expanded").stride() == (0, 1)
    assert lay_out(x.view(1, 3, 2, 2), "last").stride() == (12, 1, 6, 3)
    assert [made.shape for made in laid_out(x, "zero")] == [(0, 4), (3, 0)]
    assert [made.stride() for made in laid_out(x, "one")] == [(4, 1), (4, 1)]
    assert lay_out(x, "offset").storage_offset() == 1
    leaf = lay_out(x.clone().requires_grad_(), "gaps")
    assert leaf.requires_grad and leaf.is_leaf


def test_the_judge_sees_shared_memory_and_changed_bits() -> None:
    x, y = torch.ones(4), torch.ones(2)
    assert shared_memory([x[1:], y * 2], [y, x]) == ["result 0 in argument 1"]
    assert shared_memory([(z := x * 2), z[::2]], [x]) == ["result 1 in result 0"]
    assert shared_memory([(z := x[3:]), z, x[3:]], []) == ["result 1 is result 0", "result 2 in result 0"]
    held = [torch.tensor([1.0, float("nan")])]
    before = [held[0].clone()]
    assert same_bits(held, before)
    held[0][0] = 2.0
    assert not same_bits(held, before)
