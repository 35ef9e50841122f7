"""The rows of `smelt ops`."""

from smelt.prims.listing import listing
from smelt.prims.registry import DECOMPOSITIONS
from smelt.prims.table import PRIMS


def test_rows():
    rows = listing()
    assert len(rows) == len(PRIMS) + len(DECOMPOSITIONS)
    by_name = {row.name: row for row in rows}
    assert by_name["add"].status == "prim" and by_name["add"].kind == "pointwise"
    assert by_name["svd"].status == by_name["svd"].kind == "kernel"
    silu = by_name["aten.silu.default"]
    assert (silu.kind, silu.status) == ("activations", "decomposed") and "silu" in silu.schema
