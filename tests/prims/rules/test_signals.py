"""Windows of signal processing and frequencies, against eager and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.signal import windows

from tests.prims.aten_check import check

aten = torch.ops.aten
ZERO = torch.tensor(0)


@pytest.mark.parametrize("name", ["hann", "hamming", "blackman", "bartlett"])
@pytest.mark.parametrize("length", [0, 1, 2, 5, 8])
def test_windows(name: str, length: int) -> None:
    packet = getattr(aten, f"{name}_window")
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        check(packet.default, length, dtype=dtype, scale=2.0)
        for periodic in (False, True):
            got = check(packet.periodic, length, periodic, dtype=dtype, scale=2.0)(ZERO)[0]
            if dtype is torch.float64 and name != "bartlett":
                np.testing.assert_allclose(got, getattr(windows, name)(length, not periodic), atol=1e-12)


@pytest.mark.parametrize("periodic", [False, True])
def test_hamming_windows_of_other_weights(periodic: bool) -> None:
    check(aten.hamming_window.periodic_alpha, 7, periodic, 0.6, dtype=torch.float64)
    check(aten.hamming_window.periodic_alpha_beta, 7, periodic, 0.6, 0.3, dtype=torch.float64)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("d", [1.0, 0.25, -3.0])
def test_frequencies(n: int, d: float) -> None:
    for dtype in (torch.float64, torch.float32):
        both = check(aten.fft_fftfreq.default, n, d, dtype=dtype)(ZERO)[0]
        half = check(aten.fft_rfftfreq.default, n, d, dtype=dtype)(ZERO)[0]
        np.testing.assert_allclose(both, np.fft.fftfreq(n, d), rtol=1e-6)
        np.testing.assert_allclose(half, np.fft.rfftfreq(n, d), rtol=1e-6)


@pytest.mark.parametrize(("start", "end", "step"), [(0, 4, 1), (1.5, 3, 0.25), (5, -1, -2), (2, 2, 1), (0, 1, 3)])
def test_ranges_with_their_end(start: float, end: float, step: float) -> None:
    for dtype in (torch.float64, torch.float32):
        check(aten.range.step, start, end, step, dtype=dtype)
    if step == 1:
        check(aten.range.default, start, end, dtype=torch.float64)
    check(aten.range.step, 0, 4, 2, dtype=torch.int64, fallback=True)
