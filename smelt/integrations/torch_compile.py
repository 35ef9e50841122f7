"""`torch.compile(model, backend="smelt")`: torch's capture, this compiler.

Found through the entry-point group `torch_dynamo_backends`, which torch reads; nothing of torch's compiler is imported
here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

import smelt as compiler


def smelt(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A backend of torch.compile.

    Args:
        gm: the graph that torch captured.
        example_inputs: its inputs: tensors and integers; symbolic integers for symbolic sizes.
        mode: as in `smelt.compile`.
        options: as in `smelt.compile`.

    Raises:
        OptionError: an unknown mode or option, or both are given.
    """
    return compiler.lookup_backend("smelt")(gm, example_inputs, mode=mode, options=options)
