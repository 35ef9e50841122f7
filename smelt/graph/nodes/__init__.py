"""Nodes of a torch-level graph that are no operators: regions of modes, branches, cuts, hooks, checks, gradients.

Capture emits them; autograd runs them, or cuts the graph at them.
"""
