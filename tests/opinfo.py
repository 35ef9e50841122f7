"""PyTorch's database of operators (OpInfo). Its module imports `expecttest`, which is no dependency of torch.

Test modules that import this one are skipped where the package is missing, with the reason.
"""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("expecttest", reason="OpInfo needs expecttest: pip install expecttest")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_methods_invocations as database

__all__ = ["database"]
