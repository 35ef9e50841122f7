"""Passes over joint prim graphs, between decomposition and partition or lowering: memory layouts, sums of rows."""
