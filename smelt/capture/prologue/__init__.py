"""The prologue: what Python computes without tensors (random numbers, clocks, NumPy) before the graph runs.

Its operations are recorded during capture; the residual code of each call runs them in the same order.
"""
