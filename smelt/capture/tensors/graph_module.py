"""The captured graph as a module: a torch.fx.GraphModule whose Python code is generated only when it is first needed.

The joint trace runs the graph node by node, so most captured graphs never need code; fx would generate it immediately
(15 ms for BERT-base).
"""

from __future__ import annotations

from typing import Any

from torch import fx

from smelt.base.locks import new_lock
from smelt.graph.ir.python_code import write_code

_WRITING = new_lock()


class CapturedGraph(fx.GraphModule):
    """A GraphModule that compiles `forward` at its first call, or when `code` is read."""

    def recompile(self) -> Any:
        """Mark the code as out of date."""
        self._stale = True
        return None

    def _write(self) -> None:
        if self._stale:
            with _WRITING:  # several threads may make the first call
                if self._stale:
                    write_code(self)  # replaces `forward` on this instance's own class
                    self._stale = False

    @property
    def code(self) -> str:
        """The Python code of `forward`."""
        self._write()
        return str(super().code)

    def forward(self, *args: object, **kwargs: object) -> Any:
        """Generate the code of `forward`, then run it."""
        self._write()
        written: Any = type(self).__dict__["forward"]
        return written(self, *args, **kwargs)
