"""NumPy arrays that share memory with tensors of the graph: their operations become tensor operations.

Only operations whose dtype, shape and values NumPy and PyTorch give alike are captured; others end the graph, so that
NumPy computes them.
"""
