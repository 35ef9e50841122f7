"""Branches on tensors' values: both arms are captured and merged, or the graph checks a condition when it runs."""
