"""Loading and launching through a driver that writes down what it is asked."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest
import torch

from smelt.abi.kernel_source import Cubin
from smelt.base.errors import BuildError
from smelt.runtime import _native
from smelt.runtime.cuda import driver as cuda_driver
from smelt.runtime.cuda.driver import Function, OutOfResources, load, open_driver
from smelt.runtime.launch import Table
from smelt.runtime.triton.kernels import Kernels
from tests.runtime.fake_cuda import FakeCuda
from tests.runtime.triton_sources import add_kernel, rows_kernel

STREAM = 0x5EA0


@pytest.fixture
def fake(tmp_path: Path) -> FakeCuda:
    return FakeCuda(tmp_path)


def cubin(shared: int = 0, threads: int = 128, key: str = "key") -> Cubin:
    return Cubin("fused", key, b"\x7fELF", "fused_entry", threads, shared, 2)


def segment(fake: FakeCuda, *launches: tuple, device: int = 0, stream: int = STREAM) -> _native.Segment:
    return _native.Segment(_native.Driver(fake.path), device, lambda _: stream, lambda _: (tuple(launches), True))


LAUNCH = ("one", 77, (5, 2, 3), 128, 4096, ((1, 8), 42, (0, 0), -7), 2)


def test_a_launch(fake: FakeCuda) -> None:
    fake["parameters"] = 6
    table = Table(2)
    table.set(0, 0x1000)
    table.set(1, 0x20000)
    fake.set_current(100)
    run = _native.Segment(_native.Driver(fake.path), 0, lambda device: STREAM + device, lambda _: ((LAUNCH,), False))
    assert run(table) is None
    table.set(1, 0x30000)
    assert run(table) is None
    first, second = fake.launched()
    assert (first.function, first.stream, first.context) == (77, STREAM, 100)
    assert (list(first.grid), list(first.threads), first.shared) == ([5, 2, 3], [128, 1, 1], 4096)
    assert list(first.values[:6]) == [0x20008, 42, 0x1000, 2**64 - 7, 0, 0]
    assert first.values[3] & 0xFFFFFFFF == 2**32 - 7  # what a parameter of 32 bits reads
    assert list(second.values[:3]) == [0x30008, 42, 0x1000]
    assert fake["pushes"] == 0


def test_the_device_becomes_current_for_the_launches(fake: FakeCuda) -> None:
    run = _native.Segment(_native.Driver(fake.path), 1, lambda device: STREAM + device, lambda _: ((LAUNCH,), False))
    fake.set_current(100)
    run(Table(2))
    assert [(one.context, one.stream) for one in fake.launched()] == [(101, STREAM + 1)]
    assert fake.current() == 100 and fake["pushes"] == fake["pops"] == 1
    seen: list[int | None] = []

    def elsewhere() -> None:  # no context is current in a new thread
        run(Table(2))
        seen.append(fake.current())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [None] and fake.launched()[-1].context == 101


def test_prepare_is_asked_until_it_has_a_plan(fake: FakeCuda) -> None:
    answers = [None, None, ((LAUNCH, LAUNCH), True)]
    tables: list[Table] = []

    def prepare(table: Table) -> object:
        tables.append(table)
        return answers.pop(0)

    run = _native.Segment(_native.Driver(fake.path), 0, lambda _: STREAM, prepare)
    table = Table(2)
    for _ in range(3):
        run(table)
    assert tables == [table] * 3 and fake["launches"] == 0
    run(table)
    assert len(tables) == 3 and fake["launches"] == 2


def test_an_error_of_prepare_is_raised_and_retried(fake: FakeCuda) -> None:
    attempts = []

    def prepare(_: Table) -> object:
        attempts.append(1)
        if len(attempts) == 1:
            raise BuildError("no")
        return (LAUNCH,), False

    run = _native.Segment(_native.Driver(fake.path), 0, lambda _: STREAM, prepare)
    with pytest.raises(BuildError):
        run(Table(2))
    run(Table(2))
    assert fake["launches"] == 1


def test_prepare_and_its_referents_are_freed(fake: FakeCuda) -> None:
    class Prepare:
        segment: object = None

        def __call__(self, _: Table) -> object:
            return (), False

    for called in (True, False):
        prepare = Prepare()
        reference = weakref.ref(prepare)
        prepare.segment = run = _native.Segment(_native.Driver(fake.path), 0, lambda _: STREAM, prepare)
        if called:
            run(Table(0))
            del prepare
            assert reference() is None  # dropped as soon as there is a plan
        else:
            del prepare, run
            gc.collect()
            assert reference() is None


def test_a_failing_launch_is_named(fake: FakeCuda) -> None:
    fake.fail("LAUNCH", 701)
    fake["fail_at"] = 1
    run = segment(fake, LAUNCH, ("two", 78, (1, 1, 1), 32, 0, (), 0))
    run(Table(2))  # prepare says that it launched
    with pytest.raises(_native.CudaError, match="launching kernel 'two': CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES") as caught:
        run(Table(2))
    assert caught.value.code == 701 and fake["pushes"] == fake["pops"]


@pytest.mark.parametrize("plan", [
    3, (LAUNCH,), ((LAUNCH[:-1],), True), (("text",), True), (((*LAUNCH[:5], ((-2, 0),), 0),), True),
    (((*LAUNCH[:5], ("x",), 0),), True), (((*LAUNCH[:5], (0,) * 1025, 0),), True), (((*LAUNCH[:5], (), -1),), True),
])  # fmt: skip
def test_plans_that_are_none(fake: FakeCuda, plan: object) -> None:
    run = _native.Segment(_native.Driver(fake.path), 0, lambda _: STREAM, lambda _: plan)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises((TypeError, ValueError, SystemError)):
            run(Table(2))
    assert fake["launches"] == 0


def test_tables_that_do_not_fit(fake: FakeCuda) -> None:
    run = segment(fake, LAUNCH)
    run(Table(2))
    with pytest.raises(IndexError, match="a table of 1 slots, not 2"):
        run(Table(1))
    with pytest.raises(TypeError):
        run(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        run()  # type: ignore[call-arg]


def test_threads_share_a_segment(fake: FakeCuda) -> None:
    fake["parameters"] = 2
    run = segment(fake, *[("one", 5, (1, 1, 1), 32, 0, ((0, index), 3), 0) for index in range(20)])
    run(Table(1))

    def work(base: int) -> None:
        table = Table(1)
        table.set(0, base)
        for _ in range(20):
            run(table)

    threads = [threading.Thread(target=work, args=(base,)) for base in (1 << 20, 1 << 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # the log itself is not safe from threads: what matters is that nobody saw another's arguments
    assert all(one.values[0] >> 20 in (1, 1 << 10) and one.values[1] == 3 for one in fake.launched())


def test_a_function_is_loaded_once_for_each_device(fake: FakeCuda) -> None:
    driver = _native.Driver(fake.path)
    first = load(driver, 0, cubin(60000))
    assert isinstance(first, Function) and first.registers == 32 and fake.entry == "fused_entry"
    assert fake["allowed"] == 60000 and fake["pushes"] == fake["pops"] == 1
    assert load(driver, 0, cubin(60000)) is first and fake["loads"] == 1
    assert load(driver, 1, cubin(60000)).address != first.address


def test_kernels_that_do_not_fit(fake: FakeCuda) -> None:
    driver = _native.Driver(fake.path)
    with pytest.raises(OutOfResources, match="needs 300000 bytes of shared memory a block, the device has 232448"):
        load(driver, 0, cubin(300000))
    fake["threads"] = 64
    with pytest.raises(OutOfResources, match="128 threads a block, its 32 registers allow 64"):
        load(driver, 0, cubin(key="other"))
    fake.fail("SET_ATTRIBUTE", 1)
    with pytest.raises(OutOfResources, match="does not fit the device"):
        load(driver, 0, cubin(60000, key="third"))
    assert fake["unloads"] == 1 and fake["pushes"] == fake["pops"]


def test_a_driver_older_than_the_assembler(fake: FakeCuda) -> None:
    fake.fail("LOAD", 222)
    with pytest.raises(BuildError, match=r"(?s)CUDA_ERROR_UNSUPPORTED_PTX_VERSION.*install a newer one"):
        load(_native.Driver(fake.path), 0, cubin())


def test_drivers_that_cannot_be_used(fake: FakeCuda, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"(?s)driver was not found.*no_such_driver.*install the driver"):
        open_driver("libno_such_driver.so.1")
    with pytest.raises(BuildError, match=r"(?s)driver was not found.*has no function cuInit"):
        open_driver("libm.so.6")
    fake["version"] = 11080
    with pytest.raises(BuildError, match="CUDA 11.8, which is too old"):
        open_driver(fake.path)
    (tmp_path / "second").mkdir()
    other = FakeCuda(tmp_path / "second")
    other.fail("INIT", 3)
    with pytest.raises(BuildError, match=r"(?s)does not start.*starting the driver: CUDA_ERROR_FAKE.*'spawn'"):
        open_driver(other.path)


def test_kernels_from_source_to_launch(fake: FakeCuda) -> None:
    pytest.importorskip("triton")
    fake["parameters"] = 6
    kernels = Kernels([add_kernel(), rows_kernel(4, 128)], "cuda:1", fake.path, lambda device: STREAM + device)
    run = kernels.segment(
        [
            (0, ((1000, "XBLOCK"),), ((1, 0), (2, 64), (0, 4096), 1000)),
            (0, ((0, "XBLOCK"),), ((1, 0), (2, 64), (0, 4096), 0)),
            (1, ((10, "XBLOCK"), (3, None)), ((0, 4096), (3, 0), 10, 100)),
        ]
    )
    assert fake["loads"] == 0
    table = Table(4)
    for slot in range(4):
        table.set(slot, (slot + 1) << 20)
    run(table)
    run(table)
    first, second = fake.launched()[2:]
    assert fake["loads"] == 2
    assert list(first.grid) == [4, 1, 1] and list(second.grid) == [3, 3, 1]
    assert list(first.values[:6]) == [2 << 20, (3 << 20) + 64, (1 << 20) + 4096, 1000, 0, 0]
    assert list(second.values[:6]) == [(1 << 20) + 4096, 4 << 20, 10, 100, 0, 0]
    assert first.stream == STREAM + 1 and first.threads[0] == 128
    assert second.shared > 0 and fake.entry in ("fused_add", "row_sums")


def test_a_refused_kernel_raises_at_the_first_call(fake: FakeCuda) -> None:
    pytest.importorskip("triton")
    bad = add_kernel(text=add_kernel().source.replace("tl.load(a + i", "tl.load(missing + i"))
    run = Kernels([bad], "cuda:0", fake.path, lambda _: 0).segment([(0, ((1, None),), ((0, 0),) * 3 + (1,))])
    with pytest.raises(BuildError, match=r"(?s)'fused_add'.*missing is not defined"):
        run(Table(1))


@pytest.mark.skipif(torch.version.cuda is not None, reason="a PyTorch with CUDA")
def test_a_torch_without_cuda() -> None:
    with pytest.raises(BuildError, match="built without CUDA"):
        Kernels([add_kernel()], "cuda:0")


@pytest.fixture(autouse=True)
def no_functions_remembered() -> None:
    cuda_driver._functions.clear()
