"""The graph under construction: trace tensors, torch calls as nodes, thread modes, and numbers read from tensors.

The interpreter passes each call of torch to this package; `finish_graph` completes the graph that residual code calls.
"""
