"""What is inlined, left whole, run as it is, put off or refused; which files are never captured by themselves."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import random
import sys
import types

import pytest
import torch
import torch.nn.functional as F

from smelt.capture.core import compiler_marks
from smelt.capture.core.policy import Policy, is_frozen, policy_of, skipped_prefixes
from smelt.capture.torch.escapes import disable


@pytest.mark.parametrize(
    ("function", "policy"),
    [
        (test_module := lambda: None, Policy.INLINE),
        (contextlib.contextmanager, Policy.INLINE),
        (torch.nn.Linear.forward, Policy.INLINE),
        (torch.no_grad.__init__, Policy.INLINE),
        (F.cross_entropy, Policy.LEAF),
        (torch.einsum, Policy.LEAF),
        (inspect.signature, Policy.NATIVE),
        (logging.Logger.warning, Policy.DEFER),
        (random.Random.shuffle, Policy.BREAK),
    ],
    ids=lambda v: getattr(v, "__qualname__", str(v)),
)
def test_policy(function, policy):
    assert policy_of(function) is policy


def test_frozen_modules():
    assert is_frozen("torch.nn.modules.linear") and is_frozen("functools") and is_frozen("builtins")
    assert not is_frozen("transformers.models.bert") and not is_frozen(__name__) and not is_frozen(None)


def test_prefixes_skip_torch_and_the_standard_library_but_not_layers_and_packages():
    prefixes = skipped_prefixes()
    assert contextlib.__file__.startswith(prefixes) and torch._tensor.__file__.startswith(prefixes)
    assert torch.nn.modules.module.__file__.startswith(prefixes) and F.__file__.startswith(prefixes)
    assert not torch.nn.modules.linear.__file__.startswith(prefixes) and not __file__.startswith(prefixes)
    assert not pytest.__file__.startswith(prefixes)
    assert all(p.startswith("<") or os.path.isabs(p) for p in prefixes)


def test_prefixes_skip_deepspeed_where_it_is_installed(monkeypatch, tmp_path):
    """Its hooks gather and release the parameters of each layer: capturing them took minutes."""
    prefixes = skipped_prefixes.__wrapped__
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text("def hook(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)
    file = str(tmp_path / "deepspeed" / "runtime" / "engine.py")
    assert file.startswith(prefixes()) and "deepspeed" not in sys.modules
    assert not str(tmp_path / "deepspeed_of_mine.py").startswith(prefixes())
    monkeypatch.setitem(sys.modules, "deepspeed", types.ModuleType("deepspeed"))  # without a spec
    assert not file.startswith(prefixes())


def test_disabled_marks():
    assert compiler_marks.disabled(disable(lambda: 1, reason="because")) == "because"
    assert compiler_marks.disabled(lambda: 1) is None
