"""Sees the torch functions that C code of the program calls by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

from smelt.capture.breaks import through_c
from smelt.capture.unknown_text import text_break
from smelt.graph.trace import text


def refuse_text() -> None:
    """C code asks for the text of a tensor.

    Raises:
        Break: always.
    """
    raise text_break()


class Watch(TorchFunctionMode):
    """On while C code of the program runs: records the torch functions that it calls by itself."""

    def __init__(self, tensors: Any) -> None:
        super().__init__()
        self.tensors = tensors
        self._on = False

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call C code."""
        if self._on:
            return fn(*args, **kwargs)
        with self:
            return fn(*args, **kwargs)

    def __enter__(self) -> Watch:
        super().__enter__()
        self._on, text.refuse = True, refuse_text
        return self

    def __exit__(self, *error: Any) -> None:
        self._on, text.refuse = False, None
        super().__exit__(*error)

    def pause(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Call back into the interpreter from C code."""
        if not self._on:
            return fn(*args)
        self.__exit__(None, None, None)
        try:
            return fn(*args)
        finally:
            self.__enter__()

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self._on, text.refuse = False, None  # torch took the mode off while this runs
        try:
            return through_c(lambda: self.tensors.run(func, tuple(map(self.tensors.handle, args)), kwargs or {}))
        finally:
            self._on, text.refuse = True, refuse_text
