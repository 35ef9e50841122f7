"""SMELT_DEBUG_MEMORY=1 names buffer, kernel and line of what touches memory that is not its own."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt import pipeline
from smelt.abi.rendered import Rendered
from smelt.runtime.watched_memory import GUARD, MAX_BUFFERS_CHECKED_ALWAYS, MemoryFault, Watch
from tests.fuzz.tensor_programs import make_program
from tests.fuzz.tensor_runs import compare

TARGETS = pytest.mark.parametrize("target", ["cpp", "triton"])
STEPS = [("first kernel", {"a": "model.py:3"}), ("second kernel", {"b": "model.py:4"})]
DTYPES = [
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool,
]  # fmt: skip


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_DEBUG_MEMORY", "1")


def write(address: int, value: int = 1) -> None:
    ctypes.memset(address, value, 1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_buffer_is_an_ordinary_tensor(dtype: torch.dtype) -> None:
    w = Watch(STEPS).begin()
    a = w.empty("a", (5, 3), (4, 1), dtype)
    assert a.storage_offset() == 0 and a.stride() == (4, 1) and not a._is_view() and a.data_ptr() % 64 == 0
    assert a.untyped_storage().nbytes() == 19 * dtype.itemsize
    for _ in w.step(0, {"a": a}):
        a.copy_(torch.arange(15).reshape(5, 3))
    w.ended("a")
    assert w.returned([3])
    del w
    a.fill_(1)  # the memory lives as long as the tensor


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_element_that_is_not_written(dtype: torch.dtype) -> None:
    w = Watch(STEPS).begin()
    a = w.empty("a", (4, 6), (6, 1), dtype)
    with pytest.raises(MemoryFault, match=r"(?s)step 0 \(first kernel\) leaves 1 of 24 .*\[2, 5\].*'a'.*model.py:3"):
        for _ in w.step(0, {"a": a}):
            a.view(-1)[:17] = 1
            a.view(-1)[18:] = 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("before", [False, True])
def test_a_write_beside_a_buffer(dtype: torch.dtype, before: bool) -> None:
    w = Watch(STEPS).begin()
    a, b = w.empty("a", (7,), (1,), dtype), w.empty("b", (7,), (1,), dtype)
    for _ in w.step(0, {"a": a}):
        a.fill_(1)
    side = "before" if before else "behind"
    with pytest.raises(MemoryFault, match=rf"(?s)step 1 \(second kernel\) has written {side} buffer 'a'.*model.py:3"):
        for _ in w.step(1, {"b": b}):
            b.fill_(1)
            write(a.data_ptr() - 1 if before else a.data_ptr() + 7 * dtype.itemsize)


def test_of_many_buffers_all_are_looked_at_in_the_end() -> None:
    w = Watch(STEPS).begin()
    many = [w.empty(f"a{i}", (3,), (1,), torch.float32) for i in range(MAX_BUFFERS_CHECKED_ALWAYS + 3)]
    for x in many:
        x.fill_(1)
    for _ in w.step(0, {"a7": many[7]}):
        write(many[0].data_ptr() - 1)
    with pytest.raises(MemoryFault, match="a step of this call has written before buffer 'a0'"):
        w.returned(many)


def test_values_that_look_like_poison_are_values() -> None:
    w = Watch(STEPS).begin()
    for dtype, value in ((torch.uint8, 0xA5), (torch.int16, -23131), (torch.int64, -6510615555426900571)):
        a = w.empty("a", (9,), (1,), dtype)
        for _ in w.step(0, {"a": a}):
            a.fill_(value)
        assert (a == value).all()
    assert w.returned([a])


def test_poison_that_was_read() -> None:
    w = Watch(STEPS).begin()
    a, b = w.empty("a", (7,), (1,), torch.float32), w.empty("b", (7,), (1,), torch.float32)
    for _ in w.step(0, {"a": a}):
        a.fill_(1)
    w.ended("a")
    with pytest.raises(MemoryFault, match=r"(?s)step 1 \(second kernel\) has read memory that holds no value.*'b'"):
        for _ in w.step(1, {"b": b}):
            torch.mul(a, 2, out=b)


def test_a_write_after_the_last_use() -> None:
    w = Watch(STEPS).begin()
    a = w.empty("a", (7,), (1,), torch.int32)
    for _ in w.step(0, {"a": a}):
        a.fill_(1)
    w.ended("a")
    a[3] = 4
    with pytest.raises(MemoryFault, match=r"(?s)buffer 'a' was written after its last use, in step 0.*1 of 7.*\[3\]"):
        w.returned([])


def test_a_result_in_memory_that_is_free() -> None:
    w = Watch(STEPS).begin()
    a = w.empty("a", (7,), (1,), torch.float32)
    for _ in w.step(0, {"a": a}):
        a.fill_(1)
    view = a.view(torch.int32)
    w.ended("a")
    with pytest.raises(MemoryFault, match=r"(?s)result 1 lies in buffer 'a', whose memory is free.*model.py:3"):
        w.returned([torch.ones(2), view])


def plant(monkeypatch: pytest.MonkeyPatch, change: Callable[[str], str]) -> None:
    """Have generated C++ kernels say something else."""
    render = pipeline.render_cpp

    def faulty(*args: Any) -> Rendered:
        rendered = render(*args)
        changed = [change(source) for source in rendered.cpp_sources]
        assert changed != rendered.cpp_sources
        rendered.cpp_sources = changed
        return rendered

    monkeypatch.setattr(pipeline, "render_cpp", faulty)


def rows(x: torch.Tensor) -> torch.Tensor:
    return (x.softmax(-1) @ x.t()).cumsum(-1).exp().sum(1)


def test_a_kernel_that_writes_past_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda text: re.sub(r"a(\d)\[k0\] = (\w+);", r"a\1[k0] = \2; a\1[k0 + 1] = \2;", text))
    with pytest.raises(
        MemoryFault, match=r"(?s)\(kernel\d\) has written behind buffer '\w+'.*test_watched_memory.py:\d+"
    ):
        smelt.compile(rows)(torch.randn(50, 70))


def test_a_kernel_that_leaves_an_element_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, lambda text: text.replace("k0 < 50;", "k0 < 49;"))
    with pytest.raises(MemoryFault, match=r"(?s)\(kernel0\) leaves 70 of 3500 elements.*test_watched_memory.py:\d+"):
        smelt.compile(rows)(torch.randn(50, 70))


def test_a_buffer_whose_life_ends_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = pipeline.watch

    def shortened(*args: Any) -> Any:
        plan = watch(*args)
        plan.last_use |= {name: 0 for name in plan.watched.shared}
        return plan

    monkeypatch.setattr(pipeline, "watch", shortened)
    with pytest.raises(MemoryFault, match=r"(?s)reads buffer '\w+', whose memory is free after step 0.*py:\d+"):
        smelt.compile(lambda x: ((x * 2).cumsum(-1).cumsum(0).exp() * x.sum(1)).relu())(torch.randn(50, 50))


@TARGETS
def test_programs_that_are_right_are_not_refused(target: str) -> None:
    def step(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.layer_norm((x @ w).relu(), (w.shape[1],))
        z = torch.zeros_like(y).index_add(0, i, y) + y.sort(-1)[0]
        return torch.cat([z, z.flip(0)]).softmax(-1).square().mean()

    compiled = smelt.compile(step, options={"target": target})
    for rows in (12, 12, 31):
        x = torch.randn(rows, 20, requires_grad=True)
        w, i = torch.randn(20, 20, requires_grad=True), torch.randint(0, rows, (rows,))
        want = torch.autograd.grad(step(x, w, i), (x, w))
        got = torch.autograd.grad(compiled(x, w, i), (x, w))
        torch.testing.assert_close(got, want)


@TARGETS
@pytest.mark.parametrize("number", range(8))
def test_random_programs(target: str, number: int) -> None:
    found = compare(make_program(f"watched:{number}"), target=target)
    assert found["status"] in ("same", "invalid"), found["detail"]


def test_a_program_of_every_size() -> None:
    compiled = smelt.compile(rows, dynamic=True)
    for n in (3, 8, 65):
        x = torch.randn(n, 7)
        torch.testing.assert_close(compiled(x), rows(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_written_inputs_are_between_guard_bytes(dtype: torch.dtype) -> None:
    w = Watch(STEPS).begin()
    whole = torch.ones(41, dtype=dtype)
    given = whole[1:].view(5, 8)[:, ::2]
    inputs: list[Any] = [3, given, torch.ones(0), given]
    w.surround(inputs, {1: "weight", 2: "empty"})
    inside = inputs[1]
    assert inside is not given and inputs[3] is given and inside.stride() == given.stride()
    assert inside.data_ptr() % 64 == given.data_ptr() % 64 and torch.equal(inside, given)
    inside.fill_(0)
    assert bool(given.all())
    result, number = w.returned([inside, 2])
    assert result is given and number == 2 and not given.any()
    assert bool(whole[::2].all())  # what lies around it is as it was


@pytest.mark.parametrize("place", [-1, 1, 20])
def test_a_write_beside_an_input(place: int) -> None:
    w = Watch(STEPS).begin()
    inputs = [torch.ones(5, 4)[:, ::2]]
    w.surround(inputs, {0: "weight"})
    told = {-1: "written before buffer 'weight'", 1: "between the elements of 'weight'", 20: "behind buffer 'weight'"}
    with pytest.raises(MemoryFault, match=rf"(?s){told[place]}.*model.py:3"):
        for _ in w.step(0, {}):
            write(inputs[0].data_ptr() + 4 * place)
        w.number = 0
        w.copy_back([])


def trained(compiled: bool, **options: Any) -> list[Any]:
    """A step with an optimizer, of parameters in one buffer."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 3))
    flat = torch.zeros(sum(p.numel() for p in model.parameters()) + 2)
    at = 1
    for p in model.parameters():
        p.data = flat[at : at + p.numel()].view(p.shape).copy_(p.data)
        at += p.numel()
    optimizer = torch.optim.Adam(model.parameters(), 0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    call = smelt.compile(step, fullgraph=True, **options) if compiled else step
    losses = [call(torch.ones(5, 6)) for _ in range(3)]
    return [losses, flat, [v for s in optimizer.state.values() for v in s.values()]]


def test_results_may_be_resized_and_share_memory_as_without_the_mode() -> None:
    def fn(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sort(-1)[0] + 1
        return y, y.view(torch.int32), y[1:], x * 2

    y, bits, part, twice = smelt.compile(fn)(torch.randn(4, 6))
    assert bits.data_ptr() == y.data_ptr() and part.data_ptr() == y[1:].data_ptr()
    kept = y.clone()
    assert twice.resize_(20, 6).shape == (20, 6) and torch.equal(part, kept[1:])
    y.untyped_storage().resize_(0)
    assert part.untyped_storage().nbytes() == 0


@TARGETS
def test_whole_steps(target: str) -> None:
    torch.testing.assert_close(trained(True, options={"target": target}), trained(False))


@pytest.mark.parametrize("by", ["+ 1", "- 1"])
def test_a_step_that_writes_into_the_parameter_beside(monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    store = re.compile(r"a(\d)\[i0\] = (\w+);")

    def beside(text: str) -> str:
        kernels = re.split(r"(?=extern \"C\")", text)
        return "".join(store.sub(rf"a\1[i0] = \2; a\1[i0 {by}] = \2;", k) if "sqrt" in k else k for k in kernels)

    plant(monkeypatch, beside)
    with pytest.raises(MemoryFault, match=r"(?s)has written (behind|before) buffer 'primals_\d+'.*_watched_memory.py:"):
        trained(True)


def test_guards_are_as_large_as_a_line_of_any_cache() -> None:
    assert GUARD % 64 == 0


@pytest.mark.gpu
def test_faults_on_a_gpu() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    w = Watch(STEPS, device).begin()
    a = w.empty("a", (7, 3), (4, 1), torch.float32)
    assert a.device == device and a.storage_offset() == 0 and a.untyped_storage().nbytes() == 27 * 4
    for _ in w.step(0, {"a": a}):
        a.fill_(1)
    whole = torch.empty(0, device=device).set_(w.blocks[0].allocation.view(torch.float32).untyped_storage())
    inside = w.blocks[0].start // 4
    with pytest.raises(MemoryFault, match=r"step 1 \(second kernel\) has written behind buffer 'a'"):
        for _ in w.step(1, {}):
            whole[inside + 27] = 2.0
    b = w.empty("b", (5,), (1,), torch.int64)
    with pytest.raises(MemoryFault, match=r"leaves 2 of 5 elements"):
        w.blocks.pop(0)
        for _ in w.step(1, {"b": b}):
            b[2:] = 1


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(20))
def test_random_programs_on_a_gpu(number: int) -> None:
    found = compare(make_program(f"watched gpu:{number}"), "cuda")
    assert found["status"] in ("same", "invalid"), found["detail"]


@TARGETS
def test_one_gradient_of_two_inputs_is_copied_for_one_of_them(target: str) -> None:
    x, y = (torch.rand(4, 5, requires_grad=True) for _ in range(2))
    smelt.compile(lambda a, b: (a + b).sin().sum(), options={"target": target})(x, y).backward()
    assert x.grad is not None and y.grad is not None
    before = y.grad.clone()
    x.grad.mul_(2)
    assert torch.equal(y.grad, before)
