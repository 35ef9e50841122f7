"""Programs with symbolic sizes: one set of kernels, and one version of the host program for each tuple of sizes in use.

A version contains everything that can be prepared once sizes are numbers: offsets of intermediates, views, bound
operators. Making a version compiles nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from smelt.runtime.tuned import VERSIONS
from smelt.runtime.workspace import Workspaces


class Timed(Protocol):
    """An operator whose implementation is chosen by timing."""

    def follow(self, other: Any) -> None:
        """Use the implementation that the same operator uses in another version."""


class Version(NamedTuple):
    """The program for one tuple of sizes, with its operators in order and its memory."""

    call: Callable[[list[Any]], list[Any]]
    externs: Sequence[Timed]
    workspaces: Workspaces | None


class Sized:
    """A program whose last `count` inputs are integers, the values of its symbols, as a function `call(inputs)`.

    Args:
        at: function that makes the version for given values of the symbols.
    """

    def __init__(self, at: Callable[..., Version], count: int) -> None:
        self.at, self.count = at, count
        self.versions: dict[tuple[int, ...], Version] = {}

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run the version for these inputs, taken from a list that is emptied (boxed), as by every program."""
        sizes = tuple(inputs[-self.count :])
        del inputs[-self.count :]
        version = self.versions.get(sizes)
        return (version or self._new(sizes)).call(inputs)

    def _new(self, sizes: tuple[int, ...]) -> Version:
        version = self.at(*sizes)
        for others, known in reversed(list(self.versions.items())):
            if all(
                a < VERSIONS.near_factor * b and b < VERSIONS.near_factor * a
                for a, b in zip(sizes, others, strict=True)
            ):
                for mine, other in zip(version.externs, known.externs, strict=True):
                    mine.follow(other)
                break
        self._make_room()
        self.versions[sizes] = version
        return version

    def _make_room(self) -> None:
        """Drop the oldest versions, and the memory of idle ones."""
        while len(self.versions) >= VERSIONS.kept:
            del self.versions[next(iter(self.versions))]
        idle = 0
        for version in reversed(self.versions.values()):
            if version.workspaces is not None:
                idle += version.workspaces.bytes * len(version.workspaces.free)
                if idle > VERSIONS.idle_bytes:
                    version.workspaces.free.clear()
