"""The prologue: computations without tensors (random numbers, clocks, NumPy) that Python makes before the graph runs.

Its operations are recorded during capture; the residual code of each call runs them in the same order.
"""
