"""PyTorch's database of operators (OpInfo).

Its module takes a base class of tests from `expecttest`, which is no dependency of torch; where that is missing,
the standard library's stands in: nothing here runs PyTorch's own tests.
"""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest
import warnings

if importlib.util.find_spec("expecttest") is None:
    stand_in = types.ModuleType("expecttest")
    stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules["expecttest"] = stand_in

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_methods_invocations as database
    from torch.testing._internal import common_utils

# For each sample it would look for a test of PyTorch's own on the stack, and read the source of every frame.
common_utils.extract_test_fn = lambda: None

__all__ = ["database"]
