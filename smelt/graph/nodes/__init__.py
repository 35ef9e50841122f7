"""Nodes of a torch-level graph that are not operators: regions of modes, branches, eager boundaries, hooks, checks.

Capture emits them; autograd runs them, or cuts the graph at them.
"""
