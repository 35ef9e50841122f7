"""A call of the program that runs in eager, between two compiled pieces of a graph.

Sparse and quantised tensors go from one such call to the next unchanged, with the history that PyTorch's own autograd
gives them; derivatives of the call are eager's. The surrounding graph stays one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from smelt.base.torch_c import recording
from smelt.graph.nodes.cut_points import EagerBoundary


class EagerCall(EagerBoundary):
    """The call `target(args, kwargs)` as the captured program made it.

    Attributes:
        operators: the operators of the call, for `stats()["extern_ops"]`.
        modes: (gradients, then for each device: its name, autocast and its dtype) if the program has switched modes.
    """

    def __init__(
        self, call: Callable[..., Any] | str, operators: Sequence[str], modes: Sequence[Any] | None = None
    ) -> None:
        super().__init__()
        self.call, self.operators, self.modes = call, tuple(operators), modes
        self.__name__ = self.__qualname__ = f"eager_{call if isinstance(call, str) else getattr(call, '__name__', '')}"
        self.why = f"{', '.join(dict.fromkeys(self.operators))} in eager"

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if self.modes is None:
            return self._run(args, kwargs)
        gradients, *casts = self.modes
        return recording(gradients, self._cast, casts, args, kwargs)

    def _cast(self, casts: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with ExitStack() as regions:
            for device, enabled, dtype in casts:
                if (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) == (enabled, dtype):
                    continue
                regions.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled))
            return self._run(args, kwargs)

    def _run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if isinstance(self.call, str):
            return getattr(args[0], self.call)(*args[1:], **kwargs)
        return self.call(*args, **kwargs)
