"""The backend of `torch.compile(model, backend="smelt")`: a graph that torch captured is compiled by smelt.

torch finds this backend through the entry-point group `torch_dynamo_backends`. This module imports no part of torch's
compiler.
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
    """Compile a graph that torch.compile captured; returns a callable over the graph's inputs.

    Args:
        gm: the graph that torch captured.
        example_inputs: its inputs: tensors and integers; symbolic integers for symbolic sizes.
        mode: as in `smelt.compile`.
        options: as in `smelt.compile`.

    Raises:
        OptionError: an unknown mode or option, or both are given.
    """
    return compiler.lookup_backend("smelt")(gm, example_inputs, mode=mode, options=options)
