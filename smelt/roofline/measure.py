"""Measures the ceilings of the roofline model on this machine, once: later processes find them in the store.

Memory is measured by kernels that copy and that only read, of sizes from one that fits in a cache of the second level
up to one that fits in none; the faster of the two is the ceiling. Arithmetic is measured by PyTorch's product of two
large matrices, for each dtype that compiled programs multiply.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
import time
from collections.abc import Callable

import torch

from smelt.abi.ceilings import Ceilings
from smelt.base.store import content_key, store
from smelt.base.version import VERSION
from smelt.roofline.processor import cpu_name
from smelt.runtime.build import build

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""Dtypes whose products are measured."""

_CPU_BYTES = tuple(2**n for n in range(18, 30, 2))
"""Sizes in bytes, read and written, for which a processor's bandwidth is measured."""
_GPU_BYTES = tuple(2**n for n in range(22, 33, 2))
_CPU_SIDES, _GPU_SIDES = (128, 1024), (1024, 8192)
"""Sides of the square matrices whose product is measured; the large ones if their product is not slow."""
_SLOW_S = 0.2
_BEST_OF = 5
_WINDOW_S = 0.02
"""Minimum duration of one measurement."""
_GPU_WINDOW_CALLS = 20
_DELAY_CYCLES = 500_000
"""Cycles that a GPU waits before calls that are timed: all of them are queued by then."""

_SOURCE = """
#include <cstdint>
#include <cstring>
extern "C" void copy(char* to, const char* from, int64_t bytes, int64_t repeats, int64_t threads) {
    const int64_t share = bytes / threads / 64 * 64;
    #pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t t = 0; t < threads; t++)
        for (int64_t n = 0; n < repeats; n++) {
            memcpy(to + t * share, from + t * share, share);
            asm volatile("" ::: "memory");
        }
}
extern "C" void read(uint64_t* sums, const char* from, int64_t bytes, int64_t repeats, int64_t threads) {
    const int64_t share = bytes / threads / 64 * 64;
    #pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t t = 0; t < threads; t++)
        for (int64_t n = 0; n < repeats; n++) {
            const uint64_t* words = (const uint64_t*)(from + t * share);
            uint64_t sum = 0;
            for (int64_t i = 0; i < share / 8; i++) sum += words[i];
            sums[t] += sum;
            asm volatile("" ::: "memory");
        }
}
"""
_Measured = Callable[[int], float]
"""Function from a number of repetitions to the seconds that they take."""


def ceilings(device: torch.device | str, again: bool = False) -> Ceilings:
    """The ceilings of a device, from the store or measured now (about two seconds).

    Args:
        device: a processor or a CUDA device.
        again: measure even if the store has them; its entry is replaced.

    Raises:
        BuildError: there is no C++ compiler to build the kernels that measure a processor's memory.
    """
    device = torch.device(device)
    found = None if again else stored_ceilings(device)
    if found is None:
        found = _measure(device)
        store().put_text("ceilings", _key(device), json.dumps(dataclasses.asdict(found)))
    return with_precision(found)


def stored_ceilings(device: torch.device) -> Ceilings | None:
    """The ceilings of a device from the store, or None if they were not measured yet."""
    text = store().get_text("ceilings", _key(device))
    if text is None:
        return None
    values = json.loads(text)
    values["bandwidths"] = tuple((size, speed) for size, speed in values["bandwidths"])
    return with_precision(Ceilings(**values))


def with_precision(found: Ceilings) -> Ceilings:
    """The ceilings under PyTorch's present settings: whether float32 products may be rounded to TF32."""
    if "tf32" not in found.products or torch.get_float32_matmul_precision() == "highest":
        return found
    return dataclasses.replace(found, products=found.products | {"float32": found.products["tf32"]})


def machine_name(device: torch.device) -> str:
    """The processor with its number of threads, or the GPU."""
    if device.type != "cpu":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{cpu_name()}, {threads} thread{'s' if threads != 1 else ''}"


def _key(device: torch.device) -> str:
    return content_key(VERSION, torch.__version__, machine_name(device))


def _measure(device: torch.device) -> Ceilings:
    bandwidths = _processor_bandwidths() if device.type == "cpu" else _gpu_bandwidths(device)
    products = {name: speed for name in DTYPES if (speed := _product(device, getattr(torch, name)))}
    pointwise = products["float32"]
    if device.type != "cpu":
        products["tf32"] = _with_tf32(lambda: _product(device, torch.float32))
    return Ceilings(machine_name(device), _descending(bandwidths), products, pointwise)


def _descending(measured: list[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Speeds that do not rise with the size: a small size is at least as fast as every larger one."""
    found: list[tuple[int, float]] = []
    for size, speed in reversed(measured):
        found.append((size, max(speed, found[-1][1]) if found else speed))
    return tuple(reversed(found))


def _processor_bandwidths() -> list[tuple[int, float]]:
    (library,) = build([_SOURCE])
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3)
    copy, read = kind(library.address("copy")), kind(library.address("read"))
    threads = torch.get_num_threads()
    source = torch.ones(_CPU_BYTES[-1], dtype=torch.uint8)
    target = torch.empty(_CPU_BYTES[-1] // 2, dtype=torch.uint8)
    sums = torch.zeros(threads, dtype=torch.int64)
    found = []
    for size in _CPU_BYTES:
        half = (target.data_ptr(), source.data_ptr(), size // 2)
        whole = (sums.data_ptr(), source.data_ptr(), size)
        copies = _quickest(lambda n, given=half: _clock(lambda: copy(*given, n, threads)))  # type: ignore[misc]
        reads = _quickest(lambda n, given=whole: _clock(lambda: read(*given, n, threads)))  # type: ignore[misc]
        found.append((size, size / min(copies, reads)))
    return found


def _gpu_bandwidths(device: torch.device) -> list[tuple[int, float]]:
    free, _ = torch.cuda.mem_get_info(device)
    found = []
    for size in _GPU_BYTES:
        if size > free // 2:
            break
        source = torch.ones(size // 4, device=device)
        target = torch.empty(size // 8, device=device)
        copies = _gpu_seconds(device, lambda to=target, of=source[: size // 8]: to.copy_(of))  # type: ignore[misc]
        reads = _gpu_seconds(device, lambda of=source: of.sum())  # type: ignore[misc]
        found.append((size, size / min(copies, reads)))
        del source, target
    torch.cuda.empty_cache()
    return found


def _product(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second of a product of square matrices of this dtype; 0 if PyTorch has none on the device."""
    small, large = _CPU_SIDES if device.type == "cpu" else _GPU_SIDES
    try:
        speed = _product_of_side(device, dtype, small)
        slow = 2 * large**3 / speed > _SLOW_S  # PyTorch's float16 products take seconds on some processors
        return speed if slow else max(speed, _product_of_side(device, dtype, large))
    except (RuntimeError, TypeError):
        return 0.0


@torch.no_grad()
def _product_of_side(device: torch.device, dtype: torch.dtype, side: int) -> float:
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    out = torch.empty(side, side, device=device, dtype=dtype)
    if device.type != "cpu":
        return 2 * side**3 / _gpu_seconds(device, lambda: torch.mm(a, b, out=out))
    return 2 * side**3 / _quickest(lambda n: _clock(lambda: [torch.mm(a, b, out=out) for _ in range(n)]))


def _with_tf32(measure: Callable[[], float]) -> float:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return measure()
    finally:
        torch.set_float32_matmul_precision(before)


def _clock(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _quickest(measured: _Measured) -> float:
    """Seconds of one repetition: the best of several measurements, each of which lasts at least `_WINDOW_S`."""
    once = max(measured(1), 1e-9)
    repeats = max(1, math.ceil(_WINDOW_S / min(once, max(measured(1), 1e-9))))
    return min(measured(repeats) for _ in range(_BEST_OF)) / repeats


def _gpu_seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Seconds of one call on a GPU, without the host's time: the best of several measurements."""
    with torch.cuda.device(device):
        for _ in range(3):
            work()
        best = math.inf
        for _ in range(_BEST_OF):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(_DELAY_CYCLES)
            start.record()
            for _ in range(_GPU_WINDOW_CALLS):
                work()
            end.record()
            end.synchronize()
            best = min(best, start.elapsed_time(end) / 1e3 / _GPU_WINDOW_CALLS)
    return best
