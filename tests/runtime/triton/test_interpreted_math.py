"""smelt/runtime/triton/interpreted_math.py: Triton's interpreter has each function of `libdevice` that kernels call."""

from __future__ import annotations

import inspect
import re

from smelt.codegen.triton import library, target
from smelt.runtime.triton.interpreted_math import LIBDEVICE


def test_each_function_that_kernels_call_is_there() -> None:
    templates = [*target.FLOAT_OPS.values(), *target.INTEGER_OPS.values(), *target.BOOL_OPS.values()]
    texts = "\n".join([*templates, inspect.getsource(library)])
    called = set(re.findall(r"\blibdevice\.(\w+)", texts))
    assert len(called) > 20
    missing = called - set(vars(LIBDEVICE))
    assert not missing, f"enter in smelt/runtime/triton/interpreted_math.py: {sorted(missing)}"
