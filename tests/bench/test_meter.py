"""smelt/bench/meter.py: time and memory on a device, and what is said where there is none."""

from __future__ import annotations

import mmap
import time

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from smelt.base.errors import OptionError
from smelt.bench.meter import CudaMeter, Meter, check_device, meter_of


def test_seconds_are_of_one_call() -> None:
    calls = []

    def work() -> None:
        calls.append(1)
        time.sleep(0.02)

    assert 0.02 <= Meter().seconds(work, times=3) < 10
    assert len(calls) == 3


def test_the_cpu_counts_the_memory_of_the_process() -> None:
    meter = meter_of("cpu")
    assert type(meter) is Meter and meter.reserved_mb() is None
    meter.wait_for_device()
    if meter.reset_peak():
        before = meter.peak_mb()
        with mmap.mmap(-1, 64 << 20) as block:  # a tensor may find room in what the process has already
            block.write(b"x" * (64 << 20))
            assert meter.peak_mb() > before + 32
    meter.release()


@pytest.mark.parametrize("device", ["cuda:0", "cuda"])
def test_a_gpu_has_a_meter_of_its_own(device: str) -> None:
    meter = meter_of(device)
    assert isinstance(meter, CudaMeter) and meter.device == torch.device(device)


@pytest.mark.parametrize("device", ["meta", "gpu", "cuda:x"])
def test_an_unknown_device_is_named(device: str) -> None:
    with pytest.raises(OptionError, match=f"unknown device '{device}'"):
        check_device(device)


def test_a_missing_gpu_is_an_error_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    check_device("cpu")
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(OptionError, match="built without CUDA"):
        check_device("cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(OptionError, match="(?s)finds no GPU.*nvidia-smi.*old driver"):
        check_device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    check_device("cuda:0")
    with pytest.raises(OptionError, match="(?s)no device 'cuda:1'.*1 GPU, counted from 0"):
        check_device("cuda:1")


def test_events_enclose_the_work_on_an_idle_device(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: object) -> None:
            order.append(f"record on {stream}")

        def synchronize(self) -> None:
            order.append("wait")

        def elapsed_time(self, end: object) -> float:
            return 30.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: order.append("settle"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the stream")
    seconds = meter_of("cuda").seconds(lambda: order.append("work"), times=2)
    assert seconds == pytest.approx(0.015)
    assert order == ["settle", "record on the stream", "work", "work", "record on the stream", "wait"]


@pytest.mark.gpu
def test_a_gpu_is_timed_to_the_end_of_its_work() -> None:
    meter = meter_of("cuda")
    x = torch.randn(4096, 4096, device="cuda")

    def work() -> None:
        for _ in range(8):
            x @ x  # queued in microseconds, done in milliseconds

    work()
    begin = time.perf_counter()
    seconds = meter.seconds(work)
    assert 8 * 2 * 4096**3 / 2e15 < seconds <= time.perf_counter() - begin


@pytest.mark.gpu
def test_a_gpu_counts_what_its_allocator_handed_out() -> None:
    meter = meter_of("cuda")
    meter.release()
    assert meter.reset_peak()
    base = torch.cuda.memory_allocated() / 2**20
    block = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    del block
    assert 100 <= meter.peak_mb() - base < 102
    reserved = meter.reserved_mb()
    assert reserved is not None and reserved >= meter.peak_mb()


class StandIn(torch.Tensor):
    """A tensor without memory, of a size that only values would tell."""

    __torch_dispatch__ = classmethod(lambda *_: NotImplemented)


def test_tensors_of_a_step_are_counted_at_their_most():
    meter, held = Meter(), torch.empty(4 << 20, dtype=torch.uint8)

    def step() -> None:
        for _ in range(2):  # one is gone before the next comes
            torch.empty(8 << 20, dtype=torch.uint8).view(2, -1)

    # Tensors without memory: they neither count nor stop the count.
    _without = torch._to_functional_tensor(torch.empty(4)), FakeTensorMode().from_tensor(torch.empty(4))
    _unknown = torch.Tensor._make_wrapper_subclass(StandIn, (ShapeEnv().create_unbacked_symint(),))
    before = meter.tensors_mb(lambda: None)
    assert 8 <= meter.tensors_mb(step) - before < 9
    del held
    assert 4 <= before - meter.tensors_mb(lambda: None) < 5
