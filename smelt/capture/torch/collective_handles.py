"""Handles of asynchronous collectives in compiled code, where each collective has ended when Python goes on."""

from __future__ import annotations

import torch


class EndedCollective:
    """The handle that an asynchronous collective returns: nothing is left to wait for.

    Attributes:
        tensors: what the collective has written.
    """

    def __init__(self, tensors: list[object]) -> None:
        self.tensors = tensors

    def wait(self, timeout: object = None) -> bool:
        """Returns True at once."""
        return True

    def is_completed(self) -> bool:
        """Returns True."""
        return True

    def is_success(self) -> bool:
        """Returns True: a collective that fails raises its error where it is called."""
        return True

    def exception(self) -> None:
        """Returns None."""

    def synchronize(self) -> None:
        """Does nothing."""

    def result(self) -> list[object]:
        """Returns what the collective has written."""
        return self.tensors

    def get_future(self) -> torch.futures.Future[list[object]]:
        """Returns a future whose value is there."""
        future: torch.futures.Future[list[object]] = torch.futures.Future()
        future.set_result(self.tensors)
        return future
