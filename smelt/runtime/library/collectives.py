"""Collectives of tensors of the CPU: begun by one extern, waited for by another, so that a program may work between.

A process that waits for more than `PATIENCE_S` tells the other processes of the group, through the store by which they
found each other, what it waits for. Processes that wait for different collectives at the same place of a group's order
would wait until the group's time limit: each raises an error instead that names both. Others, such as one that is late,
are waited for as long as the group allows.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.abi.collectives import BEGIN, group_named, reduction
from smelt.base.errors import SmeltError
from smelt.base.stats import count, spend_waiting
from smelt.base.torch_private import address_of_storage, collectives_begun, store_of_processes
from smelt.runtime.library.fallback import WITH_LINE

PATIENCE_S = 5.0
"""Seconds after which a process tells what it waits for. Until then nothing is sent and nothing is asked."""

POLL_S = 1.0
"""Seconds between questions what the others wait for."""

OF_ANY_SIZE = ("all_to_all_single", "gather", "scatter")
"""Collectives in which processes may write tensors of different sizes."""


class CollectivesDiffer(SmeltError):
    """Processes of a group wait for different collectives, so that none of them can end."""


@dataclass(frozen=True)
class Place:
    """A collective of a program as processes compare it.

    Attributes:
        name, op: which one, and the reduction or "".
        peer: the rank in the group that gives or gets; -1 if there is none.
        line: `file:line` of the user's program; "" if not known.
    """

    name: str
    op: str = ""
    peer: int = -1
    line: str = ""

    def shown(self, out: torch.Tensor) -> str:
        """Returns the text for errors, such as `all_reduce (sum) of float32[4]`."""
        how = f" ({self.op.lower()})" if self.op else f" (rank {self.peer} of the group)" if self.peer >= 0 else ""
        return f"{self.name}{how} of {str(out.dtype).removeprefix('torch.')}{list(out.shape)}"

    def key(self, out: torch.Tensor) -> list[Any]:
        """Returns what is equal in processes whose collectives belong together."""
        sizes = [] if self.name in OF_ANY_SIZE else list(out.shape)
        return [self.name, self.op.lower(), self.peer, str(out.dtype), sizes]


@dataclass(frozen=True)
class Begun:
    """A collective that was begun and not waited for: its handle, the tensor that it writes, those that it reads."""

    place: Place
    group: Any
    work: Any
    out: torch.Tensor
    read: Sequence[Any]
    number: int | None

    def wait(self) -> None:
        """Returns when it has ended.

        Raises:
            CollectivesDiffer: others wait for another collective.
            RuntimeError: what the backend reports; a note below it names the rank, the collective and the line.
        """
        begin = time.perf_counter()
        limit = PATIENCE_S
        try:
            while not self._ended(limit):
                self._compare()
                limit = POLL_S
        except CollectivesDiffer:
            raise
        except RuntimeError as error:
            at = f" ({self.place.line})" if self.place.line else ""
            error.add_note(f"rank {torch.distributed.get_rank()} waited for {self.place.shown(self.out)}{at}")
            raise
        finally:
            spend_waiting(time.perf_counter() - begin)

    def _ended(self, seconds: float) -> bool:
        try:
            self.work.wait(datetime.timedelta(seconds=seconds))
        except RuntimeError:
            if not self.work.is_completed():
                return False
            self.work.wait()  # it may have ended meanwhile; an error of its own is raised here
        return True

    def _compare(self) -> None:
        """Tell the others what this process waits for, and raise an error if one of them waits for something else."""
        if self.number is None:
            return
        own = {"number": self.number, "key": self.place.key(self.out), "shown": self.place.shown(self.out)}
        own |= {"line": self.place.line}
        differing = None
        with contextlib.suppress(RuntimeError):  # the store is gone with its process: the backend reports that one
            differing = _differing(self.group, own)
        if differing is None:
            return
        time.sleep(2 * POLL_S)  # the others ask, too, and may need this process for an answer
        if not self.work.is_completed():
            raise differing


def _differing(group: Any, own: dict[str, Any]) -> CollectivesDiffer | None:
    """Returns the error about a process that waits, at the same place of the group's order, for another collective."""
    store = store_of_processes(torch.distributed.distributed_c10d)
    here = torch.distributed.get_rank()
    store.set(f"smelt/waits/{group.group_name}/{here}", json.dumps(own))
    for rank in torch.distributed.get_process_group_ranks(group):
        key = f"smelt/waits/{group.group_name}/{rank}"
        if rank == here or not store.check([key]):
            continue
        other = json.loads(store.get(key))
        if other["number"] == own["number"] and other["key"] != own["key"]:
            where = f" at {other['line']}" if other["line"] else ""
            return CollectivesDiffer(
                f"rank {here} waits for {own['shown']}, rank {rank} for {other['shown']}{where}",
                at=own["line"] or None,
                why="the collectives of a group are matched by their order, so neither can end",
                hint="let all processes call the same collectives, on equal sizes, in the same order",
            )
    return None


_begun: dict[int, Begun] = {}
"""Collectives that were begun and not waited for, by the storage that each writes."""


def start(place: Place, group_name: str, out: torch.Tensor, read: Sequence[Any], begin: Callable[[Any], Any]) -> Any:
    """Begin a collective; returns the tensor that has its result after `wait`.

    Args:
        begin: gets the group and returns the handle.
    """
    group = group_named(group_name)
    work = begin(group)
    if work is None:  # this process has no part in it
        return out
    number = None
    with contextlib.suppress(RuntimeError):  # the backend does not count them
        number = collectives_begun(group)
    count("collectives")
    _begun[address_of_storage(out.untyped_storage())] = Begun(place, group, work, out, read, number)
    return out


def wait(tensor: torch.Tensor) -> torch.Tensor:
    """Wait for the collective that writes a tensor, if one does; returns the tensor."""
    begun = _begun.pop(address_of_storage(tensor.untyped_storage()), None)
    if begun is None:
        return torch.ops._c10d_functional.wait_tensor.default(tensor)
    begun.wait()
    return tensor


def _all_reduce(line: str, x: torch.Tensor, op: str, group: str) -> Any:
    return _named(Place("all_reduce", op, line=line), group, _copy(x), [], op)


def _broadcast(line: str, x: torch.Tensor, peer: int, group: str) -> Any:
    return _named(Place("broadcast", peer=peer, line=line), group, _copy(x), [], "", peer)


def _all_gather(line: str, x: torch.Tensor, size: int, group: str) -> Any:
    out = x.new_empty(size * x.shape[0], *x.shape[1:])
    return _named(Place("all_gather_into_tensor", line=line), group, out, [x.contiguous()])


def _reduce_scatter(line: str, x: torch.Tensor, op: str, size: int, group: str) -> Any:
    out = x.new_empty(x.shape[0] // size, *x.shape[1:])
    return _named(Place("reduce_scatter_tensor", op, line=line), group, out, [x.contiguous()], op)


def _all_to_all(line: str, x: torch.Tensor, received: Sequence[int], sent: Sequence[int], group: str) -> Any:
    out, x = x.new_empty(sum(received), *x.shape[1:]), x.contiguous()

    def begin(group: Any) -> Any:
        return torch.distributed.all_to_all_single(out, x, list(received), list(sent), group, async_op=True)

    return start(Place("all_to_all_single", line=line), group, out, [x], begin)


def _call(line: str, written: torch.Tensor, read: Sequence[Any], name: str, group: str, peer: int, op: str) -> Any:
    """Begin a collective of `graph.ir.collective_calls`."""
    rooted = name in ("gather", "reduce", "scatter")
    return _named(Place(name, op, peer if rooted else -1, line), group, written.clone(), read, op, peer)


def _named(place: Place, group: str, out: torch.Tensor, read: Sequence[Any], op: str = "", peer: int = 0) -> Any:
    return start(place, group, out, read, lambda found: BEGIN[place.name](found, out, read, peer, reduction(op)))


def _copy(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


WITH_LINE |= {
    "_c10d_functional.all_gather_into_tensor.default": _all_gather,
    "_c10d_functional.all_reduce.default": _all_reduce,
    "_c10d_functional.all_to_all_single.default": _all_to_all,
    "_c10d_functional.broadcast.default": _broadcast,
    "_c10d_functional.reduce_scatter_tensor.default": _reduce_scatter,
    "_c10d_functional.wait_tensor.default": lambda line, tensor: wait(tensor),
    "smelt_collectives.call.default": _call,
}
