"""What OpInfo says that operators refuse raises eager's class of error through `smelt.compile` as well."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import smelt
from tests.ops.cases import all_cases, copy

SLICE = """
add arange cat clamp_max diag dot dstack einsum expand fft.fft gather index_select item lerp linspace masked_fill
masked_select mul narrow nn.functional.embedding nn.functional.max_pool2d norm pow roll scatter sum_to_size
take tensor_split tril triu_indices unbind unfold where
""".split()
CASES = {c.info.full_name: c.info for c in all_cases(["float32", "int64"]) if c.info.error_inputs_func is not None}


def fresh(value: Any) -> Any:
    return tree_map(lambda x: copy(x) if isinstance(x, torch.Tensor) else x, value)


def check_refusals(name: str, **options: Any) -> None:
    """All error inputs of one operator, in eager and compiled."""
    op = CASES[name].op

    def call(x: Any, args: Any, kwargs: Any) -> Any:
        return op(x, *args, **kwargs)

    for error_input in CASES[name].error_inputs("cpu"):
        sample = error_input.sample_input
        given = (sample.input, tuple(sample.args), dict(sample.kwargs))
        raised = []
        for fn in (call, smelt.compile(call, **options)):
            try:
                fn(*fresh(given))
            except Exception as error:
                raised.append(type(error))
            else:
                raised.append(None)
        assert raised[0] is raised[1], (error_input.sample_input, raised)


@pytest.mark.parametrize("name", [name for name in SLICE if name in CASES])
def test_refusals(name: str) -> None:
    check_refusals(name)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", sorted(CASES)[::4])
def test_refusals_by_capture(name: str, dynamic: bool | None) -> None:
    """Metadata rules refuse what eager refuses, also of symbolic sizes."""
    smelt.reset()
    check_refusals(name, backend="eager", dynamic=dynamic)
