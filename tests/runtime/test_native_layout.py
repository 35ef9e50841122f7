"""The fast reading of data pointers learns the tensors of a further device."""

from __future__ import annotations

import pytest
import torch

from smelt.runtime import _native, native_layout
from smelt.runtime.native_layout import calibrate, learn_device, slow_data_ptr

CPU = torch.device("cpu")


def test_a_device_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: list[object] = []

    def counted(tensor: object) -> int:
        slow.append(tensor)
        return slow_data_ptr(tensor)

    words, keys, cow = native_layout._search()
    tensor, parameter = torch.randn(5), torch.nn.Parameter(torch.randn(3))
    try:
        _native.set_layout(words, cow, (), torch.Tensor, torch.nn.Parameter, counted)  # knows no device
        assert _native.data_ptr(tensor) == tensor.data_ptr() and len(slow) == 1
        learn_device.cache_clear()
        assert learn_device(CPU)
        slow.clear()
        for one in (tensor, parameter):
            assert _native.data_ptr(one) == one.data_ptr()
        assert not slow
        with pytest.raises(ValueError, match="more than 8 keys"):
            _native.add_keys(tuple(range(1, 20)))
    finally:
        calibrate()


def test_a_device_that_disagrees_turns_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(5)
    words, keys, cow = native_layout._search()
    wrong = (*words[:4], words[5], words[5])  # takes the deleter for the data
    try:
        _native.set_layout(wrong, cow, keys, torch.Tensor, torch.nn.Parameter, slow_data_ptr)
        learn_device.cache_clear()
        assert not learn_device(CPU)
        assert _native.data_ptr(tensor) == tensor.data_ptr()
        learn_device.cache_clear()
        assert not learn_device(CPU)  # it stays off
    finally:
        learn_device.cache_clear()
        assert calibrate()


@pytest.mark.gpu
def test_tensors_of_a_gpu() -> None:
    assert learn_device(torch.device("cuda", 0))
    tensor = torch.randn(5, device="cuda:0")
    assert _native.data_ptr(tensor) == tensor.data_ptr()
