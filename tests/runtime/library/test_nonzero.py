"""Places of elements that are not zero (native/nonzero.c): torch's own answer, layout included, from one call."""

from __future__ import annotations

import pytest
import torch

import smelt
from smelt.runtime import _native
from smelt.runtime.library.externs import extern
from smelt.runtime.library.fallback import Slot
from smelt.runtime.library.nonzero import nonzero

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip


def _values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    drawn = torch.randint(-1, 2, shape, generator=torch.Generator().manual_seed(5))
    if dtype.is_complex:
        return torch.complex(drawn.double(), drawn.flip(0).double()).to(dtype)
    return (drawn * 0.0 if dtype.is_floating_point and not drawn.numel() else drawn).to(dtype)


def _layouts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    found = {"rows": x, "transposed": x.mT.contiguous().mT if x.dim() > 1 else x}
    found["expanded"] = x[..., :1].expand(x.shape) if x.dim() else x
    if x.dim():
        wide = torch.zeros((*x.shape[:-1], 2 * x.shape[-1] + 3), dtype=x.dtype)
        wide[..., 3::2] = x
        found["steps behind an offset"] = wide[..., 3::2]
    return found


def _same(found: torch.Tensor, right: torch.Tensor) -> None:
    assert found.dtype is torch.int64
    assert (found.shape, found.stride()) == (right.shape, right.stride())
    assert torch.equal(found, right)


@pytest.mark.parametrize("shape", [(1,), (7,), (300,), (3, 5), (2, 3, 259), (1, 1), (0, 4), (4, 0), ()], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_indices_are_those_of_torch(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    for x in _layouts(_values(shape, dtype)).values():
        right = torch.nonzero(x)
        _same(nonzero(x), right)
        if right.numel():
            assert _native.nonzero(x) is not None


@pytest.mark.parametrize("size", [0, 1, 4, 40])
@pytest.mark.parametrize("shape", [(9,), (3, 5), (2, 3, 4), (), (0, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.complex64], ids=str)
def test_indices_in_a_table_of_given_size(dtype: torch.dtype, shape: tuple[int, ...], size: int) -> None:
    for x in _layouts(_values(shape, dtype)).values():
        right = torch.nonzero_static(x, size=size, fill_value=-7)
        params = {"args": (Slot(0),), "kwargs": {"size": size, "fill_value": -7}, "devices": ("cpu",)}
        kernel = extern("aten.nonzero_static.default", params, [x], [right])
        _same(kernel.call(x), right)
        given = torch.full_like(right, 3)
        kernel.into(given, x)
        assert torch.equal(given, right)


def test_special_numbers() -> None:
    numbers = [0.0, -0.0, float("nan"), -float("nan"), float("inf"), 1e-45, -1e-40, 5e-324, 1.0]
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.tensor(numbers, dtype=torch.float64).to(dtype)
        _same(nonzero(x), torch.nonzero(x))
    bits = torch.tensor([0, 1, 0x7F, 0x80, -32768, 0x0100], dtype=torch.int16)
    for dtype in (torch.float16, torch.bfloat16):
        _same(nonzero(bits.view(dtype)), torch.nonzero(bits.view(dtype)))


def test_subnormal_numbers_are_zero_where_the_processor_takes_them_so() -> None:
    x = torch.tensor([1e-40, 1.0, 0.0])
    if not torch.set_flush_denormal(True):
        pytest.skip("the processor keeps them")
    try:
        found, right = nonzero(x), torch.nonzero(x)
    finally:
        torch.set_flush_denormal(False)
    assert found.tolist() == right.tolist() == [[1]]


def test_unsupported_tensors_are_left_to_torch() -> None:
    class Other(torch.Tensor):
        pass

    lazy = torch.tensor([1j, 0, 2]).conj().imag
    assert lazy.is_neg()
    for x in (lazy, torch.ones(3).as_subclass(Other), torch.ones(1 << 16)):
        assert _native.nonzero(x) is None
        assert torch.equal(nonzero(x), torch.nonzero(x))
    for dtype in (torch.uint16, torch.float8_e5m2):  # torch has no kernel for them, and says so
        with pytest.raises(RuntimeError, match="not implemented"):
            nonzero(torch.ones(3).to(dtype))
    assert _native.nonzero(torch.ones(3, device="meta")) is None
    assert _native.nonzero("no tensor") is None  # type: ignore[arg-type]


def test_results_are_the_callers_own() -> None:
    x = torch.tensor([0, 1, 1, 0, 1])
    kept = [nonzero(x) for _ in range(50)]
    kept[0].zero_()
    assert all(each.tolist() == [[1], [2], [4]] for each in kept[1:])


@pytest.mark.parametrize("changes", [False, True], ids=["one count", "many counts"])
def test_compiled_masks_of_changing_values(changes: bool) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask = x > 0
        return x[mask], torch.nonzero(x), torch.masked_select(x, mask), *torch.where(mask), x[mask].sum()

    compiled = smelt.compile(program)
    held = []
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed if changes else 0)
        x = torch.randn(5, 6, generator=generator)
        held.append((compiled(x), program(x)))
    for found, right in held:
        for a, b in zip(found, right, strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()


def test_reading_graphs_without_sizes_keep_hidden_numbers_to_themselves() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(x)

    compiled = smelt.compile(program)
    for x in (torch.zeros(4), torch.ones(4), torch.tensor([0.0, 1.0, 0.0, 2.0])):
        found = compiled(x)
        assert type(found) is torch.Tensor
        _same(found, program(x))
