"""Tables, launches and the fast reading of data pointers."""

from __future__ import annotations

import threading

import pytest
import torch

from smelt.runtime import launch as module
from smelt.runtime.build import build
from smelt.runtime.launch import Table, data_ptr, launch, launch_short

KERNEL = """
extern "C" void add(char **P) {
    const float *a = (const float *)P[0], *b = (const float *)P[1];
    float *c = (float *)P[2];
    #pragma omp parallel for
    for (long i = 0; i < 1000; i++) c[i] = a[i] + b[i];
}
"""


def test_fast_path_is_on() -> None:
    assert module.FAST_TENSOR_READS, "the layout of this torch did not validate"
    assert module.THREADS


@pytest.mark.parametrize("start", [launch, launch_short])
def test_launch(start) -> None:
    (library,) = build([KERNEL])
    address = library.address("add")
    a, b, c = torch.randn(1000), torch.randn(1000), torch.zeros(1000)
    table = Table(3)
    table.bind_all(0, [a, b])
    table.bind(2, c)
    start(address, table)
    assert torch.equal(c, a + b)
    other, d = table.copy(), torch.zeros(1000)
    other.set(2, d.data_ptr())
    start(address, other)
    assert torch.equal(d, a + b) and table.get(2) == c.data_ptr() and len(table) == 3


def test_table_checks_its_bounds() -> None:
    table, tensor = Table(2), torch.ones(1)
    for call in (
        lambda: table.bind(2, tensor),
        lambda: table.bind(-1, tensor),
        lambda: table.set(5, 0),
        lambda: table.bind_all(1, [tensor, tensor]),
    ):
        with pytest.raises(IndexError):
            call()
    for call in (
        lambda: table.bind(0, 3),
        lambda: table.bind(0),
        lambda: table.bind_all(0, tensor),
        lambda: launch(5, None),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError):
        launch(0, table)
    with pytest.raises(ValueError):
        Table(-1)


class Subclass(torch.Tensor):
    pass


def test_data_ptr_of_every_kind() -> None:
    base = torch.randn(4, 6)
    with torch.inference_mode():
        inference = torch.ones(3)
    for tensor in (base, base[1:], base.t(), base.as_subclass(Subclass), inference, torch.nn.Parameter(base.clone())):
        assert data_ptr(tensor) == tensor.data_ptr()


def test_copy_on_write_storage_is_materialised() -> None:
    base = torch.randn(8)
    address = base.data_ptr()
    lazy = torch.ops.aten._lazy_clone(base)
    assert data_ptr(lazy) != address
    assert torch.equal(lazy, base)


def test_values_without_plain_memory_are_refused() -> None:
    for tensor in (torch.ones(2, dtype=torch.complex64).conj(), torch.empty(2, device="meta")):
        with pytest.raises(TypeError):
            data_ptr(tensor)
    with pytest.raises(RuntimeError):
        data_ptr(torch.ones(2).to_sparse())


def test_two_threads_launch_at_once() -> None:
    (library,) = build([KERNEL])
    address = library.address("add")
    failures = []

    def work(shift: float) -> None:
        a, b, c = torch.full((1000,), shift), torch.ones(1000), torch.empty(1000)
        table = Table(3)
        table.bind_all(0, [a, b, c])
        for _ in range(50):
            c.zero_()
            launch(address, table)
            if not torch.equal(c, a + 1):
                failures.append(shift)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("first", [0, 3])
def test_a_tensor_whose_memory_was_freed(first: int) -> None:
    tensor = torch.ones(40)[first:]
    table = Table(2)
    table.bind(0, tensor)
    tensor.untyped_storage().resize_(0)
    for bind in (lambda: table.bind(1, tensor), lambda: table.bind_all(0, [torch.ones(2), tensor])):
        with pytest.raises(RuntimeError, match=r"has no memory: its storage was freed"):
            bind()
    table.bind(1, torch.empty(0))
    assert table.get(1) == 0
