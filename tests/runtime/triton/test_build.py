"""Building kernels offline, for compute capability 9.0: the store, the worker processes and what may happen to them."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smelt.abi.kernel_source import Config, KernelSource
from smelt.base.errors import BuildError
from smelt.runtime.triton import build as triton_build
from smelt.runtime.triton import pool as triton_pool
from smelt.runtime.triton import worker as triton_worker
from smelt.runtime.triton.build import build
from tests.runtime.triton_sources import add_kernel, rows_kernel

pytest.importorskip("triton")
ARCH = 90


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Nothing in the store, nothing in memory."""
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    triton_build.forget()
    yield tmp_path / "cache"
    triton_build.forget()


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[triton_pool.Pool]:
    """A pool of this test alone."""
    made = triton_pool.Pool(2)
    monkeypatch.setattr(triton_pool, "_pool", made)
    yield made
    made.close()


def test_a_cubin_and_what_a_launch_must_know(empty: Path) -> None:
    source = rows_kernel(4, 128)
    cubin = build(source, source.configs[0], ARCH).result()
    assert cubin.image.startswith(b"\x7fELF") and cubin.entry == "row_sums"
    assert cubin.threads == 128 and cubin.shared > 0 and cubin.appended == 2
    assert b"row_sums" in cubin.image


def test_warps_decide_the_threads(empty: Path) -> None:
    source = add_kernel()
    config = dataclasses.replace(source.configs[0], num_warps=8)
    assert build(source, config, ARCH).result().threads == 256


def test_kernels_in_the_store_start_nothing(empty: Path, pool: triton_pool.Pool) -> None:
    source = add_kernel()
    first = build(source, source.configs[0], ARCH).result()
    assert pool.server is not None
    wait_for(lambda: any(empty.rglob("*.cubin")))
    text = """
import sys
from smelt.runtime.triton import build as triton_build, pool as triton_pool
from tests.runtime.triton_sources import add_kernel
source = add_kernel()
cubin = triton_build.build(source, source.configs[0], 90).result()
print(len(cubin.image), cubin.entry, triton_pool.pool().server, "triton" in sys.modules)
"""
    printed = run(text)
    assert printed == f"{len(first.image)} fused_add None False"


def test_the_name_does_not_belong_to_the_identity(empty: Path) -> None:
    one, two, other = add_kernel(name="one"), add_kernel(name="two"), add_kernel(512)
    first = build(one, one.configs[0], ARCH)
    assert build(two, two.configs[0], ARCH) is first
    others = [build(other, other.configs[0], ARCH), build(one, one.configs[0], 80)]
    assert len({first.result().key, *(another.result().key for another in others)}) == 3


def test_a_refused_kernel_is_named(empty: Path) -> None:
    bad = add_kernel(text=add_kernel().source.replace("tl.load(a + i", "tl.load(missing + i"))
    for _ in range(2):  # not remembered, not kept
        with pytest.raises(BuildError, match=r"(?s)'fused_add'.*missing is not defined"):
            build(bad, bad.configs[0], ARCH).result()
    with pytest.raises(BuildError, match=r"(?s)'fused_add'.*SyntaxError"):
        build(add_kernel(text="def kernel(:"), bad.configs[0], ARCH).result()
    wrong = KernelSource(bad.source, bad.signature[:2], (), bad.configs, "wrong")
    with pytest.raises(BuildError, match=r"(?s)'wrong'.*do not fit"):
        build(wrong, wrong.configs[0], ARCH).result()
    assert not any(empty.rglob("*.cubin"))


def test_output_of_a_compiler_pass_is_kept(empty: Path) -> None:
    text = """import triton
import triton.language as tl


@triton.jit
def kernel(a, B: tl.constexpr):
    x = tl.load(a + tl.arange(0, B))
    tl.store(a + tl.arange(0, B), tl.inline_asm_elementwise("no.such $0, $1;", "=r,r", [x], tl.int32, True, 1))
"""
    source = KernelSource(text, (("a", "*i32"),), (), (Config((("B", 128),)),), "assembly")
    with pytest.raises(BuildError, match=r"(?s)'assembly'.*ptxas"):
        build(source, source.configs[0], ARCH).result()


def test_a_damaged_entry_is_built_again(empty: Path, recwarn: pytest.WarningsRecorder) -> None:
    source = add_kernel()
    first = build(source, source.configs[0], ARCH).result()
    wait_for(lambda: any(empty.rglob("*.cubin")))
    (path,) = empty.rglob("*.cubin")
    path.write_bytes(path.read_bytes()[:500])
    triton_build.forget()
    assert build(source, source.configs[0], ARCH).result().image == first.image
    assert any("damaged" in str(warning.message) for warning in recwarn)


def test_kernels_are_compiled_side_by_side(empty: Path, pool: triton_pool.Pool) -> None:
    sources = [add_kernel(1 << n) for n in range(4, 10)]
    builds = [build(source, source.configs[0], ARCH) for source in sources]
    seen = 0
    while not all(one.reply.done() for one in builds):
        seen = max(seen, len(workers(pool)))
        time.sleep(0.01)
    assert seen == 2
    assert len({one.result().key for one in builds}) == 6


def test_longest_kernel_is_compiled_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last kernels to be done are short ones; equal ones keep their order."""
    made, order, go = triton_pool.Pool(1), [], threading.Event()

    def answer(worker: None, request: dict[str, Any]) -> tuple[None, Any]:
        order.append(request["source"])
        go.wait(10)
        return None, ({}, b"")

    monkeypatch.setattr(made, "start", lambda: None)
    monkeypatch.setattr(made, "_answer", answer)
    first = made.submit({"source": "0"})
    wait_for(lambda: order == ["0"])
    others = [made.submit({"source": text}) for text in ("1", "22", "333", "44", "4")]
    made.close()
    go.set()
    for future in (first, *others):
        future.result(10)
    assert order == ["0", "333", "22", "44", "1", "4"]
    wait_for(lambda: not made.jobs.qsize())


def workers(pool: triton_pool.Pool) -> list[int]:
    """The forked processes of a pool's server."""
    if pool.server is None or pool.server.process is None:
        return []
    path = Path(f"/proc/{pool.server.process.pid}/task/{pool.server.process.pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


def test_a_worker_that_dies_is_replaced(empty: Path, pool: triton_pool.Pool) -> None:
    source = add_kernel()
    build(source, source.configs[0], ARCH).result()
    (worker,) = workers(pool)
    os.kill(worker, signal.SIGKILL)
    other = add_kernel(512)
    assert build(other, other.configs[0], ARCH).result().entry == "fused_add"


def test_a_kernel_that_kills_the_compiler(empty: Path, pool: triton_pool.Pool) -> None:
    text = add_kernel().source + "\nimport os\nos.write(2, b'LLVM ERROR: out of registers')\nos.kill(os.getpid(), 11)\n"
    source = add_kernel(text=text)
    with pytest.raises(BuildError, match=r"(?s)'fused_add'.*died, twice.*LLVM ERROR: out of registers"):
        build(source, source.configs[0], ARCH).result()
    good = add_kernel()
    assert build(good, good.configs[0], ARCH).result().entry == "fused_add"


def test_idle_workers_go(empty: Path, pool: triton_pool.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_pool, "IDLE_S", 0.1)
    for block in (256, 512):
        source = add_kernel(block)
        build(source, source.configs[0], ARCH).result()
        wait_for(lambda: pool.threads == 0 and not workers(pool))
    assert pool.server is not None and pool.server.process is not None
    assert pool.server.process.poll() is None  # ready for the next ones


def test_a_server_may_be_started_before_there_are_kernels(empty: Path, pool: triton_pool.Pool) -> None:
    triton_build.start()
    server = pool.server
    assert server is not None
    source = add_kernel()
    build(source, source.configs[0], ARCH).result()
    assert pool.server is server


def test_a_server_that_dies_is_replaced(empty: Path, pool: triton_pool.Pool) -> None:
    source = add_kernel()
    build(source, source.configs[0], ARCH).result()
    assert pool.server is not None and pool.server.process is not None
    for process in (*workers(pool), pool.server.process.pid):
        os.kill(process, signal.SIGKILL)
    pool.server.process.wait()
    other = add_kernel(512)
    assert build(other, other.configs[0], ARCH).result().entry == "fused_add"


@pytest.mark.parametrize("command", [["/no/such/python"], [sys.executable, "-c", "raise SystemExit(3)"], []])
def test_without_processes_kernels_are_compiled_here(
    empty: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = triton_pool.Pool(1)
    monkeypatch.setattr(triton_pool, "_pool", made)
    monkeypatch.setattr(triton_pool, "_command", lambda: command)
    asked: list[str] = []

    def compiled(request: dict[str, object]) -> triton_worker.Reply:
        asked.append(str(request["name"]))
        return {"error": "here"}, b""

    monkeypatch.setattr(triton_worker, "compile_kernel", compiled)
    source = add_kernel()
    with pytest.raises(BuildError, match="here"):
        build(source, source.configs[0], ARCH).result()
    assert asked == ["fused_add"] and made.hopeless
    monkeypatch.setattr(triton_worker, "compile_kernel", lambda request: 1 / 0)
    with pytest.raises(BuildError, match="ZeroDivisionError"):
        build(source, source.configs[0], ARCH).result()


def test_compiling_here_gives_the_same(empty: Path) -> None:
    text = """
from smelt.runtime.triton import build as triton_build, pool as triton_pool
from tests.runtime.triton_sources import add_kernel
triton_pool._command = lambda: []
source = add_kernel()
cubin = triton_build.build(source, source.configs[0], 90).result()
print(cubin.entry, cubin.threads, cubin.appended, cubin.image[:4])
"""
    assert run(text) == r"fused_add 128 2 b'\x7fELF'"


def test_a_forked_child_has_a_pool_of_its_own(empty: Path) -> None:
    text = """
import os, warnings
from smelt.runtime.triton import build as triton_build, pool as triton_pool
from tests.runtime.triton_sources import add_kernel
source, other = add_kernel(), add_kernel(512)
triton_build.build(source, source.configs[0], 90).result()
before = triton_pool.pool()
child = os.fork()
if child == 0:
    same = triton_pool.pool() is before
    cubin = triton_build.build(other, other.configs[0], 90).result()
    os._exit(0 if not same and cubin.entry == "fused_add" else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(text) == "0"


def test_processes_end_with_the_one_that_started_them(empty: Path) -> None:
    text = """
import os, signal
from pathlib import Path
from smelt.runtime.triton import build as triton_build, pool as triton_pool
from tests.runtime.triton_sources import add_kernel
source = add_kernel()
triton_build.build(source, source.configs[0], 90).result()
server = triton_pool.pool().server.process.pid
print(server, Path(f"/proc/{server}/task/{server}/children").read_text(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    processes = [int(word) for word in run(text, code=-signal.SIGKILL).split()]
    assert len(processes) == 2
    wait_for(lambda: not any(alive(process) for process in processes))


def test_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    triton_build.triton_identity.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    source = add_kernel()
    with pytest.raises(BuildError, match=r"(?s)need Triton.*try: pip install triton"):
        build(source, source.configs[0], ARCH)
    monkeypatch.undo()
    assert triton_build.triton_identity()


def test_another_assembler_is_another_build(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = add_kernel()
    first = build(source, source.configs[0], ARCH)
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/no/such/ptxas")
    assert triton_build._key(source, source.configs[0], ARCH) != first.key
    first.result()


def test_through_the_public_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Triton whose stages are organised in another way still builds."""
    text = """
from triton.compiler import compiler
from smelt.runtime.triton import build as triton_build, worker as triton_worker
from tests.runtime.triton_sources import add_kernel
source = add_kernel()
request = triton_build.request(source, source.configs[0], 90)
head, image = triton_worker.compile_kernel(request)
seen = []
original = triton_worker._compiled
def compiled(*args):
    seen.append(1)
    return original(*args)
triton_worker._compiled = compiled
class Without:
    def __getattr__(self, name):
        if name == "make_backend":
            raise AttributeError(name)
        return getattr(compiler, name)
module = triton_worker.triton_module
triton_worker.triton_module = lambda name: Without() if name == "compiler.compiler" else module(name)
again, other = triton_worker.compile_kernel(request)
print(head == again, image[:4] == other[:4], len(seen))
"""
    home = {"HOME": str(tmp_path)}
    assert run(text, **home) == "True True 1"
    assert not any(tmp_path.rglob("*.cubin"))


PADDED = """
import triton
import triton.language as tl


@triton.jit
def kernel(a0, a1, XBLOCK: tl.constexpr):
    if tl.program_id(0) < 1:
        x = tl.arange(0, XBLOCK)
        inside = (x % 6 - 1 >= 0) & (x % 6 - 1 < 3)
        t = tl.load(a0 + (3 * (x // 6) + x % 6 - 1), (x < 18) & inside, other=0)
        tl.store(a1 + x, tl.where(inside, t, 0.5), x < 18)
"""
"""Pads rows of 3 elements to 6, four elements a thread: LLVM computes their places in 16 bits, two at once."""


def test_no_two_halves_are_added_at_once() -> None:
    """ptxas 12.8 forgets the constant where nobody reads the other half."""
    text = f"""
from smelt.runtime.triton import worker as triton_worker
request = dict(source={PADDED!r}, signature=[("a0", "*fp32"), ("a1", "*fp32")], constants=[("XBLOCK", 128)])
request |= dict(num_warps=1, num_stages=3, arch=90, contract=False, flushes=True, divisible=["a0", "a1"])
_, given = triton_worker._stages(request)
unpacked, triton_worker.unpacked = triton_worker.unpacked, lambda ptx: ptx
_, without = triton_worker._stages(request)
print(given["cubin"][:4] == without["cubin"][:4], "add.s16x2" in without["ptx"], "16x2" in given["ptx"])
"""
    assert run(text) == "True True False"


def test_halves_apart() -> None:
    joined = "\tadd.s16x2 \t%r3, %r1, %r2;\n\tmin.u16x2 \t%r4, %r3, %r3;\n\tadd.s32 %r5, %r4, 1;\n"
    apart = triton_worker.unpacked(joined)
    assert "16x2" not in apart and apart.count("add.s16 %packed") == apart.count("min.u16 %packed") == 2
    assert "mov.b32 %r3, {%packed0, %packed1};" in apart and "add.s32 %r5, %r4, 1;" in apart
    assert triton_worker.unpacked(apart) == apart


@pytest.mark.parametrize("kind", ["f16x2", "bf16x2", "ftz.f16x2"])
def test_signs_of_two_numbers_are_bits(kind: str) -> None:
    told = f"\tneg.{kind} \t%r3, %r1;\n\tabs.{kind} %r4, %r3;\n\tneg.f16 %rs1, %rs2;\n"
    as_bits = "\txor.b32 %r3, %r1, -2147450880;\n\tand.b32 %r4, %r3, 2147450879;\n\tneg.f16 %rs1, %rs2;\n"
    assert triton_worker.unpacked(told) == as_bits


def alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for(condition: object, seconds: float = 20.0) -> None:
    assert callable(condition)
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def run(text: str, code: int = 0, **environment: str) -> str:
    """What a fresh process prints, with Triton not interpreting."""
    path = os.pathsep.join(entry for entry in (os.getcwd(), *sys.path) if entry)
    variables = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "0", **environment}
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=variables)
    assert ran.returncode == code, ran.stderr
    return ran.stdout.strip()


@pytest.mark.parametrize("flushes", [True, False])
def test_a_triton_without_the_option_keeps_them_too(monkeypatch: pytest.MonkeyPatch, flushes: bool) -> None:
    compiler = triton_worker.triton_module("backends.nvidia.compiler")
    called: list[Any] = []
    monkeypatch.setattr(compiler, "CUDAOptions", object)
    monkeypatch.setattr(compiler.nvidia, "set_nvvm_reflect_ftz", called.append)
    with triton_worker._subnormals(flushes):
        compiler.nvidia.set_nvvm_reflect_ftz("module")
    assert called == ["module"] * flushes
    compiler.nvidia.set_nvvm_reflect_ftz("module")
    assert called == ["module"] * (1 + flushes)
