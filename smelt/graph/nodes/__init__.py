"""Nodes of a torch-level graph other than operators: regions of modes, branches, eager boundaries, hooks, checks,
gradients.

Capture emits them; autograd runs them, or cuts the graph at them.
"""
