"""An interrupt may end an import: Python forgets the module, and the next import runs all of it once more."""

from __future__ import annotations

import importlib
import os
import sys
import traceback

import pytest
import torch

import smelt
from smelt.graph.ir import functional_form

TABLES = ("smelt.graph.ir.", "smelt.graph.nodes.", "smelt.prims.")
"""Packages whose modules fill tables that refuse a second entry. Elsewhere the last one counts."""


def _imported_again() -> str:
    """What fails where each module is imported once more, those first that were imported last."""
    failed = []
    for name, module in reversed(list(sys.modules.items())):
        if name.startswith(TABLES) and (module.__file__ or "").endswith(".py"):
            del sys.modules[name]
            try:
                importlib.import_module(name)
            except Exception as error:
                failed.append(f"{name}: {error}")
            sys.modules[name] = module
    return "\n".join(failed)


def test_each_module_can_be_imported_once_more() -> None:
    assert callable(smelt.compile)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = _imported_again()
        except BaseException:
            said = traceback.format_exc()
        os.write(writes, said.encode()[:4000])
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as told:
        assert told.read() == ""
    assert os.waitpid(child, 0)[1] == 0


def test_a_form_whose_making_was_interrupted_is_made_again() -> None:
    with torch.library._scoped_library("interrupted_form", "FRAGMENT") as library:
        library.define("into(Tensor x, Tensor(a!) y) -> ()")

        def into(x: torch.Tensor, y: torch.Tensor) -> None:
            y.copy_(x)

        library.impl("into", into, "CompositeExplicitAutograd")
        op = torch.ops.interrupted_form.into.default
        functional_form._library.define("interrupted_form__into__on_copies(Tensor x, Tensor y) -> Tensor")
        form = functional_form.functional_form(op, ("y",))
        x, y = torch.ones(3), torch.zeros(3)
        assert torch.equal(form(x, y), x) and not y.any()


def test_a_signal_handler_gets_an_error_while_the_import_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(smelt), "compile")
    monkeypatch.delattr(smelt.api, "compile")
    monkeypatch.setattr(smelt.api.__spec__, "_initializing", True)
    with pytest.raises(AttributeError, match=r"compile is being imported by(.|\n)*import smelt\.api before"):
        smelt.compile  # noqa: B018
