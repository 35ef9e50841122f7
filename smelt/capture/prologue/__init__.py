"""The prologue: what Python computes without tensors (random numbers, clocks, NumPy) before the graph runs.

Its operations are recorded during capture and run again, in order, by the residual code of each call.
"""
