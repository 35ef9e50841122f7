"""smelt/cli/operators.py: every operator has a status, and the committed page is what the tables say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from smelt.cli.main import app
from smelt.cli.operators import STATUSES, aten_rows, page, prim_rows
from smelt.loops.registry import LOWERINGS
from smelt.prims.registry import DECOMPOSITIONS
from smelt.prims.table import PRIMS
from smelt.program import EXTERNS

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"


def test_rows() -> None:
    prims, aten = {row.name: row for row in prim_rows()}, {row.name: row for row in aten_rows()}
    assert prims.keys() == PRIMS.keys()
    assert {str(target) for target in DECOMPOSITIONS} <= aten.keys()
    assert {row.status for row in (*prims.values(), *aten.values())} <= STATUSES.keys()
    assert (prims["add"].kind, prims["add"].status) == ("pointwise", "prim")
    assert prims["matmul" if "matmul" in prims else "mm"].status == "extern kernel"
    assert (aten["aten.silu.default"].kind, aten["aten.silu.default"].status) == ("activations", "decomposed")
    assert aten["aten.mm.default"].status == "extern kernel"
    without = aten.keys() - {str(target) for target in DECOMPOSITIONS}
    assert without and {aten[name].status for name in without} == {"eager fallback"}
    assert not {"aten.add_.Tensor", "aten.add.out", "aten.matmul.default"} & aten.keys()


VERSION = ".".join(torch.__version__.split(".")[:2])


@pytest.mark.skipif(f"with torch {VERSION}." not in PAGE.read_text(), reason="the page is of another torch")
def test_the_page_is_current() -> None:
    assert page() == PAGE.read_text(), "run `smelt ops --write docs/operators.md`"


def test_a_status_chooses(tmp_path: Path) -> None:
    run = CliRunner()
    output = run.invoke(app, ["ops", "--aten", "--status", "extern kernel"]).output
    assert "aten.mm.default" in output and "aten.silu.default" not in output
    assert "is none of" in " ".join(run.invoke(app, ["ops", "--status", "slow"]).output.split())
    run.invoke(app, ["ops", "--write", str(tmp_path / "page.md")])
    assert (tmp_path / "page.md").read_text() == page()


def test_every_primitive_runs_somehow_and_nothing_else_does() -> None:
    """Loops, a named kernel of a library, or an ATen kernel; and no lowering stands for what is no primitive."""
    for name, prim in PRIMS.items():
        assert name in LOWERINGS or name in EXTERNS or prim.kernel is not None, f"{name} has neither loops nor a kernel"
        if name not in LOWERINGS and name not in EXTERNS:
            assert isinstance(prim.kernel, torch._ops.OpOverload)
    assert LOWERINGS.keys() <= PRIMS.keys()
    kernels = {name for name in EXTERNS if not name.startswith("aten")}  # the library's own operators
    assert kernels <= PRIMS.keys()


def test_how_many_operators_are_decomposed() -> None:
    """Of canonical ATen; a number to raise."""
    rows = aten_rows()
    assert sum(row.status != "eager fallback" for row in rows) >= 750
