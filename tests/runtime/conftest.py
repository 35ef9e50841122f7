"""What tests of kernels share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def triton_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's `DEVICE`, where its kernels run: on a GPU, or under Triton's interpreter."""
    if request.param == "cpu" and torch.cuda.is_available():
        pytest.skip("Triton interprets or compiles, by process")
    monkeypatch.setattr(request.module, "DEVICE", request.param)
