"""Branches on tensors' values: both arms are captured and merged, or the graph checks the condition at run time."""
