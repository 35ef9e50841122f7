"""Passes over joint prim graphs, after decomposition and before partition or lowering: memory layouts, sums of rows."""
