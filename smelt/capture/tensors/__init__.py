"""The graph under construction: trace tensors, torch calls as nodes, modes, and numbers that tensors hold.

The interpreter comes here for every call of torch; `finish_graph` closes what residual code will call.
"""
