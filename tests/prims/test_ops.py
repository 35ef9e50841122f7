"""Every primitive is a global of the module under its name, and each family's module has entered some."""

from __future__ import annotations

import copy
import pickle

import pytest

from smelt.prims import ops
from smelt.prims.table import PRIMS, Kind


def test_every_primitive_is_there_under_its_name() -> None:
    for name, prim in PRIMS.items():
        assert getattr(ops, name) is prim and prim.name == prim.__name__ == name
        assert pickle.loads(pickle.dumps(prim)) is copy.deepcopy(prim) is copy.copy(prim) is prim
        assert repr(prim) == f"prims.{name}" and prim.__doc__


def test_nothing_else_is() -> None:
    with pytest.raises(AttributeError):
        _ = ops.no_such_primitive


def test_families_are_the_modules_that_enter_primitives() -> None:
    given = [module.__name__ for module in ops.FAMILIES]
    assert len(given) == len(set(given))
    assert set(given) == {prim.meta.__module__ for prim in PRIMS.values()}


def test_kernels_are_the_primitives_of_that_kind() -> None:
    of_kernels = {name for name, prim in PRIMS.items() if prim.meta.__module__.startswith("smelt.prims.kernels.")}
    assert of_kernels == {name for name, prim in PRIMS.items() if prim.kind is Kind.KERNEL}
