"""smelt/runtime/library/collectives.py: what runs instead of the operators of a graph, in a group of one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from smelt.base.stats import stats
from smelt.runtime.library.collectives import Begun, CollectivesDiffer, Place, wait
from smelt.runtime.library.externs import extern
from smelt.runtime.library.fallback import WITH_LINE, Slot
from tests.capture.harness import same


@pytest.fixture(autouse=True)
def group() -> Iterator[str]:
    made = not dist.is_initialized()  # a model of another test may have made it
    if made:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD.group_name
    if made:
        dist.destroy_process_group()


CASES: dict[str, tuple[Any, ...]] = {
    "all_gather_into_tensor": (1,),
    "all_reduce": ("sum",),
    "all_to_all_single": ([4], [4]),
    "broadcast": (0,),
    "reduce_scatter_tensor": ("max", 1),
}


@pytest.mark.parametrize("strides", ["rows", "transposed"])
@pytest.mark.parametrize("width", [3, 0])
@pytest.mark.parametrize("name", CASES)
def test_functional_operators(name: str, width: int, strides: str, group: str) -> None:
    x = torch.arange(4.0 * width).reshape(4, width)
    x = x if strides == "rows" else x.t().contiguous().t()
    args = (*CASES[name], group)
    overload = f"_c10d_functional.{name}.default"
    want = getattr(torch.ops._c10d_functional, name).default(x.contiguous(), *args)
    want = torch.ops._c10d_functional.wait_tensor(want)
    before = x.clone()
    kernel = extern(overload, {"args": (Slot(0), *args), "devices": ["cpu"]}, [x], [want])
    assert same(wait(kernel.call(x)), want) and same(x, before)


def test_each_operator_is_there() -> None:
    assert {*CASES} == {name.split(".")[1] for name in WITH_LINE} - {"wait_tensor", "call"}


def test_a_tensor_that_nothing_writes_is_not_waited_for() -> None:
    x = torch.ones(3)
    assert wait(x) is x


class Pending:
    """A handle of a collective that ends after some questions."""

    def __init__(self, questions: int, error: str = "") -> None:
        self.questions, self.error = questions, error

    def wait(self, timeout: object = None) -> bool:
        if self.questions:
            self.questions -= 1
            raise RuntimeError("Operation timed out!")
        if self.error:
            raise RuntimeError(self.error)
        return True

    def is_completed(self) -> bool:
        return self.questions == 0


PLACE = Place("all_reduce", "sum", line="train.py:12")


def test_what_comes_late_is_waited_for() -> None:
    begun = Begun(PLACE, dist.group.WORLD, Pending(3), torch.ones(2), [], 1)
    waited = stats().get("collective_wait_s", 0.0)
    begun.wait()
    assert stats()["collective_wait_s"] >= waited


def test_errors_of_the_backend_name_rank_and_line() -> None:
    begun = Begun(PLACE, dist.group.WORLD, Pending(0, "Connection closed"), torch.ones(2), [], 1)
    with pytest.raises(RuntimeError, match="Connection closed") as caught:
        begun.wait()
    rank = dist.get_rank()
    assert not isinstance(caught.value, CollectivesDiffer)
    assert caught.value.__notes__ == [f"rank {rank} waited for all_reduce (sum) of float32[2] (train.py:12)"]


@pytest.mark.parametrize(
    ("one", "shape", "equal"),
    [
        (Place("all_reduce", "SUM"), (2,), True),  # capture and the code below it write the reduction differently
        (Place("all_reduce", "sum", line="other.py:1"), (2,), True),
        (Place("all_reduce", "sum"), (3,), False),
        (Place("all_reduce", "max"), (2,), False),
        (Place("broadcast", peer=0), (2,), False),
    ],
)
def test_which_places_belong_together(one: Place, shape: tuple[int, ...], equal: bool) -> None:
    assert (one.key(torch.ones(shape)) == PLACE.key(torch.ones(2))) == equal


def test_sizes_may_differ_where_processes_give_different_ones() -> None:
    place = Place("all_to_all_single")
    assert place.key(torch.ones(2)) == place.key(torch.ones(3)) != place.key(torch.ones(2, dtype=torch.int64))
