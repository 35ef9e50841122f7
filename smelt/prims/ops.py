"""All primitives, each an attribute by its name (`smelt.prims.ops.add`): the targets of the nodes of a prim graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.prims import attention, creation, indexing, pointwise, products, reductions, scans, views, windows
from smelt.prims.kernels import FAMILIES as KERNELS
from smelt.prims.table import PRIMS, Prim

FAMILIES = (pointwise, reductions, views, indexing, creation, scans, products, attention, windows, *KERNELS)
"""The modules that define the primitives: importing them fills `table.PRIMS`."""

globals().update(PRIMS)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Prim: ...
