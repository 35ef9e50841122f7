"""Passes over joint prim graphs, between decomposition and partition or lowering: layouts, sums of rows, devices."""
