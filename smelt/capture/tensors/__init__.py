"""The graph under construction: trace tensors, torch calls as nodes, thread modes, and numbers read from tensors.

The interpreter comes here for every call of torch; `finish_graph` completes the graph that residual code will call.
"""
