"""Kernels on a real GPU, from source to result. What does not need one runs in Triton's interpreter as well."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest
import torch

import smelt
from smelt.abi.kernel_source import Config, KernelSource
from smelt.base.errors import SmeltWarning
from smelt.runtime.cuda.driver import OutOfResources
from smelt.runtime.launch import Table
from smelt.runtime.memory import empty_strided
from smelt.runtime.triton import build as triton_build
from smelt.runtime.triton import tune as triton_tune
from smelt.runtime.triton.kernels import Kernels
from smelt.runtime.workspace import Workspaces
from tests.runtime.triton_sources import ADD, add_kernel, rows_kernel

pytest.importorskip("triton")

GPU = torch.cuda.is_available()
DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(GPU, reason="Triton interprets or compiles, by process")),
    pytest.param("cuda:0", marks=pytest.mark.gpu),
]

MATMUL = """import triton
import triton.language as tl


@triton.jit
def kernel(a, b, out, K, M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BLOCK)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, K, BLOCK):
        x = tl.load(a + i[:, None] * K + start + k[None, :])
        y = tl.load(b + (start + k[:, None]) * N + j[None, :])
        total += tl.dot(x, y, input_precision="ieee")
    tl.store(out + i[:, None] * N + j[None, :], total)
"""

FAULT = """import triton
import triton.language as tl


@triton.jit
def kernel(index, fault, n, bound, XBLOCK: tl.constexpr):
    i = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    inside = i < n
    wrong = inside & (tl.load(index + i, inside, 0) >= bound)
    tl.store(fault + i * 0, i.to(tl.int64) * 0 + 2, wrong)
"""


def matmul(stages: int, block: int = 64) -> KernelSource:
    signature = (("a", "*fp16"), ("b", "*fp16"), ("out", "*fp32"), ("K", "i32"))
    config = Config((("M", 128), ("N", 128), ("BLOCK", block)), num_warps=8, num_stages=stages)
    return KernelSource(MATMUL, signature, ("a", "b", "out", "K"), (config,), "matmul")


def bound(*tensors: torch.Tensor) -> Table:
    table = Table(len(tensors))
    table.bind_all(0, tensors)
    return table


def add(device: str, n: int, *configs: Config, text: str = ADD) -> tuple[Kernels, list[torch.Tensor], tuple]:
    source = dataclasses.replace(add_kernel(), source=text, configs=configs or add_kernel().configs)
    a, b = torch.randn(n).to(device), torch.randn(n).bfloat16().to(device)
    launch = (0, ((n, "XBLOCK"),), ((0, 0), (1, 0), (2, 0), n))
    return Kernels([source], device), [a, b, torch.empty(n, device=device)], launch


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [1, 255, 256, 5000])
def test_results(device: str, n: int) -> None:
    kernels, tensors, launch = add(device, n)
    run = kernels.segment([launch])
    for _ in range(2):
        tensors[2].zero_()
        run(bound(*tensors))
        torch.testing.assert_close(tensors[2], tensors[0] + tensors[1].float() / 2)


@pytest.mark.parametrize("device", DEVICES)
def test_more_shared_memory_than_comes_by_itself(device: str) -> None:
    a, b = torch.randn(128, 512).half().to(device), torch.randn(512, 128).half().to(device)
    out = torch.empty(128, 128, device=device)
    run = Kernels([matmul(4)], device).segment([(0, ((1, None),), ((0, 0), (1, 0), (2, 0), 512))])
    run(bound(a, b, out))
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=1e-3, atol=1e-2)


def test_a_pipeline_asks_for_more_shared_memory() -> None:
    source = matmul(4)
    assert triton_build.build(source, source.configs[0], 90).result().shared > 48 << 10


@pytest.mark.parametrize("device", DEVICES)
def test_a_program_with_an_arena_and_a_fault_word(device: str) -> None:
    place = torch.device(device)
    fault = KernelSource(FAULT, (("index", "*i64"), ("fault", "*i64"), ("n", "i32"), ("bound", "i32")), (), (
        Config((("XBLOCK", 16),)),), "check")  # fmt: skip
    kernels = Kernels([add_kernel(), rows_kernel(4, 128), fault], device)
    run = kernels.segment(
        [
            (0, ((1000, "XBLOCK"),), ((1, 0), (2, 0), (0, 4096), 1000)),
            (1, ((10, "XBLOCK"),), ((0, 4096), (3, 0), 10, 100)),
            (2, ((20, "XBLOCK"),), ((4, 0), (5, 0), 20, 7)),
        ]
    )
    pool = Workspaces(6, 16384, {}, {}, [(4096, torch.float32, (1000,), (1,))], fault=5, device=place)
    index = torch.arange(20).to(device) % 7
    for wrong in (False, True) if device == "cpu" else (False,):  # kernels on a GPU trap
        a, b = torch.randn(1000).to(device), torch.randn(1000).bfloat16().to(device)
        sums = empty_strided((10,), (1,), torch.float32, place)
        index[11] = 7 if wrong else 3
        workspace = pool.take()
        workspace.table.bind_all(1, [a, b, sums, index])
        run(workspace.table)
        expected = a + b.float() / 2
        torch.testing.assert_close(workspace.views[0], expected)
        torch.testing.assert_close(sums, expected.view(10, 100).sum(1))
        assert device != "cpu" or workspace.fault[0] == (2 if wrong else 0)
        if wrong:
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                pool.refuse(workspace)
        pool.give(workspace)
    assert device != "cpu" or not workspace.fault[0]


@pytest.mark.parametrize("device", DEVICES)
def test_the_best_configuration_is_applied_once(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that adds to its input runs many times while it is timed, and once as far as the program sees."""
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path))
    triton_tune.forget()
    configs = [Config((("XBLOCK", 1 << n),), num_warps=w) for n in (8, 10) for w in (4, 8)]
    kernels, (a, b, out), launch = add(device, 5000, *configs, text=ADD.replace("tl.store(out + i", "tl.store(a + i"))
    before = a.clone()
    run = kernels.segment([launch])
    for times in (1, 2):
        run(bound(a, b, out))
        torch.testing.assert_close(a, before + times * b.float() / 2)
    if device != "cpu":
        assert len(list(tmp_path.glob("triton-tune/*/*"))) == 1


@pytest.mark.gpu
def test_a_kernel_that_does_not_fit() -> None:
    """Not even with one stage: there is no simpler configuration, and nothing is launched."""
    run = Kernels([matmul(8, 512)], "cuda:0").segment([(0, ((1, None),), ((0, 0), (0, 0), (0, 0), 512))])
    with pytest.raises(OutOfResources, match="'matmul' needs"):
        run(Table(1))


@pytest.mark.gpu
def test_a_pipeline_that_does_not_fit_gets_fewer_stages() -> None:
    a, b = torch.randn(128, 512).half().to("cuda:0"), torch.randn(512, 128).half().to("cuda:0")
    out = torch.empty(128, 128, device="cuda:0")
    run = Kernels([matmul(8, 128)], "cuda:0").segment([(0, ((1, None),), ((0, 0), (1, 0), (2, 0), 512))])
    with pytest.warns(SmeltWarning, match="matmul"):
        run(bound(a, b, out))
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=1e-3, atol=1e-2)


@pytest.mark.gpu
def test_streams_and_threads() -> None:
    kernels, tensors, launch = add("cuda:0", 5000)
    run = kernels.segment([launch])
    failed: list[BaseException] = []

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    out = torch.zeros(5000, device="cuda:0")
                    run(bound(*tensors[:2], out))
                    torch.testing.assert_close(out, tensors[0] + tensors[1].float() / 2)
        except BaseException as error:
            failed.append(error)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.gpu
def test_in_a_recorded_graph() -> None:
    kernels = Kernels([add_kernel()], "cuda:0")
    run = kernels.segment(
        [
            (0, ((1000, "XBLOCK"),), ((1, 0), (2, 0), (0, 0), 1000)),
            (0, ((1000, "XBLOCK"),), ((0, 0), (2, 0), (3, 0), 1000)),
        ]
    )
    pool = Workspaces(4, 4096, {}, {}, [], device=torch.device("cuda:0"))
    a, b, out = (
        torch.randn(1000, device="cuda"),
        torch.randn(1000, device="cuda").bfloat16(),
        torch.zeros(1000, device="cuda"),
    )

    def program() -> None:
        workspace = pool.take()
        workspace.table.bind_all(1, [a, b, out])
        run(workspace.table)
        pool.give(workspace)

    program()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        program()
    for _ in range(3):
        a.normal_()
        out.zero_()
        graph.replay()
        torch.testing.assert_close(out, a + b.float())


@pytest.mark.gpu
def test_another_device_than_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    kernels, tensors, launch = add("cuda:1", 5000)
    run = kernels.segment([launch])
    assert torch.cuda.current_device() == 0
    run(bound(*tensors))
    torch.testing.assert_close(tensors[2], tensors[0] + tensors[1].float() / 2)
    assert torch.cuda.current_device() == 0


@pytest.mark.gpu
def test_padding_of_small_tensors_in_a_bundle() -> None:
    """Places of elements are computed in 16 bits, two at once, which ptxas assembles wrongly in some programs."""

    def padded(x: torch.Tensor, left: int) -> torch.Tensor:
        made = torch.nn.functional.pad(x.relu(), (left, 2)).sigmoid()
        x.neg_()
        return made

    for rows, columns in ((3, 3), (2, 5), (7, 4), (5, 9)):
        for left in (1, 2, 3):
            given = torch.randn(rows, columns, device="cuda")
            want = padded(given.clone(), left)
            torch.testing.assert_close(smelt.compile(padded)(given.clone(), left), want)
