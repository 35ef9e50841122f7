"""What tests of kernels share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from smelt.runtime import _native


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def triton_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's `DEVICE`, where its kernels run: on a GPU, or under Triton's interpreter."""
    if request.param == "cpu" and torch.cuda.is_available():
        pytest.skip("Triton interprets or compiles, by process")
    monkeypatch.setattr(request.module, "DEVICE", request.param)


@pytest.fixture(params=["avx512", "avx2", "plain"])
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The instruction set that native kernels use."""
    before = _native.gemm_kind()
    if not _native.gemm_select(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    _native.gemm_select(before)
